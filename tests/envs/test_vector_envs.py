"""VectorEnv objects and functions that make them: what their autoreset means, and what of it can be repeated."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

import toys
from rl_training import DQN
from rl_training.base.options import ConfigError
from rl_training.envs.checks import EnvironmentFailure
from rl_training.envs.collector import Collector
from rl_training.envs.factory import EnvFactory
from rl_training.envs.replay import episode_seed
from rl_training.envs.watchdog import Watchdog
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.workflows import resume_training
from toys import Counter, StopAt, same_end

pytestmark = pytest.mark.filterwarnings("ignore:.*(no time limit|resets its environments itself)")
DISABLED, SAME, NEXT = AutoresetMode.DISABLED, AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP


def vectors(env_id, mode=DISABLED, num_envs=3):
    how = {"vectorization_mode": "sync", "vector_kwargs": {"autoreset_mode": mode}}
    return lambda: gym.make_vec(env_id, num_envs=num_envs, **how)


def collectors(make, single, num_envs=3, **options):
    """The environments of a VectorEnv, and the same one by one."""
    vector = Collector(EnvFactory(make, {}), num_envs, 7, **options)
    return vector, Collector(EnvFactory(single, {}), num_envs, 7, **options)


def assert_alike(a, b, steps, rng):
    for _ in range(steps):
        actions = a.spaces.random_actions(rng, len(a.obs))
        for x, y in zip(a.step(actions), b.step(actions)):
            assert x.dtype == y.dtype and np.array_equal(x, y)
        assert np.array_equal(a.obs, b.obs)
    assert a.metrics() == b.metrics()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "toys:Reaching-v0"])
def test_environments_that_we_reset_are_those_that_are_made_one_by_one(env_id):
    info = ["distance"] if "Reaching" in env_id else ()
    vector, single = collectors(vectors(env_id), env_id, log_info=info)
    assert_alike(vector, single, 60, np.random.default_rng(0))
    toys.assert_same(vector.state_dict(), single.state_dict(), "collector")


def test_a_function_is_not_asked_for_another_vector_env_to_evaluate_in_one_of_it():
    made, make = [], vectors("CartPole-v1")
    factory = EnvFactory(lambda: made.append(make()) or made[-1], {})
    envs = [factory.make(training=False) for _ in range(3)]
    assert len(made) == 1 and len({id(env.unwrapped) for env in envs}) == 3


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_an_object_is_trained_in_and_left_open(kind):
    given = kind([lambda: Counter(limit=4)] * 2, autoreset_mode=DISABLED)
    vector, single = collectors(given, lambda: Counter(limit=4), 2)
    assert_alike(vector, single, 10, np.random.default_rng(0))
    vector.close()
    assert given.reset(seed=1)[0].tolist() == [[0], [0]]
    given.close()


def test_pictures_come_as_they_are():
    vector, single = collectors(lambda: SyncVectorEnv([toys.Pictures] * 2, autoreset_mode=DISABLED), toys.Pictures, 2)
    assert_alike(vector, single, 20, np.random.default_rng(0))


class Ends(Counter):
    """An episode of as many steps as its first observation says, which its seed draws."""

    observation_space = gym.spaces.Box(-99, 99, (2,), np.float32)

    def _obs(self):
        return np.array([self.limit, self.t], np.float32)

    def reset(self, **given):
        super().reset(**given)
        self.limit = int(self.np_random.integers(2, 6))
        return self._obs(), {}

    def step(self, action):
        obs, reward, *ends, _ = super().step(action)
        return obs, reward, *ends, {"is_success": self.limit % 2 == 0, "limit": self.limit}


def test_where_it_resets_itself_the_last_observation_is_the_successor_and_its_info_is_read():
    make = lambda: SyncVectorEnv([lambda: Ends(terminate=True)] * 2, autoreset_mode=SAME)  # noqa: E731
    vector = Collector(EnvFactory(make, {}), 2, 7, log_info=["limit"])
    first = [Ends().reset(seed=episode_seed(7, i, 0))[0].tolist() for i in range(2)]
    assert vector.obs.tolist() == first
    for _ in range(30):
        before = vector.obs.copy()
        step = vector.step(np.zeros(2, np.int64))
        for i in range(2):
            limit, t = before[i]
            assert step.next_obs[i].tolist() == [limit, t + 1]
            assert step.terminated[i] == (t + 1 == limit) and not step.truncated[i]
            if step.terminated[i]:
                assert vector.obs[i, 1] == 0
                assert vector.recent[-1].length in (2, 3, 4, 5)
    assert all(episode.length == episode.info["limit"] for episode in vector.recent)
    assert all(episode.success == (episode.length % 2 == 0) for episode in vector.recent)


def test_it_is_said_at_the_start_that_a_run_cannot_be_resumed_exactly():
    with pytest.warns(UserWarning, match=r"resets its environments itself.*to resume exactly.*Disabled"):
        Collector(EnvFactory(vectors("CartPole-v1", SAME), {}), 3, 7)


def test_a_resumed_run_begins_new_episodes_where_it_resets_itself():
    vector = Collector(EnvFactory(vectors("CartPole-v1", SAME), {}), 3, 7)
    for _ in range(5):
        vector.step(np.zeros(3, np.int64))
    again = Collector(EnvFactory(vectors("CartPole-v1", SAME), {}), 3, 7)
    with pytest.warns(UserWarning, match="cannot be rebuilt from its seed and actions"):
        again.load_state_dict(vector.state_dict())
    expected = [gym.make("CartPole-v1").reset(seed=episode_seed(7, i, 1))[0].tolist() for i in range(3)]
    assert again.lost.all() and again.obs.tolist() == expected
    again.step(np.zeros(3, np.int64))


@pytest.mark.parametrize("steps", [0, 1, 9, 10, 23, 37])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "toys:Reaching-v0"])
def test_unfinished_episodes_of_any_lengths_are_rebuilt(env_id, steps):
    vector, single = collectors(vectors(env_id), env_id)
    rng = np.random.default_rng(1)
    assert_alike(vector, single, steps, rng)
    again = Collector(EnvFactory(vectors(env_id), {}), 3, 7)
    again.load_state_dict(vector.state_dict())
    assert not again.lost.any() and np.array_equal(again.obs, single.obs)
    assert_alike(again, single, 30, rng)


def test_an_episode_that_ends_sooner_than_it_did_is_lost_and_the_others_are_not():
    """Its fourth action is another one in the file, with which the pole falls in another step."""

    class Touchy(Ends):
        def step(self, action):
            obs, reward, _, truncated, info = super().step(action)
            return obs, reward, bool(action), truncated, info

    make = lambda: SyncVectorEnv([lambda: Touchy(limit=9)] * 3, autoreset_mode=DISABLED)  # noqa: E731
    vector = Collector(EnvFactory(make, {}), 3, 1)
    while min(vector._lengths) < 2:
        vector.step(np.zeros(3, np.int64))
    state = vector.state_dict()
    state["envs"][1]["actions"][0] = 1
    again = Collector(EnvFactory(make, {}), 3, 1)
    with pytest.warns(UserWarning, match=r"environment 1 cannot be rebuilt .*ended sooner"):
        again.load_state_dict(state)
    assert again.lost.tolist() == [0, 1, 0]
    assert np.array_equal(again.obs[[0, 2]], vector.obs[[0, 2]]) and again.obs[1, 1] == 0


def test_a_run_in_a_vector_env_equals_one_without_stopped_and_resumed(tiny):
    config, spec = tiny("dqn", num_envs=3, total_timesteps=180), get_algorithm_spec("dqn")
    single = spec.train(config, run_suffix="single")
    make = vectors("CartPole-v1")
    stopped = spec.train(config, run_suffix="vector", env=make, callbacks=[StopAt(95)])
    resumed = resume_training(stopped.run_dir, env=make)
    same_end(load_checkpoint(single.checkpoint_path), load_checkpoint(resumed.checkpoint_path))
    assert resumed.metrics["eval_return_mean"] == single.metrics["eval_return_mean"]


def test_a_managed_class_takes_an_object_and_evaluates_in_a_single_environment(tmp_path):
    given = vectors("CartPole-v1", num_envs=2)()
    options = {
        "total_timesteps": 64,
        "learning_starts": 8,
        "hidden_sizes": [8],
        "output_dir": tmp_path,
        "progress": "off",
    }
    agent = DQN(given, num_envs=2, **options)
    assert agent.config.env_id == "CartPole-v1"
    agent.learn()
    assert agent.evaluate(num_episodes=2)["eval_episodes"] == 2
    given.close()


class Foreign(VectorEnv):
    """A VectorEnv that was not made by Gymnasium."""

    num_envs = 2
    single_observation_space = observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    single_action_space = action_space = gym.spaces.Discrete(2)


def foreign(**metadata):
    made = Foreign()
    made.metadata = metadata
    return made


@pytest.mark.parametrize(
    ("make", "options", "said"),
    [
        (vectors("CartPole-v1", NEXT), {}, r"SyncVectorEnv resets at the next step.*'autoreset_mode': 'Disabled'"),
        (lambda: gym.make_vec("CartPole-v1", num_envs=3), {}, "CartPoleVectorEnv resets at the next step"),
        (foreign, {}, "Foreign has no spec and no env_fns"),
        (vectors("CartPole-v1", num_envs=2), {}, "num_envs: is 3, and the VectorEnv has 2 environments"),
        (vectors("CartPole-v1"), {"backend": "process"}, "execution_backend: .* is a VectorEnv, .*take local"),
        (lambda: SyncVectorEnv([toys.DictCounter] * 3, autoreset_mode=DISABLED), {}, "are taken as they are"),
        (
            lambda: gym.wrappers.vector.RecordEpisodeStatistics(vectors("CartPole-v1")()),
            {},
            "RecordEpisodeStatistics wraps a VectorEnv.*wrap those",
        ),
    ],
)
def test_what_cannot_be_handled_is_refused_in_one_line(make, options, said):
    with pytest.raises((ValueError, ConfigError), match=said) as refused:
        Collector(EnvFactory(make, {}), 3, 7, **options)
    assert "\n" not in str(refused.value).strip()


@pytest.mark.parametrize("env_kwargs", [{"max_episode_steps": 9}, {"wrappers": {"keep": [0]}}])
def test_our_wrappers_are_for_single_environments(env_kwargs):
    with pytest.raises(ValueError, match=r"is a VectorEnv: wrap its single environments|taken as they are"):
        Collector(EnvFactory(vectors("CartPole-v1"), env_kwargs), 3, 7)


def test_rewards_can_be_scaled():
    vector = Collector(EnvFactory(vectors("CartPole-v1"), {"wrappers": {"reward": {"scale": 0.5}}}), 3, 7)
    assert vector.step(np.zeros(3, np.int64)).rewards.tolist() == [0.5] * 3


def test_a_vector_env_that_resets_and_keeps_the_last_observation_to_itself_fails():
    class Silent(SyncVectorEnv):
        def step(self, actions):
            *result, infos = super().step(actions)
            return *result, {name: value for name, value in infos.items() if "final_obs" not in name}

    vector = Collector(EnvFactory(lambda: Silent([lambda: Counter(limit=2)] * 2, autoreset_mode=SAME), {}), 2, 7)
    vector.step(np.zeros(2, np.int64))
    with pytest.raises(EnvironmentFailure, match="gave no final_obs at step 2"):
        vector.step(np.zeros(2, np.int64))


def test_a_failure_says_what_led_to_it_and_a_watchdog_is_told_of_calls():
    dog, began = Watchdog(60.0), []

    class Fails(Counter):
        def step(self, action):
            began.append(dog.began)
            if self.t == 2:
                raise KeyError("lost")
            return super().step(action)

    vector = Collector(EnvFactory(lambda: SyncVectorEnv([Fails] * 2, autoreset_mode=DISABLED), {}, watchdog=dog), 2, 7)
    for _ in range(2):
        vector.step(np.array([0, 1]))
    with pytest.raises(EnvironmentFailure, match="KeyError: 'lost' at step 4") as failed:
        vector.step(np.array([1, 0]))
    assert failed.value.incident["actions"] == [0, 0, 1] and failed.value.incident["seed"] == episode_seed(7, 0, 0)
    assert np.isfinite(began).all() and dog.began == np.inf


@pytest.mark.parametrize("mode", [DISABLED, SAME])
def test_mappings_in_last_infos_are_taken_apart(mode):
    wrapped = lambda: gym.wrappers.RecordEpisodeStatistics(Ends(terminate=True))  # noqa: E731
    vector = Collector(
        EnvFactory(lambda: SyncVectorEnv([wrapped] * 2, autoreset_mode=mode), {}), 2, 7, log_info=["limit"]
    )
    for _ in range(30):
        vector.step(np.zeros(2, np.int64))
    assert vector.episodes > 10 and all(episode.length == episode.info["limit"] for episode in vector.recent)


def test_arguments_of_a_vector_env_cannot_be_changed():
    vector = Collector(EnvFactory(vectors("CartPole-v1"), {}), 3, 7)
    with pytest.raises(ValueError, match="the arguments of a VectorEnv cannot be changed while a run goes on"):
        vector.set_env_kwargs({"max_episode_steps": 5})
