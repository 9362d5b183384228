"""Callbacks that are ready to be used: evaluations elsewhere, films, histograms, curricula, and notifying commands."""

from __future__ import annotations

import math
import subprocess
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rl_training.base.errors import reason
from rl_training.base.saved import Saved
from rl_training.envs.factory import EnvFactory, EnvSource
from rl_training.envs.film import Film, check_recording, video_suffix
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.evaluation import EvaluationStopped, evaluate

if TYPE_CHECKING:
    from rl_training.algorithms.base import UpdateResult
    from rl_training.envs.endings import Episode
    from rl_training.runtime.trainer import TrainerState, TrainResult

__all__ = ["Curriculum", "EvaluateOn", "Histograms", "Notify", "RecordVideo", "Stage"]


class _AtEvaluations(Callback):
    """Plays episodes of its own after every so many of the run's evaluations. One that a signal interrupts is played
    when the run is resumed."""

    def __init__(self, every: int) -> None:
        if every < 1:
            raise ValueError(f"{type(self).__name__}: every must be at least 1, got {every}")
        self.every, self.seen, self.pending = every, 0, False

    def play(self, trainer: TrainerState) -> None:
        """Hook: the episodes, of the agent as it is."""
        raise NotImplementedError

    def on_train_start(self, trainer: TrainerState) -> None:
        if self.pending:
            self._play(trainer)

    def on_eval_end(self, trainer: TrainerState, metrics: Mapping[str, float]) -> None:
        self.seen += 1
        self.pending = self.seen % self.every == 0
        if self.pending:
            self._play(trainer)

    def _play(self, trainer: TrainerState) -> None:
        try:
            self.play(trainer)
        except EvaluationStopped:
            return
        self.pending = False

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "pending": self.pending}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = Saved(state, ("seen", "pending"))
        self.seen, self.pending = saved.count("seen"), saved.flag("pending")


class EvaluateOn(_AtEvaluations):
    """Evaluates the agent in other environments too, each under a name: ``eval_NAME_return_mean`` and the like.

    An environment is an id, a function that makes one, an object, or a pair of one of them and its ``env_kwargs``.
    """

    def __init__(
        self,
        environments: Mapping[str, EnvSource | tuple[EnvSource, dict[str, Any]]],
        *,
        episodes: int = 5,
        every: int = 1,
        seed: int = 0,
    ) -> None:
        """``every``: after every so many of the run's evaluations."""
        super().__init__(every)
        self.episodes, self.seed = episodes, seed
        self.factories: dict[str, EnvFactory] = {}
        for name, given in environments.items():
            source, env_kwargs = given if isinstance(given, tuple) else (given, {})
            self.factories[name] = EnvFactory(source, env_kwargs)

    def on_train_start(self, trainer: TrainerState) -> None:
        spaces = trainer.factory.spaces()
        for name, factory in self.factories.items():
            other = factory.spaces()
            if not other.matches(spaces):
                was, now = spaces.describe(), other.describe()
                what = f"{now} instead of {was}" if was != now else "other bounds of its actions"
                raise ValueError(f"EvaluateOn: {name} ({factory.name}) has {what}; the agent cannot act there")
        super().on_train_start(trainer)

    def play(self, trainer: TrainerState) -> None:
        numbers: dict[str, float] = {}  # logged together, or not at all if a signal comes
        for name, factory in self.factories.items():
            metrics = evaluate(
                trainer.algorithm,
                factory,
                episodes=self.episodes,
                seed=self.seed,
                stop=lambda: trainer.urgent,
                log_info=trainer.config.log_info,
            )
            for metric, value in metrics.items():
                if metric not in ("eval_episodes", "eval_episodes_cut"):
                    numbers[f"eval_{name}_{metric.removeprefix('eval_')}"] = value
        for name, value in numbers.items():
            trainer.log(name, value)


