"""Parallel environments behind the collector: a row for each agent, whichever of them are there."""

from __future__ import annotations

import copy
import threading

import gymnasium as gym
import numpy as np
import pytest

import toys
from parallel_toys import Duel, Meet, Visitors
from rl_training.base.options import ConfigError
from rl_training.envs.checks import EnvironmentFailure
from rl_training.envs.factory import EnvFactory, env_name
from rl_training.envs.multi_agent_collector import MultiAgentCollector
from rl_training.envs.replay import episode_seed
from rl_training.envs.watchdog import Watchdog

pytestmark = pytest.mark.filterwarnings("ignore:.*no time limit")
AGENTS = ("ann", "bob", "cyd")


def collector(source=lambda: Visitors(coupled=True), envs=2, env_kwargs=None, **options):
    factory = EnvFactory(source, env_kwargs or {}, watchdog=options.pop("watchdog", None))
    size = len(factory.spaces().agents)
    return MultiAgentCollector(factory, size * envs, 7, **options)


class PlainGame:
    """A parallel environment of a run, played as its own interface says."""

    def __init__(self, make, seed, index, limit=None):
        self.env, self.key, self.episode, self.limit = make(), (seed, index), -1, limit
        self.ended = []  # of agents: name, return, length
        self.begin()

    def begin(self):
        self.episode += 1
        self.obs, _ = self.env.reset(seed=episode_seed(*self.key, self.episode))
        self.t, self.lives = 0, {agent: [0.0, 0] for agent in self.env.agents}

    def step(self, actions):
        """By agent that acted: observation, next one, reward, terminated, truncated."""
        acted, before = list(self.env.agents), self.obs
        self.obs, rewards, terminated, truncated, _ = self.env.step({a: actions[a] for a in acted})
        self.t, found = self.t + 1, {}
        for a in acted:
            cut = truncated[a] or (self.t == self.limit and not terminated[a])
            found[a] = (before[a], self.obs[a], rewards[a], terminated[a], cut)
            life = self.lives[a]
            life[0], life[1] = life[0] + rewards[a], life[1] + 1
            if terminated[a] or cut:
                self.ended.append((a, *self.lives.pop(a)))
        for a in self.env.agents:
            self.lives.setdefault(a, [0.0, 0])
        if not self.env.agents or self.t == self.limit:
            self.begin()
        return found


@pytest.mark.parametrize("limit", [None, 5])
@pytest.mark.parametrize("image", [False, True])
def test_rows_are_those_of_a_plain_loop_over_each_environment(image, limit):
    make = lambda: Visitors(coupled=True, image=image)  # noqa: E731
    ours = collector(make, env_kwargs={"max_episode_steps": limit} if limit else {})
    games, rng, seen = [PlainGame(make, 7, i, limit) for i in range(2)], np.random.default_rng(0), 0
    for _ in range(80):
        actions = rng.integers(3, size=6)
        expected = [game.step(dict(zip(AGENTS, actions[3 * i : 3 * i + 3].tolist()))) for i, game in enumerate(games)]
        step = ours.step(actions)
        for row in range(6):
            found = expected[row // 3].get(AGENTS[row % 3])
            assert ours.acted[row] == (found is not None)
            if found is None:
                assert not step.terminated[row] and not step.truncated[row] and step.rewards[row] == 0
                continue
            seen += 1
            obs, next_obs, reward, terminated, truncated = found
            assert np.array_equal(step.obs[row], obs) and np.array_equal(step.next_obs[row], next_obs)
            assert step.rewards[row] == np.float32(reward)
            assert (step.terminated[row], step.truncated[row]) == (terminated, truncated)
        for i, game in enumerate(games):
            for k, agent in enumerate(AGENTS):
                there = agent in game.env.agents
                assert ours.learning[3 * i + k] == there
                assert np.array_equal(ours.obs[3 * i + k], game.obs[agent] if there else np.zeros(ours.obs.shape[1:]))
    ended = [one for game in games for one in game.ended]
    assert ours.episodes == len(ended) and ours.metrics()["agent_steps"] == seen
    for agent in AGENTS:
        recent = [e.agents[agent] for e in ours.recent if agent in e.agents]
        theirs = [total for name, total, _ in ended if name == agent]
        if len(ended) <= 100:
            assert sorted(recent) == pytest.approx(sorted(theirs))
            assert ours.metrics()[f"agent_return/{agent}"] == pytest.approx(np.mean(theirs))
    if len(ended) <= 100:
        assert sorted(e.length for e in ours.recent) == sorted(length for *_, length in ended)


def test_finished_episodes_have_the_name_of_their_agent_and_its_last_info():
    told = []
    ours = collector(log_info=["visited"], on_episode=told.append)
    for _ in range(20):
        ours.step(np.zeros(6, np.int64))
    assert len(told) == ours.episodes > 5
    for episode in told:
        [name] = episode.agents
        assert name == AGENTS[episode.env_index % 3] and episode.success == (name == "ann")
        assert episode.agents[name] == episode.episode_return and 1 <= episode.info["visited"] <= 7


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8, 13, 21])
def test_unfinished_episodes_are_rebuilt_wherever_agents_have_come_and_gone(steps):
    ours, rng = collector(envs=3), np.random.default_rng(1)
    for _ in range(steps):
        ours.step(rng.integers(3, size=9))
    again = collector(envs=3)
    again.load_state_dict(copy.deepcopy(ours.state_dict()))
    assert not again.lost.any() and np.array_equal(again.learning, ours.learning)
    for _ in range(25):
        toys.assert_same(again.state_dict(), ours.state_dict(), "collector")
        actions = rng.integers(3, size=9)
        for a, b in zip(ours.step(actions), again.step(actions)):
            assert np.array_equal(a, b)


