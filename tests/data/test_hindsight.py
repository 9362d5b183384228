"""Hindsight replay against plain lists: which goals are drawn, how often, and what a row with another goal holds."""

import copy
import itertools

import numpy as np
import pytest
import torch

from rl_training.base.saved import StateError
from rl_training.base.state import Rng
from rl_training.data import ReplayBuffer
from rl_training.data.hindsight import HindsightReplayBuffer
from rl_training.envs.goals import Goals
from toys import assert_same

STRATEGIES = ("future", "final", "episode")
CRITICAL = {
    1: 10.8,
    2: 13.8,
    3: 16.3,
    4: 18.5,
    5: 20.5,
}  # chi-square, exceeded once in a thousand, by degrees of freedom


class Distance:
    """Pays minus the distance to the goal, summed over its numbers, and terminates at it."""

    goals = Goals(slice(1, 4), slice(4, 7), (3,), np.dtype(np.float32))

    def __init__(self, says_ends=True):
        self.says_ends, self.closed = says_ends, False

    def __call__(self, achieved, desired):
        rewards = -np.abs(achieved - desired).sum(1)
        return rewards, (rewards == 0) if self.says_ends else None

    def close(self):
        self.closed = True


class Journeys:
    """Environments whose every state is known: state t of episode e of environment i achieves (i, e, t). A row of
    observations is (t, achieved, desired), and the desired goal is (-1, i, e)."""

    def __init__(self, envs, lengths=(1, 9), seed=0):
        self.envs, self.lengths, self.rng = envs, lengths, np.random.default_rng(seed)
        self.episode, self.t, self.left = [-1] * envs, [0] * envs, [0] * envs
        self.rows = []  # (i, e, t) in the order of writing: the row from state t to t + 1
        self.length = {}  # states reached so far, by (i, e)
        for i in range(envs):
            self.begin(i)

    def begin(self, i):
        self.episode[i], self.t[i] = self.episode[i] + 1, 0
        self.left[i] = int(self.rng.integers(*self.lengths, endpoint=True))

    def shown(self, step=0):
        rows = [
            (self.t[i] + step, i, self.episode[i], self.t[i] + step, -1, i, self.episode[i]) for i in range(self.envs)
        ]
        return np.array(rows, np.float32)

    def play(self, steps, *buffers):
        for _ in range(steps):
            self.left = [left - 1 for left in self.left]
            over = np.array(self.left) == 0
            dones = over & (self.rng.random(self.envs) < 0.5)
            for buffer in buffers:
                buffer.add(
                    obs=self.shown(), actions=np.arange(self.envs) + len(self.rows), rewards=np.full(self.envs, 7.0),
                    next_obs=self.shown(1), dones=dones, truncations=over & ~dones,
                )  # fmt: skip
            for i in range(self.envs):
                self.rows.append((i, self.episode[i], self.t[i]))
                self.t[i] += 1
                self.length[i, self.episode[i]] = self.t[i]
                if over[i]:
                    self.begin(i)

    def cut(self, which, *buffers):
        ended = np.zeros(self.envs)
        ended[which] = 1.0
        for buffer in buffers:
            buffer.cut(ended, self.shown())
        for i in which:
            self.begin(i)

    def allowed(self, strategy, row, stored):
        """The goals that a row may be given, when only the rows ``stored`` are there."""
        i, e, t = row
        length = self.length[i, e]
        states = {"future": range(t + 1, length + 1), "final": [length], "episode": range(1, length + 1)}[strategy]
        return {(i, e, state) for state in states if (i, e, state - 1) in stored}


def buffer_of(strategy="future", capacity=1000, ratio=1.0, seed=0, **options):
    return HindsightReplayBuffer(
        capacity, (7,), (), action_dtype=np.int64, judge=Distance(), strategy=strategy, ratio=ratio,
        rng=Rng(seed, "replay"), goal_rng=Rng(seed, "hindsight"), **options,
    )  # fmt: skip


