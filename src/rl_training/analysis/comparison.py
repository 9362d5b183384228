"""Groups of runs that differ only by seed, their numbers beside each other, and two sets of runs against each other."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from rl_training.analysis.records import RunRecord, usable
from rl_training.analysis.statistics import (
    Interval,
    Scores,
    iqm,
    mean,
    median,
    probability_of_improvement,
    stratified_bootstrap,
)

# may differ within a group: they change no result
APART = (
    *("seed", "output_dir", "tags", "progress", "device", "threads", "execution_backend"),
    *("log_interval", "checkpoint_interval", "keep_checkpoints", "loggers", "record_video"),
)
STATISTICS: dict[str, Callable[[Scores], Any]] = {"iqm": iqm, "mean": mean, "median": median}


@dataclass(frozen=True)
class Group:
    """Runs of one algorithm on one environment, of the same options; ``options`` are those that other groups have otherwise."""

    algo: str
    env_id: str
    options: str
    config: dict[str, Any]  # by dotted name, without what may differ within a group
    runs: tuple[RunRecord, ...]

    @property
    def label(self) -> str:
        """Its name among groups of the same environment."""
        return f"{self.algo} {self.options}".strip()

    @property
    def name(self) -> str:
        return f"{self.algo} {self.env_id} {self.options}".strip()

    @property
    def scores(self) -> list[float]:
        return finals(self.runs)


class Standing(NamedTuple):
    """A group and its statistics: none if no run of it has an evaluation."""

    group: Group
    statistics: dict[str, Interval]

    def row(self, rank: int) -> dict[str, Any]:
        """As a line of a table."""
        runs = self.group.runs
        unfinished, untrained = sum(not run.finished for run in runs), sum(run.untrained for run in runs)
        notes = [f"{unfinished} of {len(runs)} not finished"] if unfinished else []
        notes += [f"{untrained} of {len(runs)} made no update"] if untrained else []
        notes += [] if self.statistics else ["no evaluation"]
        return {
            "environment": self.group.env_id,
            "rank": rank if self.statistics else None,
            "group": self.group.label,
            "seeds": len(self.group.scores),
            **{name: self.statistics.get(name) for name in STATISTICS},
            "steps": max(run.step for run in runs),
            "note": ", ".join(notes),
        }


class Versus(NamedTuple):
    """Two sets of runs on one environment. ``improvement`` is the probability that a run of a beats one of b."""

    env_id: str
    a: dict[str, Interval]
    b: dict[str, Interval]
    runs: tuple[int, int]
    difference: Interval
    improvement: Interval


class Comparison(NamedTuple):
    environments: list[Versus]
    improvement: Interval  # averaged over environments
    scores: (
        tuple[dict[str, Interval], dict[str, Interval]] | None
    )  # over environments, if every run has a normalised score
    notes: list[str]

    def rows(self, names: tuple[str, str]) -> list[dict[str, Any]]:
        """Two lines for each environment and, of several, two for all of them; the comparison stands in the first."""
        rows: list[dict[str, Any]] = []
        for env in self.environments:
            for name, count, numbers in zip(names, env.runs, (env.a, env.b)):
                rows.append({"environment": env.env_id, "runs_of": name, "runs": count, **numbers})
            rows[-2] |= {"iqm_difference": env.difference, "a_better": env.improvement}
        if len(self.environments) > 1:
            for side, name in enumerate(names):
                count = sum(env.runs[side] for env in self.environments)
                scores = self.scores[side] if self.scores else {}
                rows.append({"environment": "all", "runs_of": name, "runs": count, **scores})
            rows[-2] |= {"a_better": self.improvement}
        return rows


def finals(runs: Iterable[RunRecord]) -> list[float]:
    return [float(run.metrics.final) for run in usable(runs) if run.metrics.final is not None]


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested options by dotted name."""
    values: dict[str, Any] = {}
    for name, value in config.items():
        values |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return values


def groups_of(runs: Iterable[RunRecord]) -> list[Group]:
    """Groups in the order in which their first runs stand, named by what tells them from each other."""
    members: dict[str, list[RunRecord]] = defaultdict(list)
    for run in runs:
        kept = {name: value for name, value in run.config.items() if name not in APART}
        members[json.dumps(kept, sort_keys=True, default=str)].append(run)
    siblings: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for key, found in members.items():
        siblings[found[0].algo, found[0].env_id].append(flat(json.loads(key)))
    groups = []
    for key, found in members.items():
        config, (algo, env_id) = flat(json.loads(key)), (found[0].algo, found[0].env_id)
        options = _options(config, siblings[algo, env_id])
        groups.append(Group(algo, env_id, options, config, tuple(sorted(found, key=lambda run: run.seed))))
    return groups


