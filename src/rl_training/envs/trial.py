"""Random play in an environment: what it returns, how long it takes, and whether it can be repeated."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import FlattenObservation

from rl_training.base.errors import raised
from rl_training.envs.checks import LARGEST, Checks, EnvironmentFailure, attempt
from rl_training.envs.endings import SUCCESS
from rl_training.envs.factory import EnvFactory, has_time_limit, time_limit_of
from rl_training.envs.parts import PackedObservation
from rl_training.envs.replay import ReplayableEnv, replayable
from rl_training.envs.spaces import Spaces
from rl_training.envs.wrappers import FrameStack, PartialObservation

__all__ = ["Played", "Player", "Tick", "Watched", "play", "repeated", "repeated_in_another_order"]

FORMS = (PackedObservation, FlattenObservation, FrameStack, PartialObservation)  # what changes an observation's form
REPEATED_STEPS = 200  # that are taken again, to compare
REPEATED_EPISODES, OF_EACH = 20, 20  # episodes of which that many steps are taken again in another order


class Watched(gym.Wrapper):
    """Keeps the observation and the info that the environment within gave last."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.seen: Any = None
        self.info: Any = {}

    @classmethod
    def within(cls, env: gym.Env) -> tuple[gym.Env, Watched]:
        """The environment, watched below the wrappers that change the form of its observations."""
        outer, inner = None, env
        while isinstance(inner, FORMS):
            outer, inner = inner, inner.env
        watched = cls(inner)
        if outer is None:
            return watched, watched
        outer.env = watched
        return env, watched

    def reset(self, **kwargs: Any) -> Any:
        return self._noted(self.env.reset(**kwargs))

    def step(self, action: Any) -> Any:
        return self._noted(super().step(action))

    def _noted(self, result: Any) -> Any:
        if isinstance(result, tuple) and len(result) in (2, 5):
            self.seen, self.info = result[0], result[-1]
        return result

    def outside(self) -> str:
        """How the observation lies outside of its space; nothing if it does not."""
        space, seen = self.env.observation_space, self.seen
        while isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
            inside = space.spaces.items() if isinstance(space, gym.spaces.Dict) else enumerate(space.spaces)
            try:
                wrong = next((key for key, inner in inside if not inner.contains(seen[key])), None)
            except (KeyError, IndexError, TypeError):
                return f"it has not the parts of {space}"
            if wrong is None:
                return ""
            space, seen = space[wrong], seen[wrong]  # type: ignore[index]
        if space.contains(seen):
            return ""
        return (
            _beyond(space, np.asarray(seen)) if isinstance(space, gym.spaces.Box) else f"{seen!r:.60} is not in {space}"
        )


def _beyond(space: gym.spaces.Box, seen: np.ndarray) -> str:
    if seen.dtype.kind in "fiub" and seen.shape == space.shape:
        wrong = (seen < space.low) | (seen > space.high)
        if wrong.any():
            value, low, high = (array[wrong].reshape(-1)[0] for array in (seen, space.low, space.high))
            return f"an entry is {value.item()}, and its bounds are {low:g} and {high:g}"
    return f"it is {seen.dtype} of shape {seen.shape}, and the space says {space.dtype} of shape {space.shape}"


class Tick(NamedTuple):
    """What a step gave, or a reset, so that it can be compared with what another one gave."""

    observation: bytes
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False

    def difference(self, other: Tick) -> str:
        """The first of its parts that differs; empty if none does."""
        return next((name for name, a, b in zip(self._fields, self, other) if a != b), "")

    @property
    def last(self) -> bool:
        return self.terminated or self.truncated


