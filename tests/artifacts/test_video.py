"""Videos: of a checkpoint by the command, of evaluations by an option, and neither changes what happens."""

import gymnasium as gym
import numpy as np
import pytest

from rl_training.artifacts.video import record_checkpoint
from rl_training.cli import main
from rl_training.envs import film as video
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training
from rl_training.tracking.figures import spread
from toys import Counter, StopAt, same_end

pytest.importorskip("PIL")
pytest.importorskip("imageio_ffmpeg")


class Filmed(Counter):
    """Shows t as a brightness, in an image with odd sides."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, limit: int = 5, render_mode: str | None = "rgb_array", fails_at: int | None = None) -> None:
        super().__init__(limit=limit)
        self.render_mode, self.fails_at = render_mode, fails_at

    def render(self):
        if self.t == self.fails_at:
            raise RuntimeError("the lamp broke")
        return np.full((33, 49, 3), 40 * self.t, np.uint8)


def frames_of(path):
    """All frames (T, H, W, 3) of a video (a gif shows equal ones once, for longer), and its length in seconds."""
    if path.suffix == ".gif":
        from PIL import Image, ImageSequence

        with Image.open(path) as image:
            shown = [(np.asarray(f.convert("RGB")), f.info["duration"]) for f in ImageSequence.Iterator(image)]
        return np.stack([frame for frame, _ in shown]), sum(milliseconds for _, milliseconds in shown) / 1000
    from imageio_ffmpeg import read_frames

    stream = read_frames(str(path))
    facts = next(stream)
    width, height = facts["size"]
    frames = np.stack([np.frombuffer(f, np.uint8).reshape(height, width, 3) for f in stream])
    return frames, len(frames) / facts["fps"]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    from toys import tiny_config

    return get_algorithm_spec("ppo").train(tiny_config("ppo", tmp_path_factory.mktemp("runs"))).run_dir


@pytest.mark.parametrize("ending", ["mp4", "gif"])
def test_the_command_writes_a_video_and_says_what_is_in_it(run_dir, tmp_path, ending, capsys):
    path = tmp_path / "new" / f"agent.{ending}"
    assert main(["video", "--checkpoint", str(run_dir), "-o", str(path), "--max-steps", "4", "--fps", "20"]) == 0
    printed = capsys.readouterr().out.strip()
    assert printed == f"{path}: 1 episode of CartPole-v1, return 4.0, length 4 (5 frames, 20 a second)"
    frames, seconds = frames_of(path)
    assert frames.shape[1:] == (400, 600, 3) and seconds == 5 / 20
    assert frames.min() < 50 and frames.max() > 200  # a dark cart on white
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_the_episodes_are_those_of_an_evaluation(run_dir, tmp_path, capsys):
    path, seen = tmp_path / "agent.gif", evaluate_checkpoint(run_dir, 2)
    assert main(["video", "--checkpoint", str(run_dir), "-o", str(path), "--episodes", "2"]) == 0
    printed = capsys.readouterr().out
    assert f"2 episodes of CartPole-v1, return {spread(seen['eval_return_mean'], seen['eval_return_std'])}" in printed
    assert f"({2 * seen['eval_length_mean'] + 2:.0f} frames, 50 a second)" in printed  # the environment's own


def film_of(tiny, path, env=Filmed, **options):
    run = get_algorithm_spec("ppo").train(tiny("ppo", env_id="own", total_timesteps=32), env=env)
    film = video.Film(path, **options)
    record_checkpoint(run.run_dir, film, env=env)
    return film


def test_odd_sides_are_made_even_by_doubling_the_edge(tiny, tmp_path):
    film = film_of(tiny, tmp_path / "odd.mp4")
    frames, seconds = frames_of(film.path)
    assert frames.shape == (6, 34, 50, 3) and seconds == 6 / 10
    assert np.allclose(frames.mean((1, 2, 3)), 40 * np.arange(6), atol=4)


def test_a_gif_of_many_frames_a_second_leaves_some_out_and_keeps_its_pace(tiny, tmp_path):
    film = film_of(tiny, tmp_path / "fast.gif", fps=50)
    frames, seconds = frames_of(film.path)
    assert film.frames == 6 and len(frames) == 3 and seconds == 6 / 50


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["-o", "agent.avi"], "agent.avi ends in neither .mp4 nor .gif"),
        (["-o", "agent.gif", "--fps", "0"], "argument --fps: '0' is not a number above 0"),
        (["-o", "agent.gif", "--fps", "1001"], "fps must lie between 0 and 1000, got 1001"),
        (["-o", "agent.gif", "--episodes", "0"], "at least one episode"),
    ],
)
def test_mistakes_are_one_line(run_dir, words, complaint, capsys):
    assert main(["video", "--checkpoint", str(run_dir), *words]) == 2
    assert complaint in capsys.readouterr().err


def test_without_the_extra_the_command_says_what_to_install(run_dir, monkeypatch, capsys):
    monkeypatch.setattr(video, "find_spec", lambda name: None)
    assert main(["video", "--checkpoint", str(run_dir), "-o", "agent.mp4"]) == 2
    assert "pip install 'rl_training[video]'" in capsys.readouterr().err


def test_an_environment_given_as_an_object_is_made_again_so_that_it_renders():
    env = EnvFactory(gym.make("CartPole-v1"), {}, render=True).make(training=False)
    env.reset(seed=0)
    assert video.render_frame(env).shape == (400, 600, 3)


def test_recording_changes_nothing_and_resumes_exactly(tiny):
    spec, config = get_algorithm_spec("ppo"), tiny("ppo", eval_interval=64)
    plain = spec.train(config, run_suffix="plain")
    config = config.replace(record_video=2, eval_episodes=1)
    filmed = spec.train(config, run_suffix="filmed")
    names = [path.name for path in sorted((filmed.run_dir / "videos").iterdir())]
    assert names == ["step_0000000064.mp4", "step_0000000128.mp4"]
    first = spec.train(config, run_suffix="stopped", callbacks=[StopAt(64)])
    last = resume_training(first.run_dir)
    for run in (filmed, last):
        same_end(load_checkpoint(plain.checkpoint_path), load_checkpoint(run.checkpoint_path))
        assert run.metrics["eval_return_mean"] == plain.metrics["eval_return_mean"]
    assert (last.run_dir / "videos" / "step_0000000128.mp4").stat().st_size > 0


def test_only_so_many_episodes_of_an_evaluation_are_recorded_and_as_gif_without_the_extra(tiny, monkeypatch):
    monkeypatch.setattr(video, "find_spec", lambda name: None if name == "imageio_ffmpeg" else name)
    config = tiny("ppo", env_id="own", total_timesteps=32, record_video=2, eval_episodes=3)
    run = get_algorithm_spec("ppo").train(config, env=Filmed)
    (path,) = (run.run_dir / "videos").iterdir()
    assert path.name == "step_0000000032.gif"
    brightness = frames_of(path)[0].mean((1, 2, 3))
    assert np.allclose(brightness, [*(40 * np.arange(6)), *(40 * np.arange(6))], atol=4)


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        (lambda: Filmed(render_mode=None), "its render_mode is None; make it with 'rgb_array'"),
        (lambda: Filmed(fails_at=0), "the lamp broke"),
    ],
)
def test_what_cannot_be_filmed_is_refused_before_training(tiny, tmp_path, env, reason):
    config = tiny("ppo", env_id="own", record_video=1, output_dir=tmp_path / "runs")
    with pytest.raises(ValueError, match=f"record_video: own cannot be filmed: .*{reason}"):
        get_algorithm_spec("ppo").train(config, env=env)
    assert not (tmp_path / "runs").exists()


def test_a_camera_that_breaks_later_stops_the_film_and_not_the_run(tiny, capsys):
    config = tiny("ppo", env_id="own", total_timesteps=32, record_video=1, progress="lines")
    run = get_algorithm_spec("ppo").train(config, env=lambda: Filmed(fails_at=3))
    assert run.metrics["global_step"] == 32 and run.metrics["eval_length_mean"] == 5
    assert "no video: the lamp broke" in capsys.readouterr().err
    assert list((run.run_dir / "videos").iterdir()) == []


def test_mujoco_is_filmed_without_a_display(tmp_path, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    video.headless()
    assert video.os.environ["MUJOCO_GL"] == "egl"
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    video.headless()
    assert video.os.environ["MUJOCO_GL"] == "osmesa"
