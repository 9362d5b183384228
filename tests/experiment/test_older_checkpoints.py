"""Checkpoints of older formats load, act and go on.

Format 1 was written before learned terminations belonged to the agent, format 2 before ensembles knew the units of their targets.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from rl_training.algorithms.terminations import deciding
from rl_training.experiment.checkpointing import CheckpointError, load_checkpoint, save_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.migrations import FORMAT
from rl_training.experiment.registry import get_algorithm_spec
from toys import SMOKE, Counter

FIXTURES = Path(__file__).parents[1] / "fixtures"  # runs of toys.SMOKE, stopped at step 90 of 128
FILES = FIXTURES / "format_1"
OLDER = [(1, algo) for algo in SMOKE] + [(2, algo) for algo in ("pets", "mbpo", "mopo")]  # the rest are alike in both


def counter():
    return Counter(7, terminate=True, actions=Box(-1, 1, (1,), np.float32))


def opened(algo, folder, number=1):
    state = load_checkpoint(FIXTURES / f"format_{number}" / f"{algo}.ckpt")
    own = {"env": counter} if state.metadata.get("own_env") else {}
    return get_algorithm_spec(algo), TrainConfig(**{**state.config, "output_dir": folder}), state, own


def test_there_are_files_of_every_older_format():
    assert {number for number, _ in OLDER} == set(range(1, FORMAT))


@pytest.mark.parametrize(("number", "algo"), OLDER)
def test_an_older_checkpoint_acts_and_its_run_goes_on(number, algo, tmp_path):
    spec, config, state, own = opened(algo, tmp_path, number)
    agent, spaces = spec.load(config, state, **own)
    obs = np.zeros((2, *spaces.obs_shape), spaces.obs_dtype)
    assert len(agent.act(obs, deterministic=True).actions) == 2
    result = spec.train(config, checkpoint_state=state, **own)
    assert result.metrics["global_step"] == 128
    assert result.metrics["gradient_steps"] > state.trainer_state["gradient_steps"]
    assert load_checkpoint(result.checkpoint_path).metadata["format"] == FORMAT


@pytest.mark.parametrize("number", range(1, FORMAT))
@pytest.mark.parametrize("algo", ["pets", "mbpo"])
def test_terminations_that_an_older_run_had_learned_are_the_agents(algo, number, tmp_path):
    spec, config, state, own = opened(algo, tmp_path, number)
    agent, _ = spec.load(config, state, **own)
    obs = np.arange(7, dtype=np.float32)[:, None]
    terminated = deciding(agent.terminations)(obs, np.zeros((7, 1), np.float32), obs + 1)
    assert terminated.tolist() == 6 * [False] + [True]


@pytest.mark.parametrize("number", range(1, FORMAT))
def test_an_older_run_of_pets_keeps_the_model_and_the_plans_that_it_began_with(number, tmp_path):
    """Its outputs stay in the data's units, and what its config did not set is what the defaults were."""
    spec, config, state, own = opened("pets", tmp_path, number)
    assert state.config["algo_kwargs"]["standardise_targets"] is False
    assert state.config["algo_kwargs"]["planning_candidates"] == 8  # its own
    model = spec.load(config, state, **own)[0].model
    assert torch.equal(model.target_scale, torch.ones(2)) and torch.equal(model.target_mean, torch.zeros(2))


def test_an_older_agent_that_was_saved_alone_has_learned_no_terminations(tmp_path):
    spec, config, state, own = opened("pets", tmp_path)
    alone = load_checkpoint(FILES / "pets.ckpt", buffers=True)
    alone.algorithm_state["terminations"], alone.buffer_state = None, None
    agent, _ = spec.load(config, alone, **own)
    assert deciding(agent.terminations) is None
    assert torch.equal(
        agent.model.state_dict()["elites"], spec.load(config, state, **own)[0].model.state_dict()["elites"]
    )


def test_a_checkpoint_of_a_newer_format_is_refused(tmp_path, monkeypatch):
    state = load_checkpoint(FILES / "ppo.ckpt")
    monkeypatch.setattr("rl_training.experiment.checkpointing.FORMAT", FORMAT + 1)
    path = save_checkpoint(tmp_path / "new.ckpt", state)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=f"has format {FORMAT + 1}; this version reads formats 1 to {FORMAT}"):
        load_checkpoint(path)
