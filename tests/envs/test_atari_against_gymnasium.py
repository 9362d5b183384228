"""Atari as Gymnasium's own wrappers play it: the same pixels, rewards and ends, step by step; lives by a script."""

import sys

import gymnasium as gym
import numpy as np
import pytest

from oracles.atari import OPENCV, usual_atari
from rl_training.envs.collector import Collector
from rl_training.envs.factory import EnvFactory

ale_py = pytest.importorskip("ale_py")
gym.register_envs(ale_py)


@pytest.fixture(autouse=True)
def _without_opencv(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", OPENCV)


def assert_same_pictures(ours, theirs):
    """Equal, but for a pixel in a thousand whose average lies half-way between two shades."""
    off = np.abs(ours.astype(int) - theirs.astype(int))
    assert off.max() <= 1 and (off > 0).mean() < 1e-3, f"{(off > 0).mean():.2%} of the pixels differ, by {off.max()}"


def channel_first(stacked):
    """Gymnasium's stack (K, S, S) or (K, S, S, 3) with all channels on the first axis, as ours has it."""
    return stacked if stacked.ndim == 3 else np.concatenate(list(np.moveaxis(stacked, -1, 1)))


@pytest.mark.parametrize(
    ("game", "steps", "options"),
    [
        ("ALE/Pong-v5", 66, {}),  # a point is lost at the 64th step
        ("ALE/Breakout-v5", 172, {"frame_skip": 3, "screen_size": 50, "frame_stack": 2, "noop_max": 7}),  # ends at 170
        ("ALE/Asterix-v5", 42, {"frame_skip": 2, "noop_max": 3, "grayscale": False, "screen_size": 64}),
        ("ALE/SpaceInvaders-v5", 20, {"frame_skip": 1, "noop_max": 0, "frame_stack": 1}),
    ],
)
def test_a_game_is_the_one_that_gymnasiums_wrappers_play(game, steps, options):
    ours = EnvFactory(game, {"wrappers": {"atari": options}}).make(training=True)
    given = {"frame_skip": 4, "screen_size": 84, "frame_stack": 4, "noop_max": 30, "grayscale": True, **options}
    theirs = usual_atari(game, stack=given.pop("frame_stack"), grayscale=given.pop("grayscale"), **given)
    (a, _), (b, _) = ours.reset(seed=4), theirs.reset(seed=4)
    assert_same_pictures(a, channel_first(b))
    rng, events = np.random.default_rng(0), 0
    for _ in range(steps):
        action = int(rng.integers(ours.action_space.n))
        (a, *mine, _), (b, *others, _) = ours.step(action), theirs.step(action)
        assert mine == others, "reward, terminated, truncated"
        events += any(mine)
        if mine[1]:
            (a, _), (b, _) = ours.reset(), theirs.reset()
        assert_same_pictures(a, channel_first(b))
    assert events or steps < 40  # a reward or an end
    ours.close(), theirs.close()


def test_a_lost_life_ends_an_episode_where_gymnasium_says():
    atari = {"noop_max": 5, "terminal_on_life_loss": True, "frame_stack": 1}
    ours = EnvFactory("ALE/Breakout-v5", {"wrappers": {"atari": atari}}).make(training=True)
    theirs = usual_atari("ALE/Breakout-v5", stack=1, grayscale=True, noop_max=5, terminal_on_life_loss=True)
    ours.reset(seed=2), theirs.reset(seed=2)
    for t in range(100):
        (_, *mine, _), (_, *others, _) = (env.step((1, 0, 0, 2)[t % 4]) for env in (ours, theirs))
        assert mine == others
        if mine[1]:
            break
    assert mine[1] and ours.unwrapped.ale.lives() == 4


# ---- a console whose every frame is known


class Console:
    """What the wrapper asks of an emulator: a screen whose pixels show the frame, one at a time, and lives."""

    def __init__(self, lives):
        self._lives, self.frame = lives, 0

    def lives(self):
        return self._lives(self.frame)

    def getScreenDims(self):
        return 40, 40

    def getEpisodeFrameNumber(self):
        return self.frame

    def getScreenGrayscale(self, out):
        out[:] = 0
        out[self.frame // 40, self.frame % 40] = 255


class Game(gym.Env):
    """Pays the number of the frame; over at frame 30."""

    observation_space, action_space = gym.spaces.Box(0, 255, (40, 40), np.uint8), gym.spaces.Discrete(3)

    def __init__(self, lives=lambda frame: 3, over=30, cut=10**9):
        self.ale, self._over, self._cut, self.taken = Console(lives), over, cut, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.ale.frame = 0
        self.taken.append("reset")
        return np.zeros((40, 40), np.uint8), {}

    def step(self, action):
        self.ale.frame += 1
        self.taken.append(action)
        return (
            np.zeros((40, 40), np.uint8),
            self.ale.frame,
            self.ale.frame >= self._over,
            self.ale.frame >= self._cut,
            {},
        )


def wrapped(game, **options):
    atari = {"noop_max": 0, "screen_size": 40, "frame_stack": 1, **options}
    return EnvFactory(lambda: game, {"wrappers": {"atari": atari}}).make(training=True)


def frames_shown(obs):
    return np.flatnonzero(obs[-1].reshape(-1)).tolist()


@pytest.mark.parametrize(
    ("skip", "shown", "paid"),
    [(1, [[1], [2]], [1, 2]), (2, [[1, 2], [3, 4]], [3, 7]), (3, [[2, 3], [5, 6]], [6, 15]), (4, [[3, 4], [7, 8]], [10, 26])],
)  # fmt: skip
def test_an_observation_is_the_brighter_of_the_last_two_frames_and_the_reward_the_sum_of_all(skip, shown, paid):
    env = wrapped(Game(), frame_skip=skip)
    assert frames_shown(env.reset(seed=0)[0]) == [0]
    steps = [env.step(2) for _ in range(2)]
    assert [frames_shown(step[0]) for step in steps] == shown and [step[1] for step in steps] == paid


@pytest.mark.parametrize("last", [5, 6, 7, 8])
@pytest.mark.parametrize("end", ["over", "cut"])
def test_the_last_frame_of_a_game_is_seen_and_nothing_follows_it(end, last):
    """The game ends at any of the four frames of the second step; it terminates, or is truncated."""
    env = wrapped(Game(**{end: last}), frame_skip=4)
    env.reset(seed=0)
    env.step(0)
    obs, reward, terminated, truncated, _ = env.step(0)
    assert last in frames_shown(obs) and max(frames_shown(obs)) == last == env.unwrapped.ale.frame
    assert (reward, terminated, truncated) == (sum(range(5, last + 1)), end == "over", end == "cut")


@pytest.mark.parametrize("end", ["over", "cut"])
def test_a_game_that_ends_while_nothing_is_done_starts_again(end):
    env = wrapped(Game(**{end: 2}), noop_max=3)
    assert {frames_shown(env.reset(seed=seed)[0])[0] for seed in range(12)} == {
        0,
        1,
    }  # two end it, a third is the first
    env = wrapped(Game(lives=lambda frame: 3 if frame < 6 else 2, **{end: 7}), terminal_on_life_loss=True)
    env.reset(seed=0)
    env.step(1)
    assert env.step(1)[1:4] == (5 + 6, True, False)
    assert frames_shown(env.reset()[0]) == [0]  # the step after the lost life was the game's last


def test_a_reset_in_the_middle_of_a_game_starts_a_new_one():
    for options in ({}, {"terminal_on_life_loss": True}):
        game = Game()
        env = wrapped(game, **options)
        env.reset()
        env.step(1)
        assert frames_shown(env.reset()[0]) == [0] and game.taken == ["reset", 1, 1, 1, 1, "reset"]


def test_sixty_frames_a_second_are_shared_out_among_steps_and_shades_go_from_0_to_255():
    env = wrapped(Game(), frame_skip=3)
    assert env.metadata["render_fps"] == 20
    assert (env.observation_space.low == 0).all() and (env.observation_space.high == 255).all()


def test_a_game_starts_with_one_to_noop_max_steps_of_doing_nothing():
    game, counts = Game(), set()
    env = wrapped(game, noop_max=3)
    for seed in range(20):
        env.reset(seed=seed)
        counts.add(game.ale.frame)
        assert game.taken[-1 - game.ale.frame] == "reset" and set(game.taken[-game.ale.frame :]) == {0}
    assert counts == {1, 2, 3}


def test_after_a_lost_life_the_game_goes_on_with_one_step_of_doing_nothing():
    """Three lives, two from frame 6 on: the episode ends there, the next begins at frame 7, and only the game's end resets it."""
    game = Game(lives=lambda frame: 3 if frame < 6 else 2)
    env = wrapped(game, terminal_on_life_loss=True)
    env.reset(seed=0)
    assert env.step(1)[1:4] == (1 + 2 + 3 + 4, False, False)
    assert env.step(1)[1:4] == (5 + 6, True, False)
    assert frames_shown(env.reset()[0]) == [7] and game.taken[-1] == 0
    assert env.step(1)[1:4] == (8 + 9 + 10 + 11, False, False)  # two lives are all there are now
    while not env.step(1)[2]:
        pass
    assert game.ale.frame == 30 and frames_shown(env.reset()[0]) == [0]


def test_a_seeded_reset_starts_a_new_game_even_after_a_lost_life():
    game = Game(lives=lambda frame: 3 if frame < 6 else 2)
    env = wrapped(game, terminal_on_life_loss=True)
    env.reset(seed=0)
    env.step(0), env.step(0)
    assert frames_shown(env.reset(seed=0)[0]) == [0]


def test_a_life_that_was_won_and_lost_ends_an_episode_too():
    """Three lives, four from frame 4 on, three again from frame 7 on."""
    env = wrapped(Game(lives=lambda frame: 4 if 4 <= frame < 7 else 3), terminal_on_life_loss=True)
    env.reset(seed=0)
    assert env.step(0)[2] is False
    assert env.step(0)[1:4] == (5 + 6 + 7, True, False)


def test_without_the_option_a_lost_life_is_nothing():
    env = wrapped(Game(lives=lambda frame: 30 - frame))
    env.reset(seed=0)
    assert [env.step(0)[2] for _ in range(7)] == [False] * 7


def test_lives_and_noops_can_differ_between_training_and_evaluation():
    lives = {"training": {"wrappers": {"atari": {"terminal_on_life_loss": True}}}}
    factory = EnvFactory(
        lambda: Game(lives=lambda frame: 9 - frame),
        {**lives, "wrappers": {"atari": {"noop_max": 0, "screen_size": 40}}},
    )
    ends = []
    for training in (True, False):
        env = factory.make(training=training)
        env.reset(seed=0)
        ends.append(env.step(0)[2])
    assert ends == [True, False]


def test_rewards_are_clipped_for_learning_and_reported_whole():
    env_kwargs = {"wrappers": {"atari": {"noop_max": 0, "screen_size": 40}, "reward": {"clip": 1.0}}}
    collector = Collector(EnvFactory(lambda: Game(over=8), env_kwargs), 1, seed=0)
    assert [collector.step(np.zeros(1, np.int64)).rewards.item() for _ in range(2)] == [1.0, 1.0]
    assert collector.metrics() == {"episode_return": 36.0, "episode_length": 2.0, "episodes": 1.0}


def test_a_time_limit_counts_the_agents_steps():
    env_kwargs = {"wrappers": {"atari": {"noop_max": 0, "screen_size": 40}}, "max_episode_steps": 3}
    env = EnvFactory(lambda: Game(over=99), env_kwargs).make(training=True)
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(3)] == [False, False, True] and env.unwrapped.ale.frame == 12


def test_stacked_frames_are_oldest_first_and_begin_with_copies():
    env = wrapped(Game(), frame_skip=1, frame_stack=3)
    obs, _ = env.reset(seed=0)
    assert [np.flatnonzero(frame).tolist() for frame in obs] == [[0]] * 3
    obs = env.step(0)[0]
    assert [np.flatnonzero(frame).tolist() for frame in obs] == [[0], [0], [1]]
