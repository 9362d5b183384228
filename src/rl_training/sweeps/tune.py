"""Hyperparameter search: Optuna chooses options, workers of a sweep train, and trials that lag behind are pruned."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from rl_training.base.errors import printable, reason
from rl_training.base.files import UnusualFile, open_regular, read_json_object, regular_file, write_durably
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import dump_yaml
from rl_training.sweeps.plan import Job, JobStatus, changed_options, make_folder, make_job
from rl_training.sweeps.space import Space, chosen, distributions
from rl_training.tracking.jsonl import MOST_STEPS, number

STORAGE, MANIFEST, BEST, IMPORTANCE = "study.db", "study.json", "best.yaml", "importance.png"
__all__ = ["Evaluations", "Outcome", "TrialEnd", "TrialFeed", "conclude", "load_optuna", "open_study"]

STARTUP = 5  # trials before any is compared with the others


def load_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ValueError("tuning needs the tune extra: pip install 'rl_training[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def open_study(folder: Path, base: TrainConfig, space: Space, *, pruning: bool = True) -> Any:
    """Begin or continue the study of this folder; one of another config or space is refused."""
    optuna = load_optuna()
    make_folder(folder)
    for name in (STORAGE, f"{STORAGE}-journal", f"{STORAGE}-wal", f"{STORAGE}-shm", IMPORTANCE):
        regular_file(folder / name)
    values = {name: part if isinstance(part, list) else part.model_dump() for name, part in space.items()}
    now = json.loads(json.dumps({"config": base.plain(), "space": values}))
    path = folder / MANIFEST
    before = read_json_object(path) if regular_file(path) else now
    if before != now:
        where = ", ".join(sorted(changed_options(before, now)))
        raise ValueError(f"{folder} holds a study that differs in {where}; go on with that one, or give another --name")
    write_durably(path, [json.dumps(now, indent=1).encode()])
    total = base.total_timesteps
    pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=total // 4)
    try:
        return optuna.create_study(
            study_name="rl-training", storage=f"sqlite:///{folder.resolve() / STORAGE}", direction="maximize",
            load_if_exists=True, pruner=pruner if pruning else optuna.pruners.NopPruner(),
            sampler=optuna.samplers.TPESampler(seed=base.seed, constant_liar=True),
        )  # fmt: skip
    except Exception as error:  # whatever a database of others makes sqlite, SQLAlchemy and Optuna raise
        raise ValueError(f"{folder / STORAGE} is not a study that can be used: {reason(error)[:200]}") from None


class TrialEnd(Enum):
    """Why a trial has no value."""

    PRUNED = "stopped early"  # it lagged behind the others
    INTERRUPTED = "interrupted"  # the search was stopped; its next run goes on with it
    FAILED = "failed"


class Evaluations:
    """The evaluations of a run so far; each reading goes on where the last one ended."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0
        self.values: dict[int, float] = {}

    def read(self) -> dict[int, float]:
        try:
            opened = open_regular(self._path)
        except (FileNotFoundError, UnusualFile):  # it has not begun, or is refused by whoever resumes it
            return self.values
        with opened as file:
            if file.seek(0, 2) < self._offset:  # a resumed run has dropped the lines after its checkpoint
                self._offset = 0
            begun = self._offset
            file.seek(begun)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                if b"eval_return_mean" in line and not self._take(line) and begun:
                    self._offset = 0  # rewritten since the last reading: this is not the beginning of a line
                    return self.read()
        return self.values

    def _take(self, line: bytes) -> bool:
        """Add an evaluation, if the line holds one; False if it is no JSON object."""
        try:
            values = dict(json.loads(line))
        except (ValueError, TypeError, RecursionError):
            return False
        step, value = number(values.get("step"), 0, MOST_STEPS), number(values.get("eval_return_mean"))
        if step is not None and value is not None:
            self.values[int(step)] = value
        return True

    @property
    def last(self) -> float | None:
        self.read()
        return self.values[max(self.values)] if self.values else None


@dataclass
class _Trial:
    """One choice of options, with a run for each seed."""

    trial: Any
    waiting: list[Job]
    reported: set[int]
    curves: dict[str, Evaluations]
    running: set[str] = field(default_factory=set)
    end: TrialEnd | None = None  # None: it is running, or has a value
    error: str = ""  # of a trial that failed

    @property
    def done(self) -> bool:
        return not self.running and (not self.waiting or self.end is not None)


