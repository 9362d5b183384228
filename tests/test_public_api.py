"""The managed classes as a user meets them."""

import contextlib

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import rl_training
from rl_training import DQN, PPO, SAC, Callback, ManagedAlgorithm, TrainConfig
from rl_training.base.options import ConfigError
from rl_training.experiment.checkpointing import CheckpointError
from rl_training.models import MLPQNetwork, MLPSACModel
from toys import Counter, DictCounter, tiny_config

QUICK = {
    "total_timesteps": 128,
    "num_steps": 32,
    "minibatch_size": 32,
    "update_epochs": 1,
    "eval_episodes": 1,
    "progress": "off",
}


@pytest.fixture
def short(tmp_path):
    agent = PPO("CartPole-v1", output_dir=tmp_path, **QUICK)
    agent.learn()
    return agent


def test_short_form_sorts_run_fields_from_options(tmp_path):
    agent = PPO("CartPole-v1", total_timesteps=64, learning_rate=1e-3, output_dir=tmp_path)
    assert agent.config.total_timesteps == 64
    assert agent.config.algo_kwargs == {"learning_rate": 1e-3}


def test_short_form_names_a_typo():
    with pytest.raises(ConfigError, match="learning_rat: unknown option of ppo; did you mean 'learning_rate'"):
        PPO("CartPole-v1", learning_rat=1e-3)
    with pytest.raises(ConfigError, match="total_timestep: unknown option of ppo; did you mean 'total_timesteps'"):
        PPO("CartPole-v1", total_timestep=5)


def test_learn_evaluate_predict_save_load(short, tmp_path):
    assert short.evaluate(num_episodes=2)["eval_episodes"] == 2
    obs = [0.1, 0.2, 0.3, 0.4]
    action = short.predict(obs)
    assert isinstance(action, int) and action in (0, 1)
    assert short.predict([obs, obs]).shape == (2,)
    path = short.save(tmp_path / "deep" / "agent.ckpt")
    loaded = PPO.load(path)
    assert isinstance(loaded, ManagedAlgorithm) and type(loaded) is PPO
    batch = np.random.default_rng(0).standard_normal((50, 4))
    assert np.array_equal(loaded.predict(batch), short.predict(batch))
    assert loaded.evaluate(num_episodes=3) == short.evaluate(num_episodes=3)


def test_box_actions_come_in_the_environments_units(tiny):
    agent = SAC(tiny("sac"))
    agent.learn()
    action = agent.predict([1.0, 0.0, 0.0])
    assert action.shape == (1,) and gym.make("Pendulum-v1").action_space.contains(action)
    wide = agent.predict(np.random.default_rng(0).standard_normal((500, 3)) * 5, deterministic=False)
    assert np.abs(wide).max() > 1.0  # the torque's bound is 2


@contextlib.contextmanager
def count_torch_operations():
    """The list grows by every operation that torch computes in here."""
    from torch.utils._python_dispatch import TorchDispatchMode

    found = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            found.append(str(function))
            return function(*args, **(kwargs or {}))

    with Mode():
        yield found


def test_predict_reads_no_file_and_computes_nothing_in_torch(short, monkeypatch):
    """What makes it quick, without a clock."""
    obs = np.zeros(4, np.float32)
    with count_torch_operations() as operations:
        with torch.no_grad():
            short.agent.model(torch.zeros(1, 4))  # the first operation that is counted may import parts of torch
        plain = len(operations)
        monkeypatch.setattr("builtins.open", lambda *a, **k: pytest.fail("predict opened a file"))
        short.predict(obs)
    computed = [name for name in operations[plain:] if name != "aten.detach.default"]  # a tensor seen as an array
    assert plain > 3 and computed == []


def test_predict_names_a_wrong_shape(short):
    with pytest.raises(ValueError, match=r"observations have shape \(4,\) .* got \(3,\)"):
        short.predict([0.0, 0.0, 0.0])


def test_habits_from_other_libraries_are_answered_in_one_line():
    with pytest.raises(TypeError, match="number of steps is the option total_timesteps"):
        PPO("CartPole-v1").learn(2_000)
    with pytest.raises(AttributeError, match="unknown algorithm 'TD3': not in this package; closest: sac, td3_bc"):
        _ = rl_training.TD3
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = rl_training.nothing


def test_nothing_trained_yet_is_said():
    with pytest.raises(ValueError, match="nothing trained yet"):
        PPO("CartPole-v1").predict([0, 0, 0, 0])
    with pytest.raises(ValueError, match="no checkpoint yet"):
        _ = PPO("CartPole-v1").checkpoint_path


def test_the_wrong_algorithm_is_refused(tiny):
    with pytest.raises(ValueError, match="PPO needs algo='ppo', got 'sac'"):
        PPO(tiny("sac"))
    with pytest.raises(ConfigError, match="gamma: belongs into the config"):
        SAC(tiny("sac"), gamma=0.9)


def test_an_environment_object_or_factory_in_place_of_an_id(tiny, tmp_path):
    made = PPO(gym.make("CartPole-v1", max_episode_steps=20), output_dir=tmp_path, **QUICK)
    assert made.config.env_id == "CartPole-v1"
    made.learn()
    assert made.evaluate()["eval_length_mean"] <= 20  # the object's own settings were kept
    own = DQN(Counter, output_dir=tmp_path, total_timesteps=60, learning_starts=20, batch_size=8, progress="off")
    own.learn()
    assert own.evaluate() == {**own.evaluate(), "eval_return_mean": 3.0}
    assert DQN.load(own.save(tmp_path / "own.ckpt"), env=Counter).predict([0.0]) in (0, 1)


