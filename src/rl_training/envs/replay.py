"""One environment whose unfinished episode can be rebuilt exactly, without pickles and without poking at its attributes.

Episode k of environment i always starts from the seed (run seed, i, k). Its state is then a function of k and the actions
taken so far: that is all a checkpoint stores, and resuming replays at most one unfinished episode per environment.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch


def episode_seed(*key: int) -> int:
    return int(np.random.SeedSequence(key).generate_state(1)[0])


class ReplayableEnv:
    """``step`` is the environment's own; append each action to ``actions`` and call ``begin`` when an episode ends."""

    def __init__(self, env: gym.Env, *, seed: int, index: int) -> None:
        self.env, self.step = env, env.step
        self._key = (seed, index)
        self.episode, self.actions = -1, []  # type: int, list[Any]

    def begin(self) -> Any:
        """Start the next episode; returns its first observation."""
        self.episode += 1
        self.actions = []
        return self._reset()

    def _reset(self) -> Any:
        return self.env.reset(seed=episode_seed(*self._key, self.episode))[0]

    def state_dict(self) -> dict[str, Any]:
        actions = torch.from_numpy(np.asarray(self.actions)) if self.actions else None
        return {"episode": self.episode, "actions": actions}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Back to the start of the saved episode; ``replay`` goes on from there."""
        self.episode = state["episode"]
        self.actions = []

    def replay(self, actions: Any) -> tuple[Any, float, int]:
        """Reset and repeat the saved actions: the observation they lead to, and the rewards and steps on the way."""
        obs, total = self._reset(), 0.0
        rows = [] if actions is None else actions.numpy()
        self.actions = rows.tolist() if len(rows) and rows.ndim == 1 and rows.dtype.kind in "iu" else list(rows)
        for action in self.actions:
            obs, reward, *_ = self.step(action)
            total += float(reward)
        return obs, total, len(self.actions)


class ReplayableAtari(ReplayableEnv):
    """ALE: a seeded reset reloads the game (a quarter of a second), so only the first episode is seeded. The emulator's state
    with its generator, just before each later reset, takes the place of the seed."""

    def __init__(self, env: gym.Env, *, seed: int, index: int) -> None:
        super().__init__(env, seed=seed, index=index)
        self._base: Any = env.unwrapped
        self._before: dict[str, Any] | None = None

    def _memory(self) -> list[Any]:
        """Wrappers whose own state decides what a reset does."""
        found, env = [], self.env
        while isinstance(env, gym.Wrapper):
            if hasattr(env, "replay_state"):
                found.append(env)
            env = env.env
        return found

    def begin(self) -> Any:
        if self.episode >= 0:
            emulator = self._base.clone_state(include_rng=True)
            self._before = {
                "emulator": torch.frombuffer(bytearray(emulator.serialize()), dtype=torch.uint8),
                "np_random": self._base.np_random.bit_generator.state,
                "wrappers": [wrapper.replay_state() for wrapper in self._memory()],
            }
        return super().begin()

    def _reset(self) -> Any:
        return self.env.reset()[0] if self.episode > 0 else super()._reset()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "before": self._before}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._before = state["before"]
        if self._before is None:
            return
        from ale_py import ALEState

        self.env.reset(seed=episode_seed(*self._key, 0))  # gives the environment a generator to overwrite
        self._base.restore_state(ALEState(self._before["emulator"].numpy().tobytes()))
        self._base.np_random.bit_generator.state = self._before["np_random"]
        for wrapper, memory in zip(self._memory(), self._before["wrappers"]):
            wrapper.load_replay_state(memory)


def replayable(env: gym.Env, *, seed: int, index: int) -> ReplayableEnv:
    atari = hasattr(env.unwrapped, "ale") and hasattr(env.unwrapped, "clone_state")
    return (ReplayableAtari if atari else ReplayableEnv)(env, seed=seed, index=index)
