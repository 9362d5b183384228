"""Groups of runs that differ only by seed, leaderboards of groups, and comparisons of two sets of runs."""

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

__all__ = [
    "Comparison",
    "Group",
    "RankedGroup",
    "Versus",
    "against",
    "compare",
    "differing_options",
    "finals",
    "flattened",
    "groups_of",
    "leaderboard",
    "option_text_of",
    "statistics_of",
    "versus",
]

# fields that may differ within a group, since they change no result
NOT_COMPARED = (
    *("seed", "output_dir", "tags", "progress", "device", "threads", "execution_backend", "env_workers"),
    *("log_interval", "checkpoint_interval", "keep_checkpoints", "loggers", "record_video"),
)
Statistics = tuple[dict[str, Interval], dict[str, Interval]]  # of each of two sides, by name
STATISTICS: dict[str, Callable[[Scores], Any]] = {"iqm": iqm, "mean": mean, "median": median}


@dataclass(frozen=True)
class Group:
    """Runs of one algorithm on one environment with the same options.

    ``options`` names the options by which groups of this algorithm and environment differ.
    """

    algo: str
    env_id: str
    options: str
    config: dict[str, Any]  # by dotted name, without fields that may differ within a group
    runs: tuple[RunRecord, ...]

    @property
    def label(self) -> str:
        """The name among groups of the same environment."""
        return f"{self.algo} {self.options}".strip()

    @property
    def name(self) -> str:
        """The name among all groups."""
        return f"{self.algo} {self.env_id} {self.options}".strip()

    @property
    def scores(self) -> list[float]:
        """The last evaluation of each run that has one."""
        return finals(self.runs)


class RankedGroup(NamedTuple):
    """A group with its statistics, which are empty if no run has an evaluation."""

    group: Group
    statistics: dict[str, Interval]

    def row(self, rank: int) -> dict[str, Any]:
        """The group as a row of a table."""
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
    """Two sets of runs on one environment; ``improvement`` is the probability that a run of a beats one of b."""

    env_id: str
    a: dict[str, Interval]
    b: dict[str, Interval]
    runs: tuple[int, int]
    difference: Interval
    improvement: Interval


class Comparison(NamedTuple):
    """Two sets of runs on the environments that both have."""

    environments: list[Versus]
    improvement: Interval  # averaged over environments
    scores: Statistics | None  # over environments, if every run has a normalised score
    notes: list[str]

    def rows(self, names: tuple[str, str]) -> list[dict[str, Any]]:
        """Make two rows for each environment and, of several, two for all; the comparison stands in the first."""
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
    """The last evaluations of the runs that have one."""
    return [float(run.metrics.final) for run in usable(runs) if run.metrics.final is not None]


def flattened(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Name nested options by dotted names."""
    values: dict[str, Any] = {}
    for name, value in config.items():
        values |= flattened(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return values


def groups_of(runs: Iterable[RunRecord]) -> list[Group]:
    """Group runs by their configs, in order of first appearance."""
    members: dict[str, list[RunRecord]] = defaultdict(list)
    for run in runs:
        kept = {name: value for name, value in run.config.items() if name not in NOT_COMPARED}
        members[json.dumps(kept, sort_keys=True, default=str)].append(run)
    siblings: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for key, found in members.items():
        siblings[found[0].algo, found[0].env_id].append(flattened(json.loads(key)))
    groups = []
    for key, found in members.items():
        config, (algo, env_id) = flattened(json.loads(key)), (found[0].algo, found[0].env_id)
        options = _options(config, siblings[algo, env_id])
        groups.append(Group(algo, env_id, options, config, tuple(sorted(found, key=lambda run: run.seed))))
    return groups


def differing_options(configs: list[dict[str, Any]]) -> list[str]:
    """List the options whose values are not the same in all configs."""
    names = dict.fromkeys(name for config in configs for name in config)
    return [
        name
        for name in names
        if any(option_text_of(config, name) != option_text_of(configs[0], name) for config in configs)
    ]


def option_text_of(config: dict[str, Any], name: str) -> str:
    """Format an option's value; an option that a config does not name has its default."""
    if name not in config:
        return "default"
    value = config[name]
    return f"{value:g}" if isinstance(value, float) else str(value) if isinstance(value, str) else json.dumps(value)


def _options(config: dict[str, Any], others: list[dict[str, Any]]) -> str:
    return " ".join(
        f"{name.removeprefix('algo_kwargs.')}={option_text_of(config, name)}" for name in differing_options(others)
    )


def statistics_of(scores: Scores) -> dict[str, Interval]:
    """Compute every statistic with its interval."""
    return {name: stratified_bootstrap(statistic, scores) for name, statistic in STATISTICS.items()}


def leaderboard(groups: Iterable[Group]) -> dict[str, list[RankedGroup]]:
    """Rank groups by environment: from the best interquartile mean down, those without an evaluation last."""
    boards: dict[str, list[RankedGroup]] = defaultdict(list)
    for group in groups:
        scores = group.scores
        boards[group.env_id].append(RankedGroup(group, statistics_of(scores) if scores else {}))
    for board in boards.values():
        board.sort(key=lambda s: -s.statistics["iqm"].value if s.statistics else float("inf"))
    return dict(sorted(boards.items()))


def compare(a: Iterable[RunRecord], b: Iterable[RunRecord], names: tuple[str, str] = ("A", "B")) -> Comparison:
    """Compare two sets of runs by environment; the notes name what is left out."""
    notes: list[str] = []
    by_env = [_by_environment(list(runs), name, notes) for runs, name in zip((a, b), names)]
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


def _by_environment(runs: list[RunRecord], name: str, notes: list[str]) -> dict[str, list[RunRecord]]:
    """The runs of one side that have an evaluation, by environment; adds notes on those that are unfinished."""
    good = usable(runs)
    if not good:
        raise ValueError(f"no run of {name} has an evaluation yet")
    if len(good) < len(runs):
        notes.append(f"{len(runs) - len(good)} of {len(runs)} runs of {name} have no evaluation and are left out")
    unfinished, untrained = sum(not run.finished for run in good), sum(run.untrained for run in good)
    if unfinished:
        notes.append(f"{unfinished} of {len(good)} runs of {name} are not finished: their last evaluation counts")
    if untrained:
        notes.append(f"{untrained} of {len(good)} runs of {name} made no update: they show the untrained agent")
    return {env: [run for run in good if run.env_id == env] for env in sorted({run.env_id for run in good})}


def versus(env_id: str, x: list[float], y: list[float]) -> Versus:
    """Compare the scores of two sets of runs on one environment."""
    return Versus(env_id, statistics_of(x), statistics_of(y), (len(x), len(y)), *against(x, y))


def against(x: list[float], y: list[float]) -> tuple[Interval, Interval]:
    """The difference of the interquartile means, and the probability that a run of x beats one of y."""
    difference = stratified_bootstrap(lambda p, q: iqm(p) - iqm(q), x, y)
    return difference, stratified_bootstrap(probability_of_improvement, x, y)


def _normalised(by_env: list[dict[str, list[RunRecord]]], common: list[str]) -> Statistics | None:
    """Statistics over environments, where every run has a normalised score."""
    sides = [{env: [run.metrics.score for run in envs[env]] for env in common} for envs in by_env]
    if any(score is None for side in sides for runs in side.values() for score in runs):
        return None
    return statistics_of(sides[0]), statistics_of(sides[1])
