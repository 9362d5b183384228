"""One environment whose unfinished episode can be rebuilt exactly, without pickles and without access to its
attributes.

Episode k of environment i always starts from the seed (run seed, i, k). Its state is then a function of k and the
actions taken so far: a checkpoint stores only these, and resuming replays at most one unfinished episode per
environment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch

from rl_training.base.saved import Saved, StateError, within
from rl_training.base.trust import require_trusted
from rl_training.envs.checks import first_observation
from rl_training.envs.emulator import restore_emulator
from rl_training.envs.incidents import History
from rl_training.envs.wrappers import layers

__all__ = [
    "Make",
    "ReplayableAtari",
    "ReplayableEnv",
    "changed_arguments",
    "episode_seed",
    "played_actions",
    "replayable",
    "saved_actions",
]


Make = Callable[[dict[str, Any]], gym.Env]


def episode_seed(*key: int) -> int:
    """The seed of an episode by (run seed, environment, episode)."""
    return int(np.random.SeedSequence(key).generate_state(1)[0])


class ReplayableEnv:
    """``step`` is the environment's own; append each action to ``actions`` and call ``begin`` when an episode ends."""

    PARTS: ClassVar[tuple[str, ...]] = ("episode", "actions")  # of its state

    def __init__(self, env: gym.Env, *, seed: int, index: int, make: Make | None = None) -> None:
        """``make``: the same environment with other arguments."""
        self.env, self.step = env, env.step
        self._key, self._make = (seed, index), make
        self.episode = -1
        self.actions: list[Any] = []
        self.env_kwargs: dict[str, Any] = {}  # arguments that were changed before this episode

    def change(self, env_kwargs: dict[str, Any]) -> None:
        """Make the environment anew with these arguments; before an episode begins."""
        if env_kwargs != self.env_kwargs:
            if self._make is None:
                raise ValueError("this environment cannot be made again with other arguments")
            env = self._make(env_kwargs)
            self.env.close()
            self.env, self.step, self.env_kwargs = env, env.step, dict(env_kwargs)

    def begin(self) -> Any:
        """Start the next episode; returns its first observation."""
        self.episode += 1
        self.actions = []
        return self._reset()

    def _reset(self) -> Any:
        return first_observation(self.env.reset(seed=episode_seed(*self._key, self.episode)))

    def history(self) -> History:
        """What leads to where the episode is: its seed, and the actions so far."""
        seed = episode_seed(*self._key, self.episode)
        changed = {"env_kwargs": self.env_kwargs} if self.env_kwargs else {}
        return {"episode": self.episode, "seed": seed, "actions": list(self.actions), "exact": True, **changed}

    def state_dict(self) -> dict[str, Any]:
        changed = {"env_kwargs": self.env_kwargs} if self.env_kwargs else {}
        return {"episode": self.episode, "actions": saved_actions(self.actions), **changed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Back to the start of the saved episode; ``replay`` goes on from there."""
        saved = Saved(state, self.PARTS, ("env_kwargs",))
        episode = saved.count("episode")
        self.change(changed_arguments(saved))
        if saved["actions"] is not None:
            require_actions(saved["actions"], self.env.action_space)
        self.episode, self.actions = episode, []

    def replay(self, actions: Any) -> tuple[Any, float, int]:
        """Reset and repeat the saved actions: the observation they lead to, and the rewards and steps on the way."""
        obs, total = self._reset(), 0.0
        self.actions = played_actions(actions)
        ended = False
        for action in self.actions:
            if ended:
                raise ValueError("its episode ended sooner than it did before")
            obs, reward, terminated, truncated, *_ = self.step(action)
            total, ended = total + float(np.asarray(reward).item()), bool(terminated or truncated)
        return obs, total, len(self.actions)


class ReplayableAtari(ReplayableEnv):
    """An ALE environment, of which only the first reset is seeded: a seeded reset reloads the game (a quarter of a
    second).

    The emulator's state with its generator, just before each later game, takes the place of the seed. A game can have
    several episodes, one per life; the emulator's state leaves out the last action, which sticky actions repeat, so
    replays start with the game.
    """

    PARTS = ("episode", "actions", "before", "earlier")

    def __init__(self, env: gym.Env, *, seed: int, index: int, make: Make | None = None) -> None:
        super().__init__(env, seed=seed, index=index, make=make)
        self._base: Any = env.unwrapped
        self._before: dict[str, Any] | None = None  # None: the first game, which is seeded
        self._earlier: list[list[Any]] = []  # actions of the game's finished episodes

    def change(self, env_kwargs: dict[str, Any]) -> None:
        if env_kwargs != self.env_kwargs:  # the emulator's state, from which games are replayed, is that of one game
            raise ValueError("the arguments of an Atari environment cannot be changed while a run goes on")

    def _same_game(self) -> bool:
        return any(getattr(layer, "reset_continues", False) for layer in layers(self.env))

    def begin(self) -> Any:
        if self.episode >= 0:
            if self._same_game():
                self._earlier.append(self.actions)
            else:
                emulator = self._base.clone_state(include_rng=True)
                self._earlier = []
                self._before = {
                    "emulator": torch.frombuffer(bytearray(emulator.serialize()), dtype=torch.uint8),
                    "np_random": self._base.np_random.bit_generator.state,
                }
        return super().begin()

    def _reset(self) -> Any:
        return first_observation(self.env.reset()) if self.episode > 0 else super()._reset()

    def history(self) -> History:
        first = self._before is None and not self._earlier  # the other games do not begin with a seed
        return {**super().history(), "seed": episode_seed(*self._key, 0), "exact": first}

    def state_dict(self) -> dict[str, Any]:
        earlier = [torch.tensor(actions) for actions in self._earlier]
        return {**super().state_dict(), "before": self._before, "earlier": earlier}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        saved = Saved(state, self.PARTS, ("env_kwargs",))
        earlier = saved.items("earlier")
        for actions in earlier:
            require_actions(actions, self.env.action_space)
        self.env.reset(seed=episode_seed(*self._key, 0))  # the first game, or a generator to overwrite
        if saved["before"] is not None:
            with within("before"):
                restore_emulator(self._base, saved["before"])
        self._before, self._earlier = saved["before"], [actions.tolist() for actions in earlier]
        for i, actions in enumerate(self._earlier):
            if i > 0 or self._before is not None:
                self.env.reset()
            for action in actions:
                self.step(action)


def changed_arguments(saved: Saved) -> dict[str, Any]:
    """The arguments of an environment that a state says were changed."""
    if "env_kwargs" not in saved:
        return {}
    changed = saved["env_kwargs"]
    if not isinstance(changed, dict):
        raise StateError("is no mapping", "env_kwargs")
    require_trusted("the checkpoint", "", changed)
    return dict(changed)


def saved_actions(actions: list[Any]) -> torch.Tensor | None:
    """The actions of an unfinished episode (T, ...) as they are saved."""
    return torch.from_numpy(np.asarray(actions)) if actions else None


def played_actions(saved: Any) -> list[Any]:
    """Saved actions (T, ...) as they were given to ``step``: those of Discrete as plain numbers."""
    rows = np.zeros((0, 1)) if saved is None else saved.numpy()
    played: list[Any] = rows.tolist() if rows.ndim == 1 else list(rows)
    return played


def require_actions(actions: Any, space: gym.Space[Any]) -> None:
    """Refuse, before any is taken, saved actions (T, ...) of which one is not an action of the environment."""
    box = isinstance(space, gym.spaces.Box)
    dtype = space.dtype if box else None if space.shape else np.int64
    rows = Saved({"actions": actions}, ("actions",)).array("actions", dtype, (None, *(space.shape or ())), finite=box)
    if isinstance(space, gym.spaces.Box):
        low, high = space.low, space.high
    else:
        first = np.asarray(getattr(space, "start", 0))
        choices = space.n if isinstance(space, gym.spaces.Discrete) else getattr(space, "nvec", 2)
        low, high = first, first + choices - 1
    if not ((rows >= low) & (rows <= high)).all():
        raise StateError("holds what is not an action of the environment", "actions")


def replayable(env: gym.Env, *, seed: int, index: int, make: Make | None = None) -> ReplayableEnv:
    """The replayable form of any environment; ``make``: the same one with other arguments."""
    atari = hasattr(env.unwrapped, "ale") and hasattr(env.unwrapped, "clone_state")
    return (ReplayableAtari if atari else ReplayableEnv)(env, seed=seed, index=index, make=make)
