"""The value-based family on the off-policy loop: DQN, QR-DQN, IQN and FQF."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import field_validator, model_validator

from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.fqf import FQF
from rl_training.algorithms.iqn import IQN
from rl_training.algorithms.qr_dqn import QRDQN
from rl_training.algorithms.recurrent import RECURRENT
from rl_training.algorithms.value_learner import ValueLearner
from rl_training.base.batches import Tensors
from rl_training.base.options import Sizes, opt
from rl_training.data import PrioritizedReplayBuffer
from rl_training.experiment.config import TrainConfig
from rl_training.models import MLPFQFNetwork, MLPIQNetwork, MLPQNetwork, MLPQRQNetwork
from rl_training.runtime.loops.off_policy import OffPolicyLoop, OffPolicyOptions, make_replay
from rl_training.runtime.loops.recurrent import MEMORY_FORM, MemoryOptions, SequenceLoop
from rl_training.runtime.loops.shared import SharedOffPolicyLoop
from rl_training.runtime.network_options import NetworkOptions, OptimizerOptions
from rl_training.runtime.options import Schedule
from rl_training.runtime.run import Run
from rl_training.runtime.schedules import ScheduleSpec, resolve_schedule_spec, resolve_schedule_value
from rl_training.runtime.spec import AlgorithmSpec, Blueprint, Network
from rl_training.runtime.trainer import TrainResult

__all__ = [
    "SPECS",
    "DQNOptions",
    "FQFOptions",
    "IQNOptions",
    "QRDQNOptions",
    "ValueLoop",
    "train_dqn",
    "train_fqf",
    "train_iqn",
    "train_qr_dqn",
]


class DQNOptions(MemoryOptions, NetworkOptions, OptimizerOptions, OffPolicyOptions):
    """Options of DQN; ``NETWORK`` and ``LEARNER`` name those that are arguments of the network and of the learner."""

    TITLE = "dqn"
    NETWORK: ClassVar[set[str]] = {"hidden_sizes", "dueling", "noisy"}
    LEARNER: ClassVar[set[str]] = {"learning_rate", "adam_epsilon", "max_grad_norm", "gamma", "target_update_interval"}
    FORM: ClassVar[tuple[str, ...]] = (*OffPolicyOptions.FORM, "dueling", "noisy", *MEMORY_FORM)
    MEMORY: ClassVar[tuple[str, ...]] = (*MemoryOptions.MEMORY, "burn_in")
    batch_size: int = opt(128, "transitions per update; recurrent: as many sequences as have about that many", ge=1)
    sequence_length: int = opt(16, "recurrent: steps of a sequence that are learned from", ge=2)
    burn_in: int = opt(8, "recurrent: steps before them that only bring the state up to date", ge=0)
    train_frequency: int = opt(2, "environment steps between updates, whatever the number of environments", ge=1)
    hidden_sizes: Sizes = opt(
        (128, 128), "widths of the hidden layers (images: the last one is the number of features)"
    )
    learning_rate: float = opt(1e-3, "step size of Adam", gt=0)
    adam_epsilon: float = opt(1e-8, "added to the denominator of adam and adamw", gt=0)
    gamma: float = opt(0.99, "discount", ge=0, le=1)
    target_update_interval: int = opt(100, "updates between copies to the target network", ge=1)
    double: bool = opt(True, "the online network chooses the next action, the target network evaluates it")
    dueling: bool = opt(False, "state values and advantages from separate layers")
    noisy: bool = opt(False, "explore by learned noise on the weights; epsilon_schedule is then 0 unless given")
    n_step: int = opt(1, "steps of reward before bootstrapping; fewer where an episode ends", ge=1)
    prioritized: bool = opt(False, "draw transitions in proportion to a power of their error")
    priority_alpha: float = opt(0.6, "that power: 0 is uniform, 1 in proportion to the error", ge=0, le=1)
    priority_beta: float = opt(
        0.4, "exponent of the importance weights at the start of the run; it rises linearly to 1 at the end", ge=0, le=1
    )
    epsilon_schedule: Schedule = opt(
        {"type": "linear", "start": 1.0, "end": 0.05}, "probability of a random action: {type, start, end}"
    )
    exploration_fraction: float = opt(
        0.1, "part of the run over which epsilon_schedule goes from start to end", gt=0, le=1
    )
    max_grad_norm: float | None = opt(10.0, "gradients are scaled down to this norm", gt=0)

    @field_validator("epsilon_schedule")
    @classmethod
    def _probabilities(cls, value: Any) -> Any:
        if value is None or value == "constant" or (isinstance(value, dict) and "start" not in value):
            raise ValueError("needs the share of random actions to start from: {type, start, end}")
        spec = resolve_schedule_spec(value)
        if not (0 <= spec.start <= 1 and 0 <= spec.end <= 1):
            raise ValueError(f"shares of random actions lie in [0, 1], got {spec.start:g} to {spec.end:g}")
        return value

    @model_validator(mode="before")
    @classmethod
    def _combinations(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        if not given.get("prioritized", False):
            for name in ("priority_alpha", "priority_beta"):
                if name in given:
                    raise ValueError(f"{name} does nothing without prioritized: true")
        if given.get("noisy", False) is True and "epsilon_schedule" not in given:
            if "exploration_fraction" in given:
                raise ValueError("exploration_fraction does nothing with noisy: true and no epsilon_schedule")
            return {**given, "epsilon_schedule": {"type": "constant", "start": 0.0}}
        return given

    @model_validator(mode="after")
    def _windows_fit(self) -> Any:
        if self.n_step > self.buffer_capacity:
            raise ValueError(f"n_step ({self.n_step}) cannot be more than buffer_capacity ({self.buffer_capacity})")
        return self

    @model_validator(mode="after")
    def _one_epsilon(self) -> Any:
        if "adam_epsilon" in self.model_fields_set and (self.optimizer_epsilon or "adam" not in self.optimizer):
            raise ValueError("adam_epsilon does nothing with another optimizer, or beside optimizer_epsilon")
        return self

    @model_validator(mode="after")
    def _single_rows(self) -> Any:
        for name, other in (("prioritized", self.prioritized), ("n_step", self.n_step > 1)):
            if other and self.hindsight is not None:
                raise ValueError(f"hindsight changes the goals of single rows drawn uniformly: leave {name} out")
        return self

    @model_validator(mode="after")
    def _with_a_memory(self) -> Any:
        if self.recurrent is None:
            return self
        refused = {
            "prioritized": (
                self.prioritized,
                "priorities are of single transitions, and sequences are drawn uniformly",
            ),
            "n_step": (self.n_step > 1, "sequences hold the reward of every step"),
            "noisy": (self.noisy, "the noise would change from step to step of a sequence"),
            "hindsight": (self.hindsight is not None, "the stored states were met with another goal"),
            "initial_random_steps": (self.initial_random_steps > 0, "random steps would leave the state behind"),
        }
        for name, (given, why) in refused.items():
            if given:
                raise ValueError(f"recurrent: leave {name} out: {why}")
        return self

    def schedule_steps(self, name: str, total_timesteps: int) -> int:
        return max(1, int(total_timesteps * self.exploration_fraction)) if name == "epsilon" else total_timesteps

    def idle(self) -> set[str]:
        return super().idle() | (set() if self.prioritized else {"priority_alpha", "priority_beta"})


class QRDQNOptions(DQNOptions):
    """Options of QR-DQN, which IQN and FQF have too."""

    TITLE = "qr_dqn"
    NETWORK = {*DQNOptions.NETWORK, "num_quantiles"}
    LEARNER = {*DQNOptions.LEARNER, "num_quantiles", "kappa"}
    FORM = (*DQNOptions.FORM, "num_quantiles")
    num_quantiles: int = opt(50, "quantiles of each action's return", ge=1)
    kappa: float = opt(1.0, "threshold of the Huber loss: errors up to this size count squared", gt=0)


class IQNOptions(QRDQNOptions):
    """Options of IQN."""

    TITLE = "iqn"
    NETWORK = {*QRDQNOptions.NETWORK, "embedding_dim"}
    LEARNER = {*QRDQNOptions.LEARNER, "action_samples", "stratified"}
    FORM = (*DQNOptions.FORM, "embedding_dim")
    stratified: bool = opt(
        False, "draw one fraction from each of num_quantiles equal parts; false: independently, as in the paper"
    )
    num_quantiles: int = opt(8, "random fractions on each side of the regression", ge=1)
    action_samples: int = opt(32, "fractions at which actions are valued", ge=1)
    embedding_dim: int = opt(64, "cosines that embed a fraction", ge=1)


class FQFOptions(QRDQNOptions):
    """Options of FQF."""

    TITLE = "fqf"
    NETWORK = {*QRDQNOptions.NETWORK, "embedding_dim"}
    LEARNER = {
        *QRDQNOptions.LEARNER,
        *("fraction_learning_rate", "fraction_scaling", "train_at_fractions", "entropy_coef"),
    }
    FORM = (*QRDQNOptions.FORM, "embedding_dim")
    num_quantiles: int = opt(32, "fractions proposed for each observation", ge=2)
    embedding_dim: int = opt(64, "cosines that embed a fraction", ge=1)
    fraction_learning_rate: float = opt(1e-3, "step size of RMSprop for the fractions", gt=0)
    fraction_scaling: Literal["range", "none"] = opt(
        "range", "divide the fractions' gradient by the batch's mean range of quantiles; none: as in the paper"
    )
    train_at_fractions: bool = opt(
        True, "regress quantiles at the fractions too, where their gradient needs them; false: as in the paper"
    )
    entropy_coef: float = opt(1e-3, "weight of the entropy that keeps fractions apart", ge=0)


class ValueLoop(OffPolicyLoop):
    """The off-policy loop with returns over several steps and prioritized replay."""

    def __init__(self, run: Run, agent: ValueLearner, cfg: DQNOptions) -> None:
        windows: dict[str, Any] = {"n_step": cfg.n_step, "gamma": cfg.gamma}
        if cfg.prioritized:
            replay = make_replay(run, cfg, PrioritizedReplayBuffer, alpha=cfg.priority_alpha, **windows)
        else:
            replay = make_replay(run, cfg, **windows)
        super().__init__(run, agent, cfg, replay=replay)
        self._beta = ScheduleSpec("linear", cfg.priority_beta, 1.0) if cfg.prioritized else None

    def draw(self) -> Tensors:
        if self._beta is None:
            return super().draw()
        run = self._run
        beta = resolve_schedule_value(self._beta, step=run.step, total_steps=run.config.total_timesteps)
        run.note(priority_beta=beta)
        return self.replay.sample(self._cfg.batch_size, beta=beta)  # type: ignore[call-arg]

    def learned(self, batch: Tensors) -> None:
        if self._beta is not None:
            self.replay.update_priorities(batch["indices"], self.agent.last_td_errors)  # type: ignore[attr-defined]


class SharedValueLoop(SharedOffPolicyLoop, ValueLoop):
    """The value-based family's loop for agents that share a network."""


