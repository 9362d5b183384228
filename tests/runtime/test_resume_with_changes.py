"""What may change when a run goes on, what may not, and that nothing is dropped in silence."""

from __future__ import annotations

import json

import pytest
import torch

from rl_training import PPO, SAC
from rl_training.base.options import ConfigError
from rl_training.cli import main
from rl_training.experiment.checkpointing import CheckpointError, load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.yaml_config import read_config
from rl_training.runtime.callbacks import Callback, CallbackList
from rl_training.runtime.workflows import resume_training
from toys import tiny_config

TOTAL = 128


class Stop(Callback):
    """Ends a run after some steps; counts updates, and keeps the count."""

    def __init__(self, at):
        self.at, self.updates = at, 0

    def on_update_end(self, trainer, result):
        self.updates += 1
        if trainer.global_step >= self.at:
            trainer.request_stop("enough for now")

    def state_dict(self):
        return {"updates": self.updates}

    def load_state_dict(self, state):
        self.updates = state["updates"]


def begun(tmp_path, at=64, **changes):
    return PPO(tiny_config("ppo", tmp_path, total_timesteps=TOTAL, **changes)).learn(callbacks=[Stop(at)])


def weights(result):
    return load_checkpoint(result.checkpoint_path).algorithm_state["model"]


CHANGES = {
    "eval_episodes": 2,
    "log_interval": 16,
    "checkpoint_interval": 32,
    "checkpoint_minutes": None,
    "keep_checkpoints": 7,
    "loggers": ["csv"],
    "tags": ["again"],
    "env_limit_seconds": 60.0,
    "algo_kwargs.eval_interval": 32,
}


