"""What callbacks are told, and what they can do: log, change controls, see batches and episodes, change environments."""

import math
import sys

import numpy as np
import pytest
import torch

from rl_training import Callback
from rl_training.callbacks import Curriculum, EvaluateOn, Histograms, Notify, RecordVideo, Stage
from rl_training.envs.collector import Collector
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.checkpointing import load_checkpoint, save_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.workflows import resume_training
from rl_training.tracking.loggers import Logger
from toys import Reaching, StopAt, assert_same, rows_of, same_end


def train(config, *callbacks, **options):
    return get_algorithm_spec(config.algo).train(config, callbacks=[*callbacks], **options)


def stopped_and_straight(config, make, at, **later):
    """The results of a run that never stopped, and of one that did, with callbacks of its own each time."""
    straight = train(config, *make(), run_suffix="straight")
    first = train(config, *make(), StopAt(at), run_suffix="stopped")
    assert first.metrics["global_step"] < straight.metrics["global_step"]
    last = resume_training(first.run_dir, callbacks=[*make()])
    same_end(load_checkpoint(straight.checkpoint_path), load_checkpoint(last.checkpoint_path))
    return straight, last


def Hooks(**hooks):
    """A callback of these functions, by the names of their hooks."""
    return type("Hooks", (Callback,), {name: staticmethod(function) for name, function in hooks.items()})()


# ---- logging


class Sum(Callback):
    """Logs how many updates there were, and their number squared at evaluations."""

    def __init__(self):
        self.count = 0

    def on_update_end(self, trainer, result):
        self.count += 1
        trainer.log("updates_seen", self.count)

    def on_eval_end(self, trainer, metrics):
        trainer.log("squared", torch.tensor(self.count**2))

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_logged_numbers_are_in_the_next_line_once_and_those_of_evaluations_at_their_step(tiny, algo):
    config = tiny(algo, log_interval=16, eval_interval=48)
    straight, last = stopped_and_straight(config, lambda: [Sum()], 70)
    rows = rows_of(straight.run_dir)
    assert rows_of(last.run_dir) == rows
    squares = [row["step"] for row in rows if "squared" in row]
    assert squares == [row["step"] for row in rows if "eval_return_mean" in row] and len(squares) >= 2
    seen = [row["updates_seen"] for row in rows if "updates_seen" in row]
    assert seen == sorted(set(seen)) and seen[-1] == straight.metrics["update_count"]  # no number twice


def test_a_number_that_waits_for_its_line_waits_in_the_checkpoint_too(tiny):
    hooks = Hooks(on_update_end=lambda trainer, result: trainer.global_step == 96 and trainer.log("once", 5))
    first = train(tiny("ppo", log_interval=64, eval_interval=0), hooks, StopAt(96))
    assert first.metrics["global_step"] == 96
    rows = rows_of(resume_training(first.run_dir).run_dir)
    assert [row["step"] for row in rows if row.get("once") == 5] == [128]


def test_logged_numbers_reach_every_logger(tiny):
    class Kept(Logger):
        names = set()

        def write(self, step, values):
            self.names |= set(values)

    result = train(tiny("ppo", loggers=["csv", "tensorboard"]), Sum(), loggers=[Kept()])
    assert "updates_seen" in Kept.names
    assert "updates_seen" in (result.run_dir / "metrics.csv").read_text()
    events = b"".join(path.read_bytes() for path in (result.run_dir / "tensorboard").iterdir())
    assert b"updates_seen" in events


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("step", 1.0, "a number cannot be called 'step', which the run itself uses"),
        ("eval_return_mean", 1.0, "cannot be called 'eval_return_mean'"),
        ("episode_return", 1.0, "cannot be called 'episode_return'"),
        ("", 1.0, "cannot be called ''"),
        ("mine", "many", "mine must be a number, got 'many'"),
        ("mine", np.zeros(2), "mine must be a number"),
    ],
)
def test_names_of_the_run_and_what_is_no_number_are_refused(tiny, name, value, problem):
    with pytest.raises(ValueError, match=f"trainer.log: .*{problem}"):
        train(tiny("ppo"), Hooks(on_train_start=lambda trainer: trainer.log(name, value)))


