"""Evaluation and the recording of datasets, each against a plain loop over an environment whose every number is known."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.algorithms.base import Acting, Learner
from rl_training.base.state import Rng
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.evaluation import evaluate, scored
from rl_training.runtime.evaluator import Evaluator
from rl_training.runtime.experience import collect

MADE = []  # every environment that was made, newest last


class Scripted(gym.Env):
    """Observes (a number drawn at reset, t). Pays that number times (1 + action), plus t. Lasts 2 to 5 steps, and ends or is cut."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(5)

    def __init__(self) -> None:
        self.seeds, self.closed = [], False
        MADE.append(self)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.number, self.length, self.t = float(self.np_random.integers(1, 9)), int(self.np_random.integers(2, 6)), 0
        return np.array([self.number, 0], np.float32), {}

    def step(self, action):
        self.t += 1
        reward, over = self.number * (1 + action) + self.t, self.t == self.length
        ends = bool(over and self.length % 2)
        return np.array([self.number, self.t], np.float32), reward, ends, over and not ends, {}

    def close(self):
        self.closed = True


gym.register("Scripted-v0", Scripted)


def choice(obs, carry, deterministic, rng) -> int:
    """Depends on the observation, on the steps since the start, and on both random streams."""
    noise = 0 if deterministic else int(rng.integers(5)) + int(torch.randint(5, ()))
    return int(obs.sum() + carry + noise) % 5


class Counting(Learner):
    """A recurrent learner that has no networks: its carry is the number of steps since the start of the episode."""

    def initial_carry(self, n):
        assert n == 1
        return 0

    def _act(self, obs, carry, deterministic, rng):
        return Acting(np.array([choice(obs[0], carry, deterministic, rng)]), carry=carry + 1)


def by_hand(seed, environment, rng, *, episodes, deterministic=True, most_steps=99):
    """Rows of (obs, action, reward, next_obs, terminated, truncated), a list for each episode."""
    env, played = Scripted(), []
    for k in range(episodes):
        obs, _ = env.reset(seed=int(np.random.SeedSequence((seed, environment, k)).generate_state(1)[0]))
        played.append([])
        while not played[-1] or (not any(played[-1][-1][4:]) and len(played[-1]) < most_steps):
            action = choice(obs, len(played[-1]), deterministic, rng)
            next_obs, reward, terminated, truncated, _ = env.step(action)
            played[-1].append((obs, action, reward, next_obs, terminated, truncated))
            obs = next_obs
    return played


def returns(played):
    return [sum(row[2] for row in episode) for episode in played]


@pytest.mark.parametrize("most_steps", [None, 3])
@pytest.mark.parametrize("deterministic", [True, False])
def test_an_evaluation_is_a_plain_loop_over_episodes_with_seeds_of_their_own(deterministic, most_steps):
    found = evaluate(
        Counting(),
        EnvFactory("Scripted-v0", {}),
        episodes=6,
        seed=4,
        deterministic=deterministic,
        most_steps=most_steps,
    )
    torch.manual_seed(4)
    rng = np.random.default_rng((4, 2**31))
    played = by_hand(4, 2**31, rng, episodes=6, deterministic=deterministic, most_steps=most_steps or 99)
    total = returns(played)
    assert found == pytest.approx(
        {
            "eval_return_mean": sum(total) / 6,
            "eval_return_std": np.sqrt(sum((x - sum(total) / 6) ** 2 for x in total) / 6),
            "eval_return_min": min(total),
            "eval_return_max": max(total),
            "eval_length_mean": sum(map(len, played)) / 6,
            "eval_episodes": 6,
            "eval_episodes_cut": 0,
        }
    )
    assert len({len(episode) for episode in played}) > 1 and len(set(total)) > 3  # the comparison says something


def test_an_evaluation_is_greedy_unless_told_otherwise():
    factory = EnvFactory("Scripted-v0", {})
    found = evaluate(Counting(), factory, episodes=3, seed=4)
    assert found == evaluate(Counting(), factory, episodes=3, seed=4, deterministic=True)
    assert found != evaluate(Counting(), factory, episodes=3, seed=4, deterministic=False)


def test_an_evaluation_needs_an_episode():
    with pytest.raises(ValueError, match="at least one episode, got 0"):
        evaluate(Counting(), EnvFactory("Scripted-v0", {}), episodes=0, seed=4)


def test_an_evaluation_takes_place_under_the_conditions_of_evaluation():
    factory = EnvFactory("Scripted-v0", {"max_episode_steps": 3, "evaluation": {"max_episode_steps": 2}})
    assert evaluate(Counting(), factory, episodes=3, seed=4)["eval_length_mean"] == 2


