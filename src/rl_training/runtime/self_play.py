"""Self-play: some agents of a parallel environment act by earlier copies of the learner, which learns as the others."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.base.devices import state_to_host
from rl_training.base.saved import Saved, StateError, within
from rl_training.base.state import Rng
from rl_training.experiment.checkpointing import raise_on_mismatch
from rl_training.runtime.callbacks import Callback

if TYPE_CHECKING:
    from rl_training.algorithms.base import Learner
    from rl_training.envs.endings import Episode
    from rl_training.runtime.trainer import TrainerState

__all__ = ["SelfPlay"]

RECENT = 100  # episodes over which the rate of wins is taken


class SelfPlay(Callback):
    """Lets ``opponents`` act by copies of the learner from a pool; the learner acts for the other agents, and learns
    from their rows alone.

    A copy enters the pool at the start and, at the first end of an episode thereafter, every ``every_steps``; the
    newest ``pool_size`` stay. For each episode of an environment one copy is drawn: the newest with probability
    ``latest``, else any of the pool, each as likely. The metrics are ``self_play_win_rate`` (over the last hundred
    episodes, by mean returns of both sides; a draw is half a win) and ``self_play_copies``.
    """

    def __init__(
        self,
        opponents: Sequence[str] | None = None,
        *,
        every_steps: int = 10_000,
        pool_size: int = 10,
        latest: float = 0.5,
        deterministic: bool = False,
    ) -> None:
        """``opponents``: names of agents; None: in each episode all but one, which is drawn. ``deterministic``: copies
        act greedily; else as they did when they were made, which includes how they explored."""
        if isinstance(opponents, str):
            raise ValueError(f"SelfPlay: opponents are a list of names, such as [{opponents!r}], got {opponents!r}")
        for name, value in (("every_steps", every_steps), ("pool_size", pool_size)):
            if value < 1:
                raise ValueError(f"SelfPlay: {name} must be at least 1, got {value}")
        if not 0 <= latest <= 1:
            raise ValueError(f"SelfPlay: latest is a probability, got {latest}")
        self.opponents = None if opponents is None else tuple(opponents)
        self.every_steps, self.pool_size, self.latest = every_steps, pool_size, latest
        self.deterministic = deterministic
        self.copies: dict[int, Learner] = {}  # by number: those in the pool, and those that still play
        self.made, self.at = 0, 0  # copies ever made, and the step of the last one
        self.playing: list[int] = []  # by environment: the number of the copy
        self.sides: list[tuple[str, ...]] = []  # by environment: the agents that it acts for
        self.results: deque[float] = deque(maxlen=RECENT)
        self.rng = Rng(0, "self_play")
        self._agents: tuple[str, ...] = ()
        self._trainer: TrainerState | None = None
        self._saved: dict[str, Any] | None = None  # a state that waits for the learner of the run

    @property
    def pool(self) -> list[int]:
        """The numbers of the copies that are drawn from."""
        return list(range(max(0, self.made - self.pool_size), self.made))

    # ---- what a run calls

    def on_train_start(self, trainer: TrainerState) -> None:
        self._trainer, self._agents = trainer, self._checked(trainer)
        envs = trainer.config.num_envs // len(self._agents)
        if self._saved is not None:
            with raise_on_mismatch(), within("self-play"):
                self._restore(self._saved, trainer.algorithm, envs)
        else:
            self.copies, self.made, self.results = {}, 0, deque(maxlen=RECENT)
            self.rng = Rng(trainer.config.seed, "self_play")
            self._add(trainer)
            self.playing, self.sides = [0] * envs, [()] * envs
            for env in range(envs):
                self._draw(env)
        self._saved = None
        trainer.set_opponents(self)

    def on_episode_end(self, trainer: TrainerState, episode: Episode) -> None:
        if trainer.global_step // self.every_steps > self.at // self.every_steps:
            self._add(trainer)

    def _checked(self, trainer: TrainerState) -> tuple[str, ...]:
        agents, name = trainer.factory.spaces().agents, trainer.factory.name
        if len(agents) < 2:
            raise ValueError(f"SelfPlay needs a parallel environment with two agents or more, and {name} is none")
        unknown = [one for one in self.opponents or () if one not in agents]
        if unknown:
            raise ValueError(f"SelfPlay: {name} has no agent {unknown[0]!r}; it has {', '.join(agents)}")
        if self.opponents is not None and not 0 < len(set(self.opponents)) < len(agents):
            raise ValueError(f"SelfPlay: some agents of {name}, not none or all of {', '.join(agents)}, are opponents")
        return agents

    # ---- what the collector asks

    def seats(self, env: int) -> Sequence[str]:
        return self.sides[env]

    def act(self, envs: np.ndarray, obs: np.ndarray) -> np.ndarray:
        which = np.array([self.playing[env] for env in envs])
        actions: Any = None
        for number in np.unique(which).tolist():
            rows = which == number
            acting = self.copies[number].act(obs[rows], deterministic=self.deterministic, rng=self.rng.generator)
            if actions is None:
                actions = np.empty((len(obs), *acting.actions.shape[1:]), acting.actions.dtype)
            actions[rows] = acting.actions
        return actions  # type: ignore[no-any-return]

    def episode_ended(self, env: int, returns: Mapping[str, float]) -> None:
        theirs = [value for name, value in returns.items() if name in self.sides[env]]
        ours = [value for name, value in returns.items() if name not in self.sides[env]]
        if ours and theirs:
            lead = float(np.mean(ours) - np.mean(theirs))
            self.results.append(0.5 * (1 + float(np.sign(lead))))
            assert self._trainer is not None
            self._trainer.log("self_play_win_rate", float(np.mean(self.results)))
            self._trainer.log("self_play_copies", len(self.pool))
        self._draw(env)

    def _draw(self, env: int) -> None:
        """The copy and the agents for the next episode of an environment."""
        rng, pool = self.rng.generator, self.pool
        newest, any_one = rng.random() < self.latest, int(rng.integers(len(pool)))
        self.playing[env] = pool[-1 if newest else any_one]
        if self.opponents is None:
            own = self._agents[int(rng.integers(len(self._agents)))]
            self.sides[env] = tuple(name for name in self._agents if name != own)
        else:
            self.sides[env] = self.opponents
        self._keep(self.pool)

    def _add(self, trainer: TrainerState) -> None:
        twin = copy.deepcopy(trainer.algorithm)
        twin.set_eval_mode()
        self.copies[self.made] = twin
        self.made, self.at = self.made + 1, trainer.global_step
        self._keep(self.pool)

    def _keep(self, pool: Iterable[int]) -> None:
        """Drop copies that are neither in the pool nor playing."""
        needed = {*pool, *self.playing}
        self.copies = {number: twin for number, twin in self.copies.items() if number in needed}

    # ---- exact resume

    def state_dict(self) -> dict[str, Any]:
        if self._saved is not None:
            return self._saved
        copies = [
            {
                "number": number,
                "controls": {name: twin.control(name) for name in twin.CONTROLS},
                "learner": state_to_host(twin.state_dict()),
            }
            for number, twin in self.copies.items()
        ]
        return {
            "copies": copies,
            "made": self.made,
            "at": self.at,
            "playing": list(self.playing),
            "sides": [[self._agents.index(name) for name in side] for side in self.sides],
            "results": list(self.results),
            "rng": self.rng.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        Saved(state, ("copies", "made", "at", "playing", "sides", "results", "rng"))
        self._saved = state

    def _restore(self, state: dict[str, Any], learner: Learner, envs: int) -> None:
        saved = Saved(state, state)
        self.made, self.at = saved.count("made", least=1), saved.count("at")
        self.playing = saved.counts("playing", length=envs, most=self.made - 1)
        sides = [
            Saved({"side": one}, ("side",)).counts("side", most=len(self._agents) - 1) for one in saved.items("sides")
        ]
        if len(sides) != envs:
            raise StateError(f"has {len(sides)} environments, expected {envs}", "sides")
        self.sides = [tuple(self._agents[i] for i in side) for side in sides]
        numbers = saved.items("results")
        results = Saved({str(i): value for i, value in enumerate(numbers)}, map(str, range(len(numbers))))
        self.results = deque((results.number(str(i)) for i in range(len(numbers))), maxlen=RECENT)
        self.copies = {}
        for one in saved.items("copies"):
            part, twin = Saved(one, ("number", "controls", "learner")), copy.deepcopy(learner)
            twin.load_state_dict(part["learner"])
            controls = Saved(part["controls"], twin.CONTROLS)
            for name in twin.CONTROLS:
                twin.set_control(name, controls.number(name))
            twin.set_eval_mode()
            self.copies[part.count("number", most=self.made - 1)] = twin
        if not {*self.pool, *self.playing} <= set(self.copies):
            raise StateError("lacks copies that play", "copies")
        self.rng.load_state_dict(saved["rng"])
