"""Runs in which several agents share one policy: what is learned from, and that nothing else matters."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch

from parallel_toys import Meet, Visitors, schedule
from rl_training import DQN, PPG, PPO, Callback
from rl_training.base.options import ConfigError
from rl_training.data import ReplayBuffer
from rl_training.data.n_step import NStepWindow
from rl_training.envs import multi_agent
from rl_training.envs.factory import EnvFactory
from rl_training.envs.film import Film
from rl_training.envs.replay import episode_seed
from rl_training.envs.watchdog import Watchdog
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.evaluation import EVALUATION, evaluate
from rl_training.runtime.loops.shared import MaskedRollout, MaskedScaler
from rl_training.runtime.workflows import evaluate_checkpoint, predict_checkpoint, resume_training
from toys import StopAt, assert_same, rows_of, same_end

pytestmark = pytest.mark.filterwarnings("ignore:.*no time limit")
AGENTS = ("ann", "bob", "cyd")
NAME = "parallel_toys:Visitors"
COUPLED = {"env_kwargs": {"coupled": True}}
NORMALIZED = {"normalize_observations": True}
CASES = [
    ("ppo", {**NORMALIZED, "normalize_rewards": True, "target_kl": 0.05}),
    ("dqn", {**NORMALIZED, "n_step": 3, "prioritized": True}),
    ("qr_dqn", {"async_collection": True}),
]


def config_of(tiny, algo, **changes):
    return tiny(algo, env_id=NAME, num_envs=6, **{"total_timesteps": 600, **COUPLED, **changes})


# ---- oracles


def plain_advantages(rewards, values, ends, last_value, gamma, lam):
    """Of one agent's steps within a rollout, as a sum over later steps: (kind of end or None, final value) each."""
    n, deltas = len(rewards), []
    for t in range(n):
        kind, final = ends[t]
        after = {"terminated": 0.0, "truncated": final}.get(kind, values[t + 1] if t + 1 < n else last_value)
        deltas.append(rewards[t] + gamma * after - values[t])
    return [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, n)) for t in range(n)]


@pytest.mark.parametrize("junk", [0.0, 1e30, np.inf, np.nan])
def test_advantages_are_those_of_each_agents_own_steps_whatever_the_other_rows_hold(junk):
    rng, steps, rows, gamma, lam = np.random.default_rng(0), 40, 5, 0.9, 0.8
    rollout = MaskedRollout(steps, rows, (2,))
    lives, now = [], [None] * rows
    for t in range(steps):
        columns = {name: np.full(rows, junk, np.float32) for name in ("rewards", "values", "logprobs", "final_values")}
        flags = {"terminated": np.zeros(rows), "truncated": np.zeros(rows)}
        counted = np.zeros(rows, bool)
        for i in range(rows):
            if now[i] is None and rng.random() < 0.5:
                now[i] = {"row": i, "at": [], "rewards": [], "values": [], "ends": []}
                lives.append(now[i])
            if now[i] is None:
                continue
            counted[i] = True
            kind = rng.choice(["terminated", "truncated", ""], p=[0.1, 0.1, 0.8])
            drawn = rng.normal(size=3).astype(np.float32)
            columns["rewards"][i], columns["values"][i], columns["final_values"][i] = drawn
            for name, value in zip(("at", "rewards", "values", "ends"), (t, drawn[0], drawn[1], (kind, drawn[2]))):
                now[i][name].append(value)
            if kind:
                flags[kind][i], now[i] = 1, None
        rollout.add(obs=np.full((rows, 2), junk), actions=0, **columns, **flags)
        rollout.counted[t] = counted
    last = np.array([rng.normal() if life is not None else 0 for life in now], np.float32)
    rollout.compute_returns_and_advantages(last, gamma, lam)
    for life in lives:
        expected = plain_advantages(life["rewards"], life["values"], life["ends"], last[life["row"]], gamma, lam)
        assert rollout.advantages[life["at"], life["row"]] == pytest.approx(expected, abs=1e-4)
    batches = list(rollout.iter_minibatches(16))
    every = np.concatenate([batch["returns"].numpy() for batch in batches])
    assert len(every) == sum(len(life["at"]) for life in lives) < steps * rows
    assert sorted(every) == sorted(rollout.returns[rollout.counted]) and np.isfinite(every).all()


class Batches(Callback):
    """Keeps every batch, and the learner."""

    def __init__(self):
        self.batches = []

    def on_batch(self, trainer, batch):
        self.learner = trainer.algorithm
        self.batches.append({name: tensor.numpy().copy() for name, tensor in batch.items()})


