"""Wrappers of our own: exact on replay, without OpenCV, images always channel first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.envs.checks import attempt
from rl_training.envs.spaces import RowSpace, channels_last, is_image

__all__ = [
    "AreaResize",
    "AtariPreprocessing",
    "FrameStack",
    "PartialObservation",
    "PixelObservation",
    "Remade",
    "area_weights",
    "layers",
    "to_gray",
]

Info = dict[str, Any]


def layers(env: gym.Env) -> Iterator[gym.Env]:
    """An environment's wrappers from the outside in, and what they wrap."""
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env
    yield env


def area_weights(source: int, target: int) -> np.ndarray:
    """(target, source) matrix that averages ``source`` cells into ``target`` cells by overlap; rows sum to 1."""
    edges = np.arange(target + 1) * source / target
    cells = np.arange(source)
    overlap = np.minimum(edges[1:, None], cells + 1) - np.maximum(edges[:-1, None], cells)
    weights: np.ndarray = (np.clip(overlap, 0, None) * target / source).astype(np.float32)
    return weights


class AreaResize:
    """Images (C, H, W) uint8 resized by area averaging: two small matrix products."""

    def __init__(self, source: tuple[int, int], target: tuple[int, int]) -> None:
        self._rows, self._columns = area_weights(source[0], target[0]), area_weights(source[1], target[1]).T.copy()

    def __call__(self, image: np.ndarray) -> np.ndarray:
        resized: np.ndarray = (self._rows @ image.astype(np.float32) @ self._columns + 0.5).astype(np.uint8)
        return resized


def to_gray(image: np.ndarray) -> np.ndarray:
    """(3, H, W) uint8 -> (1, H, W) by the usual luminance weights."""
    weights = np.array([0.299, 0.587, 0.114], np.float32)
    return (np.tensordot(weights, image.astype(np.float32), axes=(0, 0)) + 0.5).astype(np.uint8)[None]


class Remade(gym.Wrapper):
    """Makes the environment anew for every episode but the first, so that nothing of the one before is left in it."""

    def __init__(self, make: Callable[[], gym.Env]) -> None:
        super().__init__(make())
        if hasattr(self.env.unwrapped, "ale"):
            raise ValueError("env_kwargs.remake is not for Atari, whose games are restored from the emulator's state")
        self._make, self._used = make, False

    def reset(self, **kwargs: Any) -> tuple[Any, Info]:
        if self._used:
            self.env.close()
            self.env = self._make()
        self._used = True
        return self.env.reset(**kwargs)


class PixelObservation(gym.Wrapper):
    """The rendered image instead of the observation: (C, H, W) uint8. The environment must render rgb arrays."""

    def __init__(
        self, env: gym.Env, *, resize_shape: tuple[int, int] | None, grayscale: bool, channel_first: bool
    ) -> None:
        super().__init__(env)
        if env.render_mode != "rgb_array":
            raise ValueError(f"pixels need an environment with render_mode='rgb_array', got {env.render_mode!r}")
        self._resize: AreaResize | None = None
        self._target, self._grayscale, self._channel_first = resize_shape, grayscale, channel_first
        attempt(str(env), "on reset", env.reset, seed=0)
        shape = self._image().shape
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)

    def _image(self) -> np.ndarray:
        image = np.moveaxis(np.asarray(self.env.render(), np.uint8), -1, 0)
        if self._grayscale:
            image = to_gray(image)
        if self._target is not None:
            if self._resize is None:
                self._resize = AreaResize(image.shape[1:], self._target)
            image = self._resize(image)
        return image if self._channel_first else np.moveaxis(image, 0, -1)

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, Info]:
        _, info = self.env.reset(**kwargs)
        return self._image(), info

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, Info]:
        _, reward, terminated, truncated, info = self.env.step(action)
        return self._image(), reward, terminated, truncated, info


class FrameStack(gym.Wrapper):
    """The last ``size`` observations side by side: channels of images, entries of vectors. Starts with copies."""

    def __init__(self, env: gym.Env, size: int) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, gym.spaces.Box) or len(space.shape) not in (1, 3):
            raise ValueError(f"frame_stack needs vectors or images, got {space}")
        if isinstance(space, RowSpace) and len(space.shape) == 1 and space.parts.images:
            raise ValueError(f"frame_stack needs vectors or images of bytes alone, got {space.parts.describe()}")
        last = is_image(space) and not isinstance(space, RowSpace) and channels_last(space.shape) is True
        self._axis = -1 if last else 0
        self._frames: list[np.ndarray] = []
        self.stack_size = size
        low, high = (np.concatenate([bound] * size, self._axis) for bound in (space.low, space.high))
        self.observation_space = gym.spaces.Box(low, high, dtype=space.dtype)
        if len(space.shape) == 3 and last != (channels_last(low.shape) is True):
            raise ValueError(f"{size} images of {space.shape} side by side cannot be told from others of {low.shape}")

    def _stacked(self) -> np.ndarray:
        return np.concatenate(self._frames, self._axis)

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, Info]:
        obs, info = self.env.reset(**kwargs)
        self._frames = [obs] * self.stack_size
        return self._stacked(), info

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, Info]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._frames = [*self._frames[1:], obs]
        return self._stacked(), reward, terminated, truncated, info


