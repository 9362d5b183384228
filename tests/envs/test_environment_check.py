"""What check-env finds in environments whose faults are known."""

import json
import time

import gymnasium as gym
import numpy as np
import pytest
from test_environments_that_lie import LIES, named

from goal_toys import BitFlips
from rl_training import check_env
from rl_training.base.options import ConfigError
from rl_training.cli import main
from rl_training.envs.factory import EnvFactory
from rl_training.envs.spaces import Spaces
from rl_training.envs.trial import Played, Player, play
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec
from rl_training.runtime.environment_check import Examined, algorithms_for, remarks_on
from toys import Counter, DictCounter, ImageEnv, OneState, Reaching


def remarks(report, about):
    return [remark for remark in report["remarks"] if remark["about"] == about]


def only(report, about):
    [remark] = remarks(report, about)
    return remark["level"], f"{remark['says']}; {remark['do']}"


class Random(Counter):
    """Walks at random by its own generator, as it should."""

    def __init__(self, **kwargs):
        super().__init__(**{"limit": 7, **kwargs})

    def reset(self, **kwargs):
        info = super().reset(**kwargs)[1]
        self.place = self.np_random.normal()
        return np.array([self.place], np.float32), info

    def step(self, action):
        rest = super().step(action)[1:]
        self.place += self.np_random.normal() + int(action)
        return np.array([self.place], np.float32), *rest


class Unseeded(Random):
    """Draws from numpy's global generator."""

    def step(self, action):
        obs, *rest = super().step(action)
        return obs + np.float32(np.random.random()), *rest  # noqa: NPY002


class Leaking(Random):
    """Repeats the last action of the episode before at its first step, as MinAtar's sticky actions may."""

    last = 0

    def step(self, action):
        obs, *rest = super().step(action)
        obs, self.last = obs + 10 * self.last if self.t == 1 else obs, int(action)
        return obs.astype(np.float32), *rest


def test_an_honest_environment_has_nothing_but_good_remarks():
    report = check_env("CartPole-v1", steps=120)
    assert report["trainable"] and {remark["level"] for remark in report["remarks"]} == {"ok"}
    facts = report["facts"]
    assert facts["repeats"] == {"again": True, "fresh": True} and facts["resumes_exactly"] and facts["seeds_matter"]
    assert facts["time_limit"] == 500 and facts["reward"] == {"min": 1, "max": 1, "mean_size": 1}
    assert json.loads(json.dumps(report)) == report


def test_the_check_plays_the_episodes_of_a_training_run():
    from rl_training.envs.collector import Collector

    player = Player(EnvFactory(Random, {}), seed=3)
    played = play(player, 20, 3)
    collector = Collector(EnvFactory(Random, {}), 1, seed=3)
    rewards = [float(collector.step(np.array([action])).rewards[0]) for action in played.actions]
    assert played.rewards == rewards and played.steps == 20
    assert played.lengths == [episode.length for episode in collector.recent] == [7, 7]
    np.testing.assert_array_equal(player.row, collector._next[0])


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_a_problem_and_says_what_was_expected(lie):
    changes, message = LIES[lie]
    report = check_env(named("Liar", **changes), steps=20)
    level, text = only(report, "rules")
    assert not report["trainable"] and level == "problem" and "Liar" in text and "\n" not in text
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(text)


def test_rewards_that_are_not_finite_are_a_problem():
    report = check_env(named("Liar", step=lambda r: (r[0], np.nan, *r[2:])), steps=20)
    assert not report["trainable"] and "gave the reward nan at step 1" in only(report, "rules")[1]


def test_an_environment_that_cannot_be_made_is_a_problem_with_the_reason():
    report = check_env("Nope-v0")
    assert not report["trainable"] and "cannot make the environment 'Nope-v0'" in only(report, "making")[1]
    with pytest.raises(ConfigError, match="max_episode_step"):
        check_env("CartPole-v1", {"wrappers": {"max_episode_step": 3}})


