"""Self-play: opponents act by copies from a pool, and the learner learns from its own agents alone."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from parallel_toys import Duel, Visitors
from rl_training import PPO, Callback
from rl_training.callbacks import SelfPlay
from rl_training.experiment.checkpointing import CheckpointError, load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.workflows import resume_training
from toys import StopAt, rows_of, same_end

pytestmark = pytest.mark.filterwarnings("ignore:.*no time limit")
DUEL = {"env_id": "parallel_toys:Duel", "num_envs": 4, "total_timesteps": 512}


class Watching(Callback):
    """Keeps the rows that are learned from, and what opponents did and might have done."""

    def __init__(self, play):
        self.play, self.rows, self.seen, self.acted, self.drawn = play, 0, set(), [], []
        act, draw = play.act, play._draw

        def watched(envs, obs):
            actions = act(envs, obs)
            self.acted.append((envs.copy(), obs.copy(), actions.copy(), list(play.playing), dict(play.copies)))
            return actions

        def drawn(env):
            draw(env)
            self.drawn.append((play.playing[env], list(play.pool), play.sides[env]))

        play.act, play._draw = watched, drawn

    def on_batch(self, trainer, batch):
        self.rows += len(batch["actions"])
        self.seen |= set(batch["obs"][:, 1].tolist())


def train(tiny, play, algo="ppo", **changes):
    watching = Watching(play)
    config = tiny(algo, **{**DUEL, **({"update_epochs": 1} if algo == "ppo" else {}), **changes})
    return get_algorithm_spec(algo).train(config, callbacks=[play, watching]), watching


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_opponents_act_by_the_copies_that_were_drawn(tiny, algo):
    play = SelfPlay(["right"], every_steps=64, pool_size=3, latest=0.3, deterministic=True)
    _, watching = train(tiny, play, algo, learning_rate=0.05)
    assert len(watching.acted) == 512 // 4
    distinct = set()
    for envs, obs, actions, playing, copies in watching.acted:
        assert envs.tolist() == [0, 1] and len(obs) == 2
        for env, row, action in zip(envs, obs, actions):
            copy_of = copies[playing[env]]
            assert action == copy_of.act(row[None], deterministic=True).actions[0]
            distinct.add(playing[env])
    assert len(distinct) > 3
    weights = [getattr(twin, "model" if algo == "ppo" else "q_network").state_dict() for twin in play.copies.values()]
    assert any(not torch.equal(weights[0][name], weights[-1][name]) for name in weights[0])


def test_the_learner_learns_from_its_own_rows_alone(tiny):
    _, watching = train(tiny, SelfPlay(["right"]))
    assert watching.rows == 512 // 2
    visitors = {"env_id": "parallel_toys:Visitors", "num_envs": 6, "total_timesteps": 600}
    result, watching = train(tiny, SelfPlay(["bob"]), **visitors, normalize_observations=False)
    rows = rows_of(result.run_dir)
    assert watching.seen == {0, 2}  # ann and cyd
    assert watching.rows == max(row.get("agent_steps", 0) for row in rows) < 400
    assert not any("agent_return/bob" in row for row in rows)


def test_copies_enter_the_pool_every_so_many_steps_and_the_newest_stay(tiny):
    play = SelfPlay(["right"], every_steps=100, pool_size=2)
    _, watching = train(tiny, play, total_timesteps=1_000)
    assert play.made == 1 + 10
    pools = [pool for _, pool, _ in watching.drawn]
    assert all(pool == list(range(max(0, pool[-1] - 1), pool[-1] + 1)) for pool in pools)
    assert [b[-1] - a[-1] for a, b in pairwise(pools)].count(1) == play.made - 1
    assert set(play.copies) >= set(play.pool) and len(play.copies) <= 2 + 2


@pytest.mark.parametrize("latest", [0.0, 0.6, 1.0])
def test_the_newest_copy_is_drawn_as_often_as_it_should_be(latest):
    play = SelfPlay(["right"], pool_size=4, latest=latest)
    play._agents, play.made, play.playing, play.sides = ("left", "right"), 9, [8], [()]
    counts = np.zeros(9)
    for _ in range(4_000):
        play._draw(0)
        counts[play.playing[0]] += 1
    expected = (1 - latest) / 4 + np.array([0, 0, 0, latest])
    assert counts[:5].sum() == 0 and counts[5:] / 4_000 == pytest.approx(expected, abs=0.03)


def test_without_names_the_learner_plays_one_agent_that_is_drawn(tiny):
    _, watching = train(tiny, SelfPlay(), total_timesteps=1_024)
    sides = [side for _, _, side in watching.drawn]
    assert set(sides) == {("left",), ("right",)} and 0.3 < np.mean([s == ("left",) for s in sides]) < 0.7
    assert watching.rows == 1_024 // 2
    _, watching = train(tiny, SelfPlay(), env_id="parallel_toys:Visitors", num_envs=6, total_timesteps=600)
    assert {len(side) for _, _, side in watching.drawn} == {2}


def test_wins_are_counted_over_the_last_hundred_episodes():
    play, logged = SelfPlay(["right"]), {}
    play._agents, play.made, play.playing, play.sides = ("left", "right"), 1, [0], [("right",)]
    play._trainer = type("Trainer", (), {"log": lambda self, name, value: logged.__setitem__(name, value)})()
    outcomes = [(2.0, 1.0), (0.0, 3.0), (1.0, 1.0), (5.0, -5.0)] * 30
    for ours, theirs in outcomes:
        play.episode_ended(0, {"left": ours, "right": theirs})
    expected = [1.0, 0.0, 0.5, 1.0] * 25
    assert logged["self_play_win_rate"] == np.mean(expected) and logged["self_play_copies"] == 1
    play.episode_ended(0, {"left": 1.0})  # nobody to play against
    assert list(play.results) == expected


def test_the_returns_that_decide_are_those_of_whole_games(tiny):
    """Of agents that come and go, over all of their lives."""
    told = []
    play = SelfPlay(["bob", "cyd"])
    original = play.episode_ended
    play.episode_ended = lambda env, returns: (told.append((env, dict(returns))), original(env, returns))
    record = Record()
    config = tiny("ppo", env_id="ignored", num_envs=3, total_timesteps=300)
    get_algorithm_spec("ppo").train(config, env=record.make, callbacks=[play])
    games = [game for game in record.games if game]
    assert len(told) > 10
    for (_, returns), expected in zip(told, games):
        assert returns == pytest.approx(expected)


class Record:
    """The returns of every game in the environments that were made: the second one is that of training."""

    def __init__(self):
        self.games = []

    def make(self):
        record = self

        class Recorded(Visitors):
            def reset(self, **given):
                if hasattr(self, "sums"):
                    record.games.append(self.sums)
                self.sums = {}
                return super().reset(**given)

            def step(self, actions):
                results = super().step(actions)
                for agent in actions:
                    self.sums[agent] = self.sums.get(agent, 0.0) + results[1][agent]
                return results

        return Recorded()


@pytest.mark.parametrize(
    ("algo", "env", "play"),
    [
        ("ppo", DUEL, {"every_steps": 60, "pool_size": 3}),
        ("dqn", DUEL, {"every_steps": 60, "pool_size": 2, "latest": 0.2}),
        ("ppo", {**DUEL, "env_id": "parallel_toys:Visitors", "num_envs": 6}, {"every_steps": 90}),
    ],
)
def test_stopped_twice_equals_never_stopped(tiny, algo, env, play):
    opponents = None if "Visitors" in env["env_id"] else ["left"]
    config, spec = tiny(algo, **env, normalize_observations=True), get_algorithm_spec(algo)
    with_play = lambda *more: [SelfPlay(opponents, **play), *more]  # noqa: E731
    straight = spec.train(config, run_suffix="straight", callbacks=with_play())
    first = spec.train(config, run_suffix="stopped", callbacks=with_play(StopAt(130)))
    second = resume_training(first.run_dir, callbacks=with_play(StopAt(300)))
    assert 0 < first.metrics["global_step"] < second.metrics["global_step"] < 512
    last = resume_training(second.run_dir, callbacks=with_play())
    same_end(load_checkpoint(straight.checkpoint_path), load_checkpoint(last.checkpoint_path))
    assert rows_of(last.run_dir) == rows_of(straight.run_dir)
    assert any("self_play_win_rate" in row for row in rows_of(last.run_dir))


def test_a_damaged_pool_is_one_line(tiny):
    play = SelfPlay(["left"], every_steps=60)
    result, _ = train(tiny, play)
    state = load_checkpoint(result.checkpoint_path)
    saved = state.trainer_state["callbacks"]["0:SelfPlay"]
    for name, value in (("playing", [99, 0]), ("sides", [[1]]), ("copies", saved["copies"][:1]), ("results", ["x"])):
        state.trainer_state["callbacks"]["0:SelfPlay"] = {**saved, name: value}
        config = tiny("ppo", **{**DUEL, "total_timesteps": 1_024})
        with pytest.raises(CheckpointError, match=r"self-play|SelfPlay"):
            get_algorithm_spec("ppo").train(config, checkpoint_state=state, callbacks=[SelfPlay(["left"])])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SelfPlay("right"), r"opponents are a list of names, such as \['right'\]"),
        (lambda: SelfPlay(every_steps=0), "every_steps must be at least 1, got 0"),
        (lambda: SelfPlay(pool_size=0), "pool_size must be at least 1, got 0"),
        (lambda: SelfPlay(latest=1.5), "latest is a probability, got 1.5"),
    ],
)
def test_mistakes_are_refused_at_once(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("env_id", "opponents", "message"),
    [
        ("CartPole-v1", None, "needs a parallel environment with two agents or more, and CartPole-v1 is none"),
        ("parallel_toys:Duel", ["up"], "parallel_toys:Duel has no agent 'up'; it has left, right"),
        ("parallel_toys:Duel", ["left", "right"], "not none or all of left, right, are opponents"),
        ("parallel_toys:Duel", [], "not none or all of left, right, are opponents"),
    ],
)
def test_agents_that_cannot_be_opponents_are_refused(tiny, env_id, opponents, message):
    with pytest.raises(ValueError, match=message):
        get_algorithm_spec("ppo").train(tiny("ppo", env_id=env_id, num_envs=2), callbacks=[SelfPlay(opponents)])


def test_only_agents_of_parallel_environments_have_opponents(tiny):
    class Opposed(Callback):
        def on_train_start(self, trainer):
            trainer.set_opponents(SelfPlay())

    with pytest.raises(ValueError, match="CartPole-v1 has no other agents that opponents could act for"):
        get_algorithm_spec("ppo").train(tiny("ppo"), callbacks=[Opposed()])


def test_the_learner_learns_to_win(tmp_path):
    """The larger action wins: against early copies the learner wins, and in the end all take the largest."""
    agent = PPO(Duel, num_envs=8, total_timesteps=6_000, num_steps=64, learning_rate=3e-3, hidden_sizes=[32],
                output_dir=tmp_path, progress="off", eval_interval=0)  # fmt: skip
    result = agent.learn(callbacks=[SelfPlay(["right"], every_steps=1_500, latest=0.2)])
    rates = [row["self_play_win_rate"] for row in rows_of(result.run_dir) if "self_play_win_rate" in row]
    assert max(rates) > 0.75
    assert {agent.predict(np.eye(3, dtype=np.float32)[cue]) for cue in range(3)} == {2}
