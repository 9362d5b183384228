"""Numbers in the last info of an episode become metrics of training and of evaluation."""

import numpy as np
import pytest

from rl_training import PPO
from rl_training.envs.checks import EnvironmentFailure
from rl_training.envs.collector import Collector
from rl_training.envs.endings import Episode, last_numbers, mean_numbers
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training
from toys import Counter, Reaching, StopAt, assert_same, rows_of, same_end

CONTINUOUS = {"env_id": "Reaching-v0", "env_kwargs": {"continuous": True}}
KEYS = ("success_rate", "info/distance")


def collected(envs, steps, *, n=2, **options):
    collector = Collector(EnvFactory(envs, {"max_episode_steps": 9}), n, seed=0, **options)
    for _ in range(steps):
        collector.step(np.zeros(n, np.int64))
    return collector


class Told(Counter):
    """Ends after every step; the last info is the next of these."""

    def __init__(self, *infos):
        super().__init__(limit=1)
        self.infos, self.count = infos, -1

    def step(self, action):
        self.count += 1
        return (*super().step(action)[:4], self.infos[self.count % len(self.infos)])


def test_means_are_taken_over_the_last_info_of_each_episode():
    infos = [{"success": True, "d": 1.0}, {"success": np.False_, "d": np.array([4], np.int32)}, {"success": 1}]
    metrics = collected(lambda: Told(*infos), 3, n=1, log_info=["d"]).metrics()
    assert metrics["success_rate"] == pytest.approx(2 / 3) and metrics["info/d"] == 2.5
    assert metrics["episode_return"] == 1.0 and metrics["episodes"] == 3.0


def test_infos_before_the_last_do_not_count():
    metrics = collected(Reaching, 50, log_info=["distance"]).metrics()
    assert 1 <= metrics["info/distance"] <= 2 and 0 < metrics["success_rate"] < 1


def test_the_window_is_the_last_hundred_episodes():
    old, new = [{"success": 0.0}] * 60, [{"success": 1.0}] * 100
    assert collected(lambda: Told(*old, *new), 110, n=1).metrics()["success_rate"] == 0.5
    assert collected(lambda: Told(*old, *new), 160, n=1).metrics()["success_rate"] == 1.0


def test_is_success_comes_before_success_and_nothing_is_said_where_there_is_neither():
    assert Episode(1.0, 2, {"success": 0.0, "is_success": 1.0}).success == 1.0
    assert Episode(1.0, 2, {"d": 0.0}).success is None
    assert mean_numbers([Episode(1.0, 2), Episode(1.0, 2, {"d": 3.0})], ["d"], "eval_") == {"eval_info/d": 3.0}
    assert set(collected(Counter, 12).metrics()) == {"episode_return", "episode_length", "episodes"}


def test_what_is_no_number_is_refused_if_it_was_asked_for_and_left_out_if_not():
    assert last_numbers({"is_success": "yes", "d": 2}, ["d"]) == {"d": 2.0}
    assert last_numbers(None, ["d"]) == {}
    message = r"environment 0 \(custom\): log_info: the last info has 'far' as 'd', not a number at step 1"
    with pytest.raises(EnvironmentFailure, match=message):
        collected(lambda: Told({"d": "far"}), 1, n=1, log_info=["d"])


def test_a_name_that_the_first_episode_does_not_have_is_mentioned_once():
    with pytest.warns(UserWarning, match="log_info") as said:
        collected(lambda: Told({"d": 1.0, "e": 2.0}), 4, n=1, log_info=["distance"])
    texts = [str(one.message) for one in said if "log_info" in str(one.message)]
    assert texts == ["log_info: the first episode of custom ended without distance in its info; it has d, e"]


def test_a_state_saved_before_there_were_numbers_still_loads():
    collector = collected(Counter, 7)
    state = collector.state_dict()
    assert state["recent"] == [[3.0, 3]] * 4 and "env_kwargs" not in state
    other = collected(Counter, 0)
    other.load_state_dict(state)
    assert other.metrics() == collector.metrics()


