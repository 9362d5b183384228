"""Metrics to Weights & Biases."""

from __future__ import annotations

import os
import re
import time
import uuid
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.experiment.config import TrainConfig

if TYPE_CHECKING:
    import numpy as np

    from rl_training.experiment.runs import RunContext

__all__ = ["WandB"]


class WandB:
    """A run in Weights & Biases; a resumed run keeps its id. An error there is warned of once, and training goes on.

    The step is logged as a metric, by which charts are drawn: wandb's own counter cannot go back when a run is resumed.
    """

    def __init__(self, context: RunContext, config: TrainConfig) -> None:
        self._run: Any = None
        try:
            import wandb

            from rl_training.experiment import runs  # brings torch, which reports do without

            known = runs.read_metadata(context).get("wandb_id")
            name = known if isinstance(known, str) and re.fullmatch(r"[\w-]+", known) else uuid.uuid4().hex
            runs.write_metadata(context, {"wandb_id": name})
            self._wait_for_a_folder_of_its_own(context.run_dir / "wandb", name)
            self._run = wandb.init(
                id=name,
                resume="allow",
                name=context.run_id,
                project=config.wandb_project or os.environ.get("WANDB_PROJECT") or "rl_training",
                dir=context.run_dir,
                config=config.plain(),
                tags=list(config.tags),
                settings=wandb.Settings(console="off", silent=True),
            )
            self._run.define_metric("*", step_metric="step")
        except Exception as error:
            self._give_up(error)

    @staticmethod
    def _wait_for_a_folder_of_its_own(folder: Path, name: str) -> None:
        """Wait until the second is over: wandb names folders by it, so a resumed run could overwrite its first part."""
        while any(folder.glob(f"*run-{time.strftime('%Y%m%d_%H%M%S')}-{name}")):
            time.sleep(0.05)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if self._run is not None:
            try:
                self._run.log({**values, "step": step})
            except Exception as error:
                self._give_up(error)

    def histogram(self, step: int, name: str, values: np.ndarray) -> None:
        if self._run is not None:
            try:
                import numpy as np
                import wandb

                counts = np.histogram(values, bins=min(64, max(1, len(values))))
                self._run.log({name: wandb.Histogram(np_histogram=counts), "step": step})
            except Exception as error:
                self._give_up(error)

    def close(self) -> None:
        if self._run is not None:
            try:
                self._run.finish()
            except Exception as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._run = None
        reason = " ".join(str(error).split()) or type(error).__name__
        warnings.warn(f"nothing more goes to wandb: {reason}", stacklevel=4)