def test_an_evaluation_leaves_torchs_random_numbers_the_agents_mode_and_no_open_environment():
    torch.manual_seed(5)
    expected = torch.rand(3)
    for training in (True, False):
        agent = Counting()
        (agent.set_train_mode if training else agent.set_eval_mode)()
        torch.manual_seed(5)
        modes = []
        watch = lambda episode, env, obs: modes.append(agent.training)  # noqa: E731, B023
        evaluate(agent, EnvFactory("Scripted-v0", {}), episodes=2, seed=0, deterministic=False, watch=watch)
        assert torch.equal(torch.rand(3), expected) and agent.training is training
        assert set(modes) == {False} and MADE[-1].closed


def test_a_failed_evaluation_closes_its_environment_and_gives_the_mode_back():
    agent = Counting()

    def watch(episode, env, obs):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(agent, EnvFactory("Scripted-v0", {}), episodes=1, seed=0, watch=watch)
    assert MADE[-1].closed and agent.training


def test_who_watches_sees_every_observation_of_every_episode():
    seen = []

    def watch(episode, env, obs):
        seen.append((episode, env.unwrapped, obs.tolist()))

    evaluate(Counting(), EnvFactory("Scripted-v0", {}), episodes=2, seed=1, watch=watch)
    env = MADE[-1]
    played = by_hand(1, 2**31, None, episodes=2)
    shown = [[episode[0][0], *(row[3] for row in episode)] for episode in played]
    assert seen == [(k, env, obs.tolist()) for k, episode in enumerate(shown) for obs in episode]


def test_an_episode_that_goes_on_too_long_is_cut_and_counted_but_not_one_that_ends_or_reaches_its_limit_there(
    monkeypatch,
):
    monkeypatch.setattr("rl_training.runtime.evaluation.UNLIMITED", 4)
    lengths = [len(episode) for episode in by_hand(4, 2**31, None, episodes=8)]
    assert {4, 5} <= set(lengths)  # one that ends with its fourth step, one that goes on
    with pytest.warns(UserWarning, match=rf"{lengths.count(5)} of 8 episodes of Scripted-v0 were cut after 4 steps"):
        found = evaluate(Counting(), EnvFactory("Scripted-v0", {}), episodes=8, seed=4)
    assert found["eval_episodes_cut"] == lengths.count(5)
    assert found["eval_length_mean"] == sum(min(length, 4) for length in lengths) / 8
    asked = evaluate(Counting(), EnvFactory("Scripted-v0", {}), episodes=8, seed=4, most_steps=4)
    assert asked["eval_episodes_cut"] == 0 and asked["eval_return_mean"] == found["eval_return_mean"]


def test_where_there_is_a_time_limit_an_episode_may_last_longer(monkeypatch):
    monkeypatch.setattr("rl_training.runtime.evaluation.UNLIMITED", 2)
    monkeypatch.setattr("rl_training.runtime.evaluation.LONGEST", 3)
    with pytest.warns(UserWarning, match="were cut after 3 steps"):
        found = evaluate(Counting(), EnvFactory("Scripted-v0", {"max_episode_steps": 9}), episodes=8, seed=4)
    assert found["eval_length_mean"] > 2


def test_the_limits_of_an_evaluation():
    from rl_training.runtime import evaluation

    assert (evaluation.LONGEST, evaluation.UNLIMITED) == (100_000, 10_000)


def test_a_score_is_0_for_a_random_policy_and_100_for_an_expert():
    metrics = {"eval_return_mean": 40.0, "eval_episodes": 2.0}
    assert scored(metrics, {"random_return": 20.0, "expert_return": 60.0}) == {**metrics, "eval_score": 50.0}
    assert scored(metrics, {"random_return": 20.0, "expert_return": 20.0}) == metrics
    assert scored(metrics, {"random_return": 20.0}) == scored(metrics, {"expert_return": 60.0}) == metrics


def test_an_evaluator_knows_the_best_evaluation_and_the_last(tmp_path):
    config = TrainConfig(algo="ppo", env_id="Scripted-v0", seed=4, eval_episodes=6, output_dir=tmp_path)
    evaluator = Evaluator(config, EnvFactory("Scripted-v0", {}), tmp_path, print)
    assert (evaluator.best, evaluator.metrics, evaluator.step) == (None, {}, -1)
    run = SimpleNamespace(step=7, references={"random_return": 0.0, "expert_return": 50.0})
    assert evaluator.evaluate(Counting(), run)  # the first is the best
    mean = np.mean(returns(by_hand(4, 2**31, None, episodes=6)))
    assert evaluator.best == evaluator.metrics["eval_return_mean"] == mean and evaluator.step == 7
    assert evaluator.metrics["eval_score"] == pytest.approx(2 * mean)
    assert not evaluator.evaluate(Counting(), run)  # as good is not better
    evaluator.best, run.step = mean - 1, 9
    assert evaluator.evaluate(Counting(), run) and evaluator.best == mean and evaluator.step == 9
    evaluator.best = mean + 1
    assert not evaluator.evaluate(Counting(), run) and evaluator.best == mean + 1
    assert evaluator.metrics["eval_return_mean"] == mean