class FamilySpec(AlgorithmSpec):
    """A member of the family, whose ``train`` serves every other one by the config's ``algo``."""

    def train(self, config: TrainConfig, **arguments: Any) -> TrainResult:
        sibling = SPECS.get(config.algo) if config.algo != self.name else None
        return super().train(config, **arguments) if sibling is None else sibling.train(config, **arguments)


def spec(name: str, options: type[DQNOptions], network: Network, learner: type[DQN]) -> AlgorithmSpec:
    """A member of the family: its options, its network and its learner."""

    def build(cfg: DQNOptions, plan: Blueprint) -> DQN:
        sizes: dict[str, Any] = cfg.pick(cfg.NETWORK)
        make: Callable[..., DQN] = learner
        memory = cfg.memory(plan)
        if memory is not None:
            make, sizes["memory"] = partial(RECURRENT[learner], burn_in=cfg.burn_in), memory
        return make(
            q_network=cfg.network(plan, network, **plan.shape, action_dim=plan.spaces.num_actions, **sizes),
            double_q=cfg.double,
            optimizer=cfg.optimizer_factory(),
            normalizer=plan.normalizer(cfg.normalize_observations),
            masks=plan.masks,
            **cfg.pick(cfg.LEARNER),
        )

    return FamilySpec(
        name=name,
        config=options,
        build=build,
        loop=ValueLoop,
        recurrent=SequenceLoop,
        shared=SharedValueLoop,
        obs=("vector", "image", "mixed"),
        actions=("discrete",),
        masks=True,
    )


SPECS = {
    "dqn": spec("dqn", DQNOptions, MLPQNetwork, DQN),
    "qr_dqn": spec("qr_dqn", QRDQNOptions, MLPQRQNetwork, QRDQN),
    "iqn": spec("iqn", IQNOptions, MLPIQNetwork, IQN),
    "fqf": spec("fqf", FQFOptions, MLPFQFNetwork, FQF),
}
train_dqn, train_qr_dqn, train_iqn, train_fqf = (SPECS[name].train for name in ("dqn", "qr_dqn", "iqn", "fqf"))
