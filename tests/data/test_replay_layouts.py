"""Layouts of replay rows, each without a buffer: fields in one matrix, images as places of shared frames."""

import numpy as np
import pytest
import torch

from rl_training.base.batches import PackedBatch
from rl_training.data.layouts import Field, FrameLayout, PackedLayout, numpy_dtype, transition_fields

VECTOR, INDEX, IMAGE = Field((2,)), Field((), np.dtype(np.int64)), Field((2, 3, 3), np.dtype(np.uint8))


def vectors(first, n):
    """Rows that show their own numbers."""
    numbers = np.arange(first, first + n, dtype=np.float32)
    obs = np.stack([numbers, -numbers], 1)
    return {
        "obs": obs, "actions": numbers.astype(int), "rewards": numbers, "next_obs": obs + 1, "dones": numbers % 2,
        "truncations": np.zeros(n),
    }  # fmt: skip


def no_rows_left():
    return False


def stacked(*numbers):
    return np.stack([np.full((3, 3), number, np.uint8) for number in numbers])


def image_rows(pairs):
    n = len(pairs)
    obs, next_obs = (np.stack([stacked(*pair[i]) for pair in pairs]) for i in (0, 1))
    return {**vectors(0, n), "obs": obs, "next_obs": next_obs}


def frame_layout(capacity=4, **options):
    return FrameLayout(capacity, transition_fields(IMAGE, INDEX), 2, **options)


def store(layout, rows, first):
    """One row of one environment, as a buffer stores it."""
    rows = layout.encode(rows, no_rows_left)
    layout.announce(rows, first, None)
    layout.write(rows, first, len(rows["rewards"]))


# ---- fields in one matrix


def test_floats_and_indices_are_one_gather_and_come_back_in_their_types():
    layout = PackedLayout(5, transition_fields(VECTOR, INDEX))
    layout.write(vectors(0, 5), 0, 5)
    batch = layout.gather(np.array([3, 1]))
    assert isinstance(batch, PackedBatch) and batch.packed.shape == (2, 2 + 1 + 1 + 2 + 1 + 1)
    assert batch["actions"].dtype == torch.int64 and batch["actions"].tolist() == [3, 1]
    assert batch["obs"].tolist() == [[3, -3], [1, -1]] and batch["dones"].tolist() == [1, 1]
    assert "truncations" not in batch and "truncations" in layout.read(np.array([0]))


def test_rows_lie_at_their_number_modulo_the_capacity():
    layout = PackedLayout(5, transition_fields(VECTOR, INDEX))
    layout.write(vectors(8, 4), 8, 4)
    assert layout.columns["rewards"].tolist() == [10, 11, 0, 8, 9]
    assert layout.where(5, 5) == slice(0, 5) and layout.where(8, 4).tolist() == [3, 4, 0, 1]


def test_other_types_have_an_array_of_their_own():
    layout = PackedLayout(3, transition_fields(IMAGE, INDEX))
    layout.write(image_rows([((1, 2), (2, 3))] * 3), 0, 3)
    batch = layout.gather(np.array([2]))
    assert not isinstance(batch, PackedBatch) and set(layout.loose) == {"obs", "next_obs"}
    assert batch["next_obs"][0, :, 0, 0].tolist() == [2, 3] and batch["next_obs"].dtype == torch.uint8


@pytest.mark.parametrize("reuse", [True, False])
def test_batches_share_memory_only_if_it_is_reused(reuse):
    layout = PackedLayout(3, transition_fields(VECTOR, INDEX), reuse=reuse)
    layout.write(vectors(0, 3), 0, 3)
    first, second = layout.gather(np.array([0])), layout.gather(np.array([2]))
    assert first["rewards"].item() == (2 if reuse else 0) and second["actions"].item() == 2


def test_saved_rows_move_to_the_places_they_are_given():
    one, two = (PackedLayout(capacity, transition_fields(VECTOR, INDEX)) for capacity in (3, 5))
    one.write(vectors(4, 3), 4, 3)
    numbers = np.arange(4, 7)
    two.load_state_dict(one.state_dict(3), numbers % 3, numbers % 5)
    assert two.columns["rewards"].tolist() == [5, 6, 0, 0, 4]


def test_torch_types_are_understood():
    assert numpy_dtype(torch.uint8) == np.uint8 and numpy_dtype(np.int64) == np.int64


# ---- images as places of frames


def test_a_row_has_the_places_of_its_frames_and_shows_the_images():
    layout = frame_layout()
    pairs = [((1, 1), (1, 2)), ((1, 2), (2, 3)), ((2, 3), (3, 4))]
    for number, pair in enumerate(pairs):
        store(layout, image_rows([pair]), number)
    assert layout.frames.count == 4 and layout.columns["obs"].shape == (4, 2)
    batch = layout.gather(np.arange(3))
    shown = [(tuple(o[:, 0, 0].tolist()), tuple(n[:, 0, 0].tolist())) for o, n in zip(batch["obs"], batch["next_obs"])]
    assert shown == pairs
    assert (layout.read(np.arange(3))["next_obs"] == batch["next_obs"].numpy()).all()


def test_rows_that_were_read_stay_when_others_are_read_into_the_same_memory():
    layout = frame_layout(reuse=True)
    for number, pair in enumerate([((1, 1), (1, 2)), ((5, 5), (5, 6))]):
        store(layout, image_rows([pair]), number)
    first, second = (layout.read(np.array([number])) for number in range(2))
    assert first["obs"][0, :, 0, 0].tolist() == [1, 1] and first["next_obs"][0, :, 0, 0].tolist() == [1, 2]
    assert second["obs"][0, :, 0, 0].tolist() == [5, 5] and second["next_obs"][0, :, 0, 0].tolist() == [5, 6]


def test_frames_are_free_again_when_the_newest_row_that_shows_them_is_released():
    layout = frame_layout()
    for number, pair in enumerate([((1, 1), (1, 2)), ((1, 2), (2, 3))]):
        store(layout, image_rows([pair]), number)
    room = layout.frames.room
    layout.release(0, 1)
    assert layout.frames.room == room  # the second row shows frames 1 and 2 too
    layout.release(1, 1)
    assert layout.frames.room == room + 3


def test_rows_are_evicted_while_frames_lack_room_and_then_the_room_grows():
    layout, evicted = frame_layout(), []
    layout.frames.__init__(5, IMAGE.shape, 2)
    store(layout, image_rows([((1, 2), (3, 4))]), 0)
    capacity = layout.frames.capacity

    def evict():
        if evicted:
            return False
        evicted.append(0)
        layout.release(0, 1)
        return True

    layout.encode(image_rows([((5, 6), (7, 8))]), evict)
    assert evicted == [0] and layout.frames.capacity == capacity
    layout.encode(image_rows([((9, 10), (11, 12))]), evict)
    assert layout.frames.capacity > capacity


def test_a_state_of_frames_is_complete_once_its_rows_are_announced():
    one, two = frame_layout(), frame_layout()
    for number, pair in enumerate([((1, 1), (1, 2)), ((1, 2), (2, 3))]):
        store(one, image_rows([pair]), number)
    two.load_state_dict(one.state_dict(2), slice(2), slice(2))
    two.announce_written(0, 2, None)
    for layout in (one, two):
        layout.release(0, 2)
        assert layout.frames.room == layout.frames.capacity
