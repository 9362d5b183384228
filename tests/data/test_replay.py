"""Replay: returns over several steps, frames stored once, priorities by mass."""

import numpy as np
import pytest
import torch

from rl_training.base.saved import StateError
from rl_training.base.state import Rng
from rl_training.data import PrioritizedReplayBuffer, ReplayBuffer
from rl_training.data.prioritized import SumTree
from toys import assert_same


def step(buffer, t, *, reward=1.0, done=0.0, cut=0.0, envs=1):
    buffer.add(
        obs=np.full((envs, 1), t, np.float32), actions=np.full(envs, t % 3), rewards=np.full(envs, reward, np.float32),
        next_obs=np.full((envs, 1), t + 1, np.float32), dones=np.full(envs, done), truncations=np.full(envs, cut),
    )  # fmt: skip


def rows(buffer):
    """(obs, action, reward, next_obs, done, discount) of every row, in order."""
    batch = buffer.rows(np.arange(len(buffer)))
    names = ("obs", "actions", "rewards", "next_obs", "dones", "discounts")
    return [tuple(round(float(batch[name][i]), 5) for name in names) for i in range(len(buffer))]


def n_step(n=3, gamma=0.5, capacity=50):
    return ReplayBuffer(capacity, (1,), (), action_dtype=np.int64, n_step=n, gamma=gamma)


# ---- several steps


def test_n_steps_sum_discounted_rewards_and_bootstrap_with_their_power_of_gamma():
    buffer = n_step()
    for t, reward in enumerate((1.0, 2.0, 4.0, 8.0)):
        step(buffer, t, reward=reward)
    assert rows(buffer) == [(0, 0, 1 + 1 + 1, 3, 0, 0.125), (1, 1, 2 + 2 + 2, 4, 0, 0.125)]


def test_a_termination_ends_every_open_window_with_the_steps_it_has():
    buffer = n_step()
    step(buffer, 0)
    step(buffer, 1, done=1.0)
    assert rows(buffer) == [(0, 0, 1.5, 2, 1, 0.25), (1, 1, 1.0, 2, 1, 0.5)]


def test_a_cut_ends_windows_too_but_still_bootstraps_from_the_true_last_observation():
    buffer = n_step()
    for t in range(4):
        step(buffer, t, cut=float(t == 3))
    assert rows(buffer) == [
        (0, 0, 1.75, 3, 0, 0.125), (1, 1, 1.75, 4, 0, 0.125), (2, 2, 1.5, 4, 0, 0.25), (3, 0, 1.0, 4, 0, 0.5),
    ]  # fmt: skip


def test_no_window_crosses_an_episode():
    buffer = n_step(n=4)
    for t in range(30):
        step(buffer, t % 10, cut=float(t % 10 == 9))
    assert all(0 < then - now <= 4 for now, _, _, then, _, _ in rows(buffer))
    assert len(buffer) == 30


def test_environments_do_not_mix_in_windows():
    buffer = n_step(n=2, gamma=1.0)
    for t in range(3):
        both = np.array([[t], [100 + t]], np.float32)
        buffer.add(
            obs=both, actions=np.zeros(2, int), rewards=np.array([1.0, 10.0]), next_obs=both + 1, dones=np.zeros(2)
        )
    assert {row[2] for row in rows(buffer) if row[0] < 50} == {2.0}
    assert {row[2] for row in rows(buffer) if row[0] >= 50} == {20.0}
    with pytest.raises(ValueError, match="follow 2 environments, got rows of 1"):
        step(buffer, 0)


def test_the_return_of_n_steps_has_the_same_fixed_point_as_one_step():
    """r = 1, γ = .9, V = 10: R + γ^k V is 10 for every number of steps."""
    buffer = n_step(n=5, gamma=0.9)
    for t in range(23):
        step(buffer, t, cut=float(t in (6, 22)))
    batch = buffer.rows(np.arange(len(buffer)))
    assert torch.allclose(batch["rewards"] + batch["discounts"] * 10, torch.tensor(10.0), atol=1e-5)


def test_a_full_ring_is_drawn_from_as_it_lies():
    buffer = ReplayBuffer(4, (1,), (), action_dtype=np.int64, rng=Rng(0, "replay"))
    for t in range(6):
        buffer.add(obs=[[t]], actions=[t], rewards=[0.0], next_obs=[[t + 1]], dones=[0.0])
    places = Rng(0, "replay").generator.integers(4, size=50)
    assert buffer.sample(50)["actions"].tolist() == np.array([4, 5, 2, 3])[places].tolist()


def test_open_windows_are_part_of_the_state():
    one, two = n_step(), n_step()
    for t in range(5):
        step(one, t)
    state = one.state_dict()
    two.load_state_dict(state)
    for name in ("obs", "actions", "returns", "discounts"):
        state["window"][name].fill_(99)  # what was loaded is the buffer's own
    for buffer in (one, two):
        step(buffer, 5, done=1.0)
    assert rows(one) == rows(two) and len(one) == 6


# ---- frames


