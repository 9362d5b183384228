"""Environments of a run in workers, processes or Ray actors, that each step several of them: a message to each worker,
then their answers. Same episodes, same numbers as in one process.

All that an environment's state is made of is known on the run's side (its episode and the actions so far), so that a
worker that is lost loses nothing: another one takes its place and repeats the episodes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from rl_training.base.devices import processors
from rl_training.base.errors import raised
from rl_training.base.saved import Saved
from rl_training.envs.checks import EnvironmentFailure
from rl_training.envs.factory import EnvFactory
from rl_training.envs.hosted import LostWorker, Reply
from rl_training.envs.incidents import History
from rl_training.envs.processes import ProcessMaker
from rl_training.envs.remote import RayMaker
from rl_training.envs.replay import changed_arguments, episode_seed, played_actions, saved_actions
from rl_training.envs.spaces import Spaces

__all__ = ["Link", "Maker", "RemoteEnv", "Worker", "Workers", "make_workers"]


class Link(Protocol):
    """The run's end of a connection to one worker."""

    def send(self, name: str, arguments: Mapping[int, Any]) -> None:
        """Let the worker begin with an operation of HostedEnvs."""

    def receive(self) -> dict[int, Reply]:
        """What that came to; LostWorker if the worker does not answer."""

    def end(self, *, kill: bool = False) -> None:
        """Ask the worker to end, or kill it."""

    def wait(self) -> None:
        """Wait until it has ended."""


class Maker(Protocol):
    """Starts workers of one kind."""

    KIND: str

    def launch(self, indices: Sequence[int]) -> Link:
        """Start a worker for the environments of these indices."""