def lives_of(seed, envs, steps):
    """Every life of an agent in the first steps, from the schedules alone: (episode, agent, its steps as (step of the
    run, step of the episode), how it ends)."""
    found = []
    for env in range(envs):
        begun, episode = 0, 0
        while begun < steps:
            number = episode_seed(seed, env, episode)
            visits = schedule(number)
            there = [any(a <= t < b for own in visits.values() for a, b, _ in own) for t in range(8)]
            length = there.index(False)
            for agent, own in visits.items():
                for start, stop, how in own:
                    if start < length:
                        found.append((number % 997 / 997, AGENTS.index(agent), begun, start, stop, how))
            begun, episode = begun + length, episode + 1
    return found


def test_ppo_learns_from_every_step_of_every_agent_and_from_no_other(tmp_path):
    """One rollout after the other is one batch; the policy stays as it is."""
    seen, steps, gamma, lam = Batches(), 12, 0.9, 0.7
    options = {"num_steps": steps, "update_epochs": 1, "minibatch_size": 1_000, "learning_rate": 1e-12}
    options |= {"normalize_observations": False, "normalize_rewards": False, "gamma": gamma, "gae_lambda": lam}
    agent = PPO(Visitors, num_envs=6, total_timesteps=6 * steps * 3, output_dir=tmp_path, progress="off", **options)
    agent.learn(callbacks=[seen])
    value = lambda obs: float(seen.learner.values(np.array([obs], np.float32))[0])  # noqa: E731
    lives, learned = lives_of(0, 2, 3 * steps), 0
    for number, batch in enumerate(seen.batches):
        rows = {tuple(obs[:3]): i for i, obs in enumerate(batch["obs"].round(5))}
        first, stop = number * steps, (number + 1) * steps
        for episode, k, begun, start, end, how in lives:
            own = [t for t in range(start, end) if first <= begun + t < stop]
            if not own:
                continue
            key = lambda t: tuple(np.array([episode, k, t], np.float32).round(5))  # noqa: B023, E731
            at = [rows.pop(key(t)) for t in own]
            actions = batch["actions"][at]
            rewards = [k + 0.1 * (t + 1) + action for t, action in zip(own, actions)]
            values = [value([episode, k, t, 0]) for t in [*own, own[-1] + 1]]
            ends = [(how if t + 1 == end else "", values[-1]) for t in own]
            expected = plain_advantages(rewards, values[:-1], ends, values[-1], gamma, lam)
            assert batch["advantages"][at] == pytest.approx(expected, abs=1e-4)
            learned += len(own)
        assert not rows  # no other row was learned from
    assert learned == sum(len(batch["obs"]) for batch in seen.batches) > 100


@pytest.mark.parametrize("n", [1, 3])
def test_dqn_stores_every_step_of_every_agent_and_how_its_time_ends(tmp_path, n):
    steps = 40
    options = {"n_step": n, "buffer_capacity": 500, "learning_starts": 200, "hidden_sizes": [8]}
    agent = DQN(Visitors, num_envs=6, total_timesteps=6 * steps, output_dir=tmp_path, progress="off", **options)
    state = load_checkpoint(agent.learn().checkpoint_path)
    buffer = ReplayBuffer(246, (4,), (), action_dtype=np.int64, n_step=n)
    buffer.load_state_dict(state.buffer_state["replay"])
    rows, expected = buffer.columns(), {}
    for episode, k, begun, start, end, how in lives_of(0, 2, steps):
        for t in range(start, end):
            last = min(t + n, end)  # the step after the transition's
            if begun + last <= steps:
                expected[tuple(np.float32([episode, k, t]))] = (last, how if last == end else "")
    found = {
        tuple(obs[:3]): (after[2], "terminated" if done else "truncated" if cut else "")
        for obs, after, done, cut in zip(*(rows[name] for name in ("obs", "next_obs", "dones", "truncations")))
    }
    assert found == expected and len(found) == len(rows["obs"]) > 60
    assert {how for _, how in found.values()} == {"terminated", "truncated", ""}