class RecordVideo(_AtEvaluations):
    """Films episodes after every so many evaluations, as ``videos/step_…``. The option ``record_video`` films every
    evaluation."""

    def __init__(self, *, every: int = 5, episodes: int = 1, most_steps: int | None = None, seed: int = 0) -> None:
        """``most_steps`` cuts every episode."""
        super().__init__(every)
        self.episodes, self.most_steps, self.seed = episodes, most_steps, seed

    def on_train_start(self, trainer: TrainerState) -> None:
        check_recording(trainer.factory, trainer.config.env_id)
        super().on_train_start(trainer)

    def play(self, trainer: TrainerState) -> None:
        assert trainer.run_dir is not None
        path = trainer.run_dir / "videos" / f"step_{trainer.global_step:010d}_filmed{video_suffix()}"
        with Film(path, on_failure=lambda why: warnings.warn(why, stacklevel=2)) as film:
            evaluate(
                trainer.algorithm,
                replace(trainer.factory, render=True),
                episodes=self.episodes,
                seed=self.seed,
                most_steps=self.most_steps,
                watch=film,
                stop=lambda: trainer.urgent,
            )


class Histograms(Callback):
    """Shows how the weights of the agent's networks are distributed, and the running means of their gradients, after
    every so many updates.

    The gradients are those that the optimizers keep (Adam's first moments); those of a single update are not kept.
    """

    def __init__(self, *, every_updates: int = 1_000, gradients: bool = True) -> None:
        if every_updates < 1:
            raise ValueError(f"Histograms: every_updates must be at least 1, got {every_updates}")
        self.every_updates, self.gradients = every_updates, gradients

    def on_update_end(self, trainer: TrainerState, result: UpdateResult) -> None:
        if trainer.update_count % self.every_updates == 0:
            for name, values in _tensors(trainer.algorithm, self.gradients):
                trainer.log_histogram(name, values)


def _tensors(learner: Any, gradients: bool) -> list[tuple[str, Any]]:
    """The weights and mean gradients of a learner and of the learners in it, by names for people."""
    from torch import nn

    from rl_training.algorithms.base import Learner
    from rl_training.optim.flat import FlatOptimizer

    found: list[tuple[str, Any]] = []
    for part, value in vars(learner).items():
        if part.startswith("_") or part.startswith("target"):
            continue
        if isinstance(value, Learner):
            found += [(f"{part}.{name}", tensor) for name, tensor in _tensors(value, gradients)]
        elif isinstance(value, nn.Module):
            found += [(f"weights/{part}.{name}", tensor) for name, tensor in value.named_parameters()]
        elif isinstance(value, FlatOptimizer) and gradients and hasattr(value, "mean"):
            found.append((f"gradients/{part}", value.mean))
    return found


@dataclass(frozen=True)
class Stage:
    """A part of a curriculum: arguments of the environment, and what ends it: a number of environment steps, or a mean
    over its last episodes (``at_least``)."""

    env_kwargs: dict[str, Any] = field(default_factory=dict)
    steps: int | None = None
    at_least: float | None = None
    metric: str = "return"  # return, length, success, or a number of the last info
    episodes: int = 20  # over which the mean is taken

    def value(self, episode: Episode) -> float:
        """The episode's number that decides."""
        if self.metric == "return":
            return episode.episode_return
        if self.metric == "length":
            return float(episode.length)
        value = episode.success if self.metric == "success" else episode.info.get(self.metric)
        if value is None:
            raise ValueError(
                f"Curriculum: the episode's last info has no {self.metric!r}; a stage goes by return, length, success "
                "or a number that log_info names"
            )
        return value


