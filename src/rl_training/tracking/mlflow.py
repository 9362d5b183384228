"""Metrics to MLflow."""

from __future__ import annotations

import math
import os
import re
import time
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rl_training.base.errors import reason
from rl_training.experiment.config import TrainConfig

if TYPE_CHECKING:
    from rl_training.experiment.runs import RunContext

__all__ = ["MLflow"]

LONGEST = 500  # characters of a parameter that every store takes
ODD = re.compile(r"[^\w\-. :/]")  # characters that MLflow does not take in names


class MLflow:
    """A run in MLflow; a resumed run keeps its id. An error there is warned of once, and training goes on.

    Where it is, MLFLOW_TRACKING_URI or ``mlflow.set_tracking_uri`` says; without them, in the folder ``mlruns`` beside
    the run directory.
    """

    def __init__(self, context: RunContext, config: TrainConfig) -> None:
        self._client: Any = None
        self._run = ""
        try:
            from rl_training.experiment import runs  # brings torch, which reports do without

            client = self._connected(context)
            known = runs.read_metadata(context).get("mlflow_id")
            if isinstance(known, str) and re.fullmatch(r"\w+", known) and self._again(client, known):
                self._run = known
            else:
                self._run = self._begin(client, context, config)
                runs.write_metadata(context, {"mlflow_id": self._run})
            self._client = client
        except Exception as error:
            self._give_up(error)

    @staticmethod
    def _connected(context: RunContext) -> Any:
        import mlflow

        if mlflow.is_tracking_uri_set():
            return mlflow.MlflowClient()
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # files need no server and no database
        return mlflow.MlflowClient(tracking_uri=(context.run_dir.resolve().parent / "mlruns").as_uri())

    @staticmethod
    def _again(client: Any, name: str) -> bool:
        """Open a run that was begun before; False if the store has it no more."""
        try:
            client.update_run(name, status="RUNNING")
        except Exception:
            return False
        return True

    @staticmethod
    def _begin(client: Any, context: RunContext, config: TrainConfig) -> str:
        """A new run with the config as its parameters."""
        name = config.mlflow_experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "rl_training"
        experiment = client.get_experiment_by_name(name)
        place = client.create_experiment(name) if experiment is None else experiment.experiment_id
        tags = {"mlflow.runName": context.run_id, **{ODD.sub("_", tag): "true" for tag in config.tags}}
        run: str = client.create_run(place, run_name=context.run_id, tags=tags).info.run_id
        for key, value in flat_params(config.plain()).items():
            client.log_param(run, ODD.sub("_", key), str(value)[:LONGEST])
        return run

    def write(self, step: int, values: Mapping[str, float]) -> None:
        numbers = {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
        finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
        if self._client is not None:
            try:
                from mlflow.entities import Metric

                now = int(1000 * time.time())
                metrics = [Metric(ODD.sub("_", name), value, now, step) for name, value in finite.items()]
                self._client.log_batch(self._run, metrics=metrics)
            except Exception as error:
                self._give_up(error)

    def text(self, step: int, name: str, text: str) -> None:
        if self._client is not None:
            try:
                self._client.log_text(self._run, text, f"{ODD.sub('_', name)}.md")
            except Exception as error:
                self._give_up(error)

    def close(self) -> None:
        if self._client is not None:
            try:
                self._client.set_terminated(self._run)
            except Exception as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._client = None
        warnings.warn(f"nothing more goes to mlflow: {reason(error)}", stacklevel=4)


def flat_params(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested options by dotted names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= (
            flat_params(value, f"{prefix}{name}.") if isinstance(value, dict) and value else {f"{prefix}{name}": value}
        )
    return found