class PartialObservation(gym.ObservationWrapper):
    """Some entries of a vector observation; the others are hidden (a partially observed task)."""

    def __init__(self, env: gym.Env, keep: tuple[int, ...]) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            raise ValueError(f"wrappers.keep needs vectors, got {space}")
        if not keep or max(keep) >= space.shape[0]:
            raise ValueError(f"wrappers.keep names entries of {space.shape[0]}, from 0, got {list(keep)}")
        self._keep = list(keep)
        self.observation_space = gym.spaces.Box(space.low[self._keep], space.high[self._keep], dtype=space.dtype)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[self._keep]


class AtariPreprocessing(gym.Wrapper):
    """The usual Atari protocol (Machado et al., 2018) on an ALE environment made with frameskip=1.

    Repeats each action, takes the maximum of the last two frames, resizes to a square (1, S, S), or (3, S, S) in
    colour, starts episodes with a random number of no-ops, and can end episodes when a life is lost (for training).
    """

    def __init__(
        self,
        env: gym.Env,
        *,
        frame_skip: int,
        noop_max: int,
        screen_size: int,
        grayscale: bool,
        terminal_on_life_loss: bool,
    ) -> None:
        super().__init__(env)
        self._counted = False  # whether the frames of a step of the environment within have been counted
        self._refuse_conflicts()
        self.frame_skip, self._noops, self._lives_matter = frame_skip, noop_max, terminal_on_life_loss
        self.metadata = {**env.metadata, "render_fps": 60 / frame_skip}  # the console drew sixty frames a second
        self._ale = env.unwrapped.ale  # type: ignore[attr-defined]
        height, width = self._ale.getScreenDims()
        self._resize = AreaResize((height, width), (screen_size, screen_size))
        channels = 1 if grayscale else 3
        self._screens = np.zeros((2, height, width, channels), np.uint8)
        self._screen = self._ale.getScreenGrayscale if grayscale else self._ale.getScreenRGB
        self.life_lost, self.lives = False, 0
        self.observation_space = gym.spaces.Box(0, 255, (channels, screen_size, screen_size), np.uint8)

    def _refuse_conflicts(self) -> None:
        """What is done here must not be done within as well, or undone by it."""
        *wrappers, base = layers(self.env)
        if not hasattr(base, "ale"):
            name = base.spec.id if base.spec is not None else type(base).__name__
            raise ValueError(f"wrappers.atari is for ALE environments, and {name} is none")
        skip = getattr(base, "_frameskip", 1)
        if skip != 1:
            raise ValueError(
                f"wrappers.atari repeats actions itself (wrappers.atari.frame_skip), and the environment skips {skip} "
                "frames of its own: make it with frameskip=1, or leave wrappers.atari out"
            )
        for wrapper in wrappers:
            if isinstance(wrapper, gym.ObservationWrapper) or getattr(wrapper, "_observation_space", None) is not None:
                raise ValueError(
                    f"wrappers.atari reads the screen itself, and what {type(wrapper).__name__} makes of it would be "
                    "lost: leave one of them out"
                )

    def _observation(self) -> np.ndarray:
        return self._resize(np.moveaxis(self._screens.max(0), -1, 0))

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, Info]:
        if not self.life_lost or kwargs.get("seed") is not None:
            _, info = self.env.reset(**kwargs)
            noops = int(self.env.unwrapped.np_random.integers(1, self._noops + 1)) if self._noops else 0
            for _ in range(noops):
                _, _, terminated, truncated, info = self.env.step(0)
                if terminated or truncated:
                    _, info = self.env.reset()
        else:  # the game goes on
            _, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                _, info = self.env.reset()
        self.life_lost, self.lives = False, self._ale.lives()
        self._screen(self._screens[0].squeeze())
        self._screens[1] = 0
        return self._observation(), info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, Info]:
        total, info = 0.0, {}  # type: float, dict[str, Any]
        terminated = truncated = False
        before = self._ale.getEpisodeFrameNumber()
        for repeat in range(self.frame_skip):
            _, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if not self._counted:
                self._counted, taken = True, self._ale.getEpisodeFrameNumber() - before
                if taken > 1:
                    raise ValueError(
                        f"wrappers.atari repeats actions itself, and a step of the environment within took {taken} "
                        "frames: leave out what repeats them there"
                    )
            if self._lives_matter:
                had, self.lives = self.lives, self._ale.lives()  # lives can be won, too
                if self.lives < had and not (terminated or truncated):
                    self.life_lost = terminated = True
            if repeat >= self.frame_skip - 2 or terminated or truncated:
                self._screen(self._screens[repeat % 2].squeeze())
            if terminated or truncated:
                break
        return self._observation(), total, terminated, truncated, info

    @property
    def reset_continues(self) -> bool:
        """Whether the next unseeded reset goes on with the same game."""
        return self.life_lost
