"""Options of the whole value-based family, and QR-DQN in particular."""

import gymnasium as gym
import numpy as np
import pytest

from rl_training.base.options import ConfigError
from rl_training.data import ReplayBuffer
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.yaml_config import read_config
from rl_training.runtime.dqn_trainer import SPECS, train_dqn
from rl_training.runtime.workflows import resume_training
from toys import Counter, Pictures, assert_same

FAMILY = ("dqn", "qr_dqn", "iqn", "fqf")
EVERYTHING = {"double": True, "dueling": True, "noisy": True, "prioritized": True, "n_step": 3}


@pytest.mark.parametrize("algo", FAMILY)
@pytest.mark.parametrize("options", [{name: value} for name, value in EVERYTHING.items()] + [EVERYTHING])
def test_every_member_takes_every_option(tiny, algo, options):
    result = get_algorithm_spec(algo).train(tiny(algo, num_envs=2, total_timesteps=100, **options))
    assert np.isfinite(result.metrics["loss"])


@pytest.mark.parametrize("algo", FAMILY)
@pytest.mark.parametrize("options", [{}, {"dueling": True, "noisy": True, "prioritized": True, "n_step": 3}])
def test_every_member_learns_from_pictures(tiny, algo, options):
    config = tiny(algo, total_timesteps=60, hidden_sizes=[16], env_kwargs={"wrappers": {"frame_stack": 3}}, **options)
    result = get_algorithm_spec(algo).train(config, env=Pictures)
    assert np.isfinite(result.metrics["loss"])


@pytest.mark.parametrize("algo", ["dqn", "fqf"])
def test_the_atari_preset_runs_and_stores_each_picture_once(algo, tmp_path):
    short = {"total_timesteps": 90, "output_dir": tmp_path, "progress": "off", "threads": 1, "eval_episodes": 1}
    options = {"learning_starts": 80, "hidden_sizes": [16], "eval_interval": 0}
    changes = {**short, **{f"algo_kwargs.{name}": value for name, value in options.items()}}
    config = read_config(f"configs/{algo}/breakout_atari.yaml", {**changes, "env_kwargs.max_episode_steps": 200})
    result = get_algorithm_spec(algo).train(config)
    replay = load_checkpoint(result.checkpoint_path).buffer_state["replay"]
    assert replay["size"] == 90
    assert replay["frames"]["data"].shape[1] == 84 * 84 and replay["frames"]["count"] < 100