def drawn(buffer, n):
    """(row, goal, batch) of a sample: rows and goals as tuples of whole numbers."""
    batch = buffer.sample(n)
    obs = batch["obs"].numpy().astype(int)
    rows = [(int(i), int(e), int(t)) for _, i, e, t, *_ in obs]
    return rows, [tuple(map(int, goal)) for goal in obs[:, 4:7]], batch


def assert_right(buffer, games, n=256):
    """Every row of a sample is one that is stored, with a goal that it may have, and whole."""
    stored = games.rows[-len(buffer) :]
    number, there = {row: k for k, row in enumerate(games.rows)}, set(stored)
    rows, goals, batch = drawn(buffer, n)
    relabelled = 0
    for k, ((i, e, t), goal) in enumerate(zip(rows, goals)):
        assert (i, e, t) in there
        obs, after = batch["obs"][k].tolist(), batch["next_obs"][k].tolist()
        assert obs[:4] == [t, i, e, t] and after[:4] == [t + 1, i, e, t + 1]
        assert obs[4:] == after[4:] == list(goal)
        assert batch["actions"][k] == number[i, e, t]
        if goal == (-1, i, e):
            assert batch["rewards"][k] == 7.0
        else:
            relabelled += 1
            assert goal in games.allowed(buffer.strategy, (i, e, t), there)
            assert batch["rewards"][k] == -abs(goal[2] - t - 1)
            assert batch["dones"][k] == (goal[2] == t + 1)
    return relabelled


CASES = list(itertools.product(STRATEGIES, (1, 3, 8)))