def test_a_name_that_the_learner_uses_is_the_learners(tiny):
    hooks = Hooks(on_update_end=lambda trainer, result: trainer.log("policy_loss", 1e9))
    with pytest.warns(UserWarning, match="a callback logs 'policy_loss', which the run logs itself") as said:
        rows = rows_of(train(tiny("ppo"), hooks).run_dir)
    assert all(row.get("policy_loss", 0) < 1e9 for row in rows)
    assert len([one for one in said if "policy_loss" in str(one.message)]) == 1


def test_a_line_that_would_hold_nothing_is_not_written(tiny):
    hooks = Hooks(on_train_end=lambda trainer, result: trainer.log("policy_loss", 7))
    with pytest.warns(UserWarning, match="a callback logs 'policy_loss', which the run logs itself"):
        rows = rows_of(train(tiny("ppo"), hooks).run_dir)
    assert all(len(set(row) - {"step", "time"}) > 0 for row in rows)


def test_a_run_that_goes_on_without_a_callback_that_had_a_state_says_so(tiny):
    class Counting(Callback):
        def state_dict(self):
            return {"count": 1}

        def load_state_dict(self, state):
            pass

    run = train(tiny("ppo"), Counting(), StopAt(32)).run_dir
    with pytest.warns(UserWarning, match="was saved with the callback Counting: it goes on without"):
        resume_training(run)


def test_numbers_logged_at_the_end_are_written_if_the_run_has_ended(tiny):
    hooks = Hooks(on_train_end=lambda trainer, result: trainer.log("last_word", 7))
    run = train(tiny("ppo"), hooks, StopAt(32)).run_dir
    assert not any("last_word" in row for row in rows_of(run))
    resume_training(run, callbacks=[hooks])
    assert rows_of(run)[-1] == {"step": 128, "last_word": 7.0}


def test_a_state_without_a_run_says_so():
    with pytest.raises(RuntimeError, match="belongs to no run"):
        TrainerState().log("a", 1.0)


# ---- episodes and batches