def frame(number, shape=(1, 4, 4)):
    return np.full(shape, number, np.uint8)


def stack(*numbers):
    return np.concatenate([frame(n) for n in numbers])


def images(capacity=40, frames=4, **options):
    return ReplayBuffer(
        capacity, (frames, 4, 4), (), obs_dtype=np.uint8, action_dtype=np.int64, frames=frames, **options
    )


def play(buffer, episodes, length=6, frames=4):
    """Episodes of stacked frames, each with a number of its own; returns the pairs that should be stored."""
    pairs, number = [], 1
    for _ in range(episodes):
        history = [number] * frames
        for t in range(length):
            number += 1
            then = [*history[1:], number]
            last = t == length - 1
            buffer.add(
                obs=stack(*history)[None], actions=np.zeros(1, int), rewards=np.ones(1), next_obs=stack(*then)[None],
                dones=np.zeros(1), truncations=np.array([float(last)]),
            )  # fmt: skip
            pairs.append((tuple(history), tuple(then)))
            history = then
        number += 1
    return pairs


def shown(batch):
    return [(tuple(o[:, 0, 0].tolist()), tuple(n[:, 0, 0].tolist())) for o, n in zip(batch["obs"], batch["next_obs"])]


def test_every_frame_is_stored_once():
    buffer = images()
    pairs = play(buffer, episodes=3)
    assert shown(buffer.rows(np.arange(len(buffer)))) == pairs
    assert buffer._layout.frames.count == 3 * (6 + 1)  # not 3 * 6 * 8


def test_windows_over_several_steps_share_their_frames():
    buffer = images(n_step=3, gamma=0.9)
    pairs = play(buffer, episodes=3)
    assert buffer._layout.frames.count == 3 * 7
    first, after_three = shown(buffer.rows(np.array([0])))[0]
    assert first == pairs[0][0] and after_three == pairs[2][1]


def test_unrelated_frames_are_kept_as_they_are():
    buffer = images(frames=1)
    rng = np.random.default_rng(0)
    obs, next_obs = (rng.integers(256, size=(20, 1, 4, 4), dtype=np.uint8) for _ in range(2))
    for o, n in zip(obs, next_obs):
        buffer.add(obs=o, actions=0, rewards=0.0, next_obs=n, dones=0.0)
    batch = buffer.rows(np.arange(20))
    assert np.array_equal(batch["obs"].numpy(), obs) and np.array_equal(batch["next_obs"].numpy(), next_obs)


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
def test_rows_whose_frames_are_gone_are_never_drawn(kind):
    buffer = kind(8, (1, 4, 4), (), obs_dtype=np.uint8, action_dtype=np.int64)
    buffer._layout.frames.__init__(10, (1, 4, 4))  # room for far fewer frames than episodes of one step need
    for t in range(60):
        buffer.add(obs=frame(2 * t), actions=0, rewards=float(t), next_obs=frame(2 * t + 1), dones=1.0)
    assert len(buffer) == 5
    for _ in range(20):
        batch = buffer.sample(16)
        assert (batch["obs"][:, 0, 0, 0].float() == 2 * batch["rewards"]).all()
        assert (batch["next_obs"][:, 0, 0, 0].float() == 2 * batch["rewards"] + 1).all()


def test_frames_survive_many_turns_of_the_ring_and_saving():
    one, two = images(capacity=30, rng=Rng(1, "a")), images(capacity=30)
    for buffer in (one, two):
        buffer._layout.frames.__init__(45, (4, 4, 4), 4)
    pairs = play(one, episodes=30)
    assert one._layout.frames.count > 4 * one._layout.frames.capacity and len(one) == 30
    two.load_state_dict(one.state_dict())
    assert set(shown(one.sample(1000))) == set(pairs[-30:])
    two.rng.generator.bit_generator.state = one.rng.generator.bit_generator.state
    assert_same(one.sample(50), two.sample(50))


def test_a_free_place_that_is_named_twice_is_refused():
    one, two = images(capacity=30), images(capacity=30)
    play(one, episodes=8)
    state = one.state_dict()
    state["frames"]["free"][0] = state["frames"]["free"][1]
    with pytest.raises(StateError, match="free: holds a place twice"):
        two.load_state_dict(state)


def test_memory_of_stacked_frames_is_a_tenth_more_than_the_frames():
    buffer = ReplayBuffer(10_000, (4, 84, 84), (), obs_dtype=np.uint8, action_dtype=np.int64, frames=4)
    bytes_held = buffer._layout.frames._data.nbytes + buffer._layout.matrix.nbytes
    assert bytes_held < 1.15 * 10_000 * 84 * 84


# ---- priorities


def prioritized(priorities, alpha=1.0, **options):
    n = len(priorities)
    buffer = PrioritizedReplayBuffer(n, (1,), (), action_dtype=np.int64, alpha=alpha, epsilon=0.0, **options)
    for t in range(n):
        step(buffer, t, reward=float(t))
    buffer.update_priorities(np.arange(n), np.array(priorities, float))
    return buffer


