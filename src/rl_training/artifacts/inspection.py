"""How well a learned model predicts: real trajectories beside what each member of the ensemble says they would be."""

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
from rl_training.models.dreamer import UNIT, State
from rl_training.runtime.workflows import config_of, find_checkpoint

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
        raise ValueError(
            f"{type(agent).__name__} has no model of its environment: only pets, mbpo, mopo and dreamer have"
        )
    return model


class Dreamed(NamedTuple):
    """As the world model learns them: pixels in [0, 1], or entries in symlog. (T, ...)"""

    real: np.ndarray
    reconstructed: np.ndarray  # each told by its own observation
    imagined: np.ndarray  # told by the first ``context`` alone
    context: int


def load_agent(path: str | Path) -> tuple[TrainConfig, Any]:
    _, state = find_checkpoint(path, buffers=False)
    config = config_of(state)
    return config, get_algorithm_spec(config.algo).load_fn(config, state, "cpu")


@torch.no_grad()
def dream_episode(config: TrainConfig, agent: Dreamer, *, steps: int = 50, seed: int = 0, context: int = 5) -> Dreamed:
    """What the agent lives through, and what its world model makes of it: observation by observation, and on its own."""
    rng, rssm, model = Rng(seed, "inspection").generator, agent.world_model.rssm, agent.world_model
    collector = Collector(EnvFactory(config.env_id, config.env_kwargs), 1, seed)
    observations, actions, carry = [], [], None
    try:
        for _ in range(steps):
            observations.append(torch.from_numpy(collector.obs.copy()))
            acting = agent.act(collector.obs, carry=carry, rng=rng)
            carry = acting.carry
            actions.append(agent.as_inputs(torch.from_numpy(np.ascontiguousarray(acting.actions))))
            step = collector.step(acting.actions)
            if step.terminated[0] or step.truncated[0]:
                break
    finally:
        collector.close()
    target = agent.target(torch.stack(observations))
    taken = torch.stack(actions)
    before = torch.cat([torch.zeros_like(taken[:1]), taken[:-1]])
    torch.manual_seed(seed)
    length = len(target)
    noise = rssm.noise(length, 1)
    states, _ = rssm.observe(model.encoder(target), before, torch.zeros(length, 1), rssm.initial(1), noise)
    context = min(context, length)
    last = State(states.deter[context - 1], states.stoch[context - 1])
    alone = []
    for action in rssm.embed(before[context:]):
        deter = rssm.recur(last, action)
        last = State(deter, rssm.draw(rssm.prior(deter), rssm.noise(1)))
        alone.append(model.features(last))
    seen = model.features(states)
    imagined = torch.cat([seen[:context], *([torch.stack(alone)] if alone else [])])
    shown = target.float() * UNIT if target.ndim == 5 else target
    real, told, alone_seen = (strip[:, 0].numpy() for strip in (shown, model.decoder(seen), model.decoder(imagined)))
    return Dreamed(real, told, alone_seen, context)


def draw_dream(dreamed: Dreamed, output: Path, title: str) -> list[Path]:
    """Pictures: a strip of what happened above reconstructions above what was imagined, and all of it as a GIF. Vectors: a panel
    for each entry. What was written."""
    real, reconstructed, imagined, context = dreamed
    if real.ndim == 2:
        nothing = np.zeros(0, np.float32)
        members = np.stack([reconstructed, imagined])
        draw(
            Predictions(real, members, nothing, np.zeros((2, 0), np.float32)),
            output,
            title,
            of="reconstruction and dream",
        )
        return [output]
    try:
        from PIL import Image
    except ImportError:
        raise ValueError("drawing needs matplotlib: pip install 'rl_training[plots]'") from None

    def frames(rows: np.ndarray) -> np.ndarray:
        """(T, C, H, W) in [0, 1] to (T, H, W, 3); a stack shows its last picture."""
        channels = rows[:, -3:] if rows.shape[1] % 3 == 0 else rows[:, -1:].repeat(3, 1)
        return (np.moveaxis(channels, 1, -1) * 255).clip(0, 255).astype(np.uint8)

    strips = [frames(rows) for rows in (real, reconstructed, imagined)]
    mark = strips[2].copy()
    mark[:context, :2] = (255, 160, 0)  # up to here, it still looks
    columns = np.concatenate([strips[0], strips[1], mark], 1)  # (T, 3H, W, 3)
    chosen = np.unique(np.linspace(0, len(columns) - 1, min(16, len(columns))).round().astype(int))
    output.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.concatenate(list(columns[chosen]), 1)).save(output)
    moving = output.with_suffix(".gif")
    pictures = [Image.fromarray(frame).resize((4 * frame.shape[1], 4 * frame.shape[0]), 0) for frame in columns]
    pictures[0].save(moving, save_all=True, append_images=pictures[1:], duration=100, loop=0)
    return [output, moving]


def predict_episode(config: TrainConfig, agent: Any, *, steps: int = 50, seed: int = 0) -> Predictions:
    """An episode of random actions, and what the agent's model makes of the same actions from the same start."""
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


def draw(predictions: Predictions, output: Path, title: str, of: str = "the members") -> None:
    """A panel for each dimension and one for the reward: the truth as a line, the members' range as a band."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise ValueError("drawing needs matplotlib: pip install 'rl_training[plots]'") from None
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
