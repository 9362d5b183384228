"""Every replay buffer against one that keeps everything whole: many environments, short and long episodes, still screens,
stacked frames, several steps, priorities, and saving in the middle, into a buffer of the same and of a larger capacity."""

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch

from rl_training.base.state import Rng
from rl_training.data import PrioritizedReplayBuffer, RecurrentReplayBuffer, ReplayBuffer
from toys import assert_same

GAMMA = 0.5


def frame(number):
    """A frame of two by two pixels that encodes its number."""
    return np.array([number], "<u4").view(np.uint8).reshape(1, 2, 2)


class Games:
    """Environments whose every observation is known. Actions number the steps, so a stored row says which step it is."""

    def __init__(self, envs, *, lengths, stack, still=0, images=True, seed=0):
        self.envs, self.lengths, self.stack, self.still, self.images = envs, lengths, stack, still, images
        self.rng = np.random.default_rng(seed)
        self.moment, self.number = 0, 0
        self.history, self.left = [[0] * stack for _ in range(envs)], [0] * envs
        self.steps = [[] for _ in range(envs)]  # per environment: obs, action, reward, next_obs, done, cut, moment
        for e in range(envs):
            self.begin(e)

    def new(self, e):
        """The first ``still`` environments show one frame for ever."""
        self.number += 1
        return 1_000_000 + e if e < self.still else self.number

    def begin(self, e):
        self.history[e] = [self.new(e)] * self.stack
        self.left[e] = int(self.rng.integers(*self.lengths, endpoint=True))

    def shown(self, histories):
        if not self.images:
            return np.array(histories, np.float32)
        return np.stack([np.concatenate([frame(number) for number in history]) for history in histories])

    def play(self, moments, *buffers):
        for _ in range(moments):
            before = [list(history) for history in self.history]
            rewards = self.rng.integers(0, 8, self.envs).astype(np.float32)
            actions = np.arange(self.envs) + sum(map(len, self.steps))
            dones, cuts = np.zeros(self.envs), np.zeros(self.envs)
            for e in range(self.envs):
                self.history[e] = [*self.history[e][1:], self.new(e)]
                self.left[e] -= 1
                if self.left[e] == 0:
                    (dones if self.rng.random() < 0.5 else cuts)[e] = 1.0
            for buffer in buffers:
                buffer.add(
                    obs=self.shown(before), actions=actions, rewards=rewards, next_obs=self.shown(self.history),
                    dones=dones, truncations=cuts,
                )  # fmt: skip
            for e in range(self.envs):
                row = (tuple(before[e]), int(actions[e]), float(rewards[e]), tuple(self.history[e]))
                self.steps[e].append((*row, float(dones[e]), float(cuts[e]), self.moment))
                if dones[e] or cuts[e]:
                    self.begin(e)
            self.moment += 1

    def cut(self, which, *buffers):
        """These environments are lost, and begin anew."""
        ended, obs = np.zeros(self.envs), self.shown(self.history)
        ended[which] = 1.0
        for buffer in buffers:
            buffer.cut(ended, obs)
        for e in which:
            if self.steps[e] and not (self.steps[e][-1][4] or self.steps[e][-1][5]):
                self.steps[e][-1] = (*self.steps[e][-1][:5], 1.0, self.steps[e][-1][6])
                if self.moment > self.steps[e][-1][6]:
                    self.steps[e][-1] = (*self.steps[e][-1][:6], self.steps[e][-1][6] + 0.5)  # written after the step
            self.begin(e)

    def rows(self, n=1):
        """What a buffer without bounds holds, in the order of writing: obs, action, return, next_obs, done, discount."""
        found = []
        for e, steps in enumerate(self.steps):
            for k in range(len(steps)):
                total, discount = 0.0, 1.0
                for j in range(k, min(k + n, len(steps))):
                    _, _, reward, then, done, cut, moment = steps[j]
                    total, discount = total + discount * reward, discount * GAMMA
                    if j == k + n - 1 or done or cut:
                        moment = int(moment) if j == k + n - 1 else moment
                        found.append(((moment, e, k), (steps[k][0], steps[k][1], total, then, done, discount)))
                        break
        return [row for _, row in sorted(found, key=lambda pair: pair[0])]


def numbers(frames):
    """The numbers that frames encode: (B, stack)."""
    array = np.ascontiguousarray(np.asarray(frames))
    return array.reshape(len(array), -1, 4).view("<u4")[..., 0] if array.dtype == np.uint8 else array.astype(int)


