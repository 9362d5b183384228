"""``env_kwargs.remake``: an environment that keeps something from the episode before is made anew for every one. And names that a module
registers only when it is asked."""

import gymnasium as gym
import numpy as np
import pytest

from rl_training.base.options import ConfigError
from rl_training.envs.collector import Collector
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.workflows import resume_training
from toys import Counter, StopAt, rows_of, same_end


class Sticky(Counter):
    """Observes the action before, also that of the episode before: what MinAtar's sticky actions repeat."""

    observation_space = gym.spaces.Box(-1, 99, (2,), np.float32)
    made: list = []

    def __init__(self, **kwargs):
        super().__init__(limit=9, **kwargs)
        self.last, self.closed = 0, False
        Sticky.made.append(self)

    def _obs(self):
        return np.array([self.t, self.last], np.float32)

    def step(self, action):
        result = super().step(action)
        self.last = int(action)
        return result

    def close(self):
        self.closed = True


@pytest.fixture(autouse=True)
def _none_made():
    Sticky.made.clear()


def steps(collector, n=24, seed=0):
    rng = np.random.default_rng(seed)
    return np.stack([collector.step(rng.integers(2, size=len(collector.obs))).obs.copy() for _ in range(n)])


def test_nothing_is_left_of_the_episode_before():
    kept, anew = (steps(Collector(EnvFactory(Sticky, {"remake": remake}), 2, seed=0)) for remake in (False, True))
    starts = kept[..., 0] <= 1  # an observation has the action before the one that led to it
    assert kept[starts][:, 1].any() and not anew[starts][:, 1].any()
    np.testing.assert_array_equal(kept[~starts], anew[~starts])


def test_one_is_made_for_each_episode_and_the_one_before_is_closed():
    collector = Collector(EnvFactory(Sticky, {"remake": True}), 1, seed=0)
    assert len(Sticky.made) == 1
    steps(collector, 20)  # two episodes of nine steps, and a third
    assert len(Sticky.made) == 3 and [env.closed for env in Sticky.made] == [True, True, False]
    collector.close()
    assert all(env.closed for env in Sticky.made)


@pytest.mark.parametrize(("algo", "num_envs"), [("ppo", 1), ("dqn", 3)])
def test_a_run_resumes_exactly_in_an_environment_that_keeps_something_if_it_is_made_anew(tiny, algo, num_envs):
    spec, total = get_algorithm_spec(algo), 150 * num_envs
    config = tiny(algo, total_timesteps=total, num_envs=num_envs, env_kwargs={"remake": True})
    straight = spec.train(config, run_suffix="straight", env=Sticky)
    first = spec.train(config, run_suffix="stopped", env=Sticky, callbacks=[StopAt(total // 2 + 5)])
    last = resume_training(first.run_dir, env=Sticky)
    same_end(load_checkpoint(straight.checkpoint_path), load_checkpoint(last.checkpoint_path))
    assert rows_of(last.run_dir) == rows_of(straight.run_dir)


class Counting(Sticky):
    """Observes how many steps it has taken in all its life."""

    before = 0

    def reset(self, **kwargs):
        self.before += self.t
        return super().reset(**kwargs)

    def _obs(self):
        return super()._obs() + np.float32(self.before)


def test_without_it_the_rebuilt_episode_is_noticed_to_be_another(tiny):
    config = tiny("dqn", total_timesteps=150, num_envs=3)
    stopped = get_algorithm_spec("dqn").train(config, env=Counting, callbacks=[StopAt(80)])
    with pytest.warns(UserWarning, match="cannot be rebuilt from its seed and actions"):
        resume_training(stopped.run_dir, env=Counting)


def test_workers_make_environments_anew_too():
    factory = EnvFactory(Sticky, {"remake": True})
    here, there = (Collector(factory, 2, seed=0, backend=backend, workers=1) for backend in ("local", "process"))
    try:
        np.testing.assert_array_equal(steps(here), steps(there))
    finally:
        there.close()


def test_games_of_atari_and_vectorenvs_are_not_made_anew():
    pytest.importorskip("ale_py")
    with pytest.raises(ValueError, match="remake is not for Atari"):
        EnvFactory("ALE/Pong-v5", {"remake": True}).make(training=True)
    how = {"vectorization_mode": "sync", "vector_kwargs": {"autoreset_mode": "Disabled"}}
    vector = EnvFactory(lambda: gym.make_vec("CartPole-v1", num_envs=2, **how), {"remake": True})
    with pytest.raises((ConfigError, ValueError), match="VectorEnv: wrap its single environments"):
        Collector(vector, 2, seed=0)


LATE = """
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv

calls = []

def register_envs():
    calls.append(1)
    gym.register("Late/Pole-v0", entry_point=CartPoleEnv)
"""


def test_a_module_that_registers_its_names_only_when_asked_is_asked_once(tmp_path, monkeypatch):
    (tmp_path / "registers_late.py").write_text(LATE)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        for _ in range(2):
            EnvFactory("registers_late:Late/Pole-v0", {}).make(training=True).close()
        import registers_late

        assert registers_late.calls == [1]
    finally:
        gym.registry.pop("Late/Pole-v0", None)


@pytest.mark.parametrize(
    ("env_id", "there"),
    [
        ("FetchReach-v4", "gymnasium-robotics has it as gymnasium_robotics:FetchReach-v4"),
        ("MiniGrid-Empty-5x5-v0", "minigrid has it as minigrid:MiniGrid-Empty-5x5-v0"),
        ("MinAtar/Breakout-v1", "MinAtar has it as minatar.gym:MinAtar/Breakout-v1"),
        ("highway-v0", "highway-env has it as highway_env:highway-v0"),
        ("PandaReach-v3", "panda-gym has it as panda_gym:PandaReach-v3"),
        ("FlappyBird-v0", "flappy-bird-gymnasium has it as flappy_bird_gymnasium:FlappyBird-v0"),
        ("dm_control/cartpole-balance-v0", "shimmy has it as shimmy:dm_control/cartpole-balance-v0"),
    ],
)
def test_names_of_known_packages_come_with_the_module_to_import(env_id, there, monkeypatch):
    if env_id in gym.registry:  # another test imported the package
        monkeypatch.delitem(gym.registry, env_id)
    with pytest.raises(ValueError, match=there):
        EnvFactory(env_id, {}).make(training=True)
    with pytest.raises(ValueError) as caught:
        EnvFactory("Nope-v0", {}).make(training=True)
    assert "has it as" not in str(caught.value)
