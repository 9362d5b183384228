"""Videos of environments: mp4 by ffmpeg, or gif."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from rl_training.base.errors import reason
from rl_training.envs.factory import EnvFactory

__all__ = ["Film", "VideoError", "can_write", "check_recording", "headless", "render_frame", "video_suffix"]

DEFAULT_FPS = 30.0
GIF_FPS = 25.0  # frames per second of an animation at the most; beyond, frames are left out
EXTRA = "pip install 'rl_training[video]'"


class VideoError(ValueError):
    """The environment does not render, or the packages that write videos are missing."""


class Writer(Protocol):
    """Writes frames (H, W, 3) uint8 into one file."""

    def add(self, frame: np.ndarray) -> None: ...

    def close(self, keep: bool = True) -> None:
        """Finish the file, or give it up."""
        ...


class Mp4:
    """H.264, which needs even sides: the last row or column is repeated where a side is odd."""

    def __init__(self, path: Path, fps: float) -> None:
        self._path, self._fps, self._stream = path, fps, None  # type: Path, float, Any

    def add(self, frame: np.ndarray) -> None:
        height, width = frame.shape[:2]
        frame = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        if self._stream is None:
            from imageio_ffmpeg import write_frames

            size = (frame.shape[1], frame.shape[0])
            self._stream = write_frames(
                str(self._path), size, fps=self._fps, macro_block_size=1, ffmpeg_log_level="error"
            )
            self._stream.send(None)
        self._stream.send(np.ascontiguousarray(frame))

    def close(self, keep: bool = True) -> None:
        if self._stream is not None:
            self._stream.close()


class Gif:
    """An animation with 256 colours a frame; frames stay in memory until it is closed."""

    def __init__(self, path: Path, fps: float) -> None:
        self._path, self._every, self._count = path, max(1, round(fps / GIF_FPS)), 0
        self._milliseconds = 1000 * self._every / fps
        self._frames: list[Any] = []

    def add(self, frame: np.ndarray) -> None:
        from PIL import Image

        if self._count % self._every == 0:
            self._frames.append(Image.fromarray(frame).quantize())
        self._count += 1

    def close(self, keep: bool = True) -> None:
        if self._frames and keep:
            first, *rest = self._frames
            timing = {"duration": self._milliseconds, "loop": 0}
            first.save(self._path, format="GIF", save_all=True, append_images=rest, **timing)


def can_write(suffix: str) -> bool:
    """Whether the package is installed that files of this ending need."""
    return find_spec({".mp4": "imageio_ffmpeg", ".gif": "PIL"}[suffix]) is not None


class Film:
    """A video of an evaluation, written frame by frame; the file appears when it is complete.

    Only the first ``episodes`` are recorded. ``on_failure`` receives the reason of a failure, after which the
    evaluation goes on without a video; without it, failures raise.
    """

    def __init__(
        self,
        path: Path,
        *,
        episodes: int | None = None,
        fps: float | None = None,
        on_failure: Callable[[str], None] | None = None,
    ) -> None:
        kinds: dict[str, Callable[[Path, float], Writer]] = {".mp4": Mp4, ".gif": Gif}
        if path.suffix not in kinds:
            raise VideoError(f"{path} ends in neither .mp4 nor .gif")
        if not can_write(path.suffix):
            raise VideoError(f"writing {path.suffix} files needs the video extra: {EXTRA}")
        if fps is not None and not 0 < fps <= 1000:
            raise VideoError(f"fps must lie between 0 and 1000, got {fps:g}")
        self.path, self.fps, self.frames = path, fps, 0
        self._kind, self._episodes, self._on_failure = kinds[path.suffix], episodes, on_failure
        self._partial = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
        self._writer: Writer | None = None
        self._failed = False

    def __call__(self, episode: int, env: gym.Env, obs: Any) -> None:
        if self._failed or (self._episodes is not None and episode >= self._episodes):
            return
        with self._failing():
            frame = render_frame(env)
            if self._writer is None:
                self.fps = float(self.fps or env.metadata.get("render_fps") or DEFAULT_FPS)
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._writer = self._kind(self._partial, self.fps)
            self._writer.add(frame)
            self.frames += 1

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if self._on_failure is None:
                raise
            self._failed = True
            self._on_failure(f"no video: {reason(error)}")

    def __enter__(self) -> Film:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        """Finish the file, or remove it after an error."""
        try:
            with self._failing():
                if self._writer is not None:
                    complete = kind is None and not self._failed
                    self._writer.close(complete)
                    if complete:
                        os.replace(self._partial, self.path)
        finally:
            self._partial.unlink(missing_ok=True)


def render_frame(env: gym.Env) -> np.ndarray:
    """The rendered image of the environment, (H, W, 3) uint8."""
    if env.render_mode != "rgb_array":
        raise VideoError(
            f"the environment renders no images: its render_mode is {env.render_mode!r}; make it with 'rgb_array'"
        )
    frame = np.asarray(env.render())
    if frame.ndim != 3 or frame.shape[2] != 3:
        raise VideoError(f"the environment renders an array of shape {frame.shape}, not an image (H, W, 3)")
    return frame.astype(np.uint8, copy=False)


def headless() -> None:
    """Without a display, let MuJoCo and pygame draw without one; to be called before they are imported."""
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        for name, value in (("MUJOCO_GL", "egl"), ("SDL_VIDEODRIVER", "dummy"), ("SDL_AUDIODRIVER", "dummy")):
            os.environ.setdefault(name, value)


def check_recording(factory: EnvFactory, env_id: str) -> None:
    """Refuse to start a run whose evaluations could not be recorded."""
    headless()
    video_suffix()
    env = replace(factory, render=True).make(training=False)
    try:
        env.reset(seed=0)
        render_frame(env)
    except Exception as error:  # whatever the environment's own renderer may raise
        raise VideoError(f"record_video: {env_id} cannot be filmed: {reason(error)}") from None
    finally:
        env.close()


def video_suffix() -> str:
    """What evaluations are recorded as: .mp4, or .gif where only that can be written."""
    suffix = next((suffix for suffix in (".mp4", ".gif") if can_write(suffix)), None)
    if suffix is None:
        raise VideoError(f"record_video needs the video extra: {EXTRA}")
    return suffix