class TrialFeed:
    """Optuna's trials as jobs, one for each seed; a trial's value is the mean of its seeds' last evaluations."""

    def __init__(
        self, study: Any, space: Space, folder: Path, *, trials: int, seeds: Sequence[int],
        configure: Callable[[dict[str, Any]], TrainConfig],
    ) -> None:  # fmt: skip
        self._study, self._space, self._folder, self._configure = study, space, folder, configure
        self._wanted, self._seeds, self._optuna = trials, list(seeds), load_optuna()
        self._open: dict[int, _Trial] = {}
        running = self._optuna.trial.TrialState.RUNNING
        for frozen in study.get_trials(deepcopy=False, states=(running,)):  # of a search that was stopped
            self._take(self._optuna.trial.Trial(study, frozen._trial_id), set(frozen.intermediate_values))

    def _take(self, trial: Any, reported: set[int]) -> None:
        values, label = chosen(self._space, trial.params), f"trial{trial.number:04d}"
        jobs = [make_job(self._configure({**values, "seed": seed}), self._folder, label) for seed in self._seeds]
        for job in jobs:
            job.check_files()
        curves = {job.name: Evaluations(job.run_dir / "metrics.jsonl") for job in jobs}
        self._open[trial.number] = _Trial(trial, jobs, reported, curves)

    def next(self) -> Job | None:
        if not any(one.waiting and one.end is None for one in self._open.values()) and not self._all_begun:
            self._take(self._study.ask(distributions(self._space)), set())
        for one in self._open.values():
            if one.waiting and one.end is None:
                job = one.waiting.pop(0)
                one.running.add(job.name)
                return job
        return None

    @property
    def _all_begun(self) -> bool:
        return len(self._study.get_trials(deepcopy=False)) >= self._wanted

    @property
    def over(self) -> bool:
        return not self._open and self._all_begun

    def look(self, job: Job) -> bool:
        """Report what all seeds have reached; a trial below the median of the others there is stopped."""
        one = self._open[_number(job)]
        curves = [curve.read() for curve in one.curves.values()]
        for step in sorted(set.intersection(*map(set, curves)) - one.reported):
            one.reported.add(step)
            one.trial.report(sum(curve[step] for curve in curves) / len(curves), step)
            if one.trial.should_prune():
                one.end = one.end or TrialEnd.PRUNED
        return one.end is None

    def ended(self, job: Job, now: JobStatus) -> str:
        one = self._open[_number(job)]
        one.running.discard(job.name)
        if now.state == "failed":
            one.end, one.error = TrialEnd.FAILED, now.error
        elif one.end is None and now.state != "finished":
            one.end = TrialEnd.INTERRUPTED
        if one.done:
            del self._open[_number(job)]
            self._tell(one)
        return one.end.value if one.end is TrialEnd.PRUNED else ""

    def _tell(self, one: _Trial) -> None:
        states, values = self._optuna.trial.TrialState, [curve.last for curve in one.curves.values()]
        if one.end is None and None in values:
            one.end, one.error = TrialEnd.FAILED, "it was never evaluated"
        if one.end is TrialEnd.FAILED:
            one.trial.set_user_attr("error", one.error)
            self._study.tell(one.trial, state=states.FAIL)
        elif one.end is TrialEnd.PRUNED:
            self._study.tell(one.trial, state=states.PRUNED)
        elif one.end is None:
            self._study.tell(one.trial, sum(value for value in values if value is not None) / len(values))


def _number(job: Job) -> int:
    return int(job.label.removeprefix("trial"))


class Outcome(NamedTuple):
    value: float | None  # of the best trial
    number: int | None
    options: dict[str, Any]
    counts: dict[str, int]  # of trials by state
    importances: dict[str, float]  # of each option, by PED-ANOVA; empty if there are too few trials to tell
    errors: list[str]


def conclude(study: Any, space: Space, folder: Path, configure: Callable[[dict[str, Any]], TrainConfig]) -> Outcome:
    """Write the best config and a plot of how much each option mattered."""
    optuna = load_optuna()
    trials = study.get_trials(deepcopy=False)
    states = [trial.state.name.lower() for trial in trials]
    counts = {name: states.count(name) for name in dict.fromkeys(states)}
    errors = [printable(f"trial {t.number}: {t.user_attrs['error']}") for t in trials if "error" in t.user_attrs]
    complete = [trial for trial in trials if trial.state == optuna.trial.TrialState.COMPLETE]
    if not complete:
        return Outcome(None, None, {}, counts, {}, errors)
    best = study.best_trial
    options = chosen(space, best.params)
    config = configure(options)
    comment = f"# The best of {len(trials)} trials: an evaluation of {best.value:.6g} (trial {best.number}).\n"
    write_durably(folder / BEST, [(comment + dump_yaml(config.plain())).encode()])
    importances: dict[str, float] = {}
    if len({trial.value for trial in complete}) > 1:
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        importances = optuna.importance.get_param_importances(study, evaluator=evaluator)
        _draw(importances, folder / IMPORTANCE)
    return Outcome(best.value, best.number, options, counts, importances, errors)


def _draw(importances: dict[str, float], path: Path) -> None:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return
    names = [name.removeprefix("algo_kwargs.") for name in reversed(importances)]
    figure, axis = pyplot.subplots(figsize=(6, 0.8 + 0.35 * len(names)), layout="constrained")
    bars = axis.barh(names, list(reversed(importances.values())), color="#0072b2")
    axis.bar_label(bars, fmt=" {:.0%}")
    axis.set_xlabel("share of the difference between good trials and the rest (PED-ANOVA)")
    axis.set_xlim(0, 1.12 * max(importances.values()))
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