@pytest.mark.parametrize(
    ("algo", "num_envs", "changes"),
    [("ppo", 3, {}), ("dqn", 2, {}), ("dreamer", 2, {}), ("mbpo", 2, CONTINUOUS)],
)
def test_every_loop_reports_them_and_resumes_their_window(tiny, algo, num_envs, changes):
    settings = {"env_id": "Reaching-v0", "log_info": ["distance"], "log_interval": 8, "eval_interval": 40, **changes}
    config = tiny(algo, total_timesteps=96 * num_envs, num_envs=num_envs, eval_episodes=4, **settings)
    spec = get_algorithm_spec(algo)
    straight = spec.train(config, run_suffix="straight")
    stopped = spec.train(config, run_suffix="stopped", callbacks=[StopAt(55 * num_envs)])
    assert stopped.metrics["global_step"] < straight.metrics["global_step"]
    resumed = resume_training(stopped.run_dir)
    same_end(load_checkpoint(straight.checkpoint_path), load_checkpoint(resumed.checkpoint_path))
    rows = rows_of(straight.run_dir)
    assert rows_of(resumed.run_dir) == rows
    training = [row for row in rows if "episode_return" in row]
    assert all(1 <= row["info/distance"] <= 2 and 0 <= row["success_rate"] <= 1 for row in training) and training
    evaluations = [row for row in rows if "eval_return_mean" in row]
    assert all(row["eval_success_rate"] in (0, 0.25, 0.5, 0.75, 1) for row in evaluations) and evaluations
    assert all(1 <= row["eval_info/distance"] <= 2 for row in evaluations)
    assert evaluate_checkpoint(straight.checkpoint_path)["eval_info/distance"] == evaluations[-1]["eval_info/distance"]


def test_learning_is_the_same_whatever_is_logged(tiny):
    runs = []
    for suffix, names in (("plain", []), ("logged", ["distance"])):
        config = tiny("ppo", env_id="Reaching-v0", log_info=names, total_timesteps=64)
        runs.append(get_algorithm_spec("ppo").train(config, run_suffix=suffix))
    plain, logged = (load_checkpoint(run.checkpoint_path).algorithm_state for run in runs)
    assert_same(plain, logged)


def test_offline_algorithms_report_those_of_evaluations(tiny):
    config = tiny("bc", **CONTINUOUS, total_timesteps=20, log_info=["distance"])
    metrics = get_algorithm_spec("bc").train(config).metrics
    assert {"eval_success_rate", "eval_info/distance"} <= set(metrics) and not set(KEYS) & set(metrics)


def test_a_managed_agent_evaluates_them(tmp_path):
    options = {"num_steps": 32, "total_timesteps": 64, "output_dir": tmp_path, "progress": "off"}
    agent = PPO("Reaching-v0", log_info=["distance"], eval_episodes=1, **options)
    agent.learn()
    assert {"eval_success_rate", "eval_info/distance"} <= set(agent.evaluate(num_episodes=3))


def test_the_progress_line_shows_the_rate_of_success(tiny, capsys):
    config = tiny("ppo", env_id="Reaching-v0", total_timesteps=128, progress="lines", eval_episodes=4)
    metrics = get_algorithm_spec("ppo").train(config).metrics
    last = [line for line in capsys.readouterr().err.splitlines() if "128/128" in line][-1]
    assert last.endswith(f", {metrics['success_rate']:.0%} succeed")
    assert f", {metrics['eval_success_rate']:.0%} succeed · return " in last


def test_an_environment_without_an_info_is_warned_of_where_numbers_of_it_are_wanted():
    import gymnasium as gym
    import numpy as np

    from rl_training.envs.collector import Collector
    from rl_training.envs.factory import EnvFactory

    class WithoutInfo(gym.Env):
        observation_space, action_space = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.zeros(2, np.float32), {}

        def step(self, action):
            return np.zeros(2, np.float32), 1.0, True, False, None

    collector = Collector(EnvFactory(WithoutInfo, {"max_episode_steps": 5}), 1, 0, log_info=("speed",))
    with pytest.warns(UserWarning, match="without speed"):
        collector.step(np.array([0]))
    assert collector.episodes == 1
