"""The loops of learners with a memory: they carry its state, and store it where sequences are to begin with it."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import model_validator

from rl_training.algorithms.base import Acting
from rl_training.algorithms.recurrent import RecurrentPPO, SequenceValues
from rl_training.base.options import ConfigError, Options, opt
from rl_training.data.recurrent_replay import RecurrentReplayBuffer
from rl_training.data.sequence_rollout import SequenceRollout
from rl_training.envs.collector import Step
from rl_training.models.memory import MemorySize
from rl_training.runtime.loops.off_policy import Carry, OffPolicyLoop, ReplayOptions
from rl_training.runtime.loops.on_policy import OnPolicyLoop
from rl_training.runtime.run import Run
from rl_training.runtime.spec import Blueprint

__all__ = ["MEMORY_FORM", "MemoryOptions", "RecurrentOnPolicyLoop", "SequenceLoop", "make_sequences"]

MEMORY_FORM = ("recurrent", "recurrent_size")  # options that shape networks


class MemoryOptions(Options):
    """A recurrent layer in the algorithm's own networks, and the sequences that it learns from."""

    MEMORY: ClassVar[tuple[str, ...]] = ("recurrent_size", "sequence_length")  # do nothing without ``recurrent``

    recurrent: Literal["lstm", "gru"] | None = opt(
        None, "a recurrent layer after the hidden ones, which remembers within an episode: lstm or gru; null: none"
    )
    recurrent_size: int = opt(64, "units of the recurrent layer", ge=1)
    sequence_length: int = opt(64, "recurrent: most steps of a sequence, through which gradients flow", ge=1)

    @model_validator(mode="after")
    def _memory_in_force(self) -> Any:
        for name in self.MEMORY:
            if self.recurrent is None and name in self.model_fields_set:
                raise ValueError(f"{name} does nothing without recurrent")
        return self

    def idle(self) -> set[str]:
        others: set[str] = super().idle()  # type: ignore[misc]
        return others | (set(self.MEMORY) if self.recurrent is None else set())

    def memory(self, plan: Blueprint) -> MemorySize | None:
        """The recurrent layer of networks, if they are to have one."""
        if self.recurrent is None:
            return None
        if plan.network is not None:
            problem = "is for the algorithm's own network, and network= gives another"
            raise ConfigError([(("algo_kwargs", "recurrent"), problem)])
        return MemorySize(self.recurrent, self.recurrent_size)


class _Actor:
    """The agent together with the state it carries, which is stored before every step."""

    def __init__(self, agent: RecurrentPPO, carry: Carry, rollout: SequenceRollout) -> None:
        self._agent, self._carry, self._rollout = agent, carry, rollout

    def act(self, obs: np.ndarray, **options: Any) -> Acting:
        self._rollout.carry[self._rollout.position] = self._carry.value
        acting = self._agent.act(obs, carry=self._carry.value, **options)
        self._carry.value = acting.carry
        return acting

    def values(self, obs: np.ndarray) -> np.ndarray:
        """Values of observations that follow the last action; the state stays as it is."""
        return self._agent.values(obs, self._carry.value)


class RecurrentOnPolicyLoop(OnPolicyLoop):
    """The on-policy loop with a carried state, for rollouts that are learned from in sequences."""

    _rollout: SequenceRollout

    def __init__(self, run: Run, agent: RecurrentPPO, cfg: Any) -> None:
        super().__init__(run, agent, cfg)
        self.carry = Carry(agent, run.config.num_envs)

    def make_rollout(self, *arguments: Any, **options: Any) -> SequenceRollout:
        size = self.agent.initial_carry(1).shape[-1]
        return SequenceRollout(*arguments, carry_size=size, sequence_length=self._cfg.sequence_length, **options)

    def actor(self) -> _Actor:
        return _Actor(self.agent, self.carry, self._rollout)

    def on_row_stored(self, t: int, step: Step) -> None:
        self.carry.renew(np.maximum(step.terminated, step.truncated))

    def cut(self, lost: np.ndarray, obs: np.ndarray) -> None:
        super().cut(lost, obs)
        self.carry.renew(lost)

    def expected_updates(self, total_timesteps: int) -> int:
        rollout = self._rollout
        each: int = self._cfg.update_epochs * -(-rollout.pieces // rollout.pieces_of(self._cfg.minibatch_size))
        return -(-total_timesteps // (rollout.num_steps * rollout.num_envs)) * each


def make_sequences(run: Run, cfg: ReplayOptions, length: int, **options: Any) -> RecurrentReplayBuffer:
    """A buffer of the run's observations in sequences of ``length``."""
    longest = 2 * run.config.total_timesteps + run.config.num_envs * (length + 2)  # of one-step episodes
    try:
        return RecurrentReplayBuffer(
            min(cfg.buffer_capacity, longest), run.config.num_envs, run.spaces.obs_shape, length,
            run.spaces.obs_dtype, run.spaces.action_shape, run.spaces.action_dtype, run.device, rng=run.rng("replay"),
            **options,
        )  # fmt: skip
    except ValueError as error:
        raise ConfigError([(("algo_kwargs", "buffer_capacity"), str(error))]) from None


class SequenceLoop(OffPolicyLoop):
    """The off-policy loop of action values with a memory: stores the state of every step, and draws sequences."""

    def __init__(self, run: Run, agent: SequenceValues, cfg: Any) -> None:
        length = cfg.burn_in + cfg.sequence_length + 1  # the last observation is only bootstrapped from
        replay: Any = make_sequences(run, cfg, length, hidden_size=agent.initial_carry(1).shape[-1])
        super().__init__(run, agent, cfg, replay=replay)
        self._starts = max(cfg.learning_starts, length * run.config.num_envs)
        self._rows = max(1, cfg.batch_size // cfg.sequence_length)  # sequences

    def step(self) -> None:
        self._before = self.carry.value
        super().step()

    def store(self, step: Step, actions: np.ndarray, **beside: Any) -> None:
        super().store(step, actions, states=self._before, next_states=self.carry.value, **beside)

    def cut(self, lost: np.ndarray, obs: np.ndarray) -> None:
        self.replay.cut(lost, obs, self.carry.value)  # type: ignore[call-arg]
        self.carry.renew(lost)
