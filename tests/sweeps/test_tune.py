"""Tuning: search spaces that fit their algorithms, trials that are reported, pruned and continued, a best config that trains."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rl_training.base.options import ConfigError
from rl_training.cli import load_config, main
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec
from rl_training.experiment.runs import dump_yaml
from rl_training.experiment.yaml_config import apply_overrides
from rl_training.sweeps.plan import JobStatus
from rl_training.sweeps.space import Range, chosen, distributions, read_space
from rl_training.sweeps.tune import Evaluations, TrialFeed, conclude, open_study
from toys import SMOKE

optuna = pytest.importorskip("optuna")


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_has_a_space_whose_ends_it_takes(algo):
    space = read_space(algo)
    assert "algo_kwargs.learning_rate" in space or len(space) >= 3
    for name, part in space.items():
        for value in (part.low, part.high) if isinstance(part, Range) else part:
            config = TrainConfig(**apply_overrides({"algo": algo, "env_id": SMOKE[algo][0]}, {name: value}))
            get_algorithm_spec(algo).options(config)


def test_a_space_inherits_and_replaces(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text("inherit: dqn\nalgo_kwargs.gamma: [0.5]\nalgo_kwargs.n_step: {low: 1, high: 9, step: 2}\n")
    space = read_space(path)
    assert space["algo_kwargs.gamma"] == [0.5] and "algo_kwargs.batch_size" in space
    made = distributions(space)
    assert made["algo_kwargs.n_step"] == optuna.distributions.IntDistribution(1, 9, step=2)
    assert made["algo_kwargs.learning_rate"] == optuna.distributions.FloatDistribution(1e-5, 3e-3, log=True)
    assert chosen(space, {"algo_kwargs.gamma": "0.5", "algo_kwargs.n_step": 3}) == {
        "algo_kwargs.gamma": 0.5, "algo_kwargs.n_step": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[1, 2]", "maps names of options"),
        ("a: {low: 1}", "a: give low and high, or a list of values"),
        ("a: {low: 2, high: 1}", "low is not below high"),
        ("a: {low: 0, high: 1, log: true}", "a logarithm needs low above 0"),
        ("a: {low: 1, high: 9, stpe: 2}", "did you mean 'step'?"),
        ("a: [1", "not valid YAML"),
        ("inherit: nothing", "no search space at nothing"),
    ],
)
def test_a_mistake_in_a_space_is_named(tmp_path, text, complaint):
    path = tmp_path / "space.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_space(path)
    assert complaint in str(error.value)


def test_evaluations_are_read_as_they_come_and_a_torn_line_waits(tmp_path):
    path = tmp_path / "metrics.jsonl"
    seen = Evaluations(path)
    assert seen.read() == {} and seen.last is None
    path.write_text(
        '{"step": 1, "time": 0, "loss": 2}\n{"step": 5, "time": 0, "eval_return_mean": 3.0}\n{"step": 9, "eval_re'
    )
    assert seen.read() == {5: 3.0}
    with open(path, "a") as file:
        file.write('turn_mean": 4.0}\n')
    assert seen.read() == {5: 3.0, 9: 4.0} and seen.last == 4.0


@pytest.mark.parametrize("again", [1, 40])
def test_evaluations_of_a_run_that_went_back_to_a_checkpoint_are_read_on(tmp_path, again):
    """Its file is cut and grows again, in lines of other lengths: times differ."""
    path = tmp_path / "metrics.jsonl"
    said = [f'{{"step": {step}, "eval_return_mean": {step}.0, "time": %s}}\n' for step in range(50)]
    path.write_text("".join(line % "1.5" for line in said[:40]))
    seen = Evaluations(path)
    assert len(seen.read()) == 40
    path.write_text("".join(line % "1.25" for line in said[:again]))
    seen.read()
    path.write_text("".join(line % "1.25" for line in said))
    assert seen.read() == {step: float(step) for step in range(50)}


@pytest.fixture
def study(tiny, tmp_path):
    """A study of gamma whose runs are written by hand: (feed, a function that plays a run)."""
    base = tiny("ppo", total_timesteps=100)
    space = {"algo_kwargs.gamma": Range(low=0.1, high=0.9)}
    made = open_study(tmp_path / "t", base, space)

    def configure(options):
        return TrainConfig(**apply_overrides(base.plain(), options))

    def play(job, values):
        job.run_dir.mkdir(parents=True, exist_ok=True)
        lines = [f'{{"step": {step}, "time": 0, "eval_return_mean": {value}}}\n' for step, value in values.items()]
        (job.run_dir / "metrics.jsonl").write_text("".join(lines))

    feed = TrialFeed(made, space, tmp_path / "t", trials=8, seeds=[0, 1], configure=configure)
    return made, space, configure, feed, play


def test_a_trial_is_the_mean_over_its_seeds_and_a_lagging_one_is_stopped(study, tmp_path):
    made, space, configure, feed, play = study
    for trial in range(7):
        jobs = [feed.next(), feed.next()]
        assert [job.config["seed"] for job in jobs] == [0, 1] and len({job.label for job in jobs}) == 1
        lagging = trial == 6
        for job, value in zip(jobs, (1.0, 3.0)):
            play(job, {50: -9.0 if lagging else value + trial, 100: value + trial})
        assert feed.look(jobs[0]) is not lagging
        for job in jobs:
            feed.ended(job, JobStatus("interrupted" if lagging else "finished"))
    assert [trial.value for trial in made.trials][:6] == [2.0 + trial for trial in range(6)]
    assert made.trials[6].state.name == "PRUNED"
    assert made.trials[3].intermediate_values == {50: 5.0, 100: 5.0}
    job = feed.next()
    feed.ended(job, JobStatus("failed", error="no wheel"))
    assert made.trials[7].state.name == "FAIL" and feed.over and feed.next() is None
    outcome = conclude(made, space, tmp_path / "t", configure)
    assert outcome.value == 7.0 and outcome.number == 5 and outcome.errors == ["trial 7: no wheel"]
    assert outcome.counts == {"complete": 6, "pruned": 1, "fail": 1}
    assert load_config(tmp_path / "t" / "best.yaml").algo_kwargs["gamma"] == made.trials[5].params["algo_kwargs.gamma"]
    assert (tmp_path / "t" / "importance.png").read_bytes()[:4] == b"\x89PNG"


def test_a_search_that_is_killed_goes_on_with_the_trials_it_had(tiny, tmp_path, capsys):
    config = tiny("ppo", num_envs=2, total_timesteps=6000, checkpoint_interval=500, log_interval=500)
    (tmp_path / "config.yaml").write_text(dump_yaml(config.plain()))
    (tmp_path / "space.yaml").write_text("algo_kwargs.gamma: {low: 0.8, high: 0.99}\n")
    words = ["tune", "--config", str(tmp_path / "config.yaml"), "--space", str(tmp_path / "space.yaml"), "--name", "t"]
    words += ["--trials", "3", "--jobs", "2"]
    process = subprocess.Popen([sys.executable, "-m", "rl_training", *words], stderr=subprocess.DEVNULL)
    while not list(Path(tmp_path).glob("t/ppo__*/checkpoints/step_*.ckpt")):
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = optuna.load_study(study_name="rl-training", storage=f"sqlite:///{tmp_path}/t/study.db").trials
    assert main(words) == 0
    after = optuna.load_study(study_name="rl-training", storage=f"sqlite:///{tmp_path}/t/study.db").trials
    assert len(after) == 3 and all(trial.state.name == "COMPLETE" for trial in after)
    assert [trial.params for trial in before] == [trial.params for trial in after][: len(before)]
    shown = capsys.readouterr().out
    assert "3 complete" in shown and "algo_kwargs.gamma = " in shown
    assert load_config(tmp_path / "t" / "best.yaml").algo == "ppo"
    assert main([*words, "--total-timesteps", "6001"]) == 2
    assert "holds a study that differs in config.total_timesteps" in capsys.readouterr().err


def test_mistakes_show_before_anything_starts(tiny, tmp_path, capsys):
    (tmp_path / "config.yaml").write_text(dump_yaml(tiny("ppo").plain()))
    (tmp_path / "space.yaml").write_text("algo_kwargs.gama: [0.5]\n")
    words = ["tune", "--config", str(tmp_path / "config.yaml"), "--name", "t"]
    assert main([*words, "--space", str(tmp_path / "space.yaml")]) == 2
    assert "did you mean 'gamma'?" in capsys.readouterr().err
    assert main([*words, "--trials", "0"]) == 2
    assert "--trials is at least 1" in capsys.readouterr().err
    assert not (tmp_path / "t").exists()