def test_which_algorithms_take_the_spaces_is_what_their_specs_say():
    for make in ("CartPole-v1", "Pendulum-v1", ImageEnv, lambda: Counter(actions=gym.spaces.MultiBinary(3))):
        spaces = EnvFactory(make, {}).spaces()
        for algo, need in algorithms_for(spaces, "x").items():
            spec = get_algorithm_spec(algo)
            assert bool(need) != (spaces.obs_kind in spec.obs and spaces.action_kind in spec.actions)
    report = check_env("Pendulum-v1", steps=10)
    assert [*report["facts"]["algorithms"]] == [*ALGORITHMS] and len(ALGORITHMS) == 17
    refused = [remark["says"] for remark in remarks(report, "algorithms")][1]
    assert refused.startswith("not dqn, qr_dqn, iqn, fqf: needs") and refused.endswith("Discrete actions")


def test_spaces_that_no_algorithm_takes_are_a_problem():
    class Both(Counter):
        observation_space = gym.spaces.Dict(
            {"eye": gym.spaces.Box(0, 255, (8, 8, 3), np.uint8), "more": gym.spaces.Text(5)}
        )

    report = check_env(Both)
    assert not report["trainable"] and "parts.drop: [more]" in only(report, "making")[1]


def test_randomness_without_the_seed_is_noticed_and_does_not_hinder_training():
    report = check_env(Unseeded, steps=60)
    assert report["trainable"] and report["facts"]["repeats"]["fresh"] is False
    level, text = only(report, "determinism")
    assert level == "note" and "the observation after 1 step" in text and "self.np_random" in text
    assert only(report, "exact resume")[0] == "note" and report["facts"]["resumes_exactly"] is False


def test_what_is_left_of_the_episode_before_is_noticed():
    report = check_env(Leaking, steps=60)
    assert report["facts"]["repeats"] == {"again": False, "fresh": True} and not report["facts"]["resumes_exactly"]
    level, text = only(report, "determinism")
    assert level == "note" and "left of earlier episodes" in text and "env_kwargs.remake: true" in text
    assert only(report, "exact resume")[0] == "note"


def test_an_environment_made_anew_for_every_episode_has_nothing_left():
    report = check_env(Leaking, {"remake": True}, steps=60)
    assert report["facts"]["repeats"] == {"again": True, "fresh": True} and report["facts"]["resumes_exactly"]


def test_a_seed_that_changes_nothing_is_mentioned():
    assert only(check_env(OneState, steps=20), "seeds")[0] == "note"
    assert not remarks(check_env(Random, steps=20), "seeds")


def test_the_rebuilt_episode_goes_on_as_it_would_have():
    class Forgetful(Random):
        """Rebuilt, it is where it was, and then goes another way: a reset changes what comes after the eleventh step."""

        made = 0

        def __init__(self):
            super().__init__(limit=100)
            Forgetful.made += 1
            self.number = Forgetful.made

        def step(self, action):
            obs, *rest = super().step(action)
            return obs + np.float32(self.number > 3 and self.t > 10), *rest

    report = check_env(Forgetful, {"max_episode_steps": 100}, steps=20)
    assert report["facts"]["repeats"] == {"again": True, "fresh": True}
    assert (
        report["facts"]["resumes_exactly"] is False
        and "the observation after 1 step" in only(report, "exact resume")[1]
    )


def test_observations_outside_of_their_space_are_counted_before_anything_changes_their_form():
    class Beyond(DictCounter):
        observation_space = gym.spaces.Dict({"t": gym.spaces.Box(0, 1, (1,)), "phase": gym.spaces.Discrete(3)})

    level, text = only(check_env(Beyond, steps=30), "observations")  # t is 0, 1, 2, 3 in every episode
    assert level == "note" and "20 of 40 lie outside: an entry is 2.0, and its bounds are 0 and 1" in text
    assert only(check_env(DictCounter, steps=30), "observations")[0] == "ok"


class Paying(Counter):
    def __init__(self, pay):
        super().__init__(limit=5)
        self.pay = pay

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, self.pay(self.t), *rest


@pytest.mark.parametrize(
    ("pay", "level", "text"),
    [
        (lambda t: float(t % 2), "ok", "from 0 to 1 a step, 60 % of them not 0; 3 an episode"),
        (lambda t: 1000.0 * t, "note", "wrappers.reward.scale: 0.001 "),
        (lambda t: 1e-4 * t, "note", "wrappers.reward.scale: 10000 "),
        (lambda t: -1.0, "note", "every step paid the same"),
    ],
)
def test_the_size_of_rewards_is_judged(pay, level, text):
    found = only(check_env(lambda: Paying(pay), steps=20), "rewards")
    assert found[0] == level and text in found[1]


