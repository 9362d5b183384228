"""Gymnasium's own Atari preprocessing and frame stack: what ours is compared with, pixel for pixel.

It resizes with OpenCV, which is not needed here: the stand-in below averages areas by their definition, in double precision.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import gymnasium as gym
import numpy as np


@cache
def overlaps(n: int, side: int) -> np.ndarray:
    """(side, n): how much of each new cell lies over each of n old ones."""
    table = np.zeros((side, n))
    for k in range(side):
        for i in range(n):
            table[k, i] = max(0.0, min((k + 1) * n / side, i + 1) - max(k * n / side, i)) * side / n
    return table


def resize(image: np.ndarray, size: tuple[int, int], interpolation: str) -> np.ndarray:
    """``cv2.resize`` of an image (H, W) or (H, W, C) to (width, height)."""
    assert interpolation == "area"
    rows, columns = overlaps(image.shape[0], size[1]), overlaps(image.shape[1], size[0])
    means = np.einsum("kh,hw...,lw->kl...", rows, image.astype(np.float64), columns, optimize=True)
    return np.floor(means + 0.5 + 1e-9)


OPENCV = SimpleNamespace(resize=resize, INTER_AREA="area")  # to stand in for the module cv2


def usual_atari(game: str, *, stack: int, grayscale: bool, **options: object) -> gym.Env:
    """The game as Gymnasium's wrappers give it; frames stand first: (stack, S, S), or (stack, S, S, 3) in colour."""
    env = gym.make(game, frameskip=1)
    env = gym.wrappers.AtariPreprocessing(env, grayscale_obs=grayscale, **options)
    return gym.wrappers.FrameStackObservation(env, stack, padding_type="reset")