class RemoteEnv:
    """One environment of a worker, as a ReplayableEnv: a result is waited for after it was asked for.

    All that its state is made of is known on this side, so that a worker that is lost loses nothing.
    """

    def __init__(self, worker: Worker, place: int, key: tuple[int, int], *, seeded: bool) -> None:
        self._worker, self._place, self._key, self._seeded = worker, place, key, seeded
        self.episode = -1
        self.actions: list[Any] = []  # of the episode; the collector adds to them
        self.env_kwargs: dict[str, Any] = {}  # arguments that were changed before this episode
        self.more: dict[str, Any] = {}  # what the episode's state has beside its seed and actions
        self.seen: Any = None  # the newest observation
        self._beginning = False

    @property
    def index(self) -> int:
        """Which of the run's environments it is."""
        return self._key[1]

    def ask(self, name: str, argument: Any = None) -> None:
        """Have an operation done in the worker's next round."""
        self._beginning = name == "begin"
        self._worker.ask(name, self._place, argument)

    def change(self, env_kwargs: dict[str, Any]) -> None:
        if env_kwargs != self.env_kwargs:
            self.ask("change", env_kwargs)
            self._worker.result(self._place)
            self.env_kwargs = dict(env_kwargs)

    def step(self, action: Any) -> Any:
        result = self._worker.result(self._place)
        self.seen = result[0] if isinstance(result, tuple) else None
        return result

    def begin(self) -> Any:
        if not self._beginning:
            self.ask("begin")
        self.seen, self.more = self._worker.result(self._place)
        self.episode, self.actions, self._beginning = self.episode + 1, [], False
        return self.seen

    def history(self) -> History:
        """What led to where the episode is: its seed, and the actions so far."""
        episode = self.episode + self._beginning
        first = episode if self._seeded else 0
        known = {"episode": episode, "seed": episode_seed(*self._key, first)}
        exact = self._seeded or not (self._beginning or self.more.get("before") or self.more.get("earlier"))
        changed = {"env_kwargs": self.env_kwargs} if self.env_kwargs else {}
        return {**known, "actions": [] if self._beginning else list(self.actions), "exact": exact, **changed}

    def state_dict(self) -> dict[str, Any]:
        changed = {"env_kwargs": self.env_kwargs} if self.env_kwargs else {}
        return {"episode": self.episode, "actions": saved_actions(self.actions), **self.more, **changed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Back to the start of the saved episode, whose actions the worker begins to repeat; ``replay`` waits for
        that."""
        saved = Saved(state, ("episode", "actions"), state)
        episode, env_kwargs = saved.count("episode"), changed_arguments(saved)
        self.ask("load", state)
        self._worker.result(self._place)
        self.episode, self.actions, self.env_kwargs = episode, [], env_kwargs
        self.more = {name: part for name, part in state.items() if name not in ("episode", "actions", "env_kwargs")}
        self.ask("replay", saved["actions"])

    def replay(self, actions: Any) -> tuple[Any, float, int]:
        found: tuple[Any, float, int] = self._worker.result(self._place)
        self.actions, self.seen = played_actions(actions), found[0]
        return found


class Worker:
    """The environments that one process or actor steps. If it is lost, they are repeated by another one, from their
    seeds and actions."""

    def __init__(self, maker: Maker, indices: Sequence[int], seed: int, *, seeded: bool) -> None:
        self._maker, self._indices = maker, indices
        self.envs = [RemoteEnv(self, place, (seed, index), seeded=seeded) for place, index in enumerate(indices)]
        self.link = maker.launch(indices)
        self._asked: dict[int, Any] = {}
        self._name = ""
        self._sent = False
        self._results: dict[int, Reply] = {}

    def ask(self, name: str, place: int, argument: Any) -> None:
        """Add to the next round; a round has one operation."""
        if self._sent or (self._asked and name != self._name):
            self._finish()
        self._name = name
        self._asked[place] = argument

    def send(self) -> None:
        """Let the round begin."""
        if self._asked and not self._sent:
            self._sent = True
            self.link.send(self._name, self._asked)

    def result(self, place: int) -> Any:
        """What the round came to for one environment."""
        if place in self._asked:
            self._finish()
        ok, value = self._results.pop(place)
        if not ok:
            raise value
        return value

    def _finish(self) -> None:
        """Wait for the end of the round."""
        self.send()
        asked, self._asked, self._sent = self._asked, {}, False
        try:
            try:
                self._results.update(self.link.receive())
            except LostWorker as lost:
                self._results.update(self._again(lost, asked))
        except EnvironmentFailure as error:
            self._results.update({place: Reply(False, error) for place in asked})

    def _again(self, lost: LostWorker, asked: dict[int, Any]) -> dict[int, Reply]:
        """Start another worker, bring every environment to where it was, and repeat the round."""
        who = f"environment {self._indices[0]}"
        if len(self.envs) > 1:
            who = f"environments {self._indices[0]} to {self._indices[-1]}"
        kind = self._maker.KIND
        warnings.warn(f"the {kind} of {who} {lost}: another one takes its place and repeats the episodes", stacklevel=2)
        try:
            self.link.end(kill=True)
            self.link.wait()
            self.link = self._maker.launch(self._indices)
            self._repeat(asked)
            self.link.send(self._name, asked)
            return self.link.receive()
        except LostWorker as second:
            other = "twice" if str(second) == str(lost) else f"and the one that took its place {second}"
            raise self._failed(f"its {self._maker.KIND} {lost}, {other}", second.place) from second

    def _repeat(self, asked: dict[int, Any]) -> None:
        """Rebuild what the worker that was lost held. What is about to begin without memory of an earlier episode needs
        only its number."""
        states, numbers = {}, {}
        for place, env in enumerate(self.envs):
            name = self._name if place in asked else ""
            if env.episode < 0 or name == "load":
                continue
            if name == "replay" or (name in ("begin", "change") and not env.more):
                numbers[place] = {**env.state_dict(), "actions": None}
            else:
                states[place] = env.state_dict()
        for name, arguments in (("load", numbers), ("rebuild", states)):
            if not arguments:
                continue
            self.link.send(name, arguments)
            for place, (ok, value) in self.link.receive().items():
                if not ok or (name == "rebuild" and not _alike(value[0], self.envs[place].seen)):
                    why = "" if ok else f" ({raised(value)})"
                    text = f"its {self._maker.KIND} is lost, and its seed and actions do not lead to where it was{why}"
                    raise self._failed(text, place)

    def _failed(self, text: str, place: int) -> EnvironmentFailure:
        error = EnvironmentFailure(text)
        error.index = self.envs[place].index
        return error


class Workers:
    """All environments of a run, in workers that each step several of them: a message to each, then their answers."""

    def __init__(self, maker: Maker, num_envs: int, seed: int, *, workers: int, seeded: bool) -> None:
        parts = np.array_split(np.arange(num_envs), min(workers, num_envs))
        self._workers = [Worker(maker, part.tolist(), seed, seeded=seeded) for part in parts]
        self.envs = [env for worker in self._workers for env in worker.envs]

    def step(self, actions: Iterable[Any]) -> None:
        """Let every environment take its action; ``step`` of each then waits for its result."""
        for env, action in zip(self.envs, actions):
            env.ask("step", action)
        self.send()

    def begin(self, which: Iterable[int]) -> None:
        """Let these environments begin their next episodes."""
        for i in which:
            self.envs[i].ask("begin")
        self.send()

    def send(self) -> None:
        """Let every worker begin with what its environments were asked for."""
        for worker in self._workers:
            worker.send()

    def close(self) -> None:
        for worker in self._workers:
            worker.link.end()
        for worker in self._workers:
            worker.link.wait()


def make_workers(
    backend: str,
    factory: EnvFactory,
    spaces: Spaces,
    num_envs: int,
    seed: int,
    *,
    workers: int | None = None,
    info: Sequence[str] = (),
) -> Workers:
    """Workers of a backend, ``process`` or ``ray``; as many as there are processors, unless a number is given."""
    if isinstance(factory.source, gym.Env):
        raise ValueError(
            f"{factory.name} was given as an object, which only the run's own process has; with execution_backend: "
            f"{backend}, pass a function that makes it"
        )
    maker: Maker
    if backend == "ray":
        maker = ray_maker = RayMaker(factory, seed, info)
        most = int(ray_maker.ray.cluster_resources().get("CPU", 1))
    else:
        maker, most = ProcessMaker(factory, seed, info, spaces), processors()
    seeded = not factory.name.startswith("ALE/")  # whose games begin with a seed only once
    return Workers(maker, num_envs, seed, workers=workers or max(1, most), seeded=seeded)


def _alike(obs: Any, seen: Any) -> bool:
    """Whether an observation is the one that was seen, as far as that is known."""
    if not isinstance(seen, np.ndarray):
        return True
    return bool(np.array_equal(np.asarray(obs).astype(seen.dtype), seen))