@pytest.mark.parametrize(("strategy", "envs"), CASES)
def test_goals_come_from_the_rows_own_episode_and_rows_are_whole(strategy, envs):
    """With one, three and eight environments, episodes of one to nine steps, and a ring that goes around four times, whose
    length is no multiple of any of these."""
    games, buffer = Journeys(envs, seed=envs), buffer_of(strategy, capacity=101)
    for part in range(20):
        games.play(20 // envs + 1, buffer)
        if part % 3 == 2:
            games.cut([part % envs], buffer)
        assert assert_right(buffer, games) == 256
    assert buffer.written > 4 * 101 and len(buffer) == 101


@pytest.mark.parametrize(("strategy", "envs"), CASES)
@pytest.mark.parametrize("capacity", [101, 250])
def test_a_saved_buffer_goes_on_bit_for_bit_and_in_a_larger_one(strategy, envs, capacity):
    games, first = Journeys(envs, seed=envs), buffer_of(strategy, capacity=101)
    games.play(150 // envs, first)
    games.cut([0], first)
    second = buffer_of(strategy, capacity=capacity, seed=9)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for _ in range(6):
        games.play(40 // envs, first, second)
        games.cut([envs - 1], first, second)
        if capacity == 101:
            assert_same(dict(first.sample(64)), dict(second.sample(64)))
            assert_same(first.state_dict(), second.state_dict())
        assert_right(first, games)
        assert_right(second, games)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_saved_buffer_that_has_not_gone_around_keeps_its_first_row(strategy):
    games, first, second = Journeys(1, lengths=(5, 5)), buffer_of(strategy), buffer_of(strategy, seed=9)
    games.play(12, first)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert_right(second, games)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert_same(dict(first.sample(256)), dict(second.sample(256)))


def chi_square(counts, expected):
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_goal_is_drawn_as_often_as_its_strategy_says(strategy):
    """Of row t of an episode of six: each of 6 - t later states (future), the sixth (final), each of six (episode)."""
    games, buffer = Journeys(1, lengths=(6, 6)), buffer_of(strategy)
    games.play(6, buffer)
    rows, goals, _ = drawn(buffer, 60_000)
    table = np.zeros((6, 7))
    np.add.at(table, ([t for _, _, t in rows], [state for _, _, state in goals]), 1)
    assert chi_square(table.sum(1), 10_000) < CRITICAL[5]
    for t in range(6):
        states = {"future": range(t + 1, 7), "final": [6], "episode": range(1, 7)}[strategy]
        counts = table[t, list(states)]
        assert counts.sum() == table[t].sum()  # and none of any other
        if len(counts) > 1:
            assert chi_square(counts, counts.sum() / len(counts)) < CRITICAL[len(counts) - 1]


def test_an_unfinished_episode_gives_the_goals_that_it_has_reached_so_far():
    games = Journeys(2, lengths=(50, 50))
    buffers = {strategy: buffer_of(strategy) for strategy in STRATEGIES}
    games.play(3, *buffers.values())
    found = {}
    for strategy, buffer in buffers.items():
        rows, goals, _ = drawn(buffer, 500)
        found[strategy] = {(t, goal[2]) for (_, _, t), goal in zip(rows, goals)}
    assert found["future"] == {(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)}
    assert found["final"] == {(0, 3), (1, 3), (2, 3)}
    assert found["episode"] == {(t, state) for t in range(3) for state in (1, 2, 3)}


def test_goals_whose_rows_have_left_the_ring_are_not_drawn():
    """An episode of 30 rows in a ring of 10: rows 20 to 29, which reached states 21 to 30."""
    games, buffer = Journeys(1, lengths=(50, 50)), buffer_of("episode", capacity=10)
    games.play(30, buffer)
    rows, goals, _ = drawn(buffer, 2_000)
    assert {t for _, _, t in rows} == set(range(20, 30))
    assert {state for _, _, state in goals} == set(range(21, 31))


@pytest.mark.parametrize("ratio", [0.0, 0.37, 0.8, 1.0])
def test_the_share_of_relabelled_rows_is_the_ratio_in_every_part_of_a_batch(ratio):
    """Of any 50 rows in a row, at most one more or one less; on the whole, the ratio."""
    games, buffer = Journeys(2), buffer_of(ratio=ratio)
    games.play(100, buffer)
    shares = []
    for _ in range(400):
        _, goals, _ = drawn(buffer, 103)
        given = np.array([goal[0] >= 0 for goal in goals])
        shares.append(given.mean())
        sums = np.concatenate([[0], given.cumsum()])
        parts = sums[50:] - sums[:-50]
        assert (abs(parts - 50 * ratio) < 1).all()
    assert abs(np.mean(shares) - ratio) < 4 * np.sqrt(1 / 12 / 400) / 103  # the total is off by less than one, evenly


def test_rows_are_drawn_as_without_hindsight_and_what_is_stored_stays_as_it_was():
    games, buffer = Journeys(3), buffer_of(ratio=0.8)
    plain = ReplayBuffer(1000, (7,), (), action_dtype=np.int64, rng=Rng(0, "replay"))
    games.play(50, buffer, plain)
    for _ in range(20):
        assert buffer.sample(32)["actions"].tolist() == plain.sample(32)["actions"].tolist()
    assert_same(
        {name: torch.from_numpy(column) for name, column in buffer.columns().items()},
        {name: torch.from_numpy(column) for name, column in plain.columns().items()},
    )


def test_rewards_are_changed_once_before_they_are_learned_from():
    games, buffer = Journeys(1, lengths=(4, 4)), buffer_of(rewards=lambda given: given * 10)
    games.play(4, buffer)
    rows, goals, batch = drawn(buffer, 100)
    assert batch["rewards"].tolist() == [-10 * (goal[2] - t - 1) for (_, _, t), goal in zip(rows, goals)]


def test_rows_keep_their_termination_where_the_environment_does_not_say():
    games, buffer = Journeys(1, lengths=(4, 4)), buffer_of()
    buffer.judge = Distance(says_ends=False)
    games.play(40, buffer)
    stored = dict(zip(buffer.columns()["actions"].tolist(), buffer.columns()["dones"].tolist()))
    batch = buffer.sample(200)
    assert batch["dones"].tolist() == [stored[action] for action in batch["actions"].tolist()]
    assert 0 < sum(stored.values()) < 10


def test_a_batch_stays_one_matrix():
    games, buffer = Journeys(1), buffer_of(reuse=True)
    games.play(40, buffer)
    batch = buffer.sample(16)
    columns = batch.unpack(batch.packed)
    assert all(torch.equal(columns[name], batch[name]) for name in ("obs", "next_obs", "rewards", "dones"))


# ---- rows of other runs


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rows_taken_over_keep_their_own_episodes_whatever_the_number_of_environments(strategy):
    """Three environments, then two, then four, in a ring that goes around."""
    games = Journeys(3, lengths=(5, 30))
    buffer = buffer_of(strategy, capacity=200)
    games.play(30, buffer)
    for envs in (2, 4):
        before, rows = games, buffer.state_dict()
        buffer = buffer_of(strategy, capacity=200, seed=envs)
        buffer.take_over(copy.deepcopy(rows), before.envs)
        for own, name in ((buffer.rng, "replay"), (buffer.goal_rng, "hindsight")):  # its own random numbers
            assert own.state_dict() == Rng(envs, name).state_dict()
        games = Journeys(envs, lengths=(5, 30), seed=envs)
        games.rows, games.length = before.rows, before.length
        games.episode = [100 * envs] * envs
        assert_right(buffer, games)
        for _ in range(4):
            games.play(9, buffer)
            assert_right(buffer, games)
            again = buffer_of(strategy, capacity=200)
            again.load_state_dict(copy.deepcopy(buffer.state_dict()))
            assert_right(again, games)


def test_episodes_that_were_open_end_where_the_number_of_environments_changes():
    buffer, first, then = buffer_of("final"), Journeys(2, lengths=(50, 50)), Journeys(3, lengths=(50, 50))
    then.episode = [9, 9, 9]
    first.play(4, buffer)
    then.play(5, buffer)
    again = buffer_of("final")
    again.load_state_dict(copy.deepcopy(buffer.state_dict()))
    for one in (buffer, again):
        rows, goals, _ = drawn(one, 500)
        found = {(e, goal) for (_, e, _), goal in zip(rows, goals)}
        assert found == {*((0, (i, 0, 4)) for i in range(2)), *((9, (i, 9, 5)) for i in range(3))}


def test_a_plain_buffer_takes_rows_that_were_filled_with_hindsight_and_not_the_other_way():
    games, buffer = Journeys(2), buffer_of()
    plain, other = (ReplayBuffer(1000, (7,), (), action_dtype=np.int64) for _ in range(2))
    games.play(30, buffer, plain)
    other.take_over(copy.deepcopy(buffer.state_dict()), 2)
    assert other.columns()["obs"].tolist() == buffer.columns()["obs"].tolist()
    with pytest.raises(StateError, match=r"^was filled without hindsight"):
        buffer.take_over(plain.state_dict(), 2)
    with pytest.raises(StateError, match="lacks hindsight"):
        buffer.load_state_dict(plain.state_dict())


@pytest.mark.parametrize(
    "eras",
    [[], [[0, 3]], [[0, 0]], [[50, 2]], [[0, 10**12]], [[0, 2], [20, 1], [10, 2]], [[0, 2], [99, 1]], [[0]], [0], 5],
)
def test_saved_eras_that_do_not_belong_to_the_rows_are_refused(eras):
    games, buffer = Journeys(2), buffer_of(capacity=40)
    games.play(25, buffer)
    state = copy.deepcopy(buffer.state_dict())
    state["hindsight"]["eras"] = eras
    with pytest.raises(StateError, match=r"^hindsight\.eras: "):
        buffer_of(capacity=40).load_state_dict(state)


def test_goals_are_drawn_from_seed_zero_unless_a_generator_is_given():
    assert HindsightReplayBuffer(9, (7,), judge=Distance()).goal_rng.state_dict() == Rng(0, "hindsight").state_dict()
    assert buffer_of(seed=3).goal_rng.state_dict() == Rng(3, "hindsight").state_dict()


def test_what_cannot_work_is_refused():
    with pytest.raises(ValueError, match="n_step must be 1"):
        buffer_of(n_step=2)
    with pytest.raises(ValueError, match="room for a step of every environment: 3 rows, not 2"):
        Journeys(3).play(1, buffer_of(capacity=2))
    with pytest.raises(ValueError, match="empty"):
        buffer_of().sample(1)
