"""Every public name is where users find it, and importing the package is light."""

import subprocess
import sys

import pytest

import rl_training
from rl_training.experiment.registry import ALGORITHMS


def test_root_exports():
    for name in ("TrainConfig", "load_config", "ManagedAlgorithm", "Callback", "__version__"):
        assert name in rl_training.__all__ and getattr(rl_training, name)
    assert {entry.public for entry in ALGORITHMS.values()} <= set(rl_training.__all__)
    assert set(rl_training.__all__) <= set(dir(rl_training))


def test_models_and_losses_are_importable_from_their_modules():
    from rl_training.algorithms.dqn import dqn_loss
    from rl_training.algorithms.ppo import ppo_loss
    from rl_training.algorithms.sac import sac_loss
    from rl_training.models import MLPActorCritic, MLPQNetwork, MLPSACModel

    assert all((dqn_loss, ppo_loss, sac_loss, MLPActorCritic, MLPQNetwork, MLPSACModel))


@pytest.mark.parametrize(
    "package", ["rl_training", "rl_training.api", "rl_training.algorithms", "rl_training.api.algorithms"]
)
def test_unknown_names_are_attribute_errors(package):
    from importlib import import_module

    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = import_module(package).Nonsense


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, rl_training; print([m for m in ('torch', 'numpy', 'pydantic', 'gymnasium', 'rich') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["list"], ["train", "--help"]])
def test_light_commands_load_nothing_heavy(words):
    code = f"""
import sys
from rl_training.cli import main
code = main({words!r})
heavy = [m for m in ('torch', 'numpy', 'pydantic', 'gymnasium') if m in sys.modules]
sys.exit(f'loaded {{heavy}}' if heavy or code else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
