"""Catch: a ball falls through a small image, and a paddle below has to be where it lands. The smallest task for pixels.

Importing this module registers it: ``env_id: rl_training.envs.catch:Catch-v0``.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

__all__ = ["CELLS", "LEFT", "PIXELS", "RIGHT", "STAY", "Catch"]

CELLS, PIXELS = 8, 4  # a board of 8 x 8 cells, each 4 x 4 pixels
LEFT, STAY, RIGHT = range(3)


class Catch(gym.Env[np.ndarray, np.int64]):
    """Gray images of 32 x 32. An episode is one ball: seven moves, then 1 for a catch and -1 for a miss."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 8}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        side = CELLS * PIXELS
        self.observation_space = gym.spaces.Box(0, 255, (1, side, side), np.uint8)
        self.action_space = gym.spaces.Discrete(3)
        self.row = self.ball = self.paddle = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.row, self.paddle = 0, CELLS // 2
        self.ball = int(self.np_random.integers(CELLS))
        return self._image(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.paddle = min(max(self.paddle + int(action) - STAY, 0), CELLS - 1)
        self.row += 1
        landed = self.row == CELLS - 1
        reward = 0.0 if not landed else 1.0 if self.paddle == self.ball else -1.0
        return self._image(), reward, landed, False, {}

    def render(self) -> np.ndarray:
        """The image in colour, eight times as large."""
        return np.repeat(self._image()[0].repeat(8, 0).repeat(8, 1)[:, :, None], 3, axis=2)

    def _image(self) -> np.ndarray:
        board = np.zeros((CELLS, CELLS), np.uint8)
        board[CELLS - 1, self.paddle] = 128
        board[self.row, self.ball] = 255
        return board.repeat(PIXELS, 0).repeat(PIXELS, 1)[None]


gym.register("Catch-v0", entry_point=f"{__name__}:Catch", max_episode_steps=CELLS)  # never reached
