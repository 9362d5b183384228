"""The pictures of the README: learning curves from the records, beside published figures. Part of `make report`.

A line is the interquartile mean over seeds of the evaluations during training, its band the range of the seeds; a dotted line is a
published figure of the same algorithm. What a run is judged by, its last checkpoint's evaluation on other episodes, is not drawn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
TARGET = HERE.parent / "docs" / "benchmarks"
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")


class Picture(NamedTuple):
    """A task, and the records whose curves are drawn, by the name that the legend gives them."""

    title: str
    curves: dict[str, str]


PICTURES = {
    "hopper": Picture("Hopper-v5", {"PPO": "defaults/ppo_Hopper-v5", "PPG": "defaults/ppg_Hopper-v5"}),
    "halfcheetah": Picture("HalfCheetah-v5", {"SAC": "learning/sac_halfcheetah"}),
    "pendulum": Picture(
        "Pendulum-v1",
        {"RLPD": "learning/rlpd_pendulum_replay", "MBPO": "learning/mbpo_pendulum", "SAC": "learning/sac_pendulum"},
    ),
}


def read(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((HERE / "results" / f"{name}.json").read_text())
    return record


def points(record: dict[str, Any]) -> tuple[list[int], list[float], list[float], list[float]]:
    """Steps at which every seed was evaluated; the interquartile mean there, the least and the most."""
    from rl_training.analysis.statistics import iqm

    curves = [{int(step): value for step, value in run["curve"]} for run in record["runs"]]
    steps = sorted(set.intersection(*map(set, curves)))
    columns = [[curve[step] for curve in curves] for step in steps]
    return steps, [float(iqm(c)) for c in columns], [min(c) for c in columns], [max(c) for c in columns]


class Line(NamedTuple):
    """A curve and its name in the legend, and the published figure beside it with its own, where there is one."""

    name: str
    record: dict[str, Any]
    published: float | None = None
    source: str = ""


def lines_of(picture: Picture, known: dict[str, Any]) -> Iterator[Line]:
    from report import nearest_figure, short_steps

    for name, path in picture.curves.items():
        record = read(path)
        line = Line(f"{name}, {len(record['runs'])} seeds, {short_steps(record['total_timesteps'])} steps", record)
        if (figure := nearest_figure(record, known)) is not None:
            source = known["sources"][figure["source"]]["name"]
            line = line._replace(
                published=figure["return"], source=f"{name}, {source}, {short_steps(figure['steps'])} steps"
            )
        yield line


def draw(picture: Picture, known: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {
        "svg.hashsalt": picture.title,
        "svg.fonttype": "none",
    }  # the same for the same records, with text
    from matplotlib import pyplot as plt
    from matplotlib.ticker import EngFormatter

    figure, axes = plt.subplots(figsize=(4.2, 3.0), layout="constrained")
    for colour, line in zip(COLOURS, lines_of(picture, known)):
        steps, middle, low, high = points(line.record)
        axes.plot(steps, middle, color=colour, label=line.name)
        axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
        if line.published is not None:
            axes.axhline(line.published, color=colour, linestyle=":", label=line.source)
    axes.set_title(picture.title, fontsize=10)
    axes.set_xlabel("environment steps", fontsize=8)
    axes.set_ylabel("return", fontsize=8)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=7, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def stale(known: dict[str, Any]) -> list[str]:
    """Pictures that lack a curve or a figure of the records; their last digits may depend on the machine."""
    old = []
    for name, picture in PICTURES.items():
        path = TARGET / f"{name}.svg"
        text = path.read_text() if path.exists() else ""
        if not all(line.name in text and line.source in text for line in lines_of(picture, known)):
            old.append(path.name)
    return old


def draw_all(known: dict[str, Any]) -> None:
    for name, picture in PICTURES.items():
        draw(picture, known, TARGET / f"{name}.svg")