def assert_right(buffer, games, n=1):
    """Every row that can be drawn is right, and the newest ones are there."""
    expected, columns = games.rows(n)[-len(buffer) :], buffer.columns()
    assert columns["actions"].tolist() == [row[1] for row in expected]
    assert numbers(columns["obs"]).tolist() == [list(row[0]) for row in expected]
    assert numbers(columns["next_obs"]).tolist() == [list(row[3]) for row in expected]
    assert columns["rewards"].tolist() == [row[2] for row in expected]
    assert columns["dones"].tolist() == [row[4] for row in expected]
    known = {row[1]: row for row in expected}
    for _ in range(3):
        batch = buffer.sample(64)
        drawn = [known[action] for action in batch["actions"].tolist()]  # a KeyError: a row that is not there any more
        assert numbers(batch["obs"]).tolist() == [list(row[0]) for row in drawn]
        assert numbers(batch["next_obs"]).tolist() == [list(row[3]) for row in drawn]
        assert batch["rewards"].tolist() == [row[2] for row in drawn]
        if n > 1:
            assert batch["discounts"].tolist() == [row[5] for row in drawn]


def most(buffer, games, n=1):
    """As many of the newest rows as the frames that fit allow, beside those of open windows and of one transition more."""
    rows, room = games.rows(n), buffer._layout.frames.capacity - 2 * games.stack
    seen = {number for steps in games.steps for row in steps[-n:] for number in (*row[0], *row[3])}
    for count, row in enumerate(reversed(rows[-buffer.capacity :])):
        seen.update(row[0], row[3])
        if len(seen) > room:
            return count
    return min(len(rows), buffer.capacity)


def image_buffer(capacity, stack, *, prioritized=False, n=1, seed=0):
    kind = PrioritizedReplayBuffer if prioritized else ReplayBuffer
    return kind(
        capacity, (stack, 2, 2), (), obs_dtype=np.uint8, action_dtype=np.int64, frames=stack, n_step=n, gamma=GAMMA,
        rng=Rng(seed, "replay"),
    )  # fmt: skip


SHORT, MIXED, LONG, ONE = (1, 3), (1, 40), (30, 90), (1, 1)
CASES = [
    (envs, lengths, still, stack, n, prioritized)
    for envs in (1, 2, 8, 16)
    for lengths, still, stack, n, prioritized in (
        (ONE, 0, 1, 1, False),
        (SHORT, 0, 4, 1, True),
        (SHORT, 1, 1, 3, False),
        (MIXED, 1, 4, 1, False),
        (LONG, 1, 4, 3, True),
        (LONG, 0, 4, 5, False),
    )
]


