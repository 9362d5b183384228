"""What an environment of others goes through: a check, a run, a stop and a resume, an evaluation, an export, a film, a prediction."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rl_training.artifacts.export import export_checkpoint
from rl_training.artifacts.video import record_checkpoint
from rl_training.envs.factory import EnvFactory
from rl_training.envs.film import Film, video_suffix
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.workflows import evaluate_checkpoint, predict_checkpoint, resume_training
from toys import StopAt, same_end, tiny_config


class Case(NamedTuple):
    """An environment of a package, and how it is tried."""

    package: str  # as it is installed
    module: str  # as it is imported
    env_id: str  # as Gymnasium knows it; with its module: how runs name it
    algos: tuple[str, ...]
    env_kwargs: dict[str, Any] = {}
    options: dict[str, Any] = {}
    films: bool = True

    @property
    def named(self) -> str:
        return self.env_id if self.env_id.startswith("ALE/") else f"{self.module}:{self.env_id}"


def live(case: Case, algo: str, folder: Path) -> dict[str, Any]:
    """Everything but the check; what is wrong raises. Returns figures for the record."""
    total, num_envs = 192, 2
    options = {"eval_interval": 0, "env_id": case.named, "env_kwargs": case.env_kwargs, **case.options}
    config = tiny_config(algo, folder, total_timesteps=total, num_envs=num_envs, **options)
    spec, trust = get_algorithm_spec(algo), [case.module, case.module.partition(".")[0]]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        straight = spec.train(config, run_suffix="straight")
        first = spec.train(config, run_suffix="stopped", callbacks=[StopAt(total // 2 + 5)])
        assert 0 < first.metrics["global_step"] < total
        last = resume_training(first.run_dir, trust=trust)
    lost = [str(one.message) for one in caught if "cannot be rebuilt" in str(one.message)]
    assert not lost, lost
    assert last.metrics["gradient_steps"] == straight.metrics["gradient_steps"] > 0
    same_end(load_checkpoint(straight.checkpoint_path), load_checkpoint(last.checkpoint_path))
    score = evaluate_checkpoint(last.run_dir, num_episodes=1, trust=trust)
    exported = export_checkpoint(last.run_dir, folder / f"{algo}.onnx")
    if case.films:
        film = Film(folder / f"{algo}{video_suffix()}")
        record_checkpoint(last.run_dir, film, most_steps=5)
        assert film.frames == 6 and film.path.stat().st_size > 0
    env = EnvFactory(case.named, case.env_kwargs).make(training=False)
    obs, _ = (env if "atari" in case.env_kwargs.get("wrappers", {}) else env.unwrapped).reset(seed=0)
    action = predict_checkpoint(last.run_dir, obs, trust=trust)
    assert env.action_space.contains(np.asarray(action, env.action_space.dtype).reshape(env.action_space.shape))
    env.close()
    return {"algo": algo, "eval_return": score["eval_return_mean"], "exported_rows": exported.rows}