def test_what_may_change_is_used_and_changes_nothing_that_is_learned(tmp_path):
    whole = PPO(tiny_config("ppo", tmp_path / "a", total_timesteps=TOTAL)).learn()
    part = begun(tmp_path / "b")
    resumed = resume_training(part.run_dir, set=CHANGES)
    assert resumed.run_dir == part.run_dir
    ends = weights(whole), weights(resumed)
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    config = read_config(part.run_dir / "config.yaml").plain()
    flat = {**config, **{f"algo_kwargs.{name}": value for name, value in config["algo_kwargs"].items()}}
    assert {name: flat[name] for name in CHANGES} == CHANGES
    assert (part.run_dir / "metrics.csv").exists()
    names = {path.name for path in (part.run_dir / "checkpoints").glob("step_*.ckpt") if "buffers" not in path.name}
    assert {"step_0000000096.ckpt", "step_0000000128.ckpt"} <= names
    lines = [json.loads(line) for line in (part.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [line["eval_episodes"] for line in lines if "eval_episodes" in line][-1] == 2


def test_the_command_line_does_the_same(tmp_path, capsys):
    part = begun(tmp_path)
    words = [
        "--set",
        "total_timesteps=96",
        "--set",
        "algo_kwargs.early_stopping={patience: 9}",
        "--set",
        "progress=off",
    ]
    assert main(["resume", str(part.run_dir), *words]) == 0
    assert "trained at step 96" in capsys.readouterr().out
    config = read_config(part.run_dir / "config.yaml")
    assert config.total_timesteps == 96 and config.algo_kwargs["early_stopping"]["patience"] == 9


@pytest.mark.parametrize(
    "change",
    ["seed=4", "algo_kwargs.learning_rate=0.1", "num_envs=2", "env_id=Acrobot-v1", "algo_kwargs.hidden_sizes=[8]"],
)
def test_what_changes_the_learning_is_refused_with_the_other_way(change, tmp_path, capsys):
    part = begun(tmp_path)
    before = (part.run_dir / "config.yaml").read_bytes()
    assert main(["resume", str(part.run_dir), "--set", change]) == 2
    said = capsys.readouterr().err
    name = change.partition("=")[0]
    assert f"{name}: cannot change while a run goes on" in said and "--init-from" in said and said.count("\n") == 1
    assert "total_timesteps" in said and "algo_kwargs.early_stopping" in said
    assert (part.run_dir / "config.yaml").read_bytes() == before


def test_names_that_nobody_knows_are_refused_and_values_that_stay_are_not(tmp_path):
    part = begun(tmp_path)
    with pytest.raises(ConfigError, match=r"learning_rate: cannot change while a run goes on"):
        resume_training(part.run_dir, set={"learning_rate": 3})  # found among the options of the algorithm
    with pytest.raises(ConfigError, match="keep_checkpoint: unknown option; did you mean 'keep_checkpoints'"):
        resume_training(part.run_dir, set={"keep_checkpoint": 3})
    with pytest.raises(ConfigError, match="keep_checkpoints"):
        resume_training(part.run_dir, set={"keep_checkpoints": 0})
    assert resume_training(part.run_dir, set={"seed": 3}).metrics["global_step"] == TOTAL


def test_early_stopping_that_is_added_leaves_the_states_of_callbacks_where_they_were(tmp_path):
    part = begun(tmp_path)
    again = Stop(TOTAL)
    resume_training(part.run_dir, set={"algo_kwargs.early_stopping": {"patience": 50}}, callbacks=[again])
    assert again.updates == 16  # of 8 and 8: two rollouts of four minibatches on each side


def test_states_of_callbacks_are_found_by_type_and_order():
    ours = CallbackList([Stop(1), Callback(), Stop(2)])
    ours.load_state_dict({"5:Stop": {"updates": 7}, "10:Stop": {"updates": 8}, "2:Gone": {}})
    assert ours.state_dict() == {"0:Stop": {"updates": 7}, "2:Stop": {"updates": 8}}


# ---- a managed agent's config


def test_an_agent_that_learns_on_uses_or_refuses_what_was_changed_on_its_config(tmp_path):
    managed = PPO(tiny_config("ppo", tmp_path, total_timesteps=64))
    first = managed.learn()
    managed.config = managed.config.replace(total_timesteps=96, keep_checkpoints=9, eval_episodes=2)
    second = managed.learn()
    assert second.run_dir == first.run_dir and second.metrics["global_step"] == 96
    assert second.metrics["eval_episodes"] == 2
    assert read_config(first.run_dir / "config.yaml").keep_checkpoints == 9
    managed.config.total_timesteps = 128
    managed.config.algo_kwargs["learning_rate"] = 0.5
    with pytest.raises(ConfigError, match=r"algo_kwargs.learning_rate: cannot change while a run goes on"):
        managed.learn()
    del managed.config.algo_kwargs["learning_rate"]
    assert managed.learn().metrics["global_step"] == 128


def test_an_option_that_was_removed_counts_as_changed(tmp_path):
    managed = PPO(tiny_config("ppo", tmp_path, total_timesteps=32, learning_rate=0.01))
    managed.learn()
    managed.config = managed.config.replace(total_timesteps=64, algo_kwargs=tiny_config("ppo", tmp_path).algo_kwargs)
    with pytest.raises(ConfigError, match=r"algo_kwargs.learning_rate: cannot change"):
        managed.learn()


def test_a_loaded_agent_learns_with_the_options_that_its_config_has_then(tmp_path):
    parent = PPO(tiny_config("ppo", tmp_path, total_timesteps=32)).learn()
    managed = PPO.load(parent.run_dir)
    managed.config = managed.config.replace(seed=8, total_timesteps=64, num_envs=2)
    managed.config.algo_kwargs["learning_rate"] = 0.002
    result = managed.learn()
    made = read_config(result.run_dir / "config.yaml")
    assert (made.seed, made.num_envs, made.algo_kwargs["learning_rate"]) == (8, 2, 0.002)
    managed = PPO.load(parent.run_dir)
    managed.config.algo_kwargs["hidden_sizes"] = [8]
    with pytest.raises(ConfigError, match=r"set hidden_sizes to \[16\], as there"):
        managed.learn()


def test_a_changed_config_is_saved_with_the_agent_or_refused(tmp_path):
    parent = PPO(tiny_config("ppo", tmp_path, total_timesteps=32)).learn()
    managed = PPO.load(parent.run_dir)
    managed.config = managed.config.replace(env_kwargs={"max_episode_steps": 5})
    managed.config.algo_kwargs["learning_rate"] = 0.002
    saved = PPO.load(managed.save(tmp_path / "alone.ckpt"))
    assert saved.config.env_kwargs == {"max_episode_steps": 5} and saved.config.algo_kwargs["learning_rate"] == 0.002
    assert saved.evaluate(1)["eval_length_mean"] <= 5
    managed.config.algo_kwargs["hidden_sizes"] = [8]
    with pytest.raises(CheckpointError, match="does not fit"):
        managed.save(tmp_path / "other.ckpt")
    with pytest.raises(CheckpointError, match="does not fit"):
        managed.evaluate(1)
    assert not (tmp_path / "other.ckpt").exists()


def test_options_that_the_task_chose_for_the_parent_are_chosen_anew(tmp_path):
    config = tiny_config("sac", tmp_path, total_timesteps=60)
    options = {k: v for k, v in config.algo_kwargs.items() if k not in ("learning_starts", "initial_random_steps")}
    parent = SAC(config.replace(algo_kwargs={**options, "batch_size": 4})).learn()
    assert load_checkpoint(parent.checkpoint_path).config["algo_kwargs"]["learning_starts"] == 6
    resumed = resume_training(parent.run_dir, total_timesteps=70)  # which does not forget what was chosen
    managed = SAC.load(resumed.run_dir)
    assert "learning_starts" not in managed.config.algo_kwargs and managed.config.algo_kwargs["batch_size"] == 4
    managed.config = managed.config.replace(total_timesteps=20)
    child = load_checkpoint(managed.learn().checkpoint_path)
    assert child.config["algo_kwargs"]["learning_starts"] == 2
    assert child.config["algo_kwargs"]["initial_random_steps"] == 0
    assert get_algorithm_spec("sac").config(**child.config["algo_kwargs"]).hidden_sizes == (16, 16)


def test_where_a_run_is_tracked_may_change(tmp_path):
    from rl_training.runtime.workflows import changed_config

    before = tiny_config("ppo", tmp_path)
    for name in ("wandb_project", "mlflow_experiment"):
        assert getattr(changed_config(before, {name: "elsewhere"}), name) == "elsewhere"