@pytest.mark.parametrize(("envs", "lengths", "still", "stack", "n", "prioritized"), CASES)
def test_every_row_that_can_be_drawn_shows_the_right_frames(envs, lengths, still, stack, n, prioritized):
    games = Games(envs, lengths=lengths, stack=stack, still=still, seed=envs)
    buffer = image_buffer(400, stack, prioritized=prioritized, n=n)
    for part in range(6):
        games.play(240 // envs, buffer)
        if prioritized and part % 2:
            batch = buffer.sample(32)
            buffer.update_priorities(batch["indices"], np.arange(32.0))
        assert_right(buffer, games, n)
        assert len(buffer) >= most(buffer, games, n) - envs


@pytest.mark.parametrize(("envs", "lengths", "still", "stack", "n", "prioritized"), CASES[::2] + CASES[1:12:2])
@pytest.mark.parametrize("capacity", [400, 1_000])
def test_a_saved_buffer_goes_on_in_one_of_the_same_and_of_a_larger_capacity(
    envs, lengths, still, stack, n, prioritized, capacity
):
    games = Games(envs, lengths=lengths, stack=stack, still=still, seed=envs)
    first = image_buffer(400, stack, prioritized=prioritized, n=n)
    games.play(1_000 // envs, first)
    second = image_buffer(capacity, stack, prioritized=prioritized, n=n, seed=9)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert len(second) == len(first)
    if capacity == first.capacity:
        assert_same(first.state_dict(), second.state_dict())  # with rows that can no longer be drawn
    assert_right(second, games, n)
    for _ in range(4):
        games.play(200 // envs, first, second)
        assert_right(second, games, n)
    if capacity == first.capacity:
        first.rng.load_state_dict(second.rng.state_dict())
        assert_same(first.state_dict(), second.state_dict())
        assert_same(dict(first.sample(50)), dict(second.sample(50)))
    else:
        assert len(second) > len(first)


def test_a_smaller_buffer_takes_the_rows_that_are_left_in_a_larger_one():
    """Of 800 rows of two frames each, 678 are left in a buffer of 1,000."""
    games = Games(2, lengths=ONE, stack=1)
    first, second, third = (image_buffer(capacity, 1) for capacity in (1_000, 700, 600))
    games.play(400, first)
    assert 600 < len(first) <= 700
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert len(second) == len(first)
    assert_right(second, games)
    games.play(400, second)
    assert_right(second, games)
    with pytest.raises(ValueError, match="a replay buffer of 600 rows"):
        third.load_state_dict(copy.deepcopy(first.state_dict()))


@pytest.mark.parametrize(
    ("lengths", "still", "share"), [((12, 50), 0, 1.0), ((30, 90), 3, 1.0), ((2, 2), 0, 1.1 / 1.5), ((1, 1), 0, 0.55)]
)
@pytest.mark.parametrize("envs", [1, 8])
def test_rows_are_lost_only_to_frames_that_do_not_fit(envs, lengths, still, share):
    """A tenth more frames than rows: nothing is lost from ten steps an episode on; two frames a row leave 55 %."""
    games = Games(envs, lengths=lengths, stack=4, still=min(still, envs))
    buffer = image_buffer(4_000, 4)
    games.play(8_000 // envs, buffer)
    share = min(1.0, share * buffer._layout.frames.capacity / 4_400)  # small buffers have room for a few more
    assert len(buffer) / buffer.capacity == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("envs", [1, 8, 16])
@pytest.mark.parametrize(("n", "prioritized"), [(1, False), (1, True), (3, False), (4, True)])
@pytest.mark.parametrize("capacity", [101, 300])
def test_vectors_survive_saving_into_any_capacity_that_holds_them(envs, n, prioritized, capacity):
    games = Games(envs, lengths=(1, 12), stack=3, images=False, seed=3)
    kind = PrioritizedReplayBuffer if prioritized else ReplayBuffer
    first, second = (
        kind(size, (3,), (), action_dtype=np.int64, n_step=n, gamma=GAMMA, rng=Rng(1, "replay"))
        for size in (101, capacity)
    )
    games.play(-(-250 // envs), first)
    if prioritized:
        priorities = 1.0 + np.arange(101) % 7
        first.update_priorities(np.arange(101), priorities)
    weights = {} if not prioritized else dict(zip(first.columns()["actions"].tolist(), _in_order(first)))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert len(second) == 101
    assert_right(second, games, n)
    if prioritized:
        assert dict(zip(second.columns()["actions"].tolist(), _in_order(second))) == weights
        assert second._tree.total == pytest.approx(first._tree.total)
    for _ in range(5):
        games.play(-(-100 // envs), second)
        assert_right(second, games, n)
    assert len(second) == capacity


def _in_order(buffer):
    """Priorities of the rows that can be drawn, oldest first."""
    return buffer._tree.leaves[(np.arange(len(buffer)) + buffer._first) % buffer.capacity].tolist()


@pytest.mark.parametrize("envs", [1, 2, 8])
@pytest.mark.parametrize("capacity", [1.0, 2.5])
def test_sequences_survive_saving_into_a_larger_capacity(envs, capacity):
    def buffer(rows):
        return RecurrentReplayBuffer(int(rows) * envs, envs, (1,), 6, np.float32, (), np.int64, rng=Rng(0, "replay"))

    games = Games(envs, lengths=(1, 9), stack=1, images=False)
    first, second = buffer(50), buffer(50 * capacity)
    games.play(120, first)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert len(second) == len(first) == 50 * envs
    for _ in range(6):
        _assert_sequences(second, games)
        games.play(20, second)
    assert len(second) == int(50 * capacity) * envs


def _assert_sequences(buffer, games):
    """Each sequence is a stretch of what its environment has shown."""
    lives = []
    for steps in games.steps:
        life = []
        for obs, action, _, then, done, cut, _ in steps:
            life.append((obs[0], action))
            if done or cut:
                life.append((then[0], 0))
        lives.append(life)
    where = {row: (e, i) for e, life in enumerate(lives) for i, row in enumerate(life)}
    batch = buffer.sample(64)
    rows = [
        list(zip(obs, acts)) for obs, acts in zip(batch["obs"][..., 0].T.long().tolist(), batch["actions"].T.tolist())
    ]
    for sequence in rows:
        e, start = where[sequence[0]]
        assert sequence == lives[e][start : start + len(sequence)]


# ---- what was lost, saved by older versions, or hardly fits


@pytest.mark.parametrize("envs", [1, 2, 8])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("images", [True, False])
def test_environments_that_are_lost_and_begin_anew_leave_no_row_that_joins_two_episodes(envs, n, images):
    games = Games(envs, lengths=(5, 30), stack=2, images=images)
    buffer = (
        image_buffer(400, 2, n=n)
        if images
        else ReplayBuffer(400, (2,), (), action_dtype=np.int64, n_step=n, gamma=GAMMA)
    )
    for part in range(12):
        games.play(7 + part % 4, buffer)
        games.cut([part % envs, envs - 1][: 1 + part % 2], buffer)
        assert_right(buffer, games, n)
    ends = buffer.columns()["truncations"] + buffer.columns()["dones"]
    if n == 1:  # exports know where episodes end
        whole = {step[1]: step[4] + step[5] for steps in games.steps for step in steps}
        assert ends.tolist() == [whole[action] for action in buffer.columns()["actions"].tolist()]


def test_sequences_of_a_lost_environment_end_with_its_last_observation():
    buffer = RecurrentReplayBuffer(100, 2, (1,), 3, np.float32, (), np.int64, rng=Rng(0, "replay"))
    games = Games(2, lengths=(5, 9), stack=1, images=False)
    for _ in range(6):
        games.play(3, buffer)
        games.cut([0], buffer)
    _assert_sequences(buffer, games)
    first = {steps[0][0][0] for steps in games.steps} | {
        after[0][0] for steps in games.steps for before, after in pairwise(steps) if before[4] or before[5]
    }
    batch = buffer.sample(200)
    assert batch["episode_starts"].bool().tolist() == np.isin(batch["obs"][..., 0].numpy(), list(first)).tolist()


@pytest.mark.parametrize("n", [1, 3])
def test_no_frame_is_kept_that_nothing_shows(n):
    """Also if observations jump without a flag for the end."""
    games = Games(4, lengths=(2, 9), stack=2)
    buffer = image_buffer(100, 2, n=n)
    for _ in range(30):
        games.play(7, buffer)
        for e in range(4):
            games.history[e] = [games.new(e)] * 2
    columns = buffer.columns()
    shown = {*numbers(columns["obs"]).ravel().tolist(), *numbers(columns["next_obs"]).ravel().tolist()}
    open_windows = {number for steps in games.steps for row in steps[-n:] for number in (*row[0], *row[3])}
    assert buffer._layout.frames.capacity - buffer._layout.frames.room <= len(shown | open_windows)


@pytest.mark.parametrize(("capacity", "n"), [(1, 1), (5, 1), (5, 3), (70, 40)])
def test_more_environments_than_rows_are_served_too(capacity, n):
    games = Games(64, lengths=(1, 9), stack=4)
    buffer = image_buffer(capacity, 4, n=n)
    for _ in range(6):
        games.play(20, buffer)
        assert_right(buffer, games, n)
        assert len(buffer) == capacity
        assert buffer._layout.frames.capacity < 64 * (n + 4) * 2 + 400
    again = image_buffer(capacity, 4, n=n)
    again.load_state_dict(copy.deepcopy(buffer.state_dict()))
    games.play(20, buffer, again)
    again.rng.load_state_dict(buffer.rng.state_dict())
    assert_same(buffer.state_dict(), again.state_dict())


def test_a_row_that_has_left_since_it_was_drawn_gets_no_priority():
    games = Games(2, lengths=ONE, stack=1)
    buffer = image_buffer(400, 1, prioritized=True)
    games.play(400, buffer)
    batch = buffer.sample(64)
    games.play(50, buffer)
    buffer.update_priorities(batch["indices"], np.full(64, 1e6))
    assert_right(buffer, games)


@pytest.mark.parametrize("n", [1, 3])
def test_a_checkpoint_from_when_frames_lay_in_a_ring_still_loads(n):
    games = Games(2, lengths=LONG, stack=2)
    buffer = image_buffer(400, 2, n=n)
    games.play(150, buffer)  # nothing has been overwritten yet: places are the numbers of that ring
    state = copy.deepcopy(buffer.state_dict())
    del state["frames"]["free"], state["frames"]["grown"]
    columns = [buffer._layout.columns[name][: buffer.written].astype(int) for name in ("obs", "next_obs")]
    oldest = np.concatenate(columns, 1).min(1)
    oldest[7] = -1  # as if its frames had been overwritten
    state["oldest_frame"] = torch.from_numpy(oldest)
    again = image_buffer(400, 2, n=n)
    again.load_state_dict(state)
    assert len(again) == len(buffer) - 8
    for _ in range(5):
        assert_right(again, games, n)
        games.play(150, again)
    assert len(again) == 400
