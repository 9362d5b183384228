"""What a run says of itself: progress, results, and whether it has learned at all."""

import io
import json
import re
import warnings
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

import rl_training
from rl_training import TrainConfig
from rl_training.algorithms.dqn import DQN
from rl_training.base.stop_kind import StopKind
from rl_training.cli import main
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime import engine
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.engine import Engine
from rl_training.runtime.workflows import resume_training
from rl_training.tracking.figures import clock, spread
from rl_training.tracking.progress import Progress, bar_line, can_redraw
from toys import tiny_config


def train(config, **given):
    return get_algorithm_spec(config.algo).train(config, **given)


def metadata(run_dir):
    return json.loads((run_dir / "metadata.json").read_text())


# ---- numbers and times


@pytest.mark.parametrize(
    ("mean", "deviation", "text"),
    [
        (0.955, 0.012, "0.955 ± 0.012"),
        (1.0, 0.0, "1.0 ± 0.0"),
        (0.0, 0.0, "0.0 ± 0.0"),
        (487.34, 21.4, "487.3 ± 21.4"),
        (500.0, 0.0, "500.0 ± 0.0"),
        (-137.25, 54.31, "-137.2 ± 54.3"),
        (200.1234, 0.0042, "200.123 ± 0.004"),
        (0.9987654, 0.0003, "0.99877 ± 0.00030"),
        (-0.04, 0.9, "-0.04 ± 0.90"),
        (9.0, 1.0, "9.0 ± 1.0"),
        (9.33333, 1.24722, "9.33 ± 1.25"),
        (123_456.7, 890.1, "123,457 ± 890"),
        (1.5e-7, 2.5e-8, "1.5e-07 ± 2.5e-08"),
        (float("nan"), 0.0, "nan ± 0"),
    ],
)
def test_a_result_is_shown_with_the_digits_that_its_scale_needs(mean, deviation, text):
    assert spread(mean, deviation) == text


def test_a_time_span_is_never_negative():
    assert [clock(s) for s in (-3, 0, 59.9, 61, 3_661)] == ["0:00", "0:00", "0:59", "1:01", "1:01:01"]
    assert clock(float("inf")) == "?"


