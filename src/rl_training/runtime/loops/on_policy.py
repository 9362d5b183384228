"""On-policy loop: collect a rollout, estimate advantages, learn from it, drop it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from rl_training.base.options import opt
from rl_training.base.returns import explained_variance
from rl_training.base.saved import Saved, within
from rl_training.data.reward_scaler import RewardScaler
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.collector import Collector, Step
from rl_training.runtime.loops.base import OnlineLoop
from rl_training.runtime.options import AlgorithmOptions, Task
from rl_training.runtime.run import Run

__all__ = ["OnPolicyLoop", "OnPolicyOptions"]

ROLLOUT = 2_048  # steps of a rollout over all environments, where the task decides


class OnPolicyOptions(AlgorithmOptions):
    """Rollouts and the passes over them.

    Good values differ most between vectors and images, so a new run takes the options of ``BY_TASK`` from its task;
    the defaults below are what a file means that was saved without them.
    """

    BY_TASK: ClassVar[tuple[str, ...]] = (
        "num_steps",
        "update_epochs",
        "minibatch_size",
        "normalize_observations",
        "normalize_rewards",
    )

    num_steps: int = opt(
        128,
        "steps of each environment per rollout; by task: 2,048 over all environments for vectors, 128 each for images",
        ge=1,
    )
    update_epochs: int = opt(4, "passes over each rollout; by task: 10 for vectors, 4 for images", ge=1)
    minibatch_size: int = opt(256, "samples per update; by task: 64 for vectors, 256 for images or a memory", ge=1)
    gamma: float = opt(0.99, "discount", ge=0, le=1)
    gae_lambda: float = opt(0.95, "how far advantages look ahead: 0 one step, 1 the whole episode", ge=0, le=1)
    target_kl: float | None = opt(None, "skip the remaining passes once the policy has moved this far", gt=0)
    normalize_observations: bool = opt(
        False, "scale observations by their running mean and deviation; by task: true for vectors, in a mix too"
    )
    normalize_rewards: bool = opt(
        False, "scale rewards by the running deviation of the discounted return; by task: true for vectors"
    )

    @classmethod
    def for_task(cls, task: Task) -> dict[str, Any]:
        spaces = task.spaces
        vectors = spaces.obs_kind == "vector"
        sizes = {"num_steps": 128, "update_epochs": 4, "minibatch_size": 256}
        if vectors:
            sizes = {"num_steps": max(1, ROLLOUT // task.num_envs), "update_epochs": 10, "minibatch_size": 64}
        some = vectors or (spaces.mixed and spaces.parts is not None and spaces.parts.vector_size > 0)
        return {**sizes, "normalize_observations": some, "normalize_rewards": vectors}


class OnPolicyLoop(OnlineLoop):
    """Collect a rollout, estimate advantages, learn from it, drop it."""

    def __init__(self, run: Run, agent: Any, cfg: OnPolicyOptions, *, collector: Collector | None = None) -> None:
        super().__init__(run, agent, cfg, collector=collector)
        spaces, n = run.spaces, run.config.num_envs
        self.shuffle = run.rng("minibatches")
        self._passes = 0  # over the rollout that is being learned from, where the run has paused between two
        self.reward_scaler = RewardScaler(n, cfg.gamma) if cfg.normalize_rewards else None
        self._rollout = self.make_rollout(
            cfg.num_steps, n, spaces.obs_shape, spaces.action_shape,
            obs_dtype=spaces.obs_dtype, action_dtype=spaces.action_dtype, device=run.device, rng=self.shuffle,
        )  # fmt: skip

    def make_rollout(self, *arguments: Any, **options: Any) -> RolloutBuffer:
        """Hook: where rollouts are stored."""
        return RolloutBuffer(*arguments, **options)

    def actor(self) -> Any:
        """Hook: what acts while a rollout is collected, and values observations that follow its last action."""
        return self.agent

    @property
    def mid_step(self) -> bool:
        """Whether a rollout has begun and is not complete, or some of the passes over it are left."""
        return self._rollout.partial or self._passes > 0

    def state_dict(self) -> dict[str, Any]:
        """The unfinished rollout is part of the state only if there is one."""
        unfinished = {"rollout": {"rows": self._rollout.state_dict(), "passes": self._passes}} if self.mid_step else {}
        return {**super().state_dict(), **unfinished}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "rollout" in state:
            with within("rollout"):
                saved = Saved(state["rollout"], ("rows", "passes"))
                self._passes = saved.count("passes", most=self._cfg.update_epochs)
                self._rollout.load_state_dict(saved["rows"])
        super().load_state_dict({name: part for name, part in state.items() if name != "rollout"})

    def cut(self, lost: np.ndarray, obs: np.ndarray) -> None:
        if self._rollout.partial:
            self._rollout.cut(lost, self.actor().values(obs))
        if self.reward_scaler is not None:
            self.reward_scaler.returns[lost > 0] = 0.0

    def expected_updates(self, total_timesteps: int) -> int:
        rows = self._rollout.num_steps * self._rollout.num_envs
        each: int = self._cfg.update_epochs * -(-rows // self._cfg.minibatch_size)  # updates on a rollout
        return -(-total_timesteps // rows) * each

    def __iter__(self) -> Iterator[None]:
        while True:
            if not self._passes:
                yield from self.roll_out()
            self.learn()
            while self._passes:
                yield
                self.learn()
            self.after_update()
            self._run.end_epoch()
            yield

    def roll_out(self) -> Iterator[None]:
        """A rollout, or the rest of one, with its advantages; yields where the run pauses."""
        if not self.mid_step:
            self._run.apply_schedules(self.agent)
        self.collect()
        while self._rollout.partial:
            yield
            self.collect()
        self.finish_rollout()

    def collect(self) -> None:
        """Fill the rollout; where an episode was cut, with the value of its true last observation. If the run pauses,
        the next call goes on."""
        run, envs, agent, rollout = self._run, self.collector, self.actor(), self._rollout
        rng, n, observe, scaler = self.exploration.generator, run.config.num_envs, self._observe, self.reward_scaler
        if not rollout.partial:
            rollout.clear()
        for t in range(rollout.position, rollout.num_steps):
            if observe is not None:
                observe(envs.obs)
            actions, extras, _ = agent.act(envs.obs, step=run.step, rng=rng)
            seen = extras["obs"] if observe is not None else None  # as normalised when it was acted on
            step = envs.step(actions)
            # cut, not finished: bootstrap from the episode's true last state
            final_values = agent.values(step.next_obs) if step.truncated.any() else 0.0
            rewards = step.rewards
            if scaler is not None:
                rewards = scaler(rewards, np.maximum(step.terminated, step.truncated))
            rollout.add(
                obs=step.obs if seen is None else seen, actions=actions, logprobs=extras["logprobs"],
                rewards=rewards, values=extras["values"], terminated=step.terminated, truncated=step.truncated,
                final_values=final_values,
            )  # fmt: skip
            self.on_row_stored(t, step)
            run.step += n
            if run.pausing() and rollout.partial:
                return
        run.collected(envs, rollout.num_steps * n)

    def on_row_stored(self, t: int, step: Step) -> None:
        """Hook: row ``t`` of the rollout has been stored."""

    def finish_rollout(self) -> None:
        """Estimate advantages; a variant with rewards of its own replaces the environment's first."""
        last_values = self.actor().values(self.collector.obs)
        self._rollout.compute_returns_and_advantages(last_values, self._cfg.gamma, self._cfg.gae_lambda)
        self._run.note(explained_variance=explained_variance(self._rollout.values, self._rollout.returns))

    def learn(self) -> None:
        """Passes over the rollout in minibatches, until the policy has moved by ``target_kl``. A signal ends it after a
        pass, and the next call goes on."""
        run, cfg, first = self._run, self._cfg, self._passes
        self._passes = 0
        for done in range(first + 1, cfg.update_epochs + 1):
            for minibatch in self._rollout.iter_minibatches(cfg.minibatch_size):
                result = run.update(self.agent, minibatch)
                if run.budget_spent:
                    return
            if cfg.target_kl is not None and result.metrics["approx_kl"] > cfg.target_kl:
                return
            if run.stopping.urgent and done < cfg.update_epochs:
                self._passes = done
                return

    def after_update(self) -> None:
        """Hook: the rollout has been learned from."""
