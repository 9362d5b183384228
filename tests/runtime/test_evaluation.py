"""What an evaluation measures: known episodes, each once, with seeds, streams and statistics of their own."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.algorithms.base import Acting
from rl_training.envs.factory import EnvFactory
from rl_training.envs.replay import episode_seed
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.evaluation import EVALUATION, evaluate, scored
from rl_training.runtime.evaluator import Evaluator
from toys import Counter

SEED = 5


class Lottery(gym.Env):
    """An episode's length is drawn by its seed; a step pays the length and the action."""

    observation_space, action_space = gym.spaces.Box(-99, 99, (2,), np.float32), gym.spaces.Box(-2, 4, (1,))

    def __init__(self):
        self.seeds = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.length, self.t = int(self.np_random.integers(1, 9)), 0
        return np.array([self.length, 0], np.float32), {}

    closed = False

    def close(self):
        self.closed = True

    def step(self, action):
        self.t += 1
        over = self.t == self.length
        obs = np.array([self.length, self.t], np.float32)
        return obs, self.length + float(action[0]), over and self.length % 2 == 0, over and self.length % 2 == 1, {}


class Agent:
    """Acts by a number, and remembers how it was used."""

    def __init__(self, action=0.0, training=True):
        self.action, self.training, self.calls, self.draws = action, training, [], []

    def initial_carry(self, n):
        return np.zeros((n, 1), np.float32)

    def act(self, obs, *, carry, deterministic, rng, step=0):
        self.calls.append((obs.tolist(), carry.item(), deterministic, self.training))
        self.draws.append((float(rng.random()), torch.rand(()).item()))
        return Acting(np.full((1, 1), self.action, np.float32), {}, carry + 1)

    def set_eval_mode(self):
        self.training = False

    def set_train_mode(self):
        self.training = True


def lottery():
    made = []

    def make():
        made.append(Lottery())
        return made[-1]

    return EnvFactory(make, {}), made


def lengths_of(episodes, seed=SEED):
    """The lengths of an evaluation's episodes, by hand."""
    env = Lottery()
    return np.array([env.reset(seed=episode_seed(seed, EVALUATION, k))[0][0] for k in range(episodes)])


@pytest.mark.filterwarnings("ignore:.*no time limit")
def test_mean_deviation_extremes_and_length_are_those_of_the_episodes_one_by_one():
    """Twelve episodes of different length count once each; 0 in [-1, 1] is 1 in [-2, 4], which every step pays too."""
    lengths = lengths_of(12)
    returns = lengths * (lengths + 1.0)
    assert len({*lengths}) > 3
    assert evaluate(Agent(), lottery()[0], episodes=12, seed=SEED) == pytest.approx(
        {
            "eval_return_mean": returns.mean(),
            "eval_return_std": np.sqrt(((returns - returns.mean()) ** 2).mean()),
            "eval_return_min": returns.min(),
            "eval_return_max": returns.max(),
            "eval_length_mean": lengths.mean(),
            "eval_episodes": 12,
            "eval_episodes_cut": 0,
        }
    )


def test_the_same_seed_plays_the_same_episodes_apart_from_those_of_training():
    (factory, made), (again, others) = lottery(), lottery()
    evaluate(Agent(), factory, episodes=6, seed=SEED)
    evaluate(Agent(), again, episodes=4, seed=SEED)
    assert made[0].seeds[:4] == others[0].seeds and len({*made[0].seeds}) == 6
    evaluate(Agent(), factory, episodes=6, seed=SEED + 1)
    assert not {*made[0].seeds} & {*made[1].seeds}
    training = {episode_seed(SEED, i, k) for i in range(20) for k in range(20)}
    assert not {*made[0].seeds} & training


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_agent_is_in_evaluation_mode_and_begins_each_episode_without_a_carry(deterministic):
    agent = Agent(training=True)
    evaluate(agent, lottery()[0], episodes=3, seed=SEED, deterministic=deterministic)
    carries = [carry for _, carry, *_ in agent.calls]
    assert carries == [t for length in lengths_of(3) for t in range(int(length))]
    observed = [obs for obs, *_ in agent.calls]
    assert observed == [[[length, t]] for length in lengths_of(3) for t in range(int(length))]
    assert {flags for *_, flags, _ in agent.calls} == {deterministic}
    assert not any(training for *_, training in agent.calls) and agent.training


