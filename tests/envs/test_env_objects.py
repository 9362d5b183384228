"""Environments given as objects or functions: copied exactly, never consumed, resumed like any other."""

import gymnasium as gym
import numpy as np
import pytest

from rl_training import PPO
from rl_training.base.options import ConfigError
from rl_training.envs.collector import Collector
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training
from toys import Counter, StopAt, same_end


def rollout(env, steps=20, seed=5):
    obs, _ = env.reset(seed=seed)
    env.action_space.seed(seed)
    rows = [np.append(np.ravel(obs), 0.0)]
    for _ in range(steps):
        obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        rows.append(np.append(np.ravel(obs), reward))
        if terminated or truncated:
            break
    return np.stack(rows)


def same(env, copy):
    a, b = rollout(env), rollout(copy)
    return a.shape == b.shape and np.array_equal(a, b)


def test_what_was_changed_on_an_object_with_a_spec_is_kept():
    env = gym.make("CartPole-v1")
    env.unwrapped.gravity, env.unwrapped.length = 25.0, 1.5
    copy = EnvFactory(env, {}).make(training=True)
    assert (copy.unwrapped.gravity, copy.unwrapped.length) == (25.0, 1.5)
    assert same(env, copy) and not same(gym.make("CartPole-v1"), copy)


def test_what_was_changed_inside_a_simulator_is_kept_where_it_can_be_copied():
    env = gym.make("Hopper-v5")
    env.unwrapped.model.opt.gravity[2] = -2.0
    env.unwrapped._forward_reward_weight = 7.0
    copy = EnvFactory(env, {}).make(training=True)
    assert copy.unwrapped.model.opt.gravity[2] == -2.0
    assert same(env, copy) and not same(gym.make("Hopper-v5"), copy)
    copy.unwrapped.model.opt.gravity[2] = -9.0
    assert env.unwrapped.model.opt.gravity[2] == -2.0


def test_a_simulator_that_cannot_be_copied_is_made_again_with_its_attributes_and_says_so():
    env = gym.make("LunarLander-v3", gravity=-5.0)
    env.unwrapped.wind_power, env.unwrapped.enable_wind = 3.0, True
    with pytest.warns(UserWarning, match=r"LunarLander.*cannot be copied.*made again.*pass a function that makes it"):
        copy = EnvFactory(env, {}).make(training=True)
    assert (copy.unwrapped.gravity, copy.unwrapped.wind_power, copy.unwrapped.enable_wind) == (-5.0, 3.0, True)
    assert same(env, copy)


def test_an_object_that_has_drawn_itself_can_be_copied():
    pytest.importorskip("pygame")
    env = gym.make("CartPole-v1", render_mode="rgb_array")
    env.reset(seed=0)
    env.render()
    env.unwrapped.gravity = 25.0
    with pytest.warns(UserWarning, match="made again"):
        copy = EnvFactory(env, {}).make(training=True)
    assert copy.unwrapped.gravity == 25.0 and same(env, copy)
    assert np.array_equal(env.render(), copy.render())
    copy.close()
    assert env.render().shape == (400, 600, 3)


class Doubled(gym.RewardWrapper):
    """A wrapper of somebody's own, with an argument."""

    def __init__(self, env, factor):
        super().__init__(env)
        self.factor = factor

    def reward(self, reward):
        return self.factor * reward


def test_a_wrapper_of_ones_own_is_copied_too(tmp_path):
    env = Doubled(gym.make("CartPole-v1", max_episode_steps=20), 3.0)
    copy = EnvFactory(env, {}).make(training=True)
    assert copy.factor == 3.0 and same(env, copy)
    for sort in ("LunarLander-v3", "Hopper-v5"):
        env = Doubled(gym.make(sort), 3.0)
        with np.testing.suppress_warnings() as quiet:
            quiet.filter(UserWarning)
            assert same(env, EnvFactory(env, {}).make(training=True))