def test_time_limits_and_what_happens_without_one():
    endless = lambda: Counter(limit=10**9)  # noqa: E731
    level, text = only(check_env(endless, steps=20), "time limit")
    assert level == "note" and "none" in text and "env_kwargs.max_episode_steps" in text
    assert only(check_env(endless, {"max_episode_steps": 6}, steps=20), "time limit") == ("ok", "6 steps; ")
    assert "its own: 6 of 6" in only(check_env(Counter, steps=20), "time limit")[1]


def test_terminations_that_look_like_a_time_limit_are_asked_about():
    level, text = only(check_env(lambda: Counter(limit=4, terminate=True), steps=20), "endings")
    assert level == "note" and "all 5 episodes terminated after 4 steps" in text
    assert only(check_env(lambda: Counter(limit=4), steps=20), "endings")[0] == "ok"


def examined(**changes):
    factory = EnvFactory("CartPole-v1", {})
    played = Played(
        steps=4,
        rewards=[0.0, 1.0, 0.0, 1.0],
        reset_seconds=[0.0],
        ticks=[],
        step_seconds=[1.0] * 4,
        step_busy=[1.0] * 4,
    )
    for name in [name for name in changes if hasattr(played, name)]:
        setattr(played, name, changes.pop(name))
    return Examined("x", factory, factory.spaces(), ("a", "b"), played, None, True, **changes)


def speed(monkeypatch, processors, **changes):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(processors)))
    [remark] = [remark for remark in remarks_on(examined(**changes)) if remark.about == "speed"]
    return remark


def test_whether_worker_processes_pay_follows_from_the_length_of_a_step(monkeypatch):
    assert "gain nothing" in speed(monkeypatch, 2, step_seconds=[1e-5] * 4).says
    assert "pays here, with 2 processors" in speed(monkeypatch, 2).do
    assert "one processor" in speed(monkeypatch, 1).says
    waiting = speed(monkeypatch, 1, step_busy=[0.02] * 4)
    assert "it waits 98%" in waiting.says and "env_workers as high as num_envs" in waiting.do


def test_a_simulator_that_waits_uses_no_processor():
    class Waiting(Counter):
        def step(self, action):
            time.sleep(0.002)
            return super().step(action)

    facts = check_env(Waiting, steps=10)["facts"]
    assert facts["step_seconds"] >= 0.002 and facts["processor_share"] < 1


def test_numbers_of_the_last_info_and_success_are_listed():
    report = check_env(lambda: Reaching(limit=3), steps=20)
    assert report["facts"]["success"] == "is_success" and report["facts"]["info_numbers"] == ["distance", "is_success"]
    assert "log_info: [distance]" in only(report, "info")[1]


class Masked(Random):
    """Allows one action in turn, and refuses the other."""

    def allowed(self):
        return np.eye(2, dtype=np.int8)[self.t % 2]

    def reset(self, **kwargs):
        obs, info = super().reset(**kwargs)
        return obs, {**info, "action_mask": self.allowed()}

    def step(self, action):
        assert self.allowed()[action], "a masked action"
        *rest, info = super().step(action)
        return *rest, {**info, "action_mask": self.allowed()}


def test_masked_actions_are_not_played():
    report = check_env(Masked, steps=30)
    assert report["trainable"] and "allow 1 to 1 actions" in only(report, "masks")[1]
    takers = {algo for algo, problem in report["facts"]["algorithms"].items() if not problem}
    assert takers == {"ppo", "ppg", "dqn", "qr_dqn", "iqn", "fqf"}

    class Method(Random):
        def action_masks(self):
            return np.array([True, False])

    assert only(check_env(Method, steps=10), "masks")[0] == "ok"


@pytest.mark.parametrize(("mask", "text"), [([1, 1, 1], "has shape (3,), and there are 2"), ([0, 0], "allows none")])
def test_masks_that_cannot_be_right_are_a_problem(mask, text):
    class Wrong(Masked):
        def allowed(self):
            return np.array(mask)

        def step(self, action):
            return (*Random.step(self, action)[:4], {"action_mask": self.allowed()})

    report = check_env(Wrong, steps=10)
    assert not report["trainable"] and only(report, "rules")[0] == "problem" and text in only(report, "rules")[1]


