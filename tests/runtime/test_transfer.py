"""A new run that starts with the networks of a trained agent: ``load`` and ``learn``, and ``init_from``."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import gymnasium as gym
import pytest
import torch

from rl_training import PPO, SAC, Dreamer
from rl_training.base.options import ConfigError
from rl_training.cli import main
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models.mlp_actor_critic import MLPActorCritic
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.workflows import resume_training
from toys import tiny_config


def contents(folder):
    """Every file below a folder, by the checksum of its bytes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


class First(Callback):
    """Keeps the agent's state as it is when training starts."""

    def on_train_start(self, trainer):
        state = trainer.algorithm.state_dict()
        self.state = json.loads(json.dumps(plain(state)))


def plain(state):
    if isinstance(state, dict):
        return {str(name): plain(value) for name, value in state.items()}
    return state.tolist() if isinstance(state, torch.Tensor) else state


def networks(state):
    """A state without optimizers and counters."""
    return {k: v for k, v in plain(state).items() if isinstance(v, dict) and "optimizer" not in k}


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    """A trained PPO agent; its checkpoints at several steps are kept."""
    folder = tmp_path_factory.mktemp("parent")
    return PPO(tiny_config("ppo", folder, total_timesteps=96, checkpoint_interval=32)).learn()


def checkpoint(result, step):
    return result.run_dir / "checkpoints" / f"step_{step:010d}.ckpt"


# ---- load, then learn


def test_a_loaded_agent_learns_in_a_new_run_and_leaves_its_parent_as_it_was(parent):
    before = contents(parent.run_dir)
    early = checkpoint(parent, 32)
    child = PPO.load(early).learn()
    assert child.run_dir.parent == parent.run_dir.parent and child.run_dir != parent.run_dir
    assert contents(parent.run_dir) == before
    facts = json.loads((child.run_dir / "metadata.json").read_text())["parent"]
    assert facts["path"] == str(early.resolve()) and facts["step"] == 32 and len(facts["sha256"]) == 64


def test_a_loaded_agent_in_another_environment_leaves_its_parent_as_it_was(parent):
    before = contents(parent.run_dir)
    heavy = gym.make("CartPole-v1").unwrapped
    heavy.gravity = 20.0
    managed = PPO.load(checkpoint(parent, 64), env=heavy)
    managed.config = managed.config.replace(total_timesteps=32, env_kwargs={"max_episode_steps": 50})
    assert managed.learn().metrics["global_step"] == 32
    assert contents(parent.run_dir) == before


class Same(MLPActorCritic):
    """A network class of one's own, with the same parts."""


OTHERS = {
    "total": {"total_timesteps": 64},
    "seed and environments": {"seed": 5, "num_envs": 2, "total_timesteps": 64},
    "options": {"algo_kwargs": {**tiny_config("ppo", Path()).algo_kwargs, "learning_rate": 0.01, "update_epochs": 1}},
    "environment": {"env_kwargs": {"max_episode_steps": 20}},
}


@pytest.mark.parametrize("change", [*OTHERS, "network"])
def test_a_loaded_agent_learns_in_a_new_run_whatever_is_changed(change, parent):
    before, early = contents(parent.run_dir), checkpoint(parent, 32)
    managed = PPO.load(early, network=Same if change == "network" else None)
    managed.config = managed.config.replace(**{"total_timesteps": 32, **OTHERS.get(change, {})})
    child = managed.learn()
    assert child.run_dir != parent.run_dir and contents(parent.run_dir) == before
    facts = json.loads((child.run_dir / "metadata.json").read_text())["parent"]
    assert (facts["path"], facts["step"]) == (str(early.resolve()), 32)
    assert child.metrics["global_step"] == managed.config.total_timesteps


def test_a_loaded_agent_starts_with_the_networks_of_its_checkpoint_and_nothing_else(parent):
    first = First()
    PPO.load(checkpoint(parent, 64)).learn(callbacks=[first])
    saved = load_checkpoint(checkpoint(parent, 64)).algorithm_state
    assert networks(first.state) == networks(saved)
    assert first.state["optimizer"] != plain(saved)["optimizer"]  # Adam's moments start anew


def test_an_agent_that_has_learned_again_goes_on_with_its_own_run(parent, tmp_path):
    managed = PPO.load(checkpoint(parent, 32), output_dir=tmp_path)
    managed.config = managed.config.replace(total_timesteps=32)
    first = managed.learn()
    managed.config = managed.config.replace(total_timesteps=64)
    second = managed.learn()
    assert first.run_dir == second.run_dir and second.metrics["global_step"] == 64


def test_an_agent_that_was_saved_alone_can_be_loaded_and_learn(parent, tmp_path, monkeypatch):
    alone = PPO.load(parent.checkpoint_path).save(tmp_path / "alone.ckpt")
    monkeypatch.chdir(tmp_path)
    result = PPO.load(alone).learn()
    assert result.run_dir.resolve().parent == tmp_path / "runs"  # not where the file says


def test_a_run_directory_can_be_loaded(parent):
    assert PPO.load(parent.run_dir).checkpoint_path == parent.checkpoint_path


# ---- init_from


def test_the_command_line_starts_from_a_run_and_says_what_it_took(parent, tmp_path, capsys):
    config = tmp_path / "config.yaml"
    config.write_text((parent.run_dir / "config.yaml").read_text())
    before = contents(parent.run_dir)
    flags = ["--init-from", str(parent.run_dir), "--output-dir", str(tmp_path / "out"), "--set", "progress=lines"]
    assert main(["train", "--config", str(config), *flags]) == 0
    said = capsys.readouterr()
    assert f"weights from {parent.checkpoint_path}, trained for 96 steps: model." in said.out + said.err
    assert contents(parent.run_dir) == before