def test_an_object_that_was_stepped_already_starts_anew_and_stays_as_it_is():
    env = gym.make("CartPole-v1", max_episode_steps=9)
    env.reset(seed=0)
    for _ in range(5):
        env.step(0)
    state = np.array(env.unwrapped.state)
    collector = Collector(EnvFactory(env, {}), 2, seed=0)
    for _ in range(30):
        collector.step(np.array([0, 1]))
    collector.close()
    assert np.array_equal(env.unwrapped.state, state)
    assert env.step(0)[3] is False and len(collector.recent) >= 6
    assert max(episode.length for episode in collector.recent) <= 9  # the five steps are not counted


def test_copies_are_independent_and_the_object_is_never_closed(tiny):
    class Watched(Counter):
        def __init__(self):
            super().__init__(limit=7)
            self.closed, self.steps = False, 0

        def step(self, action):
            self.steps += 1
            return super().step(action)

        def close(self):
            assert not self.closed, "closed twice"
            self.closed = True

    env = Watched()
    agent = PPO(tiny("ppo", num_envs=3, total_timesteps=96), env=env)
    agent.learn()
    agent.evaluate()
    assert not env.closed and env.steps == 0 and env.t == 0


def changed():
    env = gym.make("CartPole-v1")
    env.unwrapped.gravity = 25.0
    return env


def test_a_run_on_an_object_resumes_exactly(tiny):
    spec, config = get_algorithm_spec("dqn"), tiny("dqn", num_envs=2, total_timesteps=160)
    env = changed()
    straight = spec.train(config, run_suffix="straight", env=env)
    stopped = spec.train(config, run_suffix="stopped", env=env, callbacks=[StopAt(77)])
    resumed = resume_training(stopped.run_dir, env=env)
    same_end(load_checkpoint(straight.checkpoint_path), load_checkpoint(resumed.checkpoint_path))


def test_a_run_on_an_object_says_so_when_it_is_taken_up_without_it(tiny):
    spec, config = get_algorithm_spec("dqn"), tiny("dqn", total_timesteps=60)
    stopped = spec.train(config, env=changed(), callbacks=[StopAt(40)])
    for go_on in (lambda: evaluate_checkpoint(stopped.checkpoint_path, 1), lambda: resume_training(stopped.run_dir)):
        with pytest.warns(UserWarning, match=r"trained on an environment of your own.*pass it again.*'CartPole-v1'"):
            go_on()


def test_a_run_on_an_id_says_nothing_of_the_sort(tiny, recwarn):
    spec, config = get_algorithm_spec("dqn"), tiny("dqn", total_timesteps=60)
    stopped = spec.train(config, callbacks=[StopAt(40)])
    evaluate_checkpoint(stopped.checkpoint_path, 1)
    resume_training(stopped.run_dir)
    assert not [w for w in recwarn if "of your own" in str(w.message)]


def test_a_function_that_gives_one_object_twice_is_refused():
    env = Counter()
    factory = EnvFactory(lambda: env, {})
    factory.make(training=True)
    with pytest.raises(ValueError, match=r"gave the same environment twice.*make a new one each time.*is copied"):
        factory.make(training=True)


@pytest.mark.parametrize("source", [3, {"id": "CartPole-v1"}])
def test_what_is_no_environment_is_refused(source):
    with pytest.raises(ValueError, match=r"is an id, a gymnasium\.Env or a function that makes one, got (int|dict)"):
        EnvFactory(source, {}).make(training=True)


def test_a_copy_renders_images():
    env = changed()
    copy = EnvFactory(env, {}, render=True).make(training=False)
    copy.reset(seed=0)
    assert copy.render().shape == (400, 600, 3) and copy.unwrapped.gravity == 25.0
    assert env.render_mode is None
    copy.close()


def test_gym_make_arguments_for_a_given_environment_are_refused(tiny):
    with pytest.raises(ConfigError, match=r"nonsense: belongs to gym\.make"):
        PPO(tiny("ppo", env_kwargs={"nonsense": 3}), env=Counter).learn()


def test_an_environment_class_and_an_id_with_a_factory_are_named(tiny, tmp_path):
    assert PPO(Counter).config.env_id == "Counter"
    named = PPO(
        "My-v0", env=Counter, total_timesteps=64, num_steps=32, minibatch_size=32, output_dir=tmp_path, progress="off"
    )
    assert "My-v0" in str(named.learn().run_dir)