@pytest.mark.parametrize("algo", FAMILY)
def test_beta_rises_to_one_over_the_run(tiny, algo):
    result = get_algorithm_spec(algo).train(tiny(algo, prioritized=True, priority_beta=0.5, train_frequency=1))
    assert result.metrics["priority_beta"] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priority_alpha": 0.5}, "priority_alpha does nothing without prioritized: true"),
        ({"priority_alpha": 0.6}, "priority_alpha does nothing without prioritized: true"),  # as if left out, but given
        ({"noisy": True, "exploration_fraction": 0.1}, "does nothing with noisy: true"),
        ({"priority_beta": 0.5, "prioritized": False}, "priority_beta does nothing without prioritized: true"),
        ({"noisy": True, "exploration_fraction": 0.3}, "does nothing with noisy: true"),
        ({"n_step": 0}, "n_step"),
        ({"n_step": 600}, "n_step"),
        ({"num_quantiles": 0}, "num_quantiles"),
        ({"kappa": 0.0}, "kappa"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_reason(tiny, options, message):
    with pytest.raises(ConfigError, match=message):
        get_algorithm_spec("qr_dqn").train(tiny("qr_dqn", **options))


def test_a_noisy_network_needs_no_random_actions_but_may_have_them(tiny):
    spec = get_algorithm_spec("dqn")
    assert spec.options(tiny("dqn", noisy=True)).epsilon_schedule == {"type": "constant", "start": 0.0}
    schedule = {"type": "constant", "start": 0.1}
    assert spec.options(tiny("dqn", noisy=True, epsilon_schedule=schedule)).epsilon_schedule == schedule
    usual = spec.config.model_fields["epsilon_schedule"].default
    assert spec.options(tiny("dqn", noisy=True, epsilon_schedule=usual)).epsilon_schedule == usual  # given is given
    assert spec.options(tiny("dqn", noisy=True)).replace(gamma=0.9).epsilon_schedule["start"] == 0.0


@pytest.mark.parametrize("prioritized", [True, False])
def test_updates_wait_for_the_first_return_that_is_complete(tiny, prioritized):
    """Sixty steps make the first return: from then on there is an update for each step."""
    changes = {"n_step": 60, "learning_starts": 10, "batch_size": 16, "train_frequency": 1, "prioritized": prioritized}
    config = tiny("dqn", total_timesteps=100, **changes)
    result = get_algorithm_spec("dqn").train(config, env=lambda: Counter(limit=1_000))
    assert result.metrics["update_count"] == 100 - 59


@pytest.mark.parametrize("algo", FAMILY)
def test_the_familys_trainer_serves_each_member_by_the_configs_name(tiny, algo):
    result = train_dqn(tiny(algo), run_suffix="by_name")
    state = load_checkpoint(result.checkpoint_path)
    assert result.run_dir.name.startswith(f"{algo}__") and state.config["algo"] == algo
    assert_same(state.algorithm_state, load_checkpoint(SPECS[algo].train(tiny(algo)).checkpoint_path).algorithm_state)


@pytest.mark.parametrize(("trainer", "algo"), [("dqn", "ppo"), ("fqf", "sac"), ("sac", "dqn"), ("sac", "rlpd")])
def test_a_config_of_an_algorithm_outside_the_family_is_refused(tiny, trainer, algo):
    with pytest.raises(ConfigError, match=f"{trainer} cannot take a config of {algo}; use {algo}'s own"):
        get_algorithm_spec(trainer).train(tiny(algo))


def test_plain_dqn_has_no_quantiles(tiny):
    with pytest.raises(ConfigError, match="num_quantiles"):
        get_algorithm_spec("dqn").options(tiny("dqn", num_quantiles=5))


class Flash(gym.Env):
    """Episodes of one step. Pictures tell a number, which the step adds one to and pays."""

    observation_space, action_space = gym.spaces.Box(0, 255, (1, 36, 36), np.uint8), gym.spaces.Discrete(2)

    def _obs(self):
        obs = np.zeros((1, 36, 36), np.uint8)
        obs[0, 0, :4] = np.array([self.number], "<u4").view(np.uint8)
        return obs

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = int(self.np_random.integers(2**23))
        return self._obs(), {}

    def step(self, action):
        self.number += 1
        return self._obs(), float(self.number), True, False, {}


def test_pictures_are_right_after_a_run_was_made_longer(tiny):
    """Two pictures a step: 400 steps have more than the 697 that their buffer has room for, and a longer run's has more room."""
    config = tiny("dqn", total_timesteps=400, num_envs=2, train_frequency=50, hidden_sizes=[16], buffer_capacity=5_000)
    first = get_algorithm_spec("dqn").train(config, env=Flash)
    last = resume_training(first.run_dir, total_timesteps=600, env=Flash)
    state = load_checkpoint(last.checkpoint_path).buffer_state["replay"]
    buffer = ReplayBuffer(602, (1, 36, 36), (), obs_dtype=np.uint8, action_dtype=np.int64)
    buffer.load_state_dict(state)
    rows = buffer.columns()
    before, after = (
        np.ascontiguousarray(rows[name][:, 0, 0, :4]).view("<u4")[:, 0].tolist() for name in ("obs", "next_obs")
    )
    assert len(before) > 440 and after == rows["rewards"].tolist() == [number + 1 for number in before]