def test_the_tree_finds_the_leaf_that_holds_a_mass():
    rng = np.random.default_rng(0)
    for size in (1, 5, 32, 33, 1000, 40_000):
        weights = rng.random(size) * (rng.random(size) < 0.7)
        weights[rng.integers(size)] = 1.0
        tree = SumTree(size)
        tree[np.arange(size)] = weights
        assert tree.total == pytest.approx(weights.sum())
        mass = rng.random(500) * tree.total
        expected = np.searchsorted(np.cumsum(weights), mass, side="right")
        found = tree.find(mass)
        assert (np.abs(np.cumsum(weights)[found] - mass) < weights[found] + 1e-9).all()
        assert (found == expected).mean() > 0.99  # the rest differ by rounding at a boundary


def test_a_leaf_without_weight_is_never_found():
    tree = SumTree(100)
    tree[np.array([7, 93])] = [1.0, 2.0]
    edges = np.array([0.0, 1.0 - 1e-16, 1.0, 3.0 - 1e-15, 3.0, 3.1])
    assert set(tree.find(edges).tolist()) <= {7, 93}


def test_rows_are_drawn_in_proportion_to_priority_to_the_alpha():
    buffer = prioritized([1.0, 2.0, 4.0, 9.0], alpha=0.5)
    counts = np.zeros(4)
    for _ in range(2000):
        np.add.at(counts, buffer.sample(4)["indices"].numpy(), 1)
    assert counts / counts.sum() == pytest.approx(np.sqrt([1, 2, 4, 9]) / np.sqrt([1, 2, 4, 9]).sum(), abs=0.01)


def test_weights_are_inverse_probabilities_to_the_beta_over_the_batchs_largest():
    buffer = prioritized([1.0, 3.0])
    batch = buffer.sample(64, beta=0.5)
    probability = torch.where(batch["indices"] == 0, 0.25, 0.75)
    expected = (2 * probability) ** -0.5
    assert torch.allclose(batch["weights"], (expected / expected.max()).float())
    assert batch["weights"].max() == 1.0


def test_with_beta_one_the_weighted_mean_is_the_uniform_mean():
    buffer = prioritized([0.1, 1.0, 5.0, 2.0])
    total = weight = 0.0
    for _ in range(3000):
        batch = buffer.sample(8, beta=1.0)
        raw = (
            batch["weights"] / batch["weights"].min()
        )  # undo the batch's scale: the largest priority is in every batch
        total += float((raw * batch["rewards"]).sum())
        weight += float(raw.sum())
    assert total / weight == pytest.approx(1.5, abs=0.05)


def test_new_rows_get_the_highest_priority_seen():
    buffer = PrioritizedReplayBuffer(4, (1,), (), action_dtype=np.int64, alpha=1.0, epsilon=0.0)
    step(buffer, 0)
    buffer.update_priorities([0], [7.0])
    step(buffer, 1)
    assert buffer._tree[np.array([0, 1])].tolist() == [7.0, 7.0]


def test_an_overwritten_row_loses_its_priority():
    buffer = prioritized([1e6, 1e-6])
    buffer.highest = 1.0
    step(buffer, 5)
    assert buffer._tree.total == pytest.approx(1.0, rel=1e-5)


def test_priorities_are_part_of_the_state():
    one, two = prioritized([1.0, 2.0, 4.0]), prioritized([9.0, 9.0, 9.0])
    two.load_state_dict(one.state_dict())
    assert_same(dict(one.sample(8)), dict(two.sample(8)))


def test_priorities_below_zero_are_refused():
    one, two = prioritized([1.0, 2.0, 4.0]), prioritized([9.0, 9.0, 9.0])
    state = one.state_dict()
    state["weights"][1] = -1e-3
    with pytest.raises(StateError, match=r"^weights: holds priorities below 0"):
        two.load_state_dict(state)


def test_a_million_rows_cost_hardly_more_than_ten_thousand():
    class Counted(np.ndarray):
        """A level of the tree that counts the rows which are read."""

        rows = 0

        def __getitem__(self, index):
            Counted.rows += np.size(index)
            return np.asarray(self)[index]

    def cost(size):
        tree = SumTree(size)
        tree[np.arange(size)] = np.random.default_rng(0).random(size)
        tree._levels = [level.view(Counted) for level in tree._levels]
        Counted.rows = 0
        found = tree.find(np.linspace(0, 0.999 * float(np.asarray(tree._levels[-1]).sum()), 128))
        assert found.max() < size
        return Counted.rows / 128

    assert (cost(10_000), cost(1_000_000)) == (3, 4)  # rows of 32 for each draw; linear would be a hundred times


def test_rows_without_truncations_are_not_truncated():
    replay = ReplayBuffer(3, (1,))
    replay.add(obs=[0.0], actions=0, rewards=1.0, next_obs=[1.0], dones=0, truncations=None)
    assert not torch.isnan(replay.state_dict()["packed"]).any()


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
def test_an_empty_buffer_says_so(kind):
    with pytest.raises(ValueError, match="cannot sample from an empty replay buffer"):
        kind(3, (1,)).sample(2)