def test_rows_of_some_environments_are_summed_over_their_own_steps():
    """N-step returns where every step has other rows: those of a window for each environment alone."""
    rng, together = np.random.default_rng(1), NStepWindow(3, 0.9)
    alone, found, expected = [NStepWindow(3, 0.9) for _ in range(4)], [], []
    for t in range(60):
        streams = np.flatnonzero(rng.random(4) < 0.6)
        if not len(streams):
            continue
        rows = {
            "obs": np.stack([streams, np.full(len(streams), t)], 1), "actions": streams,
            "rewards": rng.normal(size=len(streams)), "next_obs": np.stack([streams, np.full(len(streams), t + 1)], 1),
            "dones": rng.random(len(streams)) < 0.2, "truncations": rng.random(len(streams)) < 0.1,
        }  # fmt: skip
        found.append(together.push({**rows, "streams": streams.tolist()}))
        for i, stream in enumerate(streams):
            expected.append(alone[stream].push({name: column[i : i + 1] for name, column in rows.items()}))
    flat = [
        [
            tuple(np.concatenate([np.ravel(one[name][i]) for name in one]))
            for one in rows
            if one is not None
            for i in range(len(one["rewards"]))
        ]
        for rows in (found, expected)
    ]
    assert flat[0] == flat[1] and len(flat[0]) > 80


def test_a_buffer_takes_rows_of_some_environments_with_images_and_windows():
    plain = ReplayBuffer(50, (1, 6, 6), obs_dtype=np.uint8, n_step=2)
    masked = ReplayBuffer(50, (1, 6, 6), obs_dtype=np.uint8, n_step=2)
    for t in range(30):
        image = lambda k: np.full((2, 1, 6, 6), k, np.uint8) + np.arange(2, dtype=np.uint8)[:, None, None, None] * 100  # noqa: E731
        ends = np.array([t % 5 == 4, t % 3 == 2])
        rows = {"obs": image(t), "actions": np.zeros(2), "rewards": np.ones(2), "next_obs": image(t + 1), "dones": ends}
        plain.add(**rows)
        masked.add_some([3, 1], **{**rows, "truncations": np.zeros(2)})
    for name, column in plain.columns().items():
        assert np.array_equal(column, masked.columns()[name]), name


def test_rewards_are_scaled_by_the_rows_that_count():
    class Acted:
        acted = np.array([True, False, True])

    rng, ours, gamma = np.random.default_rng(0), MaskedScaler(Acted(), 3, 0.9), 0.9
    returns, seen = {0: 0.0, 2: 0.0}, []
    for _ in range(50):
        rewards, ended = rng.normal(size=3), rng.random(3) < 0.2
        rewards[1] = np.nan
        for i in returns:
            returns[i] = gamma * returns[i] + rewards[i]
        seen += returns.values()
        scaled = ours(rewards, ended)
        expected = np.clip(rewards / np.sqrt(np.var(seen) + 1e-8), -10, 10)
        assert scaled[[0, 2]] == pytest.approx(expected[[0, 2]], rel=1e-5)
        returns = {i: 0.0 if ended[i] else total for i, total in returns.items()}


# ---- whole runs


@pytest.mark.parametrize(
    ("algo", "changes", "image"), [(*case, False) for case in CASES] + [(*case, True) for case in CASES[:2]]
)
def test_what_the_rows_of_absent_agents_hold_changes_nothing(tiny, monkeypatch, algo, changes, image):
    if image:
        changes = {name: value for name, value in changes.items() if "normalize" not in name}
        changes["env_kwargs"] = {"coupled": True, "image": True}
    ends = []
    for fill in (0.0, 1e30 if not image else 255):
        monkeypatch.setattr(multi_agent, "FILL", fill)
        result = get_algorithm_spec(algo).train(config_of(tiny, algo, eval_interval=0, **changes))
        ends.append(load_checkpoint(result.checkpoint_path))
    assert_same(ends[0].algorithm_state, ends[1].algorithm_state)
    assert_same(ends[0].trainer_state, ends[1].trainer_state)
    first, second = (state.buffer_state for state in ends)
    for name in first:
        if name != "collector":
            assert_same(first[name], second[name], name)
    assert not torch.equal(first["collector"]["obs"], second["collector"]["obs"])  # some agent is not there


@pytest.mark.parametrize(("algo", "changes"), CASES)
def test_stopped_twice_equals_never_stopped(tiny, algo, changes):
    config, spec = config_of(tiny, algo, eval_interval=100, **changes), get_algorithm_spec(algo)
    straight = spec.train(config, run_suffix="straight")
    first = spec.train(config, run_suffix="stopped", callbacks=[StopAt(151)])
    assert 0 < first.metrics["global_step"] < 600
    second = resume_training(first.run_dir, callbacks=[StopAt(377)])
    assert first.metrics["global_step"] < second.metrics["global_step"] < 600
    last = resume_training(second.checkpoint_path)
    same_end(load_checkpoint(straight.checkpoint_path), load_checkpoint(last.checkpoint_path))
    assert rows_of(last.run_dir) == rows_of(straight.run_dir)


