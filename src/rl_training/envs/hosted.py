"""The worker's side of environments that are stepped elsewhere: several of a run's, in a process or an actor of their
own."""

from __future__ import annotations

import contextlib
import pickle
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import gymnasium as gym

from rl_training.base.trust import modules_named, trust_modules
from rl_training.envs.endings import only
from rl_training.envs.factory import EnvFactory
from rl_training.envs.replay import ReplayableEnv, replayable
from rl_training.envs.watchdog import Watchdog

__all__ = ["HostedEnvs", "LostWorker", "Reply", "WorkerTraceback", "registered"]


class WorkerTraceback(Exception):
    """The traceback of an exception in a worker, shown as its cause."""


class Reply(NamedTuple):
    """What a request to one environment came to: its result, or the exception that it raised."""

    ok: bool
    value: Any

    def packed(self) -> Reply:
        """As another process can read it, an exception too: its type's name, its text, itself where that is possible,
        and its traceback."""
        if self.ok:
            return self
        error, whole = self.value, b""
        if type(error).__module__.partition(".")[0] in ("builtins", "rl_training"):
            with contextlib.suppress(Exception):  # whatever its __reduce__ may raise
                whole = pickle.dumps(error)
                pickle.loads(whole)
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return Reply(False, (type(error).__name__, str(error), whole, trace))

    def unpacked(self) -> Reply:
        """The reply again; an exception of a type that only the worker knows is one of the same name and text."""
        if self.ok:
            return self
        name, text, whole, trace = self.value
        error: Exception = type(name, (RuntimeError,), {})(text)
        with contextlib.suppress(Exception):
            error = pickle.loads(whole)
        error.__cause__ = WorkerTraceback(f"\n{trace}")
        return Reply(False, error)


class LostWorker(Exception):
    """A worker that does not answer any more: why, and the place of the environment that it was serving."""

    def __init__(self, why: str, place: int) -> None:
        super().__init__(why)
        self.place = place


class HostedEnvs:
    """Environments of a run by their indices. A request names an operation and has an argument for each place in them.

    Operations: ``begin`` an episode, ``step`` with an action, ``change`` arguments, ``load`` the state of an episode,
    ``replay`` its actions, and ``rebuild``, which does both.
    """

    def __init__(
        self,
        factory: EnvFactory,
        seed: int,
        indices: Sequence[int],
        info: Sequence[str] = (),
        watchdogs: Sequence[Watchdog] | None = None,
    ) -> None:
        """``info``: entries of last infos that are sent back, beside those that report success. ``watchdogs``: one for
        each environment, told of its calls."""
        self._info = info
        self.slots: list[ReplayableEnv] = []
        for place, index in enumerate(indices):
            own = factory if watchdogs is None else replace(factory, watchdog=watchdogs[place])
            env = own.make(training=True)
            self.slots.append(replayable(env, seed=seed, index=index, make=own.make_changed))
        self._operations: dict[str, Callable[[ReplayableEnv, Any], Any]] = {
            "begin": self._begin,
            "step": self._step,
            "change": lambda slot, env_kwargs: slot.change(env_kwargs),
            "load": self._load,
            "replay": lambda slot, actions: slot.replay(actions),
            "rebuild": self._rebuild,
        }

    def serve(self, name: str, arguments: Mapping[int, Any]) -> dict[int, Reply]:
        """The reply of an operation at each place that it has an argument for."""
        return {place: self.attempt(name, place, argument) for place, argument in arguments.items()}

    def attempt(self, name: str, place: int, argument: Any = None) -> Reply:
        """One operation of one environment, whatever that raises."""
        try:
            return Reply(True, self._operations[name](self.slots[place], argument))
        except Exception as error:
            return Reply(False, error)

    def _begin(self, slot: ReplayableEnv, _: Any) -> tuple[Any, dict[str, Any]]:
        """The first observation, and what more than a seed and actions this episode's state has."""
        obs = slot.begin()
        more = set(slot.PARTS) - set(ReplayableEnv.PARTS)
        return obs, {name: part for name, part in slot.state_dict().items() if name in more} if more else {}

    def _step(self, slot: ReplayableEnv, action: Any) -> Any:
        result = slot.step(action)
        slot.actions.append(action)
        if not (isinstance(result, tuple) and len(result) == 5):
            return result  # for the collector to refuse
        return (*result[:4], only(result[4], self._info))  # the rest of info stays here

    def _load(self, slot: ReplayableEnv, state: dict[str, Any]) -> None:
        trust_modules(modules_named(None, state.get("env_kwargs")))  # the run's own process has checked them
        slot.load_state_dict(state)

    def _rebuild(self, slot: ReplayableEnv, state: dict[str, Any]) -> tuple[Any, float, int]:
        self._load(slot, state)
        return slot.replay(state["actions"])

    def close(self) -> None:
        for slot in self.slots:
            slot.env.close()


def registered(factory: EnvFactory) -> dict[str, Any]:
    """What Gymnasium's registry holds of a factory's id, for a process that may not have registered it."""
    if not isinstance(factory.source, str):
        return {}
    name = factory.source.partition(":")[2] or factory.source
    return {name: gym.registry[name]} if name in gym.registry else {}
