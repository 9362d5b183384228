"""How well a learned model predicts: real trajectories beside what each member of the ensemble says they would be."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rl_training.envs.factory import EnvFactory
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.collector import Collector
from rl_training.runtime.workflows import config_of, find_checkpoint
from rl_training.state import Rng

MOST_PANELS = 12


class Predictions(NamedTuple):
    real: np.ndarray  # (T + 1, D)
    predicted: np.ndarray  # (E, T + 1, D): each member's own mean, step after step, without looking
    rewards: np.ndarray  # (T,)
    predicted_rewards: np.ndarray  # (E, T)


def model_of(agent: Any) -> Any:
    """The ensemble of an agent that has one."""
    dynamics = getattr(agent, "dynamics", agent)
    model = getattr(dynamics, "model", None)
    if not hasattr(model, "predict_distribution"):
        raise ValueError(f"{type(agent).__name__} has no model of its environment: only pets, mbpo and mopo have")
    return model


def predict_episode(path: str | Path, *, steps: int = 50, seed: int = 0) -> Predictions:
    """An episode of random actions, and what the checkpoint's model makes of the same actions from the same start."""
    _, state = find_checkpoint(path, buffers=False)
    config = config_of(state)
    agent = get_algorithm_spec(config.algo).load_fn(config, state, "cpu")
    model, rng = model_of(agent), Rng(seed, "inspection").generator
    collector = Collector(EnvFactory(config.env_id, config.env_kwargs), 1, seed)  # rewards as they were learned from
    observations, rewards = [collector.obs[0].copy()], []
    predicted = [torch.from_numpy(collector.obs.copy()).expand(model.num_ensembles, 1, -1)]
    predicted_rewards = []
    try:
        for _ in range(steps):
            actions = collector.spaces.random_actions(rng, 1)
            step = collector.step(actions)
            observations.append(step.next_obs[0].copy())
            rewards.append(float(step.rewards[0]))
            with torch.no_grad():
                taken = torch.from_numpy(actions).expand(model.num_ensembles, 1, -1)
                means, _ = model.predict_distribution(predicted[-1], taken)
            predicted.append(predicted[-1] + means[..., :-1])
            predicted_rewards.append(means[:, 0, -1].numpy())
            if step.terminated[0] or step.truncated[0]:
                break
    finally:
        collector.close()
    return Predictions(
        np.stack(observations),
        torch.stack(predicted, 1)[:, :, 0].numpy(),
        np.array(rewards, np.float32),
        np.stack(predicted_rewards, 1),
    )


def draw(predictions: Predictions, output: Path, title: str) -> None:
    """A panel for each dimension and one for the reward: the truth as a line, the members' range as a band."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise ValueError("drawing needs matplotlib: pip install 'rl_training[plots]'") from None
    dims = min(predictions.real.shape[1], MOST_PANELS - 1)
    panels = [(f"observation {i}", predictions.real[:, i], predictions.predicted[:, :, i]) for i in range(dims)]
    panels.append(("reward", predictions.rewards, predictions.predicted_rewards))
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(3.4 * columns, 2.4 * rows), squeeze=False, layout="constrained"
    )
    for axis, (name, real, members) in zip(axes.flat, panels):
        time = np.arange(len(real))
        axis.fill_between(time, members.min(0), members.max(0), alpha=0.25, linewidth=0, label="range of the members")
        axis.plot(time, members.mean(0), linewidth=1, label="mean of the members")
        axis.plot(time, real, color="black", linewidth=1, label="what happened")
        axis.set_title(name, fontsize=9)
        axis.tick_params(labelsize=7)
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=10)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=130)
    pyplot.close(figure)
