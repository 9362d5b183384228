"""What an environment of others goes through: a check, a run, a stop and a resume, an evaluation, an export, a film, a
prediction."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rl_training import check_env
from rl_training.artifacts.export import export_checkpoint
from rl_training.artifacts.video import record_checkpoint
from rl_training.envs.factory import EnvFactory
from rl_training.envs.film import Film, headless, video_suffix
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.runs import write_durably
from rl_training.runtime.workflows import evaluate_checkpoint, predict_checkpoint, resume_training
from toys import StopAt, same_end, tiny_config

TOTAL, NUM_ENVS = 192, 2
STAGES = ("check", "train", "resume", "evaluate", "export", "film", "predict")
RECORD = "THIRD_PARTY_RECORD"  # the folder that records go to, if it is set


class Case(NamedTuple):
    """An environment of a package, and how it is tried."""

    venv: str  # the requirements that bring it
    package: str  # as it is installed
    module: str  # as it is imported
    name: str  # as Gymnasium knows it
    algos: tuple[str, ...]
    env_kwargs: dict[str, Any] = {}
    with_versions: tuple[str, ...] = ()  # of other packages that matter

    @property
    def env_id(self) -> str:
        return self.name if self.name.startswith("ALE/") else f"{self.module}:{self.name}"

    @property
    def trust(self) -> list[str]:
        return [self.module.partition(".")[0]]


class Life:
    """The stages of one case, which are recorded as they are passed."""

    def __init__(self, case: Case, algo: str, folder: Path) -> None:
        self.case, self.algo, self.folder = case, algo, folder
        self.record: dict[str, Any] = {
            "venv": case.venv, "package": case.package, "env_id": case.env_id, "env_kwargs": case.env_kwargs,
            "versions": {name: metadata.version(name) for name in (case.package, *case.with_versions)},
            "algo": algo, "passed": [],
        }  # fmt: skip

    def live(self) -> None:
        headless()
        for stage in STAGES:
            with self._recorded(stage):
                getattr(self, stage)()

    @contextmanager
    def _recorded(self, stage: str) -> Iterator[None]:
        try:
            yield
            self.record["passed"].append(stage)
        except BaseException as error:
            self.record["failed"] = f"{stage}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            raise
        finally:
            if RECORD in os.environ:
                import json

                name = f"{self.case.env_id}__{self.algo}.json".replace("/", "_").replace(":", "_")
                write_durably(Path(os.environ[RECORD]) / name, [json.dumps(self.record).encode()])

    def check(self) -> None:
        report = check_env(self.case.env_id, self.case.env_kwargs, steps=400)
        facts = report["facts"]
        notes = {remark["about"]: remark["says"] for remark in report["remarks"] if remark["level"] != "ok"}
        self.record |= {"notes": notes, "steps_per_second": round(1 / facts["step_seconds"]) if facts else 0}
        assert report["trainable"], notes
        assert facts["repeats"] == {"again": True, "fresh": True} and facts["resumes_exactly"], notes
        assert not facts["algorithms"][self.algo]
        self.films = facts["films"]

    def train(self) -> None:
        """A run without a stop, and a beginning of the same one."""
        options = {"eval_interval": 0, "env_id": self.case.env_id, "env_kwargs": self.case.env_kwargs}
        config = tiny_config(self.algo, self.folder, total_timesteps=TOTAL, num_envs=NUM_ENVS, **options)
        spec = get_algorithm_spec(self.algo)
        self.straight = spec.train(config, run_suffix="straight")
        self.stopped = spec.train(config, run_suffix="stopped", callbacks=[StopAt(TOTAL // 2 + 5)])
        assert self.straight.metrics["gradient_steps"] > 0
        assert 0 < self.stopped.metrics["global_step"] < TOTAL

    def resume(self) -> None:
        """Tensor for tensor what the run without a stop came to, with every episode rebuilt."""
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*cannot be rebuilt")
            self.last = resume_training(self.stopped.run_dir, trust=self.case.trust)
        same_end(load_checkpoint(self.straight.checkpoint_path), load_checkpoint(self.last.checkpoint_path))

    def evaluate(self) -> None:
        score = evaluate_checkpoint(self.last.run_dir, num_episodes=1, trust=self.case.trust)
        assert score["eval_length_mean"] > 0

    def export(self) -> None:
        """An ONNX file, which export itself compares with the agent."""
        exported = export_checkpoint(self.last.run_dir, self.folder / "policy.onnx")
        assert exported.rows > 0 and exported.path.exists()

    def film(self) -> None:
        if not self.films:
            self.record["no_film"] = self.record["notes"].get("video", "")
            return
        film = Film(self.folder / f"agent{video_suffix()}")
        record_checkpoint(self.last.run_dir, film, most_steps=5)
        assert 1 < film.frames <= 6 and film.path.stat().st_size > 0

    def predict(self) -> None:
        """An action of the environment, for an observation as it gives it itself."""
        env = EnvFactory(self.case.env_id, self.case.env_kwargs).make(training=False)
        source = env if "atari" in self.case.env_kwargs.get("wrappers", {}) else env.unwrapped
        action = predict_checkpoint(self.last.run_dir, source.reset(seed=0)[0], trust=self.case.trust)
        space = env.action_space
        assert space.contains(np.asarray(action, space.dtype).reshape(space.shape))
        env.close()