def test_goals_are_tried_as_hindsight_would():
    assert only(check_env(BitFlips, {"max_episode_steps": 6}, steps=20), "goals")[0] == "ok"

    class Bonus(BitFlips):
        def step(self, action):
            obs, reward, *rest = super().step(action)
            return obs, reward - 0.5, *rest

    assert "compute_reward gives" in only(check_env(Bonus, {"max_episode_steps": 6}, steps=20), "goals")[1]


def test_why_there_is_no_film_is_said():
    class Silent(Counter):
        metadata = {"render_modes": ["rgb_array"]}
        render_mode = "rgb_array"

        def render(self):
            raise RuntimeError("no display")

    assert "no display" in only(check_env(Silent, steps=6), "video")[1]
    assert "films need rgb_array" in only(check_env(Counter, steps=6), "video")[1]


def test_unbounded_actions_and_entries_far_apart_are_mentioned():
    class Odd(Counter):
        observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

        def _obs(self):
            return np.array([1e4 * self.t, 0.01], np.float32)

    report = check_env(lambda: Odd(actions=gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)), steps=9)
    level, text = only(report, "actions")
    assert level == "note" and "[0, 1]" in text and only(report, "ranges")[0] == "note"


def test_the_command_prints_the_remarks_and_its_code_says_whether_to_train(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_check_module.py").write_text(
        "import gymnasium as gym\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
        "gym.register('MyCheck-v0', entry_point=CartPoleEnv)\n"
    )
    words = ["check-env", "my_check_module:MyCheck-v0", "--set", "env_kwargs.max_episode_steps=9", "--steps", "40"]
    try:
        assert main(words) == 0
        said = capsys.readouterr().out
        assert "ok  time limit: 9 steps" in said and said.endswith("my_check_module:MyCheck-v0 can be trained in\n")
        assert main([*words, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["facts"]["time_limit"] == 9
    finally:
        gym.registry.pop("MyCheck-v0", None)
    assert main(["check-env", "Nope-v0"]) == 1
    assert "NO  making" in capsys.readouterr().out
    assert main(["check-env", "CartPole-v1", "--set", "learning_rate=1"]) == 2
    assert "env_kwargs only" in capsys.readouterr().err
    assert main(["check-env", "CartPole-v1", "--set", "env_kwargs.wrappers.nope=1"]) == 2


def test_the_spaces_are_read_before_the_environment_is_watched():
    for make in (DictCounter, "CartPole-v1", ImageEnv):
        player = Player(EnvFactory(make, {}), 0)
        other = Spaces.of(EnvFactory(make, {}).make(training=True))
        assert player.spaces.matches(other) and player.spaces.obs_kind == other.obs_kind


def test_of_several_agents_spaces_and_algorithms_are_said_and_nothing_is_played():
    from rl_training.envs.multi_agent import MultiAgentEnv

    class Pair:
        """As PettingZoo has it: two agents that step at once."""

        metadata = {"name": "pair", "render_modes": []}
        possible_agents = ["left", "right"]
        render_mode = None

        def observation_space(self, agent):
            return gym.spaces.Box(-1, 1, (2,))

        def action_space(self, agent):
            return gym.spaces.Discrete(2)

        def reset(self, seed=None, options=None):
            self.agents = [*self.possible_agents]
            return {agent: np.zeros(2, np.float32) for agent in self.agents}, {agent: {} for agent in self.agents}

        def step(self, actions):
            raise AssertionError("nobody steps here")

        def render(self):
            return None

        def close(self):
            pass

    assert MultiAgentEnv(Pair()).parallel.possible_agents == ["left", "right"]
    report = check_env(Pair, steps=10)
    assert report["trainable"] and only(report, "agents")[0] == "note" and "left, right" in only(report, "agents")[1]
    takers = {algo for algo, need in report["facts"]["algorithms"].items() if not need}
    assert {"ppo", "dqn"} <= takers and report["facts"]["algorithms"]["ppg"] == "takes environments with one agent"
    assert json.loads(json.dumps(report)) == report
