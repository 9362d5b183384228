"""PPG on the on-policy loop: every ``aux_frequency`` rollouts, an auxiliary phase learns from those that were kept."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import model_validator

from rl_training.algorithms.ppg import PPG
from rl_training.base.devices import arrays_to_device
from rl_training.base.options import opt
from rl_training.base.saved import Saved
from rl_training.models.mlp_ppg import Architecture, MLPPPGModel
from rl_training.runtime.loops.on_policy import OnPolicyLoop
from rl_training.runtime.options import Task
from rl_training.runtime.policy_options import SPACES, PPOOptions
from rl_training.runtime.run import Run
from rl_training.runtime.spec import AlgorithmSpec, Blueprint

__all__ = ["SPECS", "AuxiliaryBuffer", "PPGLoop", "PPGOptions", "build", "train_ppg"]

TEACHER_CHUNK = 4_096  # rows that the teacher labels at once


class PPGOptions(PPOOptions):
    """Options of PPG: PPO's and the auxiliary phase's."""

    TITLE = "ppg"
    BY_TASK: ClassVar[tuple[str, ...]] = (*PPOOptions.BY_TASK, "architecture")
    FORM: ClassVar[tuple[str, ...]] = (*PPOOptions.FORM, "architecture")
    normalize_advantages: bool = opt(True, "zero mean and unit deviation over the whole rollout")
    architecture: Architecture = opt(
        "detach",
        "detach: one trunk, no gradient of the value in the policy phase; dual: two trunks; by task: dual for vectors",
    )
    aux_learning_rate: float = opt(3e-4, "step size of the auxiliary phase's own Adam", gt=0)
    aux_frequency: int = opt(16, "rollouts between auxiliary phases", ge=1)
    aux_epochs: int = opt(6, "passes of an auxiliary phase over the kept rollouts", ge=0)
    aux_minibatch_size: int = opt(512, "samples per update of the auxiliary phase", ge=1)
    aux_buffer_rollouts: int | None = opt(
        None, "rollouts kept for the phase, the last ones; null: all since the last phase", ge=1
    )
    aux_value_coef: float = opt(1.0, "weight of the auxiliary value's regression", ge=0)
    behavior_clone_coef: float = opt(1.0, "weight of the KL divergence from the policy before the phase", ge=0)
    value_clone_coef: float = opt(1.0, "weight of the true value's regression", ge=0)

    @classmethod
    def for_task(cls, task: Task) -> dict[str, Any]:
        return {**super().for_task(task), "architecture": "dual" if task.spaces.obs_kind == "vector" else "detach"}

    @model_validator(mode="after")
    def _no_more_than_a_phase(self) -> Any:
        if self.aux_buffer_rollouts is not None and self.aux_buffer_rollouts > self.aux_frequency:
            raise ValueError("aux_buffer_rollouts cannot exceed aux_frequency: older rollouts have been learned from")
        return self


class AuxiliaryBuffer:
    """A ring of the last rollouts' observations, as normalised when collected, and value targets."""

    def __init__(self, rollouts: int, rows: int, obs_shape: tuple[int, ...], obs_dtype: Any) -> None:
        """``rows``: steps of a rollout over all environments."""
        self.rollouts, self._rows, self.count = rollouts, rows, 0
        self.obs = np.zeros((rollouts * rows, *obs_shape), obs_dtype)
        self.returns = np.zeros(rollouts * rows, np.float32)

    def add(self, obs: np.ndarray, returns: np.ndarray) -> None:
        """Store one rollout (T, N, ...) in place of the oldest."""
        place = self.count % self.rollouts * self._rows
        self.obs[place : place + self._rows] = obs.reshape(self._rows, *obs.shape[2:])
        self.returns[place : place + self._rows] = returns.reshape(-1)
        self.count += 1

    def __len__(self) -> int:
        return min(self.count, self.rollouts) * self._rows

    def clear(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        obs, returns = (torch.from_numpy(column[: len(self)]) for column in (self.obs, self.returns))
        return {"count": self.count, "obs": obs, "returns": returns}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = Saved(state, ("count", "obs", "returns"))
        count = saved.count("count")
        rows = min(count, self.rollouts) * self._rows
        obs = saved.array("obs", self.obs.dtype, (rows, *self.obs.shape[1:]))
        self.returns[:rows] = saved.array("returns", np.float32, (rows,))
        self.obs[:rows], self.count = obs, count


class PPGLoop(OnPolicyLoop):
    """PPO's loop with advantages normalised over the rollout, and the auxiliary phase."""

    def __init__(self, run: Run, agent: PPG, cfg: PPGOptions) -> None:
        super().__init__(run, agent, cfg)
        spaces, rows = run.spaces, self._rollout.num_steps * self._rollout.num_envs
        kept = cfg.aux_buffer_rollouts or cfg.aux_frequency
        self.remembered = AuxiliaryBuffer(kept, rows, spaces.obs_shape, spaces.obs_dtype)

    def expected_updates(self, total_timesteps: int) -> int:
        cfg, rows = self._cfg, self._rollout.num_steps * self._rollout.num_envs
        phases: int = total_timesteps // (rows * cfg.aux_frequency)
        each: int = cfg.aux_epochs * -(-self.remembered.rollouts * rows // cfg.aux_minibatch_size)
        return super().expected_updates(total_timesteps) + phases * each

    def finish_rollout(self) -> None:
        super().finish_rollout()
        rollout = self._rollout
        self.remembered.add(rollout.obs, rollout.returns)
        if self._cfg.normalize_advantages:
            rollout.advantages -= rollout.advantages.mean()
            rollout.advantages /= rollout.advantages.std() + 1e-8

    def after_update(self) -> None:
        if self.remembered.count == self._cfg.aux_frequency:
            self.auxiliary_phase()
            self.remembered.clear()

    def auxiliary_phase(self) -> None:
        """Passes over the kept rollouts: values towards the returns, the policy kept at its present outputs."""
        run, cfg, count = self._run, self._cfg, len(self.remembered)
        columns = (self.remembered.obs[:count], self.remembered.returns[:count])
        permutations = (self.shuffle.generator.permutation(count) for _ in range(cfg.aux_epochs))
        obs, returns, *orders = arrays_to_device(run.device, *columns, *permutations)
        teacher = torch.cat([self.agent.teacher_logits(chunk) for chunk in torch.split(obs, TEACHER_CHUNK)])
        for order in orders:
            for rows in torch.split(order, cfg.aux_minibatch_size):
                batch = {"obs": obs[rows], "returns": returns[rows], "teacher_logits": teacher[rows]}
                result = run.record_auxiliary_update(self.agent.auxiliary_update(batch, global_step=run.step))
        if cfg.aux_epochs:
            run.note(**result.metrics)

    def metrics(self) -> dict[str, float]:
        agent = self.agent
        counts = {
            "policy_gradient_steps": agent.policy_updates,
            "auxiliary_gradient_steps": agent.auxiliary_updates,
            "remembered_rollouts": self.remembered.count,
        }
        return {**super().metrics(), **{name: float(count) for name, count in counts.items()}}


def build(cfg: PPGOptions, plan: Blueprint) -> PPG:
    own = cfg.pick({"aux_learning_rate", "aux_value_coef", "behavior_clone_coef", "value_clone_coef"})
    shared = {**cfg.learner(plan), "normalize_advantages": False}  # the loop does it, over the whole rollout
    return PPG(model=cfg.policy(plan, MLPPPGModel, architecture=cfg.architecture), **own, **shared)


SPECS = {"ppg": AlgorithmSpec(name="ppg", config=PPGOptions, build=build, loop=PPGLoop, **SPACES)}
train_ppg = SPECS["ppg"].train