def test_an_environment_of_which_one_row_is_lost_begins_anew_with_all_rows():
    ours = collector()
    for _ in range(3):
        ours.step(np.full(6, 2))
    state = copy.deepcopy(ours.state_dict())
    state["envs"][3]["actions"][0] = 0  # ann's, in environment 1: all of them observe where it led
    again = collector()
    with pytest.warns(UserWarning, match="environment 1 cannot be rebuilt from its seed and actions: it starts a new"):
        again.load_state_dict(state)
    assert again.lost.tolist() == [0, 0, 0, 1, 1, 1]
    assert np.array_equal(again.obs[:3], ours.obs[:3]) and (again.obs[3:, 2:] == 0).all()
    again.step(np.zeros(6, np.int64))


class Odd(Visitors):
    """Does what an environment must not do."""

    def __init__(self, mistake):
        super().__init__()
        self.mistake = mistake

    def reset(self, **given):
        obs, infos = super().reset(**given)
        return {"empty": ({}, infos), "list": [obs, infos]}.get(self.mistake, (obs, infos))

    def step(self, actions):
        obs, rewards, terminated, truncated, infos = super().step(actions)
        if self.mistake == "stays":
            self.agents = list(actions)
        elif self.mistake == "vanishes":
            terminated, truncated = dict.fromkeys(terminated, False), dict.fromkeys(truncated, False)
        elif self.mistake == "stranger":
            self.agents = ["dan"]
        elif self.mistake == "nan":
            rewards["ann"] = np.nan
        elif self.mistake == "four":
            return obs, rewards, terminated, infos
        elif self.mistake == "raises":
            raise ArithmeticError("a wheel came off")
        elif self.mistake == "shape":
            obs["ann"] = np.zeros(5, np.float32)
        elif self.mistake == "no reward":
            del rewards["ann"]
        return obs, rewards, terminated, truncated, infos


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("stays", r"agent '\w+' is done and still there"),
        ("vanishes", r"agent '\w+' left without a termination or a truncation"),
        ("stranger", "agent 'dan' is not among possible_agents"),
        ("nan", r"agent ann of environment 0 \(.*\) gave the reward nan at step 0"),
        ("four", r"step returned a tuple of 4, not \(observations, rewards, terminations, truncations, infos\)"),
        ("raises", r"agent ann of environment 0 \(.*\) raised ArithmeticError: a wheel came off at step 0"),
        ("shape", r"agent ann .* observation of shape \(5,\), its space says \(4,\)"),
        ("no reward", "there is no reward of agent 'ann'"),
        ("empty", "there is no observation of agent 'ann', which is there"),
        ("list", r"reset returned a list of 2, not \(observations, infos\), dictionaries by agent"),
    ],
)
def test_what_an_environment_does_wrong_is_one_line(mistake, message):
    with pytest.raises(EnvironmentFailure, match=message):  # noqa: PT012
        ours = collector(lambda: Odd(mistake))
        for _ in range(10):
            ours.step(np.zeros(6, np.int64))


def test_the_report_of_a_failure_has_the_actions_of_all_agents():
    class Breaks(Visitors):
        def step(self, actions):
            if self.t == 1:
                raise ArithmeticError
            return super().step(actions)

    ours = collector(Breaks)
    ours.step(np.arange(6) % 3)
    with pytest.raises(EnvironmentFailure) as raised:
        ours.step(np.array([2, 2, 1, 0, 0, 0]))
    incident = raised.value.incident
    assert incident["actions"] == [[0, 1, 2], [2, 2, 1]] and incident["exact"] and incident["index"] == 0
    assert incident["seed"] == episode_seed(7, 0, 0)