def test_episodes_are_told_as_they_end_with_their_step_and_environment(tiny):
    told, steps = [], []

    def on_episode_end(trainer, episode):
        told.append(episode)
        steps.append(trainer.global_step)

    config = tiny("ppo", env_id="Reaching-v0", num_envs=2, total_timesteps=128, log_info=["distance"])
    train(config, Hooks(on_episode_end=on_episode_end))
    assert [episode.env_index for episode in told] == [0, 1] * 12 and {episode.length for episode in told} == {5}
    assert steps == [10 * (i // 2 + 1) for i in range(24)]
    assert all(episode.success in (0.0, 1.0) and 1 <= episode.info["distance"] <= 2 for episode in told)


@pytest.mark.parametrize("algo", ["ppo", "sac", "dreamer", "bc", "mbpo"])
def test_each_update_is_preceded_by_its_batch(tiny, algo):
    seen = []

    class Watch(Callback):
        def on_batch(self, trainer, batch):
            seen.append(("batch", trainer.update_count, set(batch)))

        def on_update_end(self, trainer, result):
            seen.append(("update", trainer.update_count, None))

    result = train(tiny(algo, total_timesteps=60), Watch())
    batches = [(count, names) for kind, count, names in seen if kind == "batch"]
    assert [count for count, _ in batches] == list(range(result.metrics["update_count"]))
    assert all("obs" in names and "actions" in names for _, names in batches) and batches
    assert [kind for kind, *_ in seen] == ["batch", "update"] * len(batches)


def test_nobody_who_listens_costs_nothing(tiny):
    spec, config = get_algorithm_spec("ppo"), tiny("ppo")
    runs = []

    class Loud(Callback):
        def on_train_start(self, trainer):
            runs.append(trainer.run)

    spec.train(config, callbacks=[Loud()])
    (run,) = runs
    assert run._on_batch == run._on_episode == run._on_update == run._on_collect == []
    assert run._collector._on_episode is None


# ---- controls


class Halve(Callback):
    """Halves the learning rate, and sets a coefficient, once some steps have been taken."""

    def __init__(self, at, **controls):
        self.at, self.controls, self.done = at, controls, False

    def on_update_end(self, trainer, result):
        if not self.done and trainer.global_step >= self.at:
            self.done = True
            for name, value in self.controls.items():
                trainer.set_control(name, value)

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]


@pytest.mark.parametrize(
    ("algo", "controls", "options"),
    [
        ("ppo", {"lr_scale": 0.5, "clip_coef": 0.05, "ent_coef": 0.1}, {"learning_rate_schedule": "linear"}),
        ("dqn", {"epsilon": 0.9}, {}),
        ("dreamer", {"entropy_coef": 0.1}, {}),
        ("iql", {"actor_rate": 0.1}, {}),
    ],
)
def test_a_control_that_was_set_stays_in_force_and_survives_a_stop(tiny, algo, controls, options):
    config = tiny(algo, log_interval=16, eval_interval=0, total_timesteps=128, **options)
    straight, last = stopped_and_straight(config, lambda: [Halve(40, **controls)], 64)
    assert rows_of(last.run_dir) == rows_of(straight.run_dir)
    assert {
        name: rows_of(last.run_dir)[-2][name] for name in controls
    } == controls  # its schedule has no effect any more
    other = train(config, run_suffix="other")
    different = (
        load_checkpoint(other.checkpoint_path).algorithm_state,
        load_checkpoint(last.checkpoint_path).algorithm_state,
    )
    with pytest.raises(AssertionError):
        assert_same(*different)


def test_controls_have_the_values_in_force(tiny):
    seen = []

    def look(trainer):
        seen.append(trainer.controls)
        trainer.set_control("clip_coef", 0.25)
        seen.append(trainer.controls)

    train(tiny("ppo", clip_coef=0.1, ent_coef=0.5), Hooks(on_train_start=look))
    assert seen[0] == pytest.approx({"lr_scale": 1.0, "clip_coef": 0.1, "ent_coef": 0.5})
    assert seen[1] == pytest.approx({"lr_scale": 1.0, "clip_coef": 0.25, "ent_coef": 0.5})


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("epsilon", 0.1, "there is no control 'epsilon' of PPO; it has lr_scale, clip_coef, ent_coef"),
        ("ent_coef", -1.0, "the control ent_coef must be a number from 0 on, got -1.0"),
        ("ent_coef", math.nan, "the control ent_coef must be a number"),
        ("lr_scale", "half", "the control lr_scale must be a number from 0 on, got 'half'"),
        ("clip_coef", 0.0, "clip_coef: should be greater than 0, got 0.0"),
    ],
)
def test_unknown_controls_and_values_out_of_range_are_refused(tiny, name, value, problem):
    with pytest.raises(ValueError, match=problem):
        train(tiny("ppo"), Hooks(on_train_start=lambda trainer: trainer.set_control(name, value)))


def test_a_checkpoint_whose_controls_do_not_fit_is_refused(tiny, tmp_path):
    result = train(tiny("ppo"), Halve(0, ent_coef=0.1), StopAt(64))
    state = load_checkpoint(result.checkpoint_path)
    assert state.trainer_state["controls"] == {"ent_coef": 0.1}
    for wrong in ({"entropy": 0.1}, {"ent_coef": "much"}, [1]):
        state.trainer_state["controls"] = wrong
        with pytest.raises(ValueError, match="controls"):
            resume_training(save_checkpoint(tmp_path / "wrong.ckpt", state), output_dir=tmp_path)


# ---- environments that change


def test_arguments_change_at_each_environments_next_episode():
    ended = []
    collector = Collector(EnvFactory("Reaching-v0", {}), 2, seed=0, on_episode=ended.append)
    for t in range(18):
        collector.step(np.zeros(2, np.int64))
        if t == 1:
            collector.set_env_kwargs({"limit": 7})
    assert [(episode.length, dict(episode.env_kwargs)) for episode in ended] == [
        (5, {}), (5, {}), (7, {"limit": 7}), (7, {"limit": 7}),
    ]  # fmt: skip


def test_changed_environments_are_rebuilt_as_they_were():
    def collector():
        return Collector(EnvFactory("Reaching-v0", {}), 2, seed=0, log_info=["distance"])

    one, actions = collector(), np.ones(2, np.int64)
    for t in range(8):
        one.step(actions)
        if t in (1, 6):
            one.set_env_kwargs({"limit": 7 - t, "scale": 3.0})
    two = collector()
    two.load_state_dict(one.state_dict())
    assert not two.lost.any()
    for _ in range(30):
        assert (one.step(actions).rewards == two.step(actions).rewards).all()
    assert one.metrics() == two.metrics() and [*one.recent][3:] == [*two.recent][3:]