def test_an_object_that_cannot_be_copied_asks_for_a_factory(tmp_path):
    class Holding(Counter):
        def __deepcopy__(self, memo):
            raise TypeError("holds a socket")

    with pytest.raises(ValueError, match="pass a function that makes it instead"):
        PPO(Holding(), output_dir=tmp_path, **QUICK).learn()


class Odd(MLPQNetwork):
    """A network of one's own."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.scale = nn.Parameter(-torch.ones(()))

    def forward(self, obs):
        return self.scale * super().forward(obs)


def test_a_custom_network_class(tiny, tmp_path):
    agent = DQN(tiny("dqn"), network=Odd)
    agent.learn()
    assert isinstance(agent.agent.q_network, Odd)
    obs = torch.randn(64, 4)
    assert agent.predict(obs.numpy()).tolist() == agent.agent.q_network(obs).argmax(1).tolist()
    path = agent.save(tmp_path / "odd.ckpt")
    assert DQN.load(path, network=Odd).predict([0, 0, 0, 0]) == agent.predict([0, 0, 0, 0])
    with pytest.raises(CheckpointError, match="does not fit"):
        DQN.load(path)


class Linear(nn.Module):
    """The least a PPO policy needs: ``act`` and ``evaluate_actions``."""

    def __init__(self, *, obs_dim, head, **_):
        super().__init__()
        self.layer = nn.Linear(obs_dim, head.size + 1)

    def _outputs(self, obs):
        outputs = self.layer(obs)
        return torch.distributions.Categorical(logits=outputs[:, :-1]), outputs[:, -1]

    def act(self, obs, *, deterministic=False):
        policy, _ = self._outputs(obs)
        return self.evaluate_actions(obs, policy.probs.argmax(-1) if deterministic else policy.sample())

    def evaluate_actions(self, obs, actions):
        policy, values = self._outputs(obs)
        return actions, policy.log_prob(actions), values, policy.entropy()


def test_a_custom_policy_needs_two_methods(tiny):
    agent = PPO(tiny("ppo"), network=Linear)
    assert agent.learn().metrics["gradient_steps"] > 0
    assert agent.predict([0, 0, 0, 0]) in (0, 1)


class Tanh(MLPSACModel):
    """A policy of one's own for SAC."""

    def policy(self, obs):
        mean, log_std = super().policy(obs)
        return mean.tanh(), log_std


def test_a_custom_sac_policy_is_the_one_that_acts(tiny):
    agent = SAC(tiny("sac"), network=Tanh)
    agent.learn()
    obs = torch.randn(4, 3)
    expected = agent.agent.model.sample_actions(obs, deterministic=True).actions.detach().numpy()
    assert agent.agent.act(obs.numpy(), deterministic=True).actions == pytest.approx(expected, abs=1e-6)


class Recorder(Callback):
    def __init__(self):
        self.heard = []

    def on_train_start(self, trainer):
        self.heard.append(("start", trainer.global_step))

    def on_collect_end(self, trainer, result):
        self.heard.append(("collect", result.num_env_steps))

    def on_update_end(self, trainer, result):
        self.heard.append(("update", result.num_gradient_steps))

    def on_eval_end(self, trainer, metrics):
        self.heard.append(("eval", metrics["eval_episodes"]))

    def on_train_end(self, trainer, result):
        self.heard.append(("end", result.metrics["global_step"]))


def test_callbacks_hear_everything_in_order(tiny):
    recorder = Recorder()
    PPO(tiny("ppo", total_timesteps=64, eval_interval=32)).learn(callbacks=[recorder])
    names = [name for name, _ in recorder.heard]
    assert names == ["start", "collect", *["update"] * 4, "eval", "collect", *["update"] * 4, "eval", "end"]
    assert recorder.heard[1] == ("collect", 32) and recorder.heard[-1] == ("end", 64)


def test_learning_goes_on_after_a_stop(tiny):
    class Stop(Callback):
        def on_update_end(self, trainer, result):
            trainer.request_stop("enough for now")

    agent = PPO(tiny("ppo", total_timesteps=128))
    assert agent.learn(callbacks=[Stop()]).metrics["global_step"] == 32
    assert agent.learn().metrics["global_step"] == 128


def test_the_update_budget_is_kept_exactly(tiny):
    assert PPO(tiny("ppo", max_updates=3)).learn().metrics["update_count"] == 3
    assert SAC(tiny("sac", max_updates=7)).learn().metrics["update_count"] == 7
    assert PPO(tiny("ppo", max_epochs=2)).learn().metrics["epoch"] == 2


def test_a_config_is_validated_when_changed():
    config = TrainConfig(algo="ppo", env_id="CartPole-v1")
    with pytest.raises(ValueError, match="total_timesteps"):
        config.total_timesteps = 0
    assert config.replace(seed=5).seed == 5


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


def test_predict_takes_observations_as_the_environment_gives_them(tiny):
    agent = PPO(tiny("ppo"), env=DictCounter)
    agent.learn()
    raw = {"t": np.array([1.0], np.float32), "phase": 1}
    assert agent.predict(raw) == agent.predict([0, 1, 0, 1.0])
    with pytest.raises(ValueError, match="the observation has no part 'phase'"):
        agent.predict({"wrong": 1})
