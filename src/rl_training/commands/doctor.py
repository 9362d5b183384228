"""Checks of this machine: versions, devices, compiler, environments, and a tiny run."""

from __future__ import annotations

import shutil
import tempfile
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

__all__ = ["Finding", "examine"]


class Finding(NamedTuple):
    """The outcome of one check."""

    what: str
    ok: bool
    detail: str
    optional: bool = False


def examine() -> list[Finding]:
    """Make every check."""
    from rl_training.experiment.runs import processor, provenance

    facts = provenance()
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    findings = [
        Finding("versions", True, versions),
        Finding("processor", True, f"{processor()}, {facts['hardware']['cores']} cores"),
        _torch(),
        _compiler(),
        *(_environments(*extra) for extra in ENVIRONMENTS),
        *(_tool(*extra) for extra in TOOLS),
        _training(),
    ]
    free = shutil.disk_usage(".").free / 2**30
    return [*findings, Finding("disk", free > 1, f"{free:.1f} GiB free here", optional=True)]


ENVIRONMENTS = (
    ("classic control, rendered", "pygame", "CartPole-v1", "classic"),
    ("Box2D", "Box2D", "LunarLander-v3", "box2d"),
    ("MuJoCo", "mujoco", "HalfCheetah-v5", "mujoco"),
    ("robots with goals", "gymnasium_robotics", "gymnasium_robotics:FetchReach-v4", "robotics"),
    ("Atari", "ale_py", "ALE/Pong-v5", "atari"),
)
TOOLS = (
    ("Minari and hdf5 data", "h5py", "offline"),
    ("plots", "matplotlib", "plots"),
    ("tuning", "optuna", "tune"),
    ("clusters", "ray", "ray"),
    ("mp4 videos", "imageio_ffmpeg", "video"),
    ("ONNX export", "onnxruntime", "export"),
    ("HTTP serving", "fastapi", "serve"),
    ("Weights & Biases", "wandb", "wandb"),
    ("MLflow", "mlflow", "mlflow"),
)


def _torch() -> Finding:
    import torch

    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU, runs use the CPU"
    return Finding("torch", bool(torch.ones(2).sum() == 2), f"{torch.__version__}, {device}")


def _compiler() -> Finding:
    from rl_training.optim.compiled import cannot_compile

    obstacle = cannot_compile()
    return Finding("compiled updates", obstacle is None, obstacle or "available for long runs", optional=True)


def _environments(what: str, module: str, env_id: str, extra: str) -> Finding:
    try:
        import_module(module)
        from rl_training.envs.factory import EnvFactory

        EnvFactory(env_id, {}).make(training=True).close()
        return Finding(what, True, f"{env_id} can be made")
    except (ImportError, ValueError, metadata.PackageNotFoundError):
        return _missing(what, extra)


def _tool(what: str, module: str, extra: str) -> Finding:
    """Look for a module without importing it, which takes seconds for some."""
    return Finding(what, True, "installed") if find_spec(module) is not None else _missing(what, extra)


def _missing(what: str, extra: str) -> Finding:
    return Finding(what, False, f"not installed: pip install 'rl_training[{extra}]'", optional=True)


def _training() -> Finding:
    """Train PPO for a few steps, save, load and resume."""
    from rl_training.experiment.config import TrainConfig
    from rl_training.experiment.registry import get_algorithm_spec
    from rl_training.runtime.workflows import resume_training

    with tempfile.TemporaryDirectory() as folder:
        options = {"num_steps": 64, "minibatch_size": 64, "update_epochs": 1, "eval_interval": 0}
        config = TrainConfig(
            algo="ppo", env_id="CartPole-v1", total_timesteps=256, output_dir=Path(folder), eval_episodes=1,
            progress="off", algo_kwargs=options,
        )  # fmt: skip
        result = get_algorithm_spec("ppo").train(config)
        result = resume_training(result.checkpoint_path, total_timesteps=512)
    return Finding("training", result.metrics["global_step"] == 512, "a short run trained, saved and resumed")