def test_a_watchdog_knows_what_every_agent_did():
    dog = Watchdog(60.0)
    ours = collector(watchdog=dog)
    ours.step(np.arange(6) % 3)
    ours.step(np.zeros(6, np.int64))
    assert dog.incident()["actions"] == [[0, 1, 2]] and dog.doing == "step"
    assert dog.began == float("inf")


# ---- what is taken, and what is refused


@pytest.mark.parametrize(
    "source", [Meet, lambda: Meet(), Meet(), "parallel_toys:Meet", "parallel_toys:meeting_parallel_env"]
)
def test_an_object_a_function_a_class_and_a_name_make_the_same_environment(source):
    ours, other = collector(source), collector(Meet)
    assert ours.spaces.agents == ("left", "right") and ours.spaces.obs_shape == (3,)
    for _ in range(20):
        actions = np.random.default_rng(3).integers(3, size=4)
        for a, b in zip(ours.step(actions), other.step(actions)):
            assert np.array_equal(a, b)


def test_arguments_of_a_named_function_come_from_env_kwargs():
    ours = collector("parallel_toys:Meet", env_kwargs={"steps": 2})
    for _ in range(4):
        ours.step(np.zeros(4, np.int64))
    assert {episode.length for episode in ours.recent} == {2}
    assert env_name(Visitors()) == "visitors"


def test_an_object_that_was_given_is_never_stepped():
    given = Visitors(coupled=True)
    ours = collector(given)
    ours.step(np.zeros(6, np.int64))
    assert given.agents == [] and not hasattr(given, "t")


def test_observations_of_other_forms_become_what_networks_take():
    class Numbers(Visitors):
        def observation_space(self, agent):
            return gym.spaces.Dict(t=gym.spaces.Discrete(9), x=gym.spaces.Box(-9, 9, (2,)))

        def obs(self, agent):
            return {"t": self.t, "x": np.array([1, 2], np.float32)}

    class Steps(Visitors):
        def observation_space(self, agent):
            return gym.spaces.Discrete(9)

        def obs(self, agent):
            return self.t

    ours = collector(Numbers)
    assert ours.obs[0].tolist() == [1, *[0] * 8, 1, 2]
    assert collector(Steps).obs[0].tolist() == [1, *[0] * 8]
    kept = collector(Visitors, env_kwargs={"wrappers": {"keep": [0, 2], "reward": {"scale": 10.0}}})
    assert kept.obs.shape == (6, 2)
    assert kept.step(np.ones(6, np.int64)).rewards[0] == pytest.approx(11)


class Turns(Visitors):
    def agent_iter(self):
        return iter(self.agents)


class Mixed(Visitors):
    def action_space(self, agent):
        return gym.spaces.Discrete(3 if agent != "bob" else 4)


class Nameless(Visitors):
    def __init__(self):
        super().__init__()
        del self.possible_agents


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Turns, r"visitors is an environment whose agents take turns \(AECEnv\).*pettingzoo.utils.aec_to_parallel"),
        (Mixed, r"action_space is Discrete\(3\) for ann and Discrete\(4\) for bob; SuperSuit .* BenchMARL and RLlib"),
        (Nameless, "visitors does not say which agents there can be: it needs possible_agents"),
    ],
)
@pytest.mark.parametrize("as_object", [False, True])
def test_what_cannot_share_a_policy_is_refused_in_one_line(make, message, as_object):
    with pytest.raises(ValueError, match=message):
        EnvFactory(make() if as_object else make, {}).spaces()


def test_rows_workers_and_wrappers_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match=r"num_envs: is 4, and the environment has 3 agents.*a multiple of 3"):
        MultiAgentCollector(EnvFactory(Visitors, {}), 4, 0)
    with pytest.raises(ConfigError, match=r"execution_backend: Visitors has several agents.*take local"):
        MultiAgentCollector(EnvFactory(Visitors, {}), 3, 0, backend="process")
    with pytest.raises(ValueError, match=r"takes parts, keep, reward and not frame_stack: wrap the environment itself"):
        EnvFactory(Visitors, {"wrappers": {"frame_stack": 2}}).spaces()
    with pytest.raises(ValueError, match=r"belongs to gym\.make"):
        EnvFactory(Visitors, {"coupled": True}).spaces()
    with pytest.raises(ValueError, match="it is list, not a parallel environment"):
        EnvFactory("parallel_toys:no_parallel_env", {}).spaces()
    held, one = Visitors(), Duel()
    held.lock = threading.Lock()
    with pytest.raises(ValueError, match=r"visitors cannot be copied .*; pass a function that makes it"):
        EnvFactory(held, {}).spaces()
    with pytest.raises(ValueError, match="visitors has several agents, and cannot be changed while a run goes on"):
        collector(Visitors()).set_env_kwargs({"coupled": True})
    with pytest.raises(ValueError, match="gave the same environment twice"):
        collector(lambda: one)