class PauseAt(Callback):
    """Stops within a rollout, at the end of an episode."""

    def on_episode_end(self, trainer, episode):
        if trainer.global_step > 200:
            trainer.request_stop("a test")


def test_a_rollout_is_resumed_in_its_middle(tiny):
    config, spec = config_of(tiny, "ppo", num_steps=64, normalize_rewards=True), get_algorithm_spec("ppo")
    straight = spec.train(config, run_suffix="straight")
    first = spec.train(config, run_suffix="stopped", callbacks=[PauseAt()])
    state = load_checkpoint(first.checkpoint_path)
    assert state.buffer_state["rollout"]["rows"]["counted"].dtype == torch.bool
    last = resume_training(first.run_dir)
    same_end(load_checkpoint(straight.checkpoint_path), load_checkpoint(last.checkpoint_path))


def test_returns_of_training_and_evaluation_are_logged_for_each_agent(tiny):
    config = config_of(tiny, "ppo", eval_episodes=3, eval_interval=300, log_info=["visited"])
    result = get_algorithm_spec("ppo").train(config)
    rows = rows_of(result.run_dir)
    for agent in AGENTS:
        assert any(f"agent_return/{agent}" in row for row in rows)
        assert any(f"eval_agent_return/{agent}" in row for row in rows)
    [*_, last] = [row for row in rows if "agent_steps" in row]
    assert 0 < last["agent_steps"] < last["step"]
    totals = []
    agent = PPO.load(result.checkpoint_path)
    for episode in range(3):
        env, returns, infos = Visitors(coupled=True), {}, {}
        obs, _ = env.reset(seed=episode_seed(3, EVALUATION, episode))
        while env.agents:
            actions = {one: agent.predict(obs[one]) for one in env.agents}
            obs, rewards, _, _, now = env.step(actions)
            for one in actions:
                returns[one], infos[one] = returns.get(one, 0.0) + rewards[one], now[one]
        totals.append((returns, infos))
    metrics = evaluate_checkpoint(result.checkpoint_path)
    assert metrics["eval_return_mean"] == pytest.approx(np.mean([np.mean([*r.values()]) for r, _ in totals]))
    for one in AGENTS:
        own = [r[one] for r, _ in totals if one in r]
        assert metrics[f"eval_agent_return/{one}"] == pytest.approx(np.mean(own))
    visited = [np.mean([info["visited"] for info in i.values()]) for _, i in totals]
    assert metrics["eval_info/visited"] == pytest.approx(np.mean(visited))
    assert result.metrics["eval_return_mean"] == metrics["eval_return_mean"]


def test_one_observation_is_predicted_for_without_the_environment(tiny):
    result = get_algorithm_spec("dqn").train(config_of(tiny, "dqn"))
    assert predict_checkpoint(result.checkpoint_path, [0.0, 1.0, 2.0, 0.0]) in (0, 1, 2)


def test_an_evaluation_is_filmed(tiny, tmp_path):
    result = get_algorithm_spec("ppo").train(config_of(tiny, "ppo", record_video=1, eval_interval=0))
    assert list((result.run_dir / "videos").iterdir())
    from rl_training.artifacts.video import record_checkpoint

    film = Film(tmp_path / "shown.gif")
    record_checkpoint(result.checkpoint_path, film, episodes=1)
    assert film.path.exists() and film.frames >= 2


def test_a_time_limit_truncates_all_agents_in_evaluation_too(tiny):
    config = config_of(tiny, "ppo", env_kwargs={"max_episode_steps": 2}, eval_episodes=4)
    assert get_algorithm_spec("ppo").train(config).metrics["eval_length_mean"] <= 2


@pytest.mark.parametrize("kind", [PPO, DQN])
def test_agents_learn_to_meet(tmp_path, kind):
    """0 or 1 for a step: at random a ninth of 8."""
    options = {"total_timesteps": 4_000, "learning_rate": 3e-3, "hidden_sizes": [32], "eval_interval": 0}
    options |= {"train_frequency": 4} if kind is DQN else {"num_steps": 64}
    agent = kind(Meet, num_envs=8, output_dir=tmp_path, progress="off", **options)
    metrics = agent.learn().metrics
    assert metrics["eval_return_mean"] == metrics["eval_agent_return/left"] == 8