def test_an_agent_that_was_in_evaluation_mode_stays_there():
    agent = Agent(training=False)
    evaluate(agent, lottery()[0], episodes=1, seed=SEED)
    assert agent.training is False


def test_random_draws_repeat_with_the_seed_and_leave_torchs_own_stream_alone():
    agents = [Agent() for _ in range(3)]
    torch.manual_seed(0)
    before = torch.get_rng_state()
    for agent, seed in zip(agents, (SEED, SEED, SEED + 1)):
        evaluate(agent, lottery()[0], episodes=2, seed=seed)
        torch.rand(7)
    torch.set_rng_state(before)
    evaluate(agents[0], lottery()[0], episodes=2, seed=SEED)
    assert torch.equal(torch.get_rng_state(), before)
    first = agents[0].draws[: len(agents[1].draws)]
    assert first == agents[1].draws and first[0] != agents[2].draws[0]
    assert len({draw for draw, _ in first}) == len(first) == len({draw for _, draw in first})


def test_most_steps_cuts_and_watchers_see_every_observation():
    seen = []
    metrics = evaluate(
        Agent(), lottery()[0], episodes=5, seed=SEED, most_steps=3, watch=lambda *shown: seen.append(shown)
    )
    lengths = np.minimum(lengths_of(5), 3)
    assert metrics["eval_length_mean"] == lengths.mean() and metrics["eval_episodes_cut"] == 0
    assert [(k, obs[1]) for k, _, obs in seen] == [(k, t) for k, n in enumerate(lengths) for t in range(int(n) + 1)]
    assert all(env.unwrapped.t == obs[1] for _, env, obs in seen[-1:])


@pytest.mark.parametrize(("limited", "longest"), [(True, 6), (False, 3)])
def test_an_episode_that_goes_on_for_ever_is_cut_counted_and_warned_of(monkeypatch, limited, longest):
    """After six steps where there is a time limit (beyond that), after three where there is none; other ends are no cuts."""
    monkeypatch.setattr("rl_training.runtime.evaluation.LONGEST", 6)
    monkeypatch.setattr("rl_training.runtime.evaluation.UNLIMITED", 3)
    factory = EnvFactory(lottery()[0].source, {"max_episode_steps": 1000} if limited else {})
    lengths = lengths_of(9)
    assert (lengths > longest).any() and (lengths == longest).any() and (lengths < longest).any()
    cut = int((lengths > longest).sum())
    with pytest.warns(UserWarning, match=rf"{cut} of 9 episodes of .* were cut after {longest} steps"):
        metrics = evaluate(Agent(), factory, episodes=9, seed=SEED)
    assert metrics["eval_episodes_cut"] == cut and metrics["eval_length_mean"] == np.minimum(lengths, longest).mean()
    asked = evaluate(Agent(), factory, episodes=9, seed=SEED, most_steps=longest)
    assert asked["eval_episodes_cut"] == 0 and asked["eval_length_mean"] == metrics["eval_length_mean"]


def test_its_environment_is_closed():
    factory, made = lottery()
    evaluate(Agent(), factory, episodes=1, seed=SEED)
    assert made[0].closed


def test_evaluation_has_wrappers_of_its_own_and_the_environments_own_rewards():
    env_kwargs = {
        "wrappers": {"reward": {"scale": 0.1}},
        "max_episode_steps": 4,
        "evaluation": {"max_episode_steps": 6},
    }
    metrics = evaluate(_ppo(Counter(limit=99)), EnvFactory(lambda: Counter(limit=99), env_kwargs), episodes=2, seed=0)
    assert (metrics["eval_return_mean"], metrics["eval_length_mean"]) == (6, 6)