@pytest.mark.parametrize("name", ["os:mkdir", "parallel_toys:schedule", "subprocess:Popen", "gymnasium:Env"])
def test_not_any_function_that_a_file_names_is_called(name, tmp_path):
    """Their modules are imported already, which alone must not be enough."""
    kwargs = {"os:mkdir": {"path": str(tmp_path / "made")}, "subprocess:Popen": {"args": "true"}}.get(name, {"seed": 3})
    with pytest.raises(
        ValueError, match=f"has {name.partition(':')[2]}, and what it makes is taken by name if it is a"
    ):
        EnvFactory(name, kwargs).spaces()
    assert not list(tmp_path.iterdir())


def test_an_environment_that_counts_its_cycles_needs_no_other_limit(recwarn):
    collector(Meet)
    assert not [w for w in recwarn if "time limit" in str(w.message)]


class Fixed:
    """Opponents that act 0 for one agent."""

    def __init__(self, agent):
        self.agent, self.ended = agent, []

    def act(self, envs, obs):
        return np.zeros(len(envs), np.int64)

    def seats(self, env):
        return (self.agent,)

    def episode_ended(self, env, returns):
        self.ended.append(returns)


def test_opponents_that_come_in_the_middle_of_an_episode_wait_for_the_next():
    ours = collector(lambda: Meet(), envs=1)
    ours.step(np.ones(2, np.int64))
    before, fixed = ours.learning.copy(), Fixed(ours.seats.agents[0])
    ours.oppose(fixed)
    assert np.array_equal(ours.learning, before)
    other = collector(lambda: Meet(), envs=1)
    other.load_state_dict(copy.deepcopy(ours.state_dict()))
    other.oppose(fixed)  # a run that is resumed with opponents which it had not before
    assert np.array_equal(other.learning, before)
    while ours.seats.games[0].steps:
        ours.step(np.ones(2, np.int64))
    assert not ours.learning[0] and ours.learning[1]
    assert fixed.ended == [{}], "an episode that began without them is nobody's victory"
    ours.step(np.ones(2, np.int64))
    assert not ours.acted[0]
    other.load_state_dict(copy.deepcopy(ours.state_dict()))
    assert not other.learning[0]


@pytest.mark.parametrize("row", [0, 1])
def test_the_report_of_a_failure_ends_with_the_actions_that_failed(row):
    class Sick(Meet):
        def step(self, actions):
            obs, rewards, *rest = super().step(actions)
            self.steps_taken = getattr(self, "steps_taken", 0) + 1
            if self.steps_taken == 2:
                rewards[self.possible_agents[row]] = float("nan")
            return obs, rewards, *rest

    ours = collector(Sick, envs=1)
    ours.step(np.zeros(2, np.int64))
    with pytest.raises(EnvironmentFailure) as caught:
        ours.step(np.ones(2, np.int64))
    assert len(caught.value.incident["actions"]) == 2


def test_an_environment_is_not_made_anew_for_each_episode():
    with pytest.raises(ValueError, match=r"has several agents, and env_kwargs\.remake is for one"):
        EnvFactory(Meet, {"remake": True}).make(training=True)


def test_masks_of_several_agents_are_refused_unless_they_are_left_to_the_networks():
    class Masked(Meet):
        def observation_space(self, agent):
            return gym.spaces.Dict({"own": super().observation_space(agent), "action_mask": gym.spaces.MultiBinary(2)})

    with pytest.raises(ValueError, match=r"masks of actions and several agents.*action_masks: false"):
        EnvFactory(Masked, {}).make(training=True)
    EnvFactory(Masked, {"action_masks": False}).make(training=True)


def test_the_agents_of_training_and_evaluation_are_the_same():
    def make():
        env = Meet()
        make.made += 1
        if make.made % 2:
            env.possible_agents = env.possible_agents[::-1]
        return env

    make.made = 0
    with pytest.raises(ConfigError, match=r"in training and .* in evaluation: they must be the same"):
        MultiAgentCollector(EnvFactory(make, {}), 2, 7)
