"""The learning curve of a run, as arrays and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from rl_training.analysis.records import read_metrics
from rl_training.base.files import write_durably
from rl_training.tracking.curves import Line, draw_curves

__all__ = ["LearningCurve", "Picture", "learning_curve"]


class Picture:
    """An SVG picture, which notebooks and browsers show."""

    def __init__(self, svg: str) -> None:
        self.svg = svg

    def save(self, path: str | Path) -> Path:
        """Write it as a .svg file."""
        path = Path(path)
        if path.suffix.lower() != ".svg":
            raise ValueError(f"{path}: a picture of a curve is saved as .svg, such as {path.with_suffix('.svg').name}")
        write_durably(path, [self.svg.encode()])
        return path

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        return self.svg


class LearningCurve(NamedTuple):
    """Mean returns of the last hundred training episodes at environment steps, and those of evaluations."""

    steps: np.ndarray
    returns: np.ndarray
    eval_steps: np.ndarray
    eval_returns: np.ndarray

    def plot(self, *, title: str = "") -> Picture:
        """Both as a picture."""
        training = Line("training episodes", self.steps.tolist(), self.returns.tolist())
        evaluation = Line("evaluation", self.eval_steps.tolist(), self.eval_returns.tolist())
        return Picture(draw_curves([training, evaluation], title=title))


def learning_curve(path: Path) -> LearningCurve:
    """The curve in a metrics.jsonl, with every point that it has."""
    points: dict[str, tuple[list[float], list[float]]] = {"episode_return": ([], []), "eval_return_mean": ([], [])}
    for row in read_metrics(path):
        for name, (steps, values) in points.items():
            value = row.get(name)
            if isinstance(value, int | float):
                steps.append(row["step"])
                values.append(value)
    (steps, returns), (eval_steps, eval_returns) = points.values()
    return LearningCurve(*(np.asarray(part, float) for part in (steps, returns, eval_steps, eval_returns)))