def _ppo(env, **options):
    """A fresh PPO for an environment's spaces."""
    spec = get_algorithm_spec("ppo")
    config = TrainConfig(algo="ppo", env_id="own", algo_kwargs={"hidden_sizes": [8], **options})
    plan = spec.blueprint(config, EnvFactory(lambda: env, {}), None, "cpu")
    torch.manual_seed(0)
    return spec.build(spec.options(config), plan)


def test_statistics_that_scale_observations_are_used_and_not_changed():
    agent = _ppo(Lottery(), normalize_observations=True)
    rng = np.random.default_rng(0)
    agent.normalizer.observe(rng.normal(3, 2, (50, 2)).astype(np.float32))
    before = {name: value.clone() for name, value in agent.normalizer.state_dict().items()}
    scaled = evaluate(agent, lottery()[0], episodes=4, seed=SEED)
    assert all(torch.equal(value, before[name]) for name, value in agent.normalizer.state_dict().items())
    fresh = _ppo(Lottery(), normalize_observations=True)  # the same weights, and no statistics
    assert evaluate(fresh, lottery()[0], episodes=4, seed=SEED)["eval_return_mean"] != scaled["eval_return_mean"]


def test_the_best_action_is_one_and_drawn_actions_differ():
    agent = _ppo(Lottery())
    best = [evaluate(agent, lottery()[0], episodes=3, seed=SEED) for _ in range(2)]
    drawn = [evaluate(agent, lottery()[0], episodes=3, seed=SEED, deterministic=False) for _ in range(2)]
    assert best[0] == best[1] and drawn[0] == drawn[1] and best[0]["eval_return_mean"] != drawn[0]["eval_return_mean"]


@pytest.mark.parametrize(
    ("references", "score"),
    [
        ({"random_return": -100.0, "expert_return": 300.0}, 25.0),
        ({"random_return": 300.0, "expert_return": -100.0}, 75.0),
        ({"random_return": 7.0, "expert_return": 7.0}, None),
        ({"random_return": -100.0}, None),
        ({"expert_return": 300.0}, None),
    ],
)
def test_a_score_lies_at_0_for_a_random_policy_and_at_100_for_an_expert(references, score):
    assert scored({"eval_return_mean": 0.0}, references).get("eval_score") == score


def test_no_episode_is_no_evaluation():
    with pytest.raises(ValueError, match="at least one episode, got 0"):
        evaluate(Agent(), lottery()[0], episodes=0, seed=0)


def test_a_checkpoint_is_evaluated_with_its_runs_seed_number_of_episodes_and_references(tiny):
    spec = get_algorithm_spec("ppo")
    config = tiny("ppo", total_timesteps=32, eval_episodes=3, seed=11)
    state_of = _checkpoint_of(spec.train(config))
    state_of.trainer_state["references"] = {"random_return": 0.0, "expert_return": 500.0}
    agent = spec.load_fn(config, state_of, "cpu")
    factory = EnvFactory(config.env_id, {})
    for episodes in (None, 2):
        metrics = spec.evaluate_fn(config, state_of, "cpu", episodes)
        by_hand = evaluate(agent, factory, episodes=episodes or 3, seed=11)
        assert metrics == {**by_hand, "eval_score": pytest.approx(by_hand["eval_return_mean"] / 5)}
    drawn = spec.evaluate_fn(config, state_of, "cpu", 2, False)
    assert (
        drawn["eval_return_mean"]
        == evaluate(agent, factory, episodes=2, seed=11, deterministic=False)["eval_return_mean"]
    )


def _checkpoint_of(result):
    from rl_training.experiment.checkpointing import load_checkpoint

    return load_checkpoint(result.checkpoint_path)


def test_results_of_an_evaluation_that_are_no_numbers_are_taken_over_from_a_checkpoint(tmp_path):
    evaluator = Evaluator(TrainConfig(algo="ppo", env_id="own"), EnvFactory(Lottery, {}), tmp_path, print)
    evaluator.recall({"best_eval": -np.inf, "last_eval": {"eval_return_mean": np.nan, "eval_return_max": np.inf}})
    assert np.isnan(evaluator.metrics["eval_return_mean"]) and evaluator.metrics["eval_return_max"] == np.inf
    assert evaluator.best == -np.inf
