"""An environment that cannot be rebuilt on resume begins a new episode, and nothing carries over from the lost one into it."""

from __future__ import annotations

import itertools

import gymnasium as gym
import numpy as np
import pytest

from rl_training.data import RecurrentReplayBuffer, ReplayBuffer
from rl_training.envs.replay import episode_seed
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.loops.off_policy import OffPolicyLoop
from rl_training.runtime.loops.on_policy import OnPolicyLoop
from rl_training.runtime.workflows import resume_training
from toys import Counter, StopAt

GAMES = itertools.count(1)


class Unrepeatable(Counter):
    """Observes the number of the game and the time in it; no game comes twice."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(self, limit: int = 150, actions: gym.Space | None = None) -> None:
        super().__init__(limit=limit, actions=actions)

    def _obs(self) -> np.ndarray:
        return np.array([self.game, self.t], np.float32)

    def reset(self, *, seed=None, options=None):
        self.game = next(GAMES)
        return super().reset(seed=seed, options=options)


class SecondAgain(Unrepeatable):
    """The first game of the second environment can be had again."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.game = 0 if seed == episode_seed(3, 1, 0) else self.game
        return self._obs(), {}


class FailsAgain(Unrepeatable):
    """Raises in a game that is stepped again."""

    resumed = False

    def step(self, action):
        if FailsAgain.resumed and self.t == 3:
            FailsAgain.resumed = False
            raise RuntimeError("stepped after its end")
        return super().step(action)


def resumed(config, env, *, at=60, match="cannot be rebuilt"):
    """The checkpoints where a run was stopped and, having gone on, ended; and what it warned of."""
    first = get_algorithm_spec(config.algo).train(config, env=env, callbacks=[StopAt(at)])
    before = load_checkpoint(first.checkpoint_path)
    assert first.metrics["global_step"] < config.total_timesteps
    with pytest.warns(UserWarning, match=match) as caught:
        second = resume_training(first.run_dir, env=env)
    return before, load_checkpoint(second.checkpoint_path), [str(warning.message) for warning in caught]


def columns(state, config, **options):
    """What a saved replay buffer holds."""
    buffer = ReplayBuffer(
        min(500, config.total_timesteps + config.num_envs), (2,), (), action_dtype=np.int64, **options
    )
    buffer.load_state_dict(state.buffer_state["replay"])
    return buffer.columns()


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("n", [1, 4])
def test_no_return_over_several_steps_joins_two_games(tiny, num_envs, n):
    config = tiny("dqn", n_step=n, num_envs=num_envs, total_timesteps=120 * num_envs)
    before, after, _ = resumed(config, Unrepeatable)
    rows = columns(after, config, n_step=n)
    assert (rows["obs"][:, 0] == rows["next_obs"][:, 0]).all()
    spans = rows["next_obs"][:, 1] - rows["obs"][:, 1]
    assert rows["rewards"] == pytest.approx((1 - 0.99**spans) / 0.01, rel=1e-5)
    # returns that were open when the run stopped are there, with the steps they had, and say that they were cut
    games = np.unique(columns(before, config, n_step=n)["obs"][:, 0])
    cut = np.isin(rows["obs"][:, 0], games) & (rows["truncations"] > 0)
    assert sorted(spans[cut]) == sorted([*range(1, max(2, n))] * num_envs)
    assert rows["truncations"].sum() == cut.sum() and not rows["dones"].any()


def test_sequences_end_with_the_observation_at_which_an_environment_was_lost(tiny):
    config = tiny("dreamer", num_envs=2, total_timesteps=160, buffer_capacity=600)
    before, after, _ = resumed(config, Unrepeatable)
    buffer = RecurrentReplayBuffer(340, 2, (2,), 8, np.float32, (), np.int64)
    buffer.load_state_dict(after.buffer_state["replay"])
    for e in range(2):
        held = int(buffer.stored[e])
        game, time = buffer._columns["obs"][e, :held].T
        starts, last = buffer._columns["episode_starts"][e, :held], buffer._columns["last"][e, :held]
        assert (np.diff(game) != 0).tolist() == (starts[1:] > 0).tolist() == (last[:-1] > 0).tolist()
        assert starts.sum() == 2 and last.sum() == 1 and not buffer._columns["dones"][e].any()
        assert buffer._columns["rewards"][e, :held].tolist() == [float(t > 0) for t in time]
        lost_at = before.buffer_state["collector"]["obs"][e].numpy()
        assert np.array_equal(buffer._columns["obs"][e, :held][last > 0][0], lost_at)