class Seconds:
    """A clock that a test moves."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def lines(total, rate, *, every, start=0, stop=None):
    """What a run of so many steps a second prints where there is no terminal, if it logs every so many steps."""
    out, seconds = io.StringIO(), Seconds()
    progress = Progress("lines", title="ppo X", total=total, start=start, stream=out, now=seconds)
    for step in range(start + every, (stop or total) + 1, every):
        seconds.now = 1000.0 + (step - start) / rate
        progress.log(step)
    progress.close()
    return out.getvalue().splitlines()


def test_without_a_terminal_a_line_comes_every_few_seconds():
    quick = lines(10_000, 5_000.0, every=100)  # two seconds, a hundred log lines
    assert len(quick) == 2 and "100/10,000" in quick[0] and "10,000/10,000" in quick[-1]
    slow = lines(10_000, 100.0, every=100)  # a hundred seconds
    assert len(slow) == 21 and "10,000/10,000" in slow[-1]


def test_the_end_of_a_run_says_what_it_took_even_if_the_last_rollout_went_beyond_it():
    assert lines(100, 10.0, every=128, stop=128)[-1] == "ppo X  128/100 · 10 steps/s · took 0:12"
    assert "0:05 left" in lines(1_000, 100.0, every=500)[0]


def test_nothing_is_said_of_what_is_left_before_there_is_a_rate():
    out = io.StringIO()
    Progress("lines", title="ppo X", total=10, start=5, stream=out).log(5)
    assert out.getvalue() == "ppo X  5/10\n"


def test_a_stage_without_steps_is_shown_by_lines_of_the_same_rate():
    out, seconds = io.StringIO(), Seconds()
    progress = Progress("lines", title="rlpd X", total=10, start=0, stream=out, now=seconds)
    for done in range(1, 1_001):
        seconds.now += 0.02  # twenty seconds
        progress.stage("pretraining", done, 1_000, 0)
    shown = out.getvalue().splitlines()
    assert len(shown) == 4 and shown[0] == "rlpd X  pretraining 1/1,000"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("term", "redraws"), [("xterm-256color", True), ("dumb", False), ("unknown", False)])
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(term, redraws, monkeypatch):
    monkeypatch.setenv("TERM", term)
    assert can_redraw(Terminal()) is redraws
    assert can_redraw(io.StringIO()) is False


# ---- runs that do not learn

SHORT = {  # algorithm: options with which a run of 40 steps ends before its first update
    "dqn": {"learning_starts": 60},
    "sac": {"learning_starts": 41},
    "rlpd": {"learning_starts": 60, "offline_pretrain_updates": 0},
    "mbpo": {"learning_starts": 60},
    "pets": {"learning_starts": 60, "initial_random_steps": 60},
    "dreamer": {"learning_starts": 60},
}


@pytest.mark.parametrize("algo", SHORT)
def test_a_run_that_makes_no_update_says_so_and_is_not_called_trained(algo, tmp_path, capsys):
    config = tiny_config(algo, tmp_path, total_timesteps=40, num_envs=1, **SHORT[algo])
    with pytest.warns(UserWarning, match=r"ends at step 40: nothing will be learned; raise total_timesteps, or lower"):
        result = train(config)
    assert result.metrics["update_count"] == result.metrics["gradient_steps"] == 0
    assert metadata(result.run_dir)["status"] == "finished without an update"


def test_the_warning_comes_before_the_first_step(tmp_path):
    class First(Callback):
        def on_train_start(self, trainer):
            raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="nothing will be learned"), pytest.raises(KeyboardInterrupt):
        train(tiny_config("dqn", tmp_path, total_timesteps=40, learning_starts=60), callbacks=[First()])


@pytest.mark.parametrize("algo", ["bc", "ppo", "rlpd"])
def test_offline_on_policy_and_pretrained_runs_learn_however_short(algo, tmp_path):
    more = {"learning_starts": 60, "offline_pretrain_updates": 1} if algo == "rlpd" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = train(tiny_config(algo, tmp_path, total_timesteps=2, **more))
    assert result.metrics["gradient_steps"] > 0 and metadata(result.run_dir)["status"] == "finished"


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("frequency", [1, 2, 7, 50])
@pytest.mark.parametrize("starts", [1, 20, 31])
def test_the_first_update_comes_when_the_loop_says(starts, frequency, envs, tmp_path):
    class Note(Callback):
        first = None

        def on_update_end(self, trainer, result):
            if self.first is None:
                self.first = trainer.global_step
                trainer.request_stop("seen")

    note, options = Note(), {"learning_starts": starts, "train_frequency": frequency, "batch_size": 4}
    config = tiny_config("dqn", tmp_path, total_timesteps=100, num_envs=envs, eval_interval=0, **options)
    spec, said = get_algorithm_spec("dqn"), []

    class Loop(spec.loop):
        def first_update_step(self):
            said.append(super().first_update_step())
            return said[-1]

    replace(spec, loop=Loop).train(config, callbacks=[note])
    assert said == [note.first]


def test_the_command_does_not_call_it_trained(tmp_path, capsys):
    words = ["train", "--algo", "sac", "--env", "Pendulum-v1", "--total-timesteps", "40", "--output-dir", str(tmp_path)]
    with pytest.warns(UserWarning, match="the first update comes at step 256 and the run ends at step 40"):
        assert main([*words, "--set", "eval_episodes=1", "--set", "threads=1"]) == 0
    shown = capsys.readouterr()
    assert "finished at step 40 without an update, the agent is untrained: return" in shown.out
    assert "trained at step" not in shown.out and "over 1 episode\n" in shown.out


def test_a_warning_of_a_command_is_one_line_without_a_place_in_the_code(capsys):
    from rl_training.cli import _warning

    before = warnings.formatwarning
    assert _warning(UserWarning("two\nlines"), UserWarning, "run.py", 9) == "rl-training: warning: two lines\n"
    assert _warning("\x1b[33mWARN: old\x1b[0m", UserWarning, "run.py", 9) == "rl-training: warning: WARN: old\n"
    assert main(["list"]) == 0 and warnings.formatwarning is before


def test_a_run_stopped_before_its_first_update_says_so(tmp_path):
    from rl_training.commands.train import _outcome

    counts = {"global_step": 600, "update_count": 0, "gradient_steps": 0}
    assert _outcome(StopKind.SIGNAL, counts) == "stopped at step 600, before the first update"
    trained = {**counts, "update_count": 1, "gradient_steps": 4}
    assert _outcome(StopKind.BUDGET, trained) == "stopped at step 600"
    assert _outcome(StopKind.FINISHED, {**trained, "global_step": 1_000}) == "trained at step 1,000"


# ---- early stopping


def test_patience_does_not_run_out_before_the_first_update(tmp_path):
    options = {"learning_starts": 60, "eval_interval": 10, "early_stopping": {"patience": 1, "target_value": -1e9}}
    result = train(tiny_config("dqn", tmp_path, total_timesteps=200, **options))
    assert result.metrics["update_count"] > 0
    assert 60 <= result.metrics["global_step"] <= 80  # the first evaluation of an agent that has learned ends it


# ---- the config of a resumed run


def test_a_resumed_run_writes_down_what_it_was_given(tmp_path):
    result = train(tiny_config("ppo", tmp_path, total_timesteps=64))
    path = result.run_dir / "config.yaml"
    before = path.read_text()
    resume_training(result.run_dir)
    assert path.read_text() == before
    resume_training(result.run_dir, total_timesteps=128, eval_episodes=3)
    config = rl_training.load_config(path)
    assert (config.total_timesteps, config.eval_episodes) == (128, 3)
    assert config.replace(total_timesteps=64, eval_episodes=1) == rl_training.load_config(_file(tmp_path, before))
    elsewhere = resume_training(result.run_dir, total_timesteps=192, output_dir=tmp_path / "other")
    assert rl_training.load_config(path).total_timesteps == 128
    assert rl_training.load_config(elsewhere.run_dir / "config.yaml").total_timesteps == 192


def test_a_total_that_is_refused_changes_no_file(tmp_path):
    result = train(tiny_config("ppo", tmp_path, total_timesteps=64))
    path = result.run_dir / "config.yaml"
    before = path.read_text()
    with pytest.raises(RuntimeError, match="beyond a total of 32"):
        resume_training(result.run_dir, total_timesteps=32)
    assert path.read_text() == before


def _file(folder, text):
    (folder / "before.yaml").write_text(text)
    return folder / "before.yaml"


# ---- threads


@pytest.fixture
def wide(monkeypatch):
    """A learner for whose networks four threads are useful, and oneDNN is not."""
    monkeypatch.setattr(engine, "_useful_threads", lambda learner: 4)
    monkeypatch.setattr(engine, "_onednn_helps", lambda learner: False)
    return get_algorithm_spec("dqn")


def chosen(threads, monkeypatch, environment):
    if environment is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", environment)
    return Engine.choose(TrainConfig(algo="dqn", env_id="X", threads=threads, compile=False), None, 1)


@pytest.mark.parametrize(
    ("threads", "environment", "used", "words"),
    [
        ("auto", None, 4, "on 4 threads"),
        ("auto", "8", 4, "on 4 threads"),
        ("auto", "1", 1, "on 1 thread (OMP_NUM_THREADS; else 4)"),
        ("auto", "2,1", 2, "on 2 threads (OMP_NUM_THREADS; else 4)"),
        ("auto", "many", 4, "on 4 threads"),
        (2, "1", 2, "on 2 threads"),
        (3, None, 3, "on 3 threads"),
    ],
)
def test_threads_given_are_obeyed_and_auto_respects_the_environment_aloud(
    threads, environment, used, words, wide, monkeypatch
):
    choice = chosen(threads, monkeypatch, environment)
    assert choice.threads == used and choice.why == f"updates run eagerly, {words}: compile is false"


def test_the_threads_that_are_recorded_are_used_and_kept_on_resume(wide, tmp_path, monkeypatch):
    class Count(Callback):
        def __init__(self):
            self.seen = set()

        def on_update_end(self, trainer, result):
            self.seen.add(torch.get_num_threads())

    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    first, second, before = Count(), Count(), torch.get_num_threads()
    result = train(tiny_config("dqn", tmp_path, threads="auto"), callbacks=[first])
    assert first.seen == {2} and metadata(result.run_dir)["engine"]["threads"] == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    more = 2 * int(result.metrics["global_step"])
    resume_training(result.run_dir, total_timesteps=more, callbacks=[second])
    assert second.seen == {2} and metadata(result.run_dir)["engine"]["threads"] == 2
    assert torch.get_num_threads() == before


def test_width_and_processors_decide_how_many_threads_are_useful(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "processors", lambda: 64)

    def useful(*sizes):
        network = torch.nn.Sequential(*(torch.nn.Linear(a, b) for a, b in pairwise(sizes)))
        return engine._useful_threads(DQN(q_network=network, learning_rate=1e-3, gamma=0.9, target_update_interval=1))

    assert useful(4, 64, 64, 2) == 1 and useful(4, 256, 256, 2) == engine.MOST_THREADS
    monkeypatch.setattr(engine, "processors", lambda: 2)
    assert useful(4, 256, 256, 2) == 2


# ---- the bar

PARTS = ["36,864/60,000", "2788 steps/s", "0:08 left", "return 288.1", "eval 500"]


def test_the_bar_is_one_line_with_room_for_what_the_terminal_echoes():
    for width in range(20, 160):
        title, bar, rest = bar_line("ppo CartPole-v1", PARTS, 0.6, width)
        line = f"{title}{''.join(bar)}{rest}"
        assert "36,864/60,000" in line and (len(line) <= width - 4 or rest == PARTS[0])
        if width >= 80:
            assert "0:08 left · return 288.1 · eval 500" in line
        if width >= 120:
            assert "2788 steps/s" in line and len("".join(bar)) == 24


def test_a_bar_is_as_full_as_the_run_is_far():
    for share, filled in ((0.0, 0), (0.5, 12), (1.0, 24), (1.3, 24)):
        _, (done, left), _ = bar_line("x", ["1/2"], share, 200)
        assert (len(done), len(left)) == (filled, 24 - filled)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_last_state_of_a_bar_stays_on_the_terminal(width, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    out = Terminal()
    progress = Progress("auto", title="ppo CartPole-v1", total=60_000, start=0, stream=out)
    progress.say("one line that stays [not markup]")
    progress.tick(10)
    progress.note(evaluation="eval 0.955")
    progress.close(38_400)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue()).replace("\r", "\n")
    lines = [line for line in text.splitlines() if line.strip()]
    assert "one line that stays [not markup]" in text
    assert "38,400/60,000" in lines[-1] and "eval 0.955" in lines[-1] and max(map(len, lines)) <= width


def test_lines_end_with_where_a_run_was_stopped():
    out, seconds = io.StringIO(), Seconds()
    progress = Progress("lines", title="ppo X", total=1_000, start=0, stream=out, now=seconds)
    seconds.now += 1
    progress.log(100)
    progress.close(150)
    assert [line.split(" · ")[0] for line in out.getvalue().splitlines()] == ["ppo X  100/1,000", "ppo X  150/1,000"]
