"""Slim checkpoints of every algorithm: they act as what they were made of, can start a new run, and are not resumed."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from rl_training import PPO
from rl_training.base.options import ConfigError
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.checkpointing import (
    CheckpointError,
    CheckpointState,
    load_checkpoint,
    save_checkpoint,
)
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec
from rl_training.runtime.saving import CannotResume
from rl_training.runtime.slim import named_optimizers, saved_optimizers, slim_copy
from rl_training.runtime.workflows import config_of, evaluate_checkpoint, resume_training
from toys import assert_same, tiny_config

everyone = pytest.mark.parametrize("algo", ALGORITHMS)


@pytest.fixture(scope="module")
def slimmed(tmp_path_factory):
    """One short run of each algorithm: its last checkpoint, and the slim copy of that."""
    made = {}

    def pair(algo):
        if algo not in made:
            folder = tmp_path_factory.mktemp(algo)
            path = get_algorithm_spec(algo).train(tiny_config(algo, folder)).checkpoint_path
            slim = save_checkpoint(folder / "slim.ckpt", slim_copy(load_checkpoint(path, buffers=False)))
            made[algo] = path, slim
        return made[algo]

    return pair


def agent_of(path):
    state = load_checkpoint(path, buffers=False)
    config = config_of(state)
    return *get_algorithm_spec(config.algo).load(config, state, "cpu"), config


def observations(config, count=20):
    """Observations of an environment in which random actions are taken."""
    with closing(EnvFactory(config.env_id, {}).make(training=False)) as env:
        env.action_space.seed(0)
        obs = [env.reset(seed=0)[0]]
        while len(obs) < count:
            one, *_, terminated, truncated, _ = env.step(env.action_space.sample())
            obs.append(env.reset()[0] if terminated or truncated else one)
    return obs


@everyone
def test_a_slim_agent_acts_and_scores_exactly_as_the_whole_one(algo, slimmed):
    (whole, spaces, config), (slim, _, _) = map(agent_of, slimmed(algo))
    rows = np.stack([spaces.encode(obs) for obs in observations(config)])
    for deterministic in (True, False):
        carries = [agent.initial_carry(len(rows)) for agent in (whole, slim)]
        for _ in range(2):  # what is carried to the next observation is the same too
            acted = [
                agent.act(rows, carry=carry, deterministic=deterministic, rng=np.random.default_rng(1))
                for agent, carry in zip((whole, slim), carries)
            ]
            assert np.array_equal(acted[0].actions, acted[1].actions)
            carries = [one.carry for one in acted]
    assert evaluate_checkpoint(slimmed(algo)[0], 1) == evaluate_checkpoint(slimmed(algo)[1], 1)


@everyone
def test_a_slim_file_holds_every_part_but_the_optimizers_and_is_smaller(algo, slimmed):
    path, slim = slimmed(algo)
    state, kept = load_checkpoint(path, buffers=False), load_checkpoint(slim)
    agent = agent_of(path)[0]
    names = {name for name, _ in named_optimizers(agent)}
    assert names and names == {name for name, _ in saved_optimizers(state.algorithm_state)}  # by type and by name
    assert not list(saved_optimizers(kept.algorithm_state))
    assert set(_leaves(state.algorithm_state)) - set(_leaves(kept.algorithm_state)) == {
        leaf for leaf in _leaves(state.algorithm_state) if leaf.rpartition(".")[0] in names
    }
    fresh = dict(named_optimizers(agent_of(slim)[0]))
    assert all(not tensor.any() for one in fresh.values() for tensor in one.state_dict().values())
    assert kept.buffer_state is None and set(kept.trainer_state) == {
        "step", "update_count", "gradient_steps", "epoch", "counters", "references",
    }  # fmt: skip
    assert slim.stat().st_size < path.stat().st_size


def _leaves(state, prefix=""):
    for name, part in state.items():
        yield from _leaves(part, f"{prefix}{name}.") if isinstance(part, dict) else [f"{prefix}{name}"]


@everyone
def test_a_slim_file_starts_a_new_run_with_the_same_networks_as_the_whole_one(algo, slimmed, tmp_path):
    path, slim = slimmed(algo)
    ends = []
    for number, source in enumerate((path, slim)):
        config = tiny_config(algo, tmp_path / str(number), total_timesteps=64, init_from=str(source), compile=False)
        ends.append(load_checkpoint(get_algorithm_spec(algo).train(config).checkpoint_path))
    assert_same(ends[0].algorithm_state, ends[1].algorithm_state)


@everyone
def test_a_slim_file_is_not_resumed(algo, slimmed, tmp_path):
    with pytest.raises(CannotResume, match=r"^this checkpoint is slim[^\n]*--init-from[^\n]*$"):
        resume_training(slimmed(algo)[1], total_timesteps=200, output_dir=tmp_path / "runs")
    state = load_checkpoint(slimmed(algo)[1])
    with pytest.raises(CannotResume, match="slim"):
        get_algorithm_spec(algo).train(config_of(state).replace(output_dir=tmp_path / "runs"), checkpoint_state=state)
    assert not (tmp_path / "runs").exists()


@everyone
def test_a_checkpoint_that_lacks_an_optimizer_without_being_slim_is_refused(algo, slimmed):
    state = load_checkpoint(slimmed(algo)[1])
    for mark in ({}, {"slim": False}, {"slim": "true"}, {"slim": 1}):
        unmarked = CheckpointState(
            state.algorithm_state, None, state.trainer_state, state.config, {**state.metadata, "slim": None} | mark
        )
        with pytest.raises(CheckpointError, match=r"lacks \w*optimizer"):
            get_algorithm_spec(algo).load(config_of(state), unmarked, "cpu")


def test_a_slim_file_with_an_optimizer_in_it_is_refused(slimmed):
    path, slim = slimmed("sac")
    state, whole = load_checkpoint(slim), load_checkpoint(path)
    state.algorithm_state["actor_optimizer"] = whole.algorithm_state["actor_optimizer"]
    with pytest.raises(CheckpointError, match=r"actor_optimizer: is there, in a checkpoint that says it holds no"):
        get_algorithm_spec("sac").load(config_of(state), state, "cpu")


def test_a_slim_file_that_lacks_a_network_is_refused(slimmed):
    state = load_checkpoint(slimmed("sac")[1])
    del state.algorithm_state["target_model"]
    with pytest.raises(CheckpointError, match="lacks target_model"):
        get_algorithm_spec("sac").load(config_of(state), state, "cpu")


def test_optimizers_and_replay_cannot_be_taken_from_a_slim_file(slimmed, tmp_path):
    config = tiny_config("sac", tmp_path, init_from=str(slimmed("sac")[1]))
    for name, problem in (("init_optimizer", "holds no optimizers"), ("init_replay", "slim checkpoint")):
        with pytest.raises(ConfigError, match=rf"{name}: [^\n]*{problem}"):
            get_algorithm_spec("sac").train(config.replace(**{name: True}))


def test_the_managed_class_loads_saves_and_goes_on_from_a_slim_file_with_a_new_run(slimmed, tmp_path):
    slim = slimmed("ppo")[1]
    agent = PPO.load(slim, output_dir=tmp_path / "runs")
    again = PPO.load(agent.save(tmp_path / "again.ckpt"))
    assert again.predict([0.0, 0.0, 0.0, 0.0]) == agent.predict([0.0, 0.0, 0.0, 0.0])
    assert load_checkpoint(tmp_path / "again.ckpt").metadata["slim"] is True
    agent.config = agent.config.replace(total_timesteps=64)
    result = agent.learn()
    assert "slim" not in load_checkpoint(result.checkpoint_path).metadata  # whole again


def test_a_slim_copy_of_a_slim_copy_is_the_same_and_names_no_folder_of_the_run(slimmed):
    path, slim = slimmed("dqn")
    state = load_checkpoint(slim)
    again = slim_copy(state)
    assert_same(again.algorithm_state, state.algorithm_state)
    assert again.config == state.config and again.metadata | {"format": 3} == state.metadata
    assert load_checkpoint(path).config["output_dir"] not in str(state.config) and state.config["output_dir"] == "runs"
