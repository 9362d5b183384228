"""Catch: a whole task in one image."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from rl_training.envs.catch import CELLS, PIXELS, STAY
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec


@pytest.fixture
def env():
    return gym.make("rl_training.envs.catch:Catch-v0", render_mode="rgb_array")


def where(image: np.ndarray, value: int) -> tuple[int, int]:
    """The cell that is this bright."""
    return tuple(int(i) for i in np.argwhere(image[0, ::PIXELS, ::PIXELS] == value)[0])


def play(env, seed: int, follow: bool) -> float:
    image, _ = env.reset(seed=seed)
    paid = []
    while True:
        ball, paddle = where(image, 255)[1], where(image, 128)[1]
        towards = np.sign(ball - paddle)
        image, reward, ended, cut, _ = env.step(STAY + int(towards if follow else -towards if towards else 1))
        paid.append(reward)
        assert not cut
        if ended:
            assert len(paid) == CELLS - 1 and not any(paid[:-1])
            return paid[-1]


def test_following_the_ball_always_catches_it_and_fleeing_never_does(env):
    assert {play(env, seed, follow=True) for seed in range(40)} == {1.0}
    assert {play(env, seed, follow=False) for seed in range(40)} == {-1.0}


def test_the_ball_starts_in_every_column_and_falls_straight(env):
    columns = set()
    for seed in range(60):
        image, _ = env.reset(seed=seed)
        row, column = where(image, 255)
        assert row == 0
        columns.add(column)
        image = env.step(STAY)[0]
        assert where(image, 255) == (1, column)
    assert columns == set(range(CELLS))


def test_a_rendered_image_shows_the_board(env):
    image, _ = env.reset(seed=0)
    shown = env.render()
    assert shown.shape == (256, 256, 3) and shown.dtype == np.uint8
    assert (shown[::8, ::8, 0] == image[0]).all()


def test_a_config_names_it(tmp_path):
    config = TrainConfig(
        algo="dreamer",
        env_id="rl_training.envs.catch:Catch-v0",
        total_timesteps=40,
        output_dir=str(tmp_path),
        progress="off",
        algo_kwargs={"size": "nano", "sequence_length": 8, "batch_size": 2},
    )
    assert get_algorithm_spec("dreamer").train(config).metrics["global_step"] == 40
