"""Atari: how many frames an action takes, whoever makes the environment."""

import gymnasium as gym
import pytest

from rl_training.base.options import ConfigError
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.registry import get_algorithm_spec

ale_py = pytest.importorskip("ale_py")
gym.register_envs(ale_py)

GAME = "ALE/Breakout-v5"
ATARI = {"wrappers": {"atari": {"noop_max": 0}}}


def frames(env, steps=3):
    """Emulator frames in so many steps of the agent."""
    env.reset(seed=0)
    before = env.unwrapped.ale.getEpisodeFrameNumber()
    for _ in range(steps):
        env.step(0)
    return env.unwrapped.ale.getEpisodeFrameNumber() - before


@pytest.mark.parametrize(
    ("source", "kwargs"),
    [
        (GAME, {}),
        (GAME, {"frameskip": 1}),
        ("BreakoutNoFrameskip-v4", {}),
        ("Breakout-v4", {}),  # its own skip is drawn from 2 to 4, and switched off
        (lambda: gym.make(GAME, frameskip=1), {}),
        (lambda: gym.make("BreakoutNoFrameskip-v4"), {}),
    ],
)
def test_an_action_takes_four_frames(source, kwargs):
    assert frames(EnvFactory(source, {**ATARI, **kwargs}).make(training=True)) == 12


def test_an_object_made_without_frame_skip_takes_four_frames_too():
    with pytest.warns(UserWarning, match="made again"):
        env = EnvFactory(gym.make(GAME, frameskip=1), ATARI).make(training=True)
    assert frames(env) == 12


@pytest.mark.parametrize("limit", [9, 12, 13])
def test_a_limit_of_frames_is_one_of_actions_that_take_four(limit):
    factory = EnvFactory(lambda: gym.wrappers.TimeLimit(gym.make(GAME, frameskip=1), limit), ATARI)
    env, steps, truncated = factory.make(training=True), 0, False
    env.reset(seed=0)
    while not truncated:
        *_, truncated, _ = env.step(0)
        steps += 1
    assert factory.time_limit() == steps == -(-limit // 4)


@pytest.mark.filterwarnings("ignore:.*cannot be copied")
@pytest.mark.parametrize(
    ("make", "skips"),
    [
        (lambda: gym.make(GAME), "4"),
        (lambda: gym.make("Breakout-v4"), r"\(2, 5\)"),
        (lambda: gym.make(GAME, frameskip=(2, 3)), r"\(2, 3\)"),
    ],
)
@pytest.mark.parametrize("as_object", [True, False])
def test_frames_are_not_skipped_twice(make, skips, as_object):
    message = rf"wrappers.atari repeats actions itself.*skips {skips} frames of its own: make it with frameskip=1"
    with pytest.raises(ValueError, match=message):
        EnvFactory(make() if as_object else make, ATARI).make(training=True)


@pytest.mark.parametrize("skip", [4, [2, 5]])
def test_frames_are_not_skipped_twice_by_a_config(tiny, skip):
    config = tiny("dqn", env_id=GAME, env_kwargs={**ATARI, "frameskip": skip})
    with pytest.raises(ConfigError, match=r"env_kwargs.frameskip: .*wrappers.atari.frame_skip"):
        get_algorithm_spec("dqn").options(config)


def test_without_the_atari_wrapper_the_environments_own_skip_holds():
    assert frames(EnvFactory(GAME, {}).make(training=True)) == 12
    assert frames(EnvFactory(GAME, {"frameskip": 2}).make(training=True)) == 6


class Repeat(gym.Wrapper):
    def step(self, action):
        self.env.step(action)
        return self.env.step(action)


def test_a_wrapper_that_repeats_actions_is_noticed_at_the_first_step():
    env = EnvFactory(lambda: Repeat(gym.make(GAME, frameskip=1)), ATARI).make(training=True)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="a step of the environment within took 2 frames"):
        env.step(0)


def test_wrappers_whose_observations_would_be_thrown_away_are_refused():
    for wrap in (
        lambda env: gym.wrappers.TransformObservation(env, lambda obs: 255 - obs, env.observation_space),
        lambda env: gym.wrappers.FrameStackObservation(env, 4),
    ):
        with pytest.raises(
            ValueError, match=r"wrappers.atari reads the screen itself.*(Transform|FrameStack)Observation"
        ):
            EnvFactory(lambda wrap=wrap: wrap(gym.make(GAME, frameskip=1)), ATARI).make(training=True)


def test_the_atari_wrapper_is_for_atari():
    with pytest.raises(ValueError, match=r"wrappers.atari is for ALE environments, and CartPole-v1 is none"):
        EnvFactory(lambda: gym.make("CartPole-v1"), ATARI).make(training=True)
    with pytest.raises(ValueError, match=r"wrappers.atari is for ALE environments, and CartPole-v1 is none"):
        EnvFactory("CartPole-v1", ATARI).make(training=True)


def test_games_have_a_time_limit_in_frames(recwarn):
    from rl_training.envs.collector import Collector

    Collector(EnvFactory(GAME, ATARI), 1, seed=0).close()
    assert not [w for w in recwarn if "time limit" in str(w.message)]
