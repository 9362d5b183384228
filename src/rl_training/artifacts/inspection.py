"""How well a learned model predicts: real trajectories beside the predictions of an ensemble or a world model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rl_training.algorithms.dreamer import Dreamer
from rl_training.base.state import Rng
from rl_training.envs.collector import Collector
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models.dreamer import UNIT
from rl_training.models.rssm import State
from rl_training.runtime.workflows import config_of, find_checkpoint

__all__ = [
    "Predictions",
    "Reconstructions",
    "draw",
    "draw_reconstructions",
    "load_agent",
    "model_of",
    "predict_episode",
    "reconstruct_episode",
]

MOST_PANELS = 12
MISSING = "drawing needs matplotlib: pip install 'rl_training[plots]'"


class Predictions(NamedTuple):
    """A real trajectory beside open-loop predictions of an ensemble's members."""

    real: np.ndarray  # (T + 1, D)
    predicted: np.ndarray  # (E, T + 1, D): each member's mean, from its own prediction of the step before
    rewards: np.ndarray  # (T,)
    predicted_rewards: np.ndarray  # (E, T)


def model_of(agent: Any) -> Any:
    """The dynamics ensemble of an agent that has one."""
    dynamics = getattr(agent, "dynamics", agent)
    model = getattr(dynamics, "model", None)
    if not hasattr(model, "predict_distribution"):
        raise ValueError(
            f"{type(agent).__name__} has no model of its environment: only pets, mbpo, mopo and dreamer have"
        )
    return model


class Reconstructions(NamedTuple):
    """An episode beside a world model's reconstructions (T, ...): pixels in [0, 1], or entries in symlog."""

    real: np.ndarray
    reconstructed: np.ndarray  # from the posterior of every observation
    imagined: np.ndarray  # after the first ``context`` observations, from the prior alone
    context: int


def load_agent(path: str | Path) -> tuple[TrainConfig, Any]:
    """The config and the agent of a checkpoint or a run directory, on the CPU."""
    _, state = find_checkpoint(path, buffers=False)
    config = config_of(state)
    return config, get_algorithm_spec(config.algo).load_fn(config, state, "cpu")


@torch.no_grad()
def reconstruct_episode(
    config: TrainConfig, agent: Dreamer, *, steps: int = 50, seed: int = 0, context: int = 5
) -> Reconstructions:
    """An episode of the agent, its world model's reconstruction, and imagination from the first few observations."""
    batch = _own_episode(config, agent, steps, seed)
    torch.manual_seed(seed)
    states, _, target = agent.observe(batch)
    actions = agent.actor.as_inputs(batch["actions"])
    context = min(context, len(target))
    state = State(states.deter[context - 1], states.stoch[context - 1])
    features = [*states.features[:context]]
    for action in actions[context - 1 : -1]:
        state = agent.world_model.rssm.imagine(state, action)
        features.append(state.features)
    decode = agent.world_model.decoder
    shown = target.float() * UNIT if target.ndim == 5 else target
    strips = (shown, decode(states.features), decode(torch.stack(features)))
    real, reconstructed, imagined = (strip[:, 0].numpy() for strip in strips)
    return Reconstructions(real, reconstructed, imagined, context)


def _own_episode(config: TrainConfig, agent: Dreamer, steps: int, seed: int) -> dict[str, torch.Tensor]:
    """Up to ``steps`` steps of an episode with the agent's own actions, as a batch of one sequence (T, 1, ...)."""
    rng = Rng(seed, "inspection").generator
    collector = Collector(EnvFactory(config.env_id, config.env_kwargs), 1, seed)
    observations, actions, carry = [], [], None
    try:
        for _ in range(steps):
            observations.append(torch.from_numpy(collector.obs.copy()))
            acting = agent.act(collector.obs, carry=carry, rng=rng)
            carry = acting.carry
            actions.append(torch.from_numpy(np.ascontiguousarray(acting.actions)))
            step = collector.step(acting.actions)
            if step.terminated[0] or step.truncated[0]:
                break
    finally:
        collector.close()
    starts = torch.zeros(len(actions), 1)
    return {"obs": torch.stack(observations), "actions": torch.stack(actions), "episode_starts": starts}


def draw_reconstructions(reconstructions: Reconstructions, output: Path, title: str) -> list[Path]:
    """Draw an episode, its reconstruction and its imagination; the files that were written.

    Images: a strip with the three of them below each other, and a GIF. Vectors: a panel for each entry.
    """
    real, reconstructed, imagined, context = reconstructions
    if real.ndim == 2:
        empty = np.zeros((2, 0), np.float32)
        predictions = Predictions(real, np.stack([reconstructed, imagined]), empty[0], empty)
        draw(predictions, output, title, of="reconstruction and imagination")
        return [output]
    try:
        from PIL import Image
    except ImportError:
        raise ValueError(MISSING) from None

    strips = [_frames(images) for images in (real, reconstructed, imagined)]
    strips[2][:context, :2] = (255, 160, 0)  # marks the observations that imagination starts from
    columns = np.concatenate(strips, 1)  # (T, 3H, W, 3)
    chosen = np.unique(np.linspace(0, len(columns) - 1, min(16, len(columns))).round().astype(int))
    output.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.concatenate(list(columns[chosen]), 1)).save(output)
    animation = output.with_suffix(".gif")
    images = [Image.fromarray(frame).resize((4 * frame.shape[1], 4 * frame.shape[0]), 0) for frame in columns]
    images[0].save(animation, save_all=True, append_images=images[1:], duration=100, loop=0)
    return [output, animation]


def _frames(images: np.ndarray) -> np.ndarray:
    """(T, C, H, W) in [0, 1] to bytes (T, H, W, 3); of stacked frames, the last."""
    channels = images[:, -3:] if images.shape[1] % 3 == 0 else images[:, -1:].repeat(3, 1)
    return (np.moveaxis(channels, 1, -1) * 255).clip(0, 255).astype(np.uint8)


def predict_episode(config: TrainConfig, agent: Any, *, steps: int = 50, seed: int = 0) -> Predictions:
    """An episode of random actions, and the predictions of the agent's model for these actions from its start."""
    model, rng = model_of(agent), Rng(seed, "inspection").generator
    collector = Collector(EnvFactory(config.env_id, config.env_kwargs), 1, seed)  # rewards as they were learned from
    observations, rewards = [collector.obs[0].copy()], []
    predicted = [torch.from_numpy(collector.obs.copy()).expand(model.num_ensembles, 1, -1)]
    predicted_rewards = []
    try:
        for _ in range(steps):
            actions = collector.spaces.random_actions(rng, 1, collector.obs)
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


def draw(predictions: Predictions, output: Path, title: str, of: str = "the members") -> None:
    """Draw dimensions and reward: the real trajectory as a line, mean and range of the predictions as line and band."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise ValueError(MISSING) from None
    dims = min(predictions.real.shape[1], MOST_PANELS - 1)
    panels = [(f"observation {i}", predictions.real[:, i], predictions.predicted[:, :, i]) for i in range(dims)]
    if len(predictions.rewards):
        panels.append(("reward", predictions.rewards, predictions.predicted_rewards))
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(3.4 * columns, 2.4 * rows), squeeze=False, layout="constrained"
    )
    for axis, (name, real, members) in zip(axes.flat, panels):
        time = np.arange(len(real))
        axis.fill_between(time, members.min(0), members.max(0), alpha=0.25, linewidth=0, label=f"range of {of}")
        axis.plot(time, members.mean(0), linewidth=1, label=f"mean of {of}")
        axis.plot(time, real, color="black", linewidth=1, label="real")
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
