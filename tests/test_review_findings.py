"""Corners that a careful reader found: each of these once did the wrong thing without a word."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from rl_training import DQN, PPO, Callback, TrainConfig
from rl_training.base.options import ConfigError
from rl_training.data import ReplayBuffer
from rl_training.envs.spaces import Spaces
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.runs import newest_checkpoint
from rl_training.models import MLPQNetwork
from rl_training.runtime.run import TrainingFailure
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training
from toys import Counter, tiny_config


@pytest.mark.parametrize("budget", [{"max_updates": 5}, {"max_epochs": 2}])
@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_a_spent_budget_stays_spent_on_resume(tiny, algo, budget):
    result = get_algorithm_spec(algo).train(tiny(algo, total_timesteps=400, **budget))
    again = resume_training(result.run_dir)
    for name in ("update_count", "global_step", "epoch"):
        assert again.metrics[name] == result.metrics[name]


def test_resuming_from_an_older_checkpoint_drops_the_abandoned_future(tiny):
    class Stop(Callback):
        def on_update_end(self, trainer, result):
            if trainer.global_step >= 64:
                trainer.request_stop("test")

    result = get_algorithm_spec("ppo").train(
        tiny("ppo", total_timesteps=128, checkpoint_interval=32, keep_checkpoints=9)
    )
    resume_training(result.run_dir / "checkpoints" / "step_0000000032.ckpt", callbacks=[Stop()])
    assert newest_checkpoint(result.run_dir)[0].name == "step_0000000064.ckpt"


def test_resume_from_inside_the_checkpoints_folder(tiny, monkeypatch):
    result = get_algorithm_spec("ppo").train(tiny("ppo"))
    monkeypatch.chdir(result.run_dir / "checkpoints")
    again = resume_training(result.checkpoint_path.name, total_timesteps=256)
    assert again.run_dir.resolve() == result.run_dir.resolve()


def test_a_smaller_total_than_the_run_has_steps_is_refused(tiny):
    result = get_algorithm_spec("dqn").train(tiny("dqn", total_timesteps=100))
    with pytest.raises(TrainingFailure, match="at step 100 already, beyond a total of 50"):
        resume_training(result.run_dir, total_timesteps=50)


def test_a_run_without_its_buffers_can_still_be_evaluated(tiny, monkeypatch):
    monkeypatch.setattr("rl_training.experiment.checkpointing.SIBLING_BYTES", 100)
    result = get_algorithm_spec("dqn").train(tiny("dqn"))
    for path in result.run_dir.glob("checkpoints/*.buffers.ckpt"):
        path.unlink()
    assert evaluate_checkpoint(result.run_dir, 1)["eval_episodes"] == 1


def test_a_schedule_without_a_start_begins_at_the_option(tiny):
    seen = []

    class Watch(Callback):
        def on_update_end(self, trainer, result):
            seen.append(float(trainer.algorithm._clip_coef))

    PPO(tiny("ppo", clip_coef=0.3, clip_coef_schedule="linear")).learn(callbacks=[Watch()])
    assert seen[0] == pytest.approx(0.3) and seen[-1] < 0.3


@pytest.mark.parametrize(
    "schedule", [None, "constant", {"type": "linear", "end": 0.1}, {"type": "linear", "start": 2.0, "end": 0.0}]
)
def test_exploration_needs_a_share_to_start_from(tiny, schedule):
    with pytest.raises(ConfigError, match=r"algo_kwargs\.epsilon_schedule: (needs the share|shares of random actions)"):
        DQN(tiny("dqn", epsilon_schedule=schedule))


def test_numpy_values_are_plain_values(tmp_path):
    config = tiny_config(
        "dqn", tmp_path, learning_rate=np.float32(0.5), hidden_sizes=np.array([8, 8]), seed=np.int64(4)
    )
    assert config.plain()["algo_kwargs"]["hidden_sizes"] == [8, 8] and config.seed == 4
    assert DQN(config).learn().metrics["learning_rate"] == 0.5
    config.total_timesteps = 1e5
    assert config.total_timesteps == 100_000
    with pytest.raises(ConfigError, match="total_timesteps: should be greater than or equal to 1, got -1"):
        config.total_timesteps = -1


def test_rows_without_truncations_are_not_truncated():
    replay = ReplayBuffer(3, (1,))
    replay.add(obs=[0.0], actions=0, rewards=1.0, next_obs=[1.0], dones=0, truncations=None)
    assert not torch.isnan(replay.state_dict()["packed"]).any()


def test_gym_make_arguments_for_a_given_environment_are_refused(tiny):
    with pytest.raises(ConfigError, match=r"nonsense: belongs to gym\.make"):
        PPO(tiny("ppo", env_kwargs={"nonsense": 3}), env=Counter).learn()


def test_an_environments_own_complaint_is_one_line():
    config = TrainConfig(algo="dqn", env_id="LunarLander-v3", env_kwargs={"gravity": 5.0})
    with pytest.raises(ValueError, match="cannot make the environment 'LunarLander-v3': gravity"):
        get_algorithm_spec("dqn").train(config)


def test_an_environment_class_and_an_id_with_a_factory_are_named(tiny, tmp_path):
    assert PPO(Counter).config.env_id == "Counter"
    named = PPO(
        "My-v0", env=Counter, total_timesteps=64, num_steps=32, minibatch_size=32, output_dir=tmp_path, progress="off"
    )
    assert "My-v0" in str(named.learn().run_dir)


def test_an_environment_failing_in_evaluation_keeps_the_checkpoint(tiny):
    class Fragile(Counter):
        made = 0

        def __init__(self):
            super().__init__()
            Fragile.made += 1
            self.number = Fragile.made

        def step(self, action):
            if self.number > 2:  # the first is looked at, the second trains, the third evaluates
                raise OSError("display lost")
            return super().step(action)

    with pytest.raises(
        TrainingFailure, match=r"OSError: display lost in evaluation; the last good checkpoint is .*step_0000000032"
    ):
        PPO(tiny("ppo", checkpoint_interval=32, eval_interval=64), env=Fragile).learn()


class Dropout(MLPQNetwork):
    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.drop = nn.Dropout(0.5)

    def forward(self, obs):
        return super().forward(self.drop(obs))


def test_evaluating_leaves_a_trained_agent_in_evaluation_mode(tiny):
    agent = DQN(tiny("dqn"), network=Dropout)
    agent.learn()
    agent.evaluate()
    assert not agent.agent.q_network.training
    with pytest.raises(ValueError, match="at least one episode, got 0"):
        agent.evaluate(num_episodes=0)


class Partly(MLPQNetwork):
    """A frozen layer, a layer nobody uses, and a statistic of batches."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.body[0][0].requires_grad_(False)
        self.unused = nn.Linear(2, 2)
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, obs):
        if len(obs) > 1:
            self.batches += 1
        return super().forward(obs)


def test_frozen_and_unused_parameters_and_batch_statistics(tiny):
    agent = DQN(tiny("dqn", target_update_interval=1, compile=False), network=Partly)
    result = agent.learn()
    state = load_checkpoint(result.checkpoint_path).algorithm_state
    online, target = state["q_network"], state["target_network"]
    assert all(torch.equal(online[name], target[name]) for name in online if "unused" not in name)
    assert online["batches"] > 0


def test_boxes_open_on_one_side_keep_their_bound():
    spaces = Spaces.of(Counter(actions=gym.spaces.Box(np.array([0.0]), np.array([np.inf]), dtype=np.float64)))
    assert spaces.to_env(np.array([[-0.7], [3.0]], np.float32)).tolist() == [[0.0], [3.0]]


def test_predict_takes_observations_as_the_environment_gives_them(tiny):
    from test_collector import DictCounter

    agent = PPO(tiny("ppo"), env=DictCounter)
    agent.learn()
    raw = {"t": np.array([1.0], np.float32), "phase": 1}
    assert agent.predict(raw) == agent.predict([0, 1, 0, 1.0])
    with pytest.raises(ValueError, match=r"observations have shape \(4,\)"):
        agent.predict({"wrong": 1})