class Player:
    """One environment, made as for training, that is reset and stepped as a run would, with all checks."""

    def __init__(self, factory: EnvFactory, seed: int) -> None:
        env = factory.make(training=True)
        self.spaces = Spaces.of(env)
        self.time_limit, self.limited = time_limit_of(env), has_time_limit(env)
        self.modes = tuple(env.metadata.get("render_modes") or ())
        env, self.watched = Watched.within(env)
        self.slot = replayable(env, seed=seed, index=0)
        self._name, self._checks, self._steps = factory.name, Checks(self.spaces), 0
        self.row: np.ndarray = np.zeros(0)  # the observation, as the wrapped environment gives it

    def restart(self, seed: int, episode: int = 0) -> None:
        """Let the next episode be that of this number again."""
        self.slot = replayable(self.slot.env, seed=seed, index=0)
        if episode:
            self.slot.load_state_dict({"episode": episode - 1, "actions": None})

    @property
    def seeded(self) -> bool:
        """Whether every episode begins with a seed of its own."""
        return type(self.slot) is ReplayableEnv

    def begin(self) -> Tick:
        """Begin the next episode."""
        obs = attempt(self._name, f"on reset, step {self._steps}", lambda: self._checks.observation(self.slot.begin()))
        return self._tick(obs)

    def step(self, action: Any) -> Tick:
        """Take an action of the environment."""
        result = attempt(self._name, f"at step {self._steps}", lambda: self._checks.step(self.slot.step(action)))
        self.slot.actions.append(action)
        self._steps += 1
        obs, reward, terminated, truncated = result
        if not -LARGEST <= reward <= LARGEST:
            raise EnvironmentFailure(f"{self._name} gave the reward {reward} at step {self._steps - 1}")
        return self._tick(obs, reward, terminated, truncated)

    def _tick(self, obs: np.ndarray, *rest: Any) -> Tick:
        self.row = obs
        return Tick(_digest(obs), *rest)

    def back_to(self, state: dict[str, Any]) -> Tick:
        """The state of another player, rebuilt as a resumed run rebuilds it."""
        self.slot.load_state_dict(state)
        return self._tick(np.asarray(self.slot.replay(state["actions"])[0]))

    def drawn(self, rng: np.random.Generator) -> Any:
        """A random action, of those that are allowed."""
        return self.spaces.to_env(self.spaces.random_actions(rng, 1, self.row[None]))[0]

    def close(self) -> None:
        self.slot.env.close()


def _digest(obs: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(obs).tobytes(), digest_size=16).digest()