def test_a_run_that_started_from_another_resumes_exactly_even_without_it(parent, tmp_path):
    source = PPO.load(parent.checkpoint_path).save(tmp_path / "source.ckpt")
    config = tiny_config("ppo", tmp_path / "a", total_timesteps=64).replace(init_from=str(source))
    whole = PPO(config).learn()

    class Stop(Callback):
        def on_update_end(self, trainer, result):
            trainer.request_stop("enough for now")

    part = PPO(config.replace(output_dir=tmp_path / "b")).learn(callbacks=[Stop()])
    source.unlink()
    resumed = resume_training(part.run_dir)
    ends = [plain(load_checkpoint(result.checkpoint_path).algorithm_state) for result in (whole, resumed)]
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("source", "target", "options"),
    [
        ("ppo", "ppg", {}),
        ("sac", "cql", {}),
        ("sac", "rlpd", {"num_critics": 2, "layer_norm": False}),
        ("sac", "mbpo", {}),
        ("iqn", "fqf", {}),
    ],
)
def test_algorithms_of_a_family_share_their_networks(source, target, options, tmp_path):
    trained = get_algorithm_spec(source).train(tiny_config(source, tmp_path / source))
    first = First()
    config = tiny_config(target, tmp_path / target, **options)
    known = set(get_algorithm_spec(target).config.model_fields)
    sizes = {
        k: v
        for k, v in load_checkpoint(trained.checkpoint_path).config["algo_kwargs"].items()
        if "sizes" in k or "hidden" in k
    }
    kwargs = {**config.algo_kwargs, **{k: v for k, v in sizes.items() if k in known}}
    config = config.replace(
        env_id=tiny_config(source, tmp_path).env_id, algo_kwargs=kwargs, init_from=str(trained.run_dir)
    )
    get_algorithm_spec(target).train(config, callbacks=[first])
    saved = plain(load_checkpoint(trained.checkpoint_path).algorithm_state)
    here = first.state["policy"] if target == "mbpo" else first.state
    network = "q_network" if source == "iqn" else "model"
    same = [name for name in saved[network] if here[network].get(name) == saved[network][name]]
    assert set(same) == set(saved[network])


def test_a_world_model_alone_can_be_taken(tmp_path):
    trained = Dreamer(tiny_config("dreamer", tmp_path / "a")).learn()
    config = tiny_config("dreamer", tmp_path / "b").replace(
        seed=7, init_from=str(trained.run_dir), init_parts=["world_model"]
    )
    first = First()
    Dreamer(config).learn(callbacks=[first])
    saved = plain(load_checkpoint(trained.checkpoint_path).algorithm_state)
    assert first.state["world_model"] == saved["world_model"] and first.state["actor"] != saved["actor"]


def test_a_tuned_temperature_goes_along_and_a_fixed_one_does_not(tmp_path):
    trained = SAC(tiny_config("sac", tmp_path / "a", alpha="auto")).learn()
    found = {}

    class Look(Callback):
        def on_train_start(self, trainer):
            found[trainer.algorithm.alpha_optimizer is None] = trainer.algorithm.alpha

    for alpha in ("auto", 0.05):
        config = tiny_config("sac", tmp_path / "b", alpha=alpha).replace(init_from=str(trained.run_dir))
        SAC(config).learn(callbacks=[Look()])
    tuned = float(load_checkpoint(trained.checkpoint_path).algorithm_state["log_alpha"].exp())
    assert tuned != 1.0  # where an untrained one starts
    assert found[False] == pytest.approx(tuned) and found[True] == pytest.approx(0.05)


# ---- refusals: one line, and no run directory


def refused(config, tmp_path):
    with pytest.raises((ConfigError, ValueError)) as caught:
        get_algorithm_spec(config.algo).train(config)
    assert not (tmp_path / "new").exists() or not [*(tmp_path / "new").iterdir()]
    assert str(caught.value).count("\n") == 0
    return str(caught.value)


def test_networks_of_other_shapes_are_refused_by_name(parent, tmp_path):
    config = tiny_config("ppo", tmp_path / "new", hidden_sizes=[7, 5]).replace(init_from=str(parent.run_dir))
    message = refused(config, tmp_path)
    assert "has the shape" in message and "init_parts" in message


def test_an_agent_of_an_algorithm_that_means_something_else_is_refused(parent, tmp_path):
    config = tiny_config("dqn", tmp_path / "new").replace(init_from=str(parent.run_dir))
    assert "an agent of ppo does not fit dqn, which takes dqn" in refused(config, tmp_path)
    config = tiny_config("sac", tmp_path / "new").replace(init_from=str(parent.run_dir))
    assert "which takes sac or cql or rlpd or mbpo or mopo" in refused(config, tmp_path)


@pytest.mark.parametrize("scaled", [True, False])
def test_networks_for_observations_that_are_scaled_otherwise_are_refused(scaled, tmp_path):
    trained = PPO(tiny_config("ppo", tmp_path / "a", normalize_observations=scaled)).learn()
    config = tiny_config("ppo", tmp_path / "new", normalize_observations=not scaled)
    message = refused(config.replace(init_from=str(trained.run_dir)), tmp_path)
    assert f"set normalize_observations to {str(scaled).lower()}" in message


def test_parts_that_nobody_has_are_refused(parent, tmp_path):
    config = tiny_config("ppo", tmp_path / "new").replace(init_from=str(parent.run_dir), init_parts=["nobody"])
    assert "init_parts: 'nobody' is no part of this agent, which has model." in refused(config, tmp_path)


def test_a_path_that_leads_nowhere_is_refused(tmp_path):
    config = tiny_config("ppo", tmp_path / "new").replace(init_from=str(tmp_path / "none"))
    assert "no checkpoint at" in refused(config, tmp_path)
