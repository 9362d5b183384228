"""Predictions for single observations and batches, with the state of agents that remember."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rl_training import PETS, PPO, Dreamer
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.evaluation import evaluate
from toys import DictCounter, ImageEnv, tiny_config


def learned(kind, algo, folder, **options):
    agent = kind(tiny_config(algo, folder, total_timesteps=48, eval_interval=0, **options))
    agent.learn()
    return agent


@pytest.fixture(scope="module")
def dreamer(tmp_path_factory):
    return learned(Dreamer, "dreamer", tmp_path_factory.mktemp("dreamer"), env_id="Pendulum-v1")


@pytest.fixture(scope="module")
def ppo(tmp_path_factory):
    return learned(PPO, "ppo", tmp_path_factory.mktemp("ppo"))


@pytest.fixture(scope="module")
def pets(tmp_path_factory):
    return learned(PETS, "pets", tmp_path_factory.mktemp("pets"))


def observations(count, size=3, seed=0):
    return np.random.default_rng(seed).normal(size=(count, size)).astype(np.float32)


@pytest.mark.parametrize("kind", ["dreamer", "pets"])
def test_steps_of_predict_are_the_agents_own_acting_in_an_evaluation(kind, request):
    agent = request.getfixturevalue(kind)
    seen, taken, act = [], [], agent.agent.act

    def spy(obs, **arguments):
        acting = act(obs, **arguments)
        taken.append(agent._spaces.to_env(acting.actions)[0])
        return acting

    agent.agent.act = spy
    try:
        factory = EnvFactory(agent.config.env_id, {})
        evaluate(
            agent.agent, factory, episodes=2, seed=3, most_steps=6, watch=lambda e, env, obs: seen.append((e, obs))
        )
    finally:
        del agent.agent.act
    steps = [
        (episode, obs)
        for (episode, obs), (following, _) in zip(seen, [*seen[1:], (None, None)])
        if episode == following
    ]
    assert len(steps) == len(taken) == 12
    state, before = None, 0
    for (episode, obs), action in zip(steps, taken):
        chosen, state = agent.predict(obs, state=state, episode_start=episode != before, return_state=True)
        assert np.array_equal(chosen, action)
        before = episode


def test_the_state_makes_a_difference_and_without_one_an_episode_starts(dreamer):
    obs = observations(1)[0]
    first, state = dreamer.predict(obs, return_state=True)
    assert state.ndim == 1 and np.array_equal(dreamer.predict(obs), first)
    later, next_state = dreamer.predict(obs, state=state, return_state=True)
    assert not np.array_equal(later, first) and not np.array_equal(next_state, state)
    assert np.array_equal(dreamer.predict(obs, state=state, episode_start=True), first)


@pytest.mark.parametrize("kind", ["dreamer", "pets"])
def test_a_batch_with_episodes_that_start_at_different_times_is_its_rows_one_by_one(kind, request):
    agent = request.getfixturevalue(kind)
    steps, rows = 5, 3
    obs = observations(steps * rows).reshape(steps, rows, 3)
    starts = np.array([[1, 1, 1], [0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0]], bool)
    batch_state, states = None, [None] * rows
    for t in range(steps):
        given = None if batch_state is None else batch_state.copy()
        actions, following = agent.predict(obs[t], state=batch_state, episode_start=starts[t], return_state=True)
        assert given is None or np.array_equal(given, batch_state)  # what the caller holds is left as it is
        batch_state = following
        for row in range(rows):
            alone, states[row] = agent.predict(
                obs[t, row], state=states[row], episode_start=bool(starts[t, row]), return_state=True
            )
            if starts[t, row]:  # an episode that starts has no memory of another
                assert np.array_equal(alone, agent.predict(obs[t, row]))
            np.testing.assert_allclose(actions[row], alone, atol=1e-5)
            np.testing.assert_allclose(batch_state[row], states[row], atol=1e-5)


def test_agents_that_remember_nothing_have_no_state(ppo):
    obs = observations(2, 4)
    actions, state = ppo.predict(obs, return_state=True, episode_start=np.array([True, False]))
    assert state is None and np.array_equal(actions, ppo.predict(obs))
    action, state = ppo.predict(obs[0], return_state=True)
    assert state is None and action in (0, 1)
    with pytest.raises(ValueError, match="PPO has no state from one observation to the next: leave it out"):
        ppo.predict(obs, state=np.zeros((2, 4)))


def test_drawn_actions_are_drawn_with_a_state_too(dreamer):
    obs = observations(1)[0]
    _, state = dreamer.predict(obs, return_state=True)
    drawn = {float(dreamer.predict(obs, deterministic=False, state=state)[0]) for _ in range(4)}
    assert len(drawn) > 1


WRONG_STATES = [
    (np.zeros(3), r"the state has shape \(\d+,\) here, as an earlier prediction returned it; got \(3,\)"),
    ("abc", "the state has shape .* got str"),
    ([[0.0], [0.0, 1.0]], "the state has shape .* got list"),
    (float("nan"), r"the state has shape .* got \(\)"),
]


@pytest.mark.parametrize(("state", "message"), WRONG_STATES)
def test_a_malformed_state_is_refused_in_one_line(dreamer, state, message):
    with pytest.raises(ValueError, match=message) as error:
        dreamer.predict(observations(1)[0], state=state)
    assert "\n" not in str(error.value)


def test_a_state_that_is_not_finite_is_refused_where_it_is_used(dreamer):
    obs = observations(2)
    _, state = dreamer.predict(obs, return_state=True)
    state[1, 0] = np.nan
    with pytest.raises(ValueError, match="the state must be finite numbers"):
        dreamer.predict(obs, state=state)
    assert np.isfinite(dreamer.predict(obs, state=state, episode_start=[False, True])).all()


@pytest.mark.parametrize("start", [[True], [1, 0], "ab", np.zeros((2, 1), bool), [[True], [True, False]]])
def test_a_malformed_start_of_episodes_is_refused_in_one_line(dreamer, ppo, start):
    for agent, size in ((dreamer, 3), (ppo, 4)):
        with pytest.raises(
            ValueError, match="episode_start is an array of 2 truth values, one for each observation; got"
        ):
            agent.predict(observations(2, size), episode_start=start)


WRONG_OBSERVATIONS = [
    ([0.0, 0.0], r"observations have shape \(4,\) \(or a batch of them\), got \(2,\)"),
    ([[[0.0] * 4]], r"got \(1, 1, 4\)"),
    ([[0.0] * 4, [0.0] * 3], "got list"),
    (["1", "2", "3", "4"], "got list that does not hold numbers alone"),
    ([10**400, 0, 0, 0], "got list that does not hold numbers alone"),
    ([0, 0, None, 0], "got list that does not hold numbers alone"),
    (None, "got NoneType"),
    ([0, 0, float("nan"), 0], "observations must be finite numbers"),
    ([0, 0, 1e300, 0], "observations must be finite numbers"),
]


@pytest.mark.parametrize(("obs", "message"), WRONG_OBSERVATIONS)
def test_a_malformed_observation_is_refused_in_one_line(ppo, obs, message):
    with pytest.raises(ValueError, match=message) as error:
        ppo.predict(obs)
    assert "\n" not in str(error.value)


def test_pixels_are_numbers_of_eight_bits(tmp_path):
    agent = PPO(tiny_config("ppo", tmp_path, total_timesteps=32, eval_interval=0), env=ImageEnv)
    agent.learn()
    image = np.full((48, 48, 3), 7)
    assert agent.predict(image) == agent.predict(image.astype(np.uint8)) == agent.predict(image.tolist())
    for wrong in (image - 8, image + 250, np.full((48, 48, 3), np.nan)):
        with pytest.raises(ValueError, match="pixels of observations are numbers from 0 to 255"):
            agent.predict(wrong)


def test_observations_as_the_environment_gives_them_before_flattening(tmp_path):
    agent = PPO(tiny_config("ppo", tmp_path, total_timesteps=32, eval_interval=0), env=DictCounter)
    agent.learn()
    action, state = agent.predict({"t": np.array([1.0], np.float32), "phase": 1}, return_state=True)
    assert state is None and action == agent.predict([0, 1, 0, 1.0])


def test_the_contracts_predict_fn_is_as_it_was(ppo):
    state = load_checkpoint(ppo.checkpoint_path, buffers=False)
    spec = get_algorithm_spec("ppo")
    assert spec.predict_fn(ppo.config, state, "cpu", [0.0] * 4, True) == ppo.predict([0.0] * 4)
    assert json.dumps(spec.predict_fn(ppo.config, state, "cpu", np.zeros((2, 4)), deterministic=True).tolist())