class Curriculum(Callback):
    """Changes the arguments of the training environments stage by stage; the last stage lasts to the end.

    An environment is made anew with the arguments of a stage at its next episode. Evaluations stay as configured. The
    metric ``curriculum_stage`` counts from 0.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = list(stages)
        if not self.stages:
            raise ValueError("Curriculum: there must be at least one stage")
        for number, stage in enumerate(self.stages[:-1]):
            if stage.steps is None and stage.at_least is None:
                raise ValueError(f"Curriculum: stage {number} never ends; give it steps or at_least")
        self.stage, self.began = -1, 0  # the stage under way, and the environment step at which it began
        self.recent: deque[float] = deque(maxlen=self.stages[0].episodes)

    def on_train_start(self, trainer: TrainerState) -> None:
        if self.stage < 0:
            self._enter(trainer, 0)

    def on_episode_end(self, trainer: TrainerState, episode: Episode) -> None:
        stage = self.stages[self.stage]
        if self.stage == len(self.stages) - 1 or dict(episode.env_kwargs) != stage.env_kwargs:
            return  # an episode that began in the stage before says nothing of this one
        if stage.at_least is not None:
            self.recent.append(stage.value(episode))
        full = len(self.recent) == stage.episodes
        good = stage.at_least is not None and full and sum(self.recent) / stage.episodes >= stage.at_least
        if good or (stage.steps is not None and trainer.global_step - self.began >= stage.steps):
            self._enter(trainer, self.stage + 1)

    def _enter(self, trainer: TrainerState, number: int) -> None:
        self.stage, self.began = number, trainer.global_step
        self.recent = deque(maxlen=self.stages[number].episodes)
        trainer.set_env_kwargs(**self.stages[number].env_kwargs)
        trainer.log("curriculum_stage", number)

    def state_dict(self) -> dict[str, Any]:
        return {"stage": self.stage, "began": self.began, "recent": list(self.recent)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = Saved(state, ("stage", "began", "recent"))
        stage, numbers = saved.count("stage", most=len(self.stages) - 1), saved.items("recent")
        values = Saved({str(i): value for i, value in enumerate(numbers)}, map(str, range(len(numbers))))
        self.stage, self.began = stage, saved.count("began")
        recent = [values.number(str(i), finite=False) for i in range(len(numbers))]
        self.recent = deque(recent, maxlen=self.stages[stage].episodes)


class Notify(Callback):
    """Runs a command of yours at the end of training (``end``), when it fails (``failure``), and when an evaluation is
    the best so far (``best``).

    The command is a list of arguments and runs without a shell; ``{event}``, ``{message}``, ``{run_dir}`` and
    ``{step}`` in an argument are replaced. If it fails, training goes on with a warning.
    """

    EVENTS = ("end", "failure", "best")

    def __init__(self, command: Sequence[str], *, on: Sequence[str] = EVENTS, seconds: float = 30.0) -> None:
        """``seconds``: how long the command may take."""
        if isinstance(command, str) or not command or not all(isinstance(word, str) for word in command):
            example = "such as ['notify-send', '{message}']"
            raise ValueError(f"Notify: the command must be a list of texts, {example}, got {command!r}")
        wrong = [event for event in on if event not in self.EVENTS]
        if isinstance(on, str) or wrong:
            raise ValueError(f"Notify: on must be some of {', '.join(self.EVENTS)}, got {on!r}")
        self.command, self.on, self.seconds, self.best = list(command), tuple(on), seconds, -math.inf

    def on_eval_end(self, trainer: TrainerState, metrics: Mapping[str, float]) -> None:
        value = float(metrics["eval_return_mean"])
        if value > self.best:
            self.best = value
            self._tell(trainer, "best", f"best evaluation so far: {value:g} at step {trainer.global_step:,}")

    def on_train_end(self, trainer: TrainerState, result: TrainResult) -> None:
        how = "finished" if trainer.stop_reason is None else f"stopped ({trainer.stop_reason})"
        value = result.metrics["eval_return_mean"]
        self._tell(trainer, "end", f"{how} at step {trainer.global_step:,}, evaluation {value:g}")

    def on_train_failure(self, trainer: TrainerState, error: Exception) -> None:
        self._tell(trainer, "failure", f"failed at step {trainer.global_step:,}: {reason(error)}")

    def _tell(self, trainer: TrainerState, event: str, message: str) -> None:
        if event not in self.on:
            return
        config = trainer.config
        facts = {"event": event, "run_dir": str(trainer.run_dir), "step": str(trainer.global_step)}
        facts["message"] = f"{config.algo} {config.env_id}: {message}"
        words = []
        for word in self.command:
            for name, value in facts.items():
                word = word.replace(f"{{{name}}}", value)
            words.append(word)
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, timeout=self.seconds, check=False
            )
            problem = f"exit code {done.returncode}" if done.returncode else ""
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            problem = reason(error)
        if problem:
            warnings.warn(f"Notify: {words[0]} failed: {problem}", stacklevel=2)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = Saved(state, ("best",)).number("best", finite=False)