def test_rows_of_agents_that_are_always_there_are_those_of_single_environments(tmp_path):
    """Numbers are those of the loops for one agent, where every row counts: PPO on two rows of their own."""
    import gymnasium as gym

    class Half(gym.Env):
        """An agent's side of an environment in which agents have nothing to do with each other."""

        observation_space, action_space = gym.spaces.Box(-9, 9, (2,), np.float32), gym.spaces.Discrete(2)

        def __init__(self, side=0):
            self.side = side

        def reset(self, seed=None, options=None):
            self.t = 0
            return np.array([self.side, self.t], np.float32), {}

        def step(self, action):
            self.t += 1
            return np.array([self.side, self.t], np.float32), float(action) + self.t, False, self.t == 5, {}

    class Both:
        possible_agents, agents = ["a", "b"], []

        def observation_space(self, agent):
            return Half.observation_space

        def action_space(self, agent):
            return Half.action_space

        def reset(self, seed=None, options=None):
            self.halves, self.agents = {"a": Half(0), "b": Half(1)}, ["a", "b"]
            results = {agent: half.reset() for agent, half in self.halves.items()}
            return {a: r[0] for a, r in results.items()}, {a: r[1] for a, r in results.items()}

        def step(self, actions):
            results = {agent: self.halves[agent].step(action) for agent, action in actions.items()}
            self.agents = [agent for agent in self.agents if not results[agent][3]]
            return tuple({a: r[k] for a, r in results.items()} for k in range(5))

        def close(self):
            pass

    made = iter([0, 0, 1, *[0] * 100])  # of the single environments: one to look at, then the rows

    def single():
        return Half(next(made))

    ends = []
    for source in (Both, single):
        options = {"num_envs": 2, "total_timesteps": 400, "num_steps": 32, "eval_interval": 0, "eval_episodes": 1}
        agent = PPO(source, output_dir=tmp_path, progress="off", **options)
        ends.append(load_checkpoint(agent.learn().checkpoint_path))
    assert_same(ends[0].algorithm_state, ends[1].algorithm_state)


def test_what_does_not_share_a_policy_is_refused_in_one_line(tiny):
    with pytest.raises(ValueError, match="ppg takes environments with one agent, and Visitors has 3; ppo, dqn, qr_dqn"):
        PPG(Visitors, num_envs=3, total_timesteps=100, progress="off").learn()
    with pytest.raises(ConfigError, match="hindsight: is for environments with one agent"):
        get_algorithm_spec("dqn").train(config_of(tiny, "dqn", hindsight="future"))
    for algo in ("ppo", "dqn"):
        with pytest.raises(ConfigError, match="recurrent: is for environments with one agent"):
            get_algorithm_spec(algo).train(config_of(tiny, algo, recurrent="lstm"))
    from rl_training.runtime.experience import collect

    with pytest.raises(ValueError, match="collect takes environments with one agent"):
        collect(config_of(tiny, "ppo"), None, steps=5)


def test_an_evaluation_tells_the_watchdog_of_its_calls():
    told, dog = [], Watchdog(5.0)
    dog.call = lambda history, doing, call, *args: (told.append((doing, history["training"])), call(*args))[1]
    factory = EnvFactory(lambda: Meet(steps=3), {}, watchdog=dog)
    spec = get_algorithm_spec("ppo")
    config = TrainConfig(algo="ppo", env_id="meet", num_envs=2)
    agent = spec.build(spec.options(config), spec.blueprint(config, factory, None, "cpu"))
    evaluate(agent, factory, episodes=2, seed=0)
    assert told == 2 * [("reset", False), *[("step", False)] * 3]


@pytest.mark.parametrize("steps", [3, 4, 5])
def test_a_game_that_goes_on_for_ever_is_cut_counted_and_warned_of(monkeypatch, steps):
    """After four steps, where games have ``steps``."""
    monkeypatch.setattr("rl_training.runtime.evaluation.LONGEST", 4)
    spec, factory = get_algorithm_spec("ppo"), EnvFactory(lambda: Meet(steps=steps), {})
    config = TrainConfig(algo="ppo", env_id="meet", num_envs=2)
    agent = spec.build(spec.options(config), spec.blueprint(config, factory, None, "cpu"))
    expected = (
        contextlib.nullcontext() if steps <= 4 else pytest.warns(UserWarning, match="2 of 2 .* cut after 4 steps")
    )
    with expected:
        metrics = evaluate(agent, factory, episodes=2, seed=0)
    assert metrics["eval_length_mean"] == min(steps, 4) and metrics["eval_episodes_cut"] == (2 if steps > 4 else 0)