def test_an_environment_that_was_changed_for_one_episode_is_changed_back_after_a_resume():
    """Saved when the first environment is in its changed episode, and the second has not come to one."""

    def collector(**options):
        return Collector(EnvFactory("CartPole-v1", {}), 2, seed=0, **options)

    ended, actions = [], np.array([1, 0])
    one = collector(on_episode=lambda episode: ended.append(episode))
    one.set_env_kwargs({"sutton_barto_reward": True})
    while not ended:
        one.step(actions)
    one.set_env_kwargs({})
    two = collector()
    two.load_state_dict(one.state_dict())
    assert not two.lost.any() and len(ended) == 1
    rewards = []
    for _ in range(40):
        rewards.append(one.step(actions).rewards.tolist())
        assert rewards[-1] == two.step(actions).rewards.tolist()
    assert rewards[0] in ([0, 1], [1, 0]) and rewards[-1] == [1, 1]


@pytest.mark.parametrize(
    ("env_id", "env_kwargs", "problem"),
    [
        ("Reaching-v0", {"wrappers": {}}, "env_kwargs.wrappers cannot be changed while a run goes on"),
        ("Reaching-v0", {"continuous": True}, r"another|vector \(2,\) and Box\(1,\) instead of vector \(2,\) and Disc"),
        ("Reaching-v0", {"color": 3}, "cannot make the environment 'Reaching-v0'.*color"),
        ("Reaching-v0", {"limit": (1, 2)}, "can be changed to numbers, texts, lists"),
        ("ALE/Breakout-v5", {"mode": 1}, "the arguments of an Atari environment cannot be changed"),
    ],
)
def test_changes_that_cannot_be_kept_are_refused(env_id, env_kwargs, problem):
    collector = Collector(EnvFactory(env_id, {}), 1, seed=0)
    with pytest.raises(ValueError, match=problem):
        collector.set_env_kwargs(env_kwargs)


def test_other_bounds_of_actions_are_refused_too():
    collector = Collector(EnvFactory("Reaching-v0", {"continuous": True}), 1, seed=0)
    with pytest.raises(ValueError, match="has other bounds of its actions, and the agent cannot go on"):
        collector.set_env_kwargs({"width": 2.0})


def test_offline_algorithms_have_no_environments_to_change(tiny):
    hooks = Hooks(on_train_start=lambda trainer: trainer.set_env_kwargs(g=9.0))
    with pytest.raises(ValueError, match="bc learns from data: it has no training environments to change"):
        train(tiny("bc", total_timesteps=20), hooks)


def test_a_file_cannot_name_code_by_changed_arguments():
    collector = Collector(EnvFactory("Reaching-v0", {}), 1, seed=0)
    state = {**collector.state_dict(), "env_kwargs": {"inner": "antigravity:Env-v0"}}
    with pytest.raises(ValueError, match="run the code of the module 'antigravity'"):
        collector.load_state_dict(state)


STAGES = [Stage({}, steps=40), Stage({"limit": 3}, at_least=0.0, episodes=6), Stage({"limit": 2, "scale": 9.0})]


@pytest.mark.parametrize(("algo", "num_envs"), [("ppo", 2), ("dqn", 1)])
def test_a_curriculum_resumes_in_the_middle_of_a_stage(tiny, algo, num_envs):
    config = tiny(algo, env_id="Reaching-v0", num_envs=num_envs, total_timesteps=192, log_interval=16)
    straight, last = stopped_and_straight(config, lambda: [Curriculum(STAGES)], 50)
    rows = rows_of(straight.run_dir)
    assert rows_of(last.run_dir) == rows
    entered = [row["curriculum_stage"] for row in rows if "curriculum_stage" in row]
    assert entered[0] == 0 and entered[-1] == 2


def test_a_curriculum_goes_through_its_stages(tiny):
    lengths = []
    hooks = Hooks(on_episode_end=lambda trainer, episode: lengths.append(episode.length))
    train(tiny("dqn", env_id="Reaching-v0", total_timesteps=100), Curriculum(STAGES), hooks)
    assert lengths == [5] * 8 + [3] * 6 + [2] * 21