@pytest.mark.parametrize(("algo", "num_envs"), [("dreamer", 2), ("pets", 1)])
def test_an_agent_carries_nothing_into_the_new_game(tiny, monkeypatch, algo, num_envs):
    seen, step = [], OffPolicyLoop.step

    def watched(loop):
        seen.append((loop.carry.value.copy(), loop.agent.initial_carry(num_envs)))
        step(loop)

    monkeypatch.setattr(OffPolicyLoop, "step", watched)
    box = gym.spaces.Box(-1, 1, (1,), np.float32)
    config = tiny(algo, num_envs=num_envs, total_timesteps=120)
    resumed(config, lambda: Unrepeatable(actions=box), at=70)
    times = [i for i, (carry, initial) in enumerate(seen) if np.array_equal(carry, initial)]
    moved = next(i for i, (carry, initial) in enumerate(seen) if not np.array_equal(carry, initial))
    assert [i for i in times if i > moved], "the carry was not renewed"
    assert len([i for i in times if i > moved]) == 1


@pytest.mark.parametrize("algo", ["ppo", "ppg", "gail"])
def test_the_running_return_that_scales_rewards_begins_anew(tiny, tmp_path, monkeypatch, algo):
    seen, collect = [], OnPolicyLoop.collect

    def watched(loop):
        scaler = loop.learned_scale if algo == "gail" else loop.reward_scaler
        seen.append((scaler.returns.tolist(), scaler.count, list(getattr(loop, "lengths", []))))
        collect(loop)

    monkeypatch.setattr(OnPolicyLoop, "collect", watched)
    options = {}
    if algo == "gail":
        obs = np.zeros((20, 2), np.float32)
        np.savez(
            tmp_path / "expert.npz", obs=obs, next_obs=obs, actions=np.zeros(20, int), rewards=np.ones(20),
            terminations=np.arange(20) == 19, truncations=np.zeros(20, bool),
        )  # fmt: skip
        options = {"absorbing": True, "expert_dataset_kind": "npz", "expert_dataset_path": str(tmp_path / "expert.npz")}
    config = tiny(algo, num_envs=2, total_timesteps=256, normalize_rewards=True, **options)
    resumed(config, Unrepeatable, at=64)
    assert [count for _, count, _ in seen] == [0, 64, 128, 192]
    assert [returns == [0.0, 0.0] for returns, _, _ in seen] == [True, True, False, False]
    if algo == "gail":
        assert [lengths for *_, lengths in seen] == [[0, 0], [0, 0], [32, 32], [64, 64]]


def test_only_the_environment_that_was_lost_is_cut(tiny):
    config = tiny("dqn", n_step=3, num_envs=2, total_timesteps=240)
    _, after, warned = resumed(config, SecondAgain, match="environment 0 cannot be rebuilt")
    assert not [text for text in warned if "environment 1" in text]
    rows = columns(after, config, n_step=3)
    assert (rows["obs"][:, 0] == rows["next_obs"][:, 0]).all()
    second = rows["obs"][:, 0] == 0
    assert (rows["next_obs"][second, 1] - rows["obs"][second, 1] == 3).all() and second.sum() == 118


def test_an_environment_that_raises_when_it_is_rebuilt_begins_anew(tiny):
    FailsAgain.resumed = False
    spec, config = get_algorithm_spec("dqn"), tiny("dqn", n_step=3)
    first = spec.train(config, env=FailsAgain, callbacks=[StopAt(60)])
    FailsAgain.resumed = True
    with pytest.warns(UserWarning, match=r"cannot be rebuilt .*\(RuntimeError: stepped after its end\)"):
        second = resume_training(first.run_dir, env=FailsAgain)
    assert second.metrics["global_step"] == 128