@dataclass
class Played:
    """What was seen while random actions were taken."""

    seed: int = 0
    steps: int = 0
    rewards: list[float] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)  # of finished episodes
    lengths: list[int] = field(default_factory=list)
    terminated: int = 0
    truncated: int = 0
    outside: str = ""  # how the first observation outside of its space was wrong
    outside_count: int = 0
    numbers: dict[str, int] = field(default_factory=dict)  # entries of last infos that are numbers, and how often
    allowed: list[int] = field(default_factory=list)  # how many choices each mask of actions allows
    step_seconds: list[float] = field(default_factory=list)  # of the clock
    step_busy: list[float] = field(default_factory=list)  # of the processor
    reset_seconds: list[float] = field(default_factory=list)
    failure: str = ""  # what went wrong, after which nothing was tried any more
    ticks: list[Tick] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)
    starts: list[tuple[int, int]] = field(default_factory=list)  # of each episode, among actions and among ticks
    saved: dict[str, Any] | None = None  # the environment's state after some of the actions
    saved_after: tuple[int, int] = (0, 0)  # actions, and ticks
    low: np.ndarray | None = None  # the smallest and the largest value of each entry of a vector
    high: np.ndarray | None = None

    @property
    def repeated(self) -> int:
        return min(REPEATED_STEPS, max(1, self.steps // 2))

    def begun(self, player: Player, before: tuple[float, float], tick: Tick) -> None:
        self.reset_seconds.append(time.perf_counter() - before[0])
        self.starts.append((len(self.actions), len(self.ticks)))
        self.ticks.append(tick)
        self._observed(player)

    def stepped(self, player: Player, action: Any, before: tuple[float, float], tick: Tick) -> None:
        self.step_seconds.append(time.perf_counter() - before[0])
        self.step_busy.append(time.process_time() - before[1])
        self.actions.append(action)
        self.ticks.append(tick)
        self.rewards.append(tick.reward)
        self.steps += 1
        self._observed(player)

    def _observed(self, player: Player) -> None:
        wrong = player.watched.outside()
        self.outside_count += bool(wrong)
        self.outside = self.outside or wrong
        spaces = player.spaces
        if spaces.bare is not None and spaces.parts is not None:
            self.allowed.append(int(spaces.parts.allowed(player.row[None]).sum()))
        if player.spaces.obs_kind == "vector":
            row = player.row.astype(np.float64)
            self.low = row if self.low is None else np.minimum(self.low, row)
            self.high = row if self.high is None else np.maximum(self.high, row)

    def ended(self, player: Player, tick: Tick, since: int) -> None:
        """An episode whose first step was that of number ``since`` has ended."""
        self.returns.append(float(np.sum(self.rewards[since:])))
        self.lengths.append(self.steps - since)
        self.terminated += tick.terminated
        self.truncated += tick.truncated and not tick.terminated
        info = player.watched.info
        for name, value in info.items() if isinstance(info, dict) else ():
            array = np.asarray(value) if not isinstance(value, str | dict) else None
            if array is not None and array.size == 1 and array.dtype.kind in "biuf":
                self.numbers[str(name)] = self.numbers.get(str(name), 0) + 1

    @property
    def success(self) -> str | None:
        """The entry of the last info that says whether an episode succeeded."""
        return next((name for name in SUCCESS if name in self.numbers), None)


def play(player: Player, steps: int, seed: int) -> Played:
    """Take random actions; a failure of the environment ends it early, and is kept."""
    played, rng = Played(seed=seed), np.random.default_rng((seed, 1))
    half = min(REPEATED_STEPS, max(1, steps // 2))
    since, tick = 0, None
    try:
        while played.steps < steps:
            if tick is None or tick.last:
                since, before = played.steps, _clocks()
                tick = player.begin()
                played.begun(player, before, tick)
            action, before = player.drawn(rng), _clocks()
            tick = player.step(action)
            played.stepped(player, action, before, tick)
            if tick.last:
                played.ended(player, tick, since)
            elif played.steps >= half and played.saved is None:
                played.saved, played.saved_after = player.slot.state_dict(), (len(played.actions), len(played.ticks))
    except EnvironmentFailure as error:
        played.failure = str(error)
    return played


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def repeated(player: Player, played: Played, *, resumed: bool = False) -> str:
    """Take the first actions of ``played`` again, or with ``resumed`` those after its saved state, and say what is not
    as it was; empty if everything is."""
    first, place = played.saved_after if resumed else (0, 0)
    actions = played.actions[first : first + played.repeated]
    try:
        if not resumed:
            return _again(player, actions, played.ticks)
        if player.back_to(played.saved or {}).observation != played.ticks[place - 1].observation:
            return "the rebuilt observation is another"
        return _steps_again(player, actions, iter(played.ticks[place:]))
    except Exception as error:  # of an environment that does not do what it did before
        return f"it raised {raised(error)}"


def repeated_in_another_order(player: Player, played: Played) -> str:
    """Begin the last episodes of ``played`` again, the last one first, and say what is not as it was."""
    if not player.seeded:
        player.restart(played.seed)
        return repeated(player, played)
    try:
        for episode in [*reversed(range(len(played.starts)))][:REPEATED_EPISODES]:
            first, place = played.starts[episode]
            until = played.starts[episode + 1][0] if episode + 1 < len(played.starts) else len(played.actions)
            player.restart(played.seed, episode)
            actions = played.actions[first : min(first + OF_EACH, until)]
            wrong = _again(player, actions, played.ticks[place:])
            if wrong:
                return wrong
    except Exception as error:
        return f"it raised {raised(error)}"
    return ""


def _again(player: Player, actions: list[Any], ticks: list[Tick]) -> str:
    wrong = player.begin().difference(ticks[0])
    return f"the first {wrong} is another" if wrong else _steps_again(player, actions, iter(ticks[1:]))


def _steps_again(player: Player, actions: list[Any], before: Iterator[Tick]) -> str:
    """Take these actions, and say which of the results is not as it was before."""
    for count, action in enumerate(actions, 1):
        tick = player.step(action)
        wrong = tick.difference(next(before))
        if wrong:
            return f"the {wrong} after {_so_many(count)} is another"
        if tick.last and count < len(actions):
            wrong = player.begin().difference(next(before))
            if wrong:
                return f"the first {wrong} of the episode after {_so_many(count)} is another"
    return ""


def _so_many(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps} steps"