def test_a_stage_goes_by_success_or_by_a_logged_number():
    def moved_on(stage, infos):
        curriculum, entered = Curriculum([stage, Stage()]), []
        trainer = TrainerState(run=type("Run", (), {
            "set_env_kwargs": lambda self, env_kwargs: entered.append(env_kwargs), "log_number": lambda *numbers: None,
        })())  # fmt: skip
        curriculum.on_train_start(trainer)
        from rl_training.envs.endings import Episode

        for info in infos:
            curriculum.on_episode_end(trainer, Episode(1.0, 9, info, 0, stage.env_kwargs))
        return len(entered) == 2

    stage = Stage({"limit": 9}, metric="success", at_least=0.5, episodes=4)
    assert moved_on(stage, [{"success": float(i % 2)} for i in range(4)])
    assert not moved_on(stage, [{"success": float(i == 2)} for i in range(4)])
    assert not moved_on(stage, [{"success": 1.0}] * 3)
    assert moved_on(Stage(metric="length", at_least=9, episodes=1), [{}])
    assert moved_on(Stage(metric="distance", at_least=2, episodes=1), [{"distance": 2.0}])
    with pytest.raises(ValueError, match="the episode's last info has no 'distance'"):
        moved_on(Stage(metric="distance", at_least=2), [{}])


def test_a_curriculum_whose_stage_never_ends_is_refused():
    with pytest.raises(ValueError, match="stage 0 never ends; give it steps or at_least"):
        Curriculum([Stage(), Stage()])
    with pytest.raises(ValueError, match="at least one stage"):
        Curriculum([])


# ---- evaluations elsewhere, films, histograms, notifications


def test_other_environments_are_evaluated_under_their_names(tiny):
    def make():
        return [EvaluateOn({"long": ("Reaching-v0", {"limit": 9}), "own": Reaching}, episodes=2, every=2)]

    config = tiny("ppo", env_id="Reaching-v0", eval_interval=32, log_interval=16)
    straight, last = stopped_and_straight(config, make, 70)
    rows = rows_of(straight.run_dir)
    assert rows_of(last.run_dir) == rows
    found = [row for row in rows if "eval_long_return_mean" in row]
    assert [row["step"] for row in found] == [64, 128]
    assert {row["eval_long_length_mean"] for row in found} == {9.0}
    assert {row["eval_own_length_mean"] for row in found} == {5.0}
    assert all(row["eval_long_success_rate"] in (0, 0.5, 1) for row in found)


def test_learning_is_the_same_with_further_evaluations(tiny):
    config = tiny("ppo", env_id="Reaching-v0")
    plain = train(config, run_suffix="plain")
    watched = train(config, EvaluateOn({"own": Reaching}), run_suffix="watched")
    first, second = (load_checkpoint(run.checkpoint_path) for run in (plain, watched))
    assert_same(first.algorithm_state, second.algorithm_state)
    assert_same(first.buffer_state, second.buffer_state)


def test_an_environment_that_does_not_suit_the_agent_is_refused_at_the_start(tiny):
    message = r"EvaluateOn: pole \(CartPole-v1\) has vector \(4,\) and Discrete\(2\) instead of vector \(2,\)"
    with pytest.raises(ValueError, match=message):
        train(tiny("ppo", env_id="Reaching-v0"), EvaluateOn({"pole": "CartPole-v1"}))


def test_an_evaluation_that_a_signal_interrupts_is_made_when_the_run_goes_on(tiny):
    class Interrupted(Callback):
        """A signal comes in the middle of the evaluation that is the callback's."""

        def on_eval_end(self, trainer, metrics):
            if trainer.global_step == 64:
                trainer.run.stopping.on_signal(__import__("signal").SIGTERM)

    config = tiny("ppo", env_id="Reaching-v0", eval_interval=64, log_interval=16)
    first = train(config, Interrupted(), EvaluateOn({"own": Reaching}))
    assert first.metrics["global_step"] == 64
    assert not any("eval_own_return_mean" in row for row in rows_of(first.run_dir))
    last = resume_training(first.run_dir, callbacks=[Callback(), EvaluateOn({"own": Reaching})])
    found = [row["step"] for row in rows_of(last.run_dir) if "eval_own_return_mean" in row]
    assert found == [64, 128]