def differing(configs: list[dict[str, Any]]) -> list[str]:
    """The names whose values are not the same in all of these."""
    names = dict.fromkeys(name for config in configs for name in config)
    return [name for name in names if any(said(config, name) != said(configs[0], name) for config in configs)]


def said(config: dict[str, Any], name: str) -> str:
    """An option's value as a person would write it; what a config does not name has its default."""
    if name not in config:
        return "default"
    value = config[name]
    return f"{value:g}" if isinstance(value, float) else str(value) if isinstance(value, str) else json.dumps(value)


def _options(config: dict[str, Any], others: list[dict[str, Any]]) -> str:
    return " ".join(f"{name.removeprefix('algo_kwargs.')}={said(config, name)}" for name in differing(others))


def summary(scores: Scores) -> dict[str, Interval]:
    """Every statistic with its interval."""
    return {name: stratified_bootstrap(statistic, scores) for name, statistic in STATISTICS.items()}


def leaderboard(groups: Iterable[Group]) -> dict[str, list[Standing]]:
    """By environment: the groups from the best interquartile mean down, those without an evaluation last."""
    boards: dict[str, list[Standing]] = defaultdict(list)
    for group in groups:
        scores = group.scores
        boards[group.env_id].append(Standing(group, summary(scores) if scores else {}))
    for board in boards.values():
        board.sort(key=lambda s: -s.statistics["iqm"].value if s.statistics else float("inf"))
    return dict(sorted(boards.items()))


def compare(a: Iterable[RunRecord], b: Iterable[RunRecord], names: tuple[str, str] = ("A", "B")) -> Comparison:
    """Two sets of runs, environment by environment; what only one of them has is left out, and said."""
    sides, notes = [list(a), list(b)], []
    by_env: list[dict[str, list[RunRecord]]] = []
    for side, name in zip(sides, names):
        good = usable(side)
        if not good:
            raise ValueError(f"no run of {name} has an evaluation yet")
        if len(good) < len(side):
            notes.append(f"{len(side) - len(good)} of {len(side)} runs of {name} have no evaluation and are left out")
        unfinished, untrained = sum(not run.finished for run in good), sum(run.untrained for run in good)
        if unfinished:
            notes.append(f"{unfinished} of {len(good)} runs of {name} are not finished: their last evaluation counts")
        if untrained:
            notes.append(f"{untrained} of {len(good)} runs of {name} made no update: they show the untrained agent")
        by_env.append({env: [r for r in good if r.env_id == env] for env in sorted({r.env_id for r in good})})
    common = [env for env in by_env[0] if env in by_env[1]]
    if not common:
        had = " and ".join(f"{name} has {', '.join(envs)}" for name, envs in zip(names, by_env))
        raise ValueError(f"nothing to compare: the two sides have no environment in common ({had})")
    for name, envs in zip(names, by_env):
        alone = [env for env in envs if env not in common]
        if alone:
            notes.append(f"left out, since only {name} has runs on it: {', '.join(alone)}")
        for env in common:
            variants = len(groups_of(envs[env]))
            if variants > 1:
                notes.append(f"{name} holds {variants} groups on {env}, taken together")
    xs, ys = ({env: finals(envs[env]) for env in common} for envs in by_env)
    if len(common) > 1:
        notes.append(
            "returns of different environments are not on one scale: only the probability is averaged over them"
        )
    return Comparison(
        [versus(env, xs[env], ys[env]) for env in common],
        stratified_bootstrap(probability_of_improvement, xs, ys),
        _normalised(by_env, common) if len(common) > 1 else None,
        notes,
    )


def versus(env_id: str, x: list[float], y: list[float]) -> Versus:
    return Versus(env_id, summary(x), summary(y), (len(x), len(y)), *against(x, y))


def against(x: list[float], y: list[float]) -> tuple[Interval, Interval]:
    """How far the interquartile means lie apart, and how probably a run of x beats one of y."""
    difference = stratified_bootstrap(lambda p, q: iqm(p) - iqm(q), x, y)
    return difference, stratified_bootstrap(probability_of_improvement, x, y)


def _normalised(
    by_env: list[dict[str, list[RunRecord]]], common: list[str]
) -> tuple[dict[str, Interval], dict[str, Interval]] | None:
    """Statistics over environments, where every run knows what a random and an expert policy get."""
    sides = [{env: [run.metrics.score for run in envs[env]] for env in common} for envs in by_env]
    if any(score is None for side in sides for runs in side.values() for score in runs):
        return None
    return summary(sides[0]), summary(sides[1])