def recorded(data) -> list:
    columns = (data.obs, data.actions, data.rewards, data.next_obs, data.dones, data.truncations)
    return [tuple(np.asarray(value).tolist() for value in row) for row in zip(*columns)]


def expected_rows(played) -> list:
    return [tuple(np.asarray(value, np.float32).tolist() for value in row) for episode in played for row in episode]


CONFIG = TrainConfig(algo="ppo", env_id="Scripted-v0", seed=9)


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_collection_is_a_plain_loop_over_episodes(deterministic):
    torch.manual_seed(8)
    before = torch.get_rng_state()
    data = collect(CONFIG, Counting(), episodes=5, deterministic=deterministic, seed=2)
    assert torch.equal(torch.get_rng_state(), before) and MADE[-1].closed
    torch.manual_seed(2)
    played = by_hand(2, 0, Rng(2, "collection").generator, episodes=5, deterministic=deterministic)
    assert recorded(data) == expected_rows(played)
    assert data.meta["behaviour"] == {"algo": "ppo", "deterministic": deterministic}
    assert (data.meta["env_id"], data.meta["env_kwargs"], data.meta["seed"]) == ("Scripted-v0", {}, 2)


def test_a_collection_samples_from_seed_0_unless_told_otherwise():
    given = collect(CONFIG, Counting(), steps=9, deterministic=False, seed=0)
    assert recorded(collect(CONFIG, Counting(), steps=9)) == recorded(given)


def test_steps_are_counted_exactly_and_the_limit_ends_a_collection_in_the_middle_of_an_episode():
    rows = expected_rows(by_hand(2, 0, None, episodes=9))
    for count in (1, 7, 8):
        assert recorded(collect(CONFIG, Counting(), steps=count, deterministic=True, seed=2)) == rows[:count]
    limited = collect(CONFIG, Counting(), episodes=9, deterministic=True, seed=2, most_steps=7)
    assert recorded(limited) == rows[:7]
    assert len(collect(CONFIG, Counting(), steps=5, most_steps=7)) == 5


def test_without_an_agent_actions_are_uniform():
    data = collect(CONFIG, None, steps=400, seed=3)
    counts = torch.bincount(data.actions, minlength=5)
    assert counts.min() > 50 and data.meta["behaviour"] == {"algo": "random", "deterministic": False}
    assert recorded(data) == recorded(collect(CONFIG, None, steps=400, seed=3))


@pytest.mark.parametrize(("size", "ticks"), [({"steps": 3}, [0, 1, 2, 3]), ({"episodes": 1}, [0, 0, 1])])
def test_a_collection_shows_how_far_it_has_come(size, ticks, monkeypatch):
    given = []

    class Bar:
        def __init__(self, kind, **facts):
            given.append((kind, facts))

        def tick(self, done):
            given.append(done)

        def close(self):
            given.append("closed")

    monkeypatch.setattr("rl_training.runtime.experience.Progress", Bar)
    collect(CONFIG, Counting(), seed=2, progress="lines", **size)
    ((unit, total),) = size.items()
    facts = {"title": "collect Scripted-v0", "total": total, "start": 0, "unit": unit}
    assert given == [("lines", facts), *ticks, "closed"]


@pytest.mark.parametrize("sizes", [{}, {"steps": 3, "episodes": 1}])
def test_a_collection_needs_its_size_in_steps_or_in_episodes(sizes):
    with pytest.raises(ValueError, match="one of the two"):
        collect(CONFIG, None, **sizes)


def test_rewards_are_recorded_as_the_environment_gave_them_under_the_conditions_of_evaluation():
    env_kwargs = {"wrappers": {"reward": {"scale": 0.1}}, "evaluation": {"max_episode_steps": 2}}
    config = CONFIG.model_copy(update={"env_kwargs": env_kwargs})
    data = collect(config, Counting(), episodes=3, deterministic=True, seed=2)
    played = by_hand(2, 0, None, episodes=3, most_steps=2)
    assert data.rewards.tolist() == [row[2] for episode in played for row in episode]
    assert (data.dones + data.truncations).tolist() == [0, 1] * 3