def test_films_are_made_now_and_then(tiny):
    pytest.importorskip("PIL")
    config = tiny("ppo", eval_interval=32)
    result = train(config, RecordVideo(every=2, most_steps=4))
    names = sorted(path.stem for path in (result.run_dir / "videos").iterdir())
    assert names == ["step_0000000064_filmed", "step_0000000128_filmed"]


def test_a_run_that_cannot_be_filmed_says_so_at_the_start(tiny):
    with pytest.raises(ValueError, match=r"Reaching-v0.*render_mode"):
        train(tiny("ppo", env_id="Reaching-v0"), RecordVideo())


def test_histograms_of_weights_and_gradients_reach_loggers_that_show_them(tiny):
    class Kept(Logger):
        def __init__(self):
            self.seen = {}

        def histogram(self, step, name, values):
            self.seen.setdefault(name, []).append((step, values.shape, float(np.abs(values).max())))

    for algo in ("ppo", "mbpo"):
        kept = Kept()
        result = train(tiny(algo, total_timesteps=64), Histograms(every_updates=4), loggers=[kept])
        weights = [name for name in kept.seen if "weights/" in name]
        gradients = [name for name in kept.seen if "gradients/" in name]
        assert weights and gradients, kept.seen.keys()
        assert all(len(seen) == result.metrics["update_count"] // 4 for seen in kept.seen.values())
        assert all(np.isfinite(largest) and largest >= 0 for seen in kept.seen.values() for _, _, largest in seen)
        assert any(largest > 0 for name in gradients for _, _, largest in kept.seen[name])


SCRIPT = "import sys; open(sys.argv[1], 'a').write(' '.join(sys.argv[2:]) + '\\n')"


def notifier(path, **options):
    return Notify([sys.executable, "-c", SCRIPT, str(path), "{event}", "{step}", "{message}"], **options)


def test_a_command_hears_of_the_best_evaluations_and_the_end(tiny, tmp_path):
    said = tmp_path / "a b; $HOME"  # no shell reads it
    config = tiny("ppo", eval_interval=64)
    first = train(config, notifier(said), StopAt(70))
    resume_training(first.run_dir, callbacks=[notifier(said)])
    heard = said.read_text().splitlines()
    rows = [row for row in rows_of(first.run_dir) if "eval_return_mean" in row]
    best, steps = -math.inf, []
    for row in rows:
        if row["eval_return_mean"] > best:
            best = row["eval_return_mean"]
            steps.append(row["step"])
    assert [int(line.split()[1]) for line in heard if line.startswith("best")] == steps
    ends = [line for line in heard if line.startswith("end")]
    assert "ppo CartPole-v1: stopped (a test) at step 96" in ends[0] and "finished at step 128" in ends[1]


def test_a_command_hears_of_a_failure_which_is_raised_all_the_same(tiny, tmp_path):
    class Worn(Callback):
        def on_update_end(self, trainer, result):
            raise OSError("the disk is worn")

    with pytest.raises(OSError, match="worn"):
        train(tiny("ppo"), Worn(), notifier(tmp_path / "said", on=["failure"]))
    (line,) = (tmp_path / "said").read_text().splitlines()
    assert line == "failure 32 ppo CartPole-v1: failed at step 32: the disk is worn"


def test_a_command_that_fails_is_a_warning(tiny):
    for command, problem in ((["/no/such"], "No such file"), ([sys.executable, "-c", "exit(3)"], "exit code 3")):
        with pytest.warns(UserWarning, match=f"Notify: .* failed: .*{problem}"):
            train(tiny("ppo", total_timesteps=32), Notify(command, on=["end"]))


@pytest.mark.parametrize(
    ("command", "on", "problem"),
    [
        ("mail me", ("end",), "the command must be a list of texts"),
        ([], ("end",), "the command must be a list of texts"),
        (["a"], ("ends",), "on must be some of end, failure, best"),
    ],
)
def test_commands_and_events_are_checked(command, on, problem):
    with pytest.raises(ValueError, match=problem):
        Notify(command, on=on)
