"""The pretend device itself, and what crosses to it: facts that need it installed, so a process of their own.

``tests/runtime/test_other_device.py`` runs this file; pytest does not find it by itself.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import pretend_device
from rl_training.base.batches import PackedBatch
from rl_training.base.devices import HostBuffers, arrays_to_device, state_to_host, to_device, to_host
from rl_training.data.prioritized import PrioritizedReplayBuffer
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.sources import Mixed
from rl_training.models.normalizer import ObservationNormalizer

DEVICE = pretend_device.install()
HOST, THERE = torch.ones(3), torch.zeros(3, device=DEVICE)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: THERE + HOST,
        lambda: HOST.add_(THERE),
        lambda: torch.cat([THERE, HOST]),
        lambda: torch.where(THERE > 0, THERE, HOST),
        lambda: nn.Linear(3, 2)(THERE),
        lambda: THERE[torch.tensor([1])],
        lambda: HOST[torch.tensor([1], device=DEVICE)],
        lambda: torch.stack([THERE.sum(), torch.tensor(1.0)]),
        lambda: THERE.numpy(),
        lambda: np.asarray(THERE),
    ],
)
def test_the_device_refuses_to_mix(mistake):
    with pytest.raises((RuntimeError, TypeError)):
        mistake()


def test_the_device_computes_what_the_cpu_computes_on_memory_of_its_own_views():
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 4), nn.LayerNorm(4), nn.Tanh())
    twin, images = copy.deepcopy(network).to(DEVICE), torch.rand(5, 1, 4, 4)
    expected = torch.autograd.grad(network(images).square().sum(), list(network.parameters()))
    found = torch.autograd.grad(twin(images.to(DEVICE)).square().sum(), list(twin.parameters()))
    assert all(torch.allclose(a, b.cpu(), atol=1e-6) for a, b in zip(expected, found))

    whole = torch.arange(6.0, device=DEVICE)
    whole[2:4].add_(10)
    assert whole.tolist() == [0, 1, 12, 13, 4, 5]


def test_a_transposed_convolution_has_the_bias_of_its_outputs():
    layer = nn.ConvTranspose2d(3, 2, 2)
    twin, images = copy.deepcopy(layer).to(DEVICE), torch.rand(2, 3, 2, 2)
    expected = torch.autograd.grad(layer(images).square().sum(), list(layer.parameters()))
    found = torch.autograd.grad(twin(images.to(DEVICE)).square().sum(), list(twin.parameters()))
    assert all(torch.allclose(a, b.cpu(), atol=1e-5) for a, b in zip(expected, found))


@pytest.mark.parametrize(
    "waiting",
    [
        lambda: THERE.sum().item(),
        lambda: bool((THERE > 0).any()),
        lambda: THERE.tolist(),
        lambda: THERE.nonzero(),
        lambda: THERE[THERE > 0],
        lambda: THERE.cpu(),
        lambda: torch.equal(THERE, THERE),
    ],
)
def test_what_the_host_waits_for_is_counted(waiting):
    with pretend_device.transfers() as crossed:
        waiting()
    assert [transfer.way for transfer in crossed] == ["back"]


def test_what_is_made_on_the_device_does_not_cross_and_what_is_made_from_numbers_does():
    with pretend_device.transfers() as crossed:
        torch.zeros(3, device=DEVICE).fill_(2.0).add_(1)
        torch.full((), True, device=DEVICE)
    assert crossed == []
    with pretend_device.transfers() as crossed:
        torch.tensor([0.05, 0.95], device=DEVICE)
    assert [transfer.way for transfer in crossed] == ["to"]


def test_tensors_of_any_type_shape_and_stride_cross_in_one_piece_each_way():
    rng = np.random.default_rng(0)
    batch = {
        "images": torch.from_numpy(rng.integers(0, 255, (3, 1, 5, 5), np.uint8)),
        "flags": torch.tensor([True, False, True]),
        "actions": torch.from_numpy(rng.integers(0, 9, 3)),
        "columns": torch.from_numpy(rng.standard_normal((3, 7)).astype(np.float32))[:, 2:5],
        "nothing": torch.zeros(0, 2),
        "number": torch.tensor(2.5, dtype=torch.float64),
    }
    with pretend_device.transfers() as crossed:
        there = to_device(batch, DEVICE)
        back = to_host(*there.values())
    assert [transfer.way for transfer in crossed] == ["to", "back"]
    for (name, x), array in zip(batch.items(), back):
        assert there[name].device == DEVICE and there[name].dtype == x.dtype and there[name].shape == x.shape
        assert array.dtype == x.numpy().dtype and np.array_equal(array, x.numpy())
        assert array.flags.writeable


def test_on_a_cpu_nothing_is_copied():
    x = torch.ones(3)
    assert to_device({"x": x}, "cpu")["x"] is x
    assert to_host(x)[0].ctypes.data == x.data_ptr() and to_host(x, x)[1].ctypes.data == x.data_ptr()
    array = np.ones(3, np.float32)
    assert arrays_to_device("cpu", array)[0].data_ptr() == array.ctypes.data


def test_what_is_there_already_stays():
    there = {"a": torch.ones(2, device=DEVICE), "b": torch.ones(2, device=DEVICE)}
    assert to_device(there, DEVICE) is there


def test_a_state_comes_back_with_its_structure():
    state = {"a": torch.ones(2, device=DEVICE), "parts": [torch.zeros(1, device=DEVICE), 3], "name": "x", "none": None}
    found = state_to_host(state)
    assert found["a"].device.type == found["parts"][0].device.type == "cpu"
    assert found["parts"][1] == 3 and found["name"] == "x" and found["none"] is None


def test_some_buffers_stay_on_the_host():
    class Statistics(HostBuffers):
        ON_HOST = ("count",)

        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.register_buffer("mean", torch.zeros(2))

    moved = Statistics().to(DEVICE)
    assert moved.count.device.type == "cpu" and moved.mean.device == DEVICE
    assert [name for name, _ in moved.named_buffers()] == ["count", "mean"]


def filled(buffer):
    rows = np.arange(12, dtype=np.float32)
    buffer.add(
        obs=np.stack([rows, -rows], 1), actions=np.arange(12) % 3, rewards=rows, next_obs=np.stack([rows, rows], 1),
        dones=rows % 2,
    )  # fmt: skip
    return buffer


def test_a_batch_of_replay_stays_packed_on_the_device():
    buffers = [filled(ReplayBuffer(20, (2,), (), device, action_dtype=np.int64)) for device in ("cpu", DEVICE)]
    here, there = (buffer.sample(5) for buffer in buffers)
    assert isinstance(there, PackedBatch) and there.packed.device == DEVICE
    assert all(torch.equal(here[name], there[name].cpu()) and here[name].dtype == there[name].dtype for name in here)


def test_prioritized_replay_takes_errors_of_the_device():
    buffers = [
        filled(PrioritizedReplayBuffer(20, (2,), (), device, action_dtype=np.int64)) for device in ("cpu", DEVICE)
    ]
    for _ in range(3):
        with pretend_device.transfers() as crossed:
            here, there = (buffer.sample(4) for buffer in buffers)
            assert np.array_equal(here["indices"].numpy(), there["indices"].numpy())
            errors = here["rewards"] - 3
            buffers[0].update_priorities(here["indices"], errors)
            buffers[1].update_priorities(there["indices"], there["rewards"] - 3)
        assert [transfer.way for transfer in crossed] == ["to", "back"]
        assert torch.equal(here["weights"], there["weights"].cpu())
    assert np.array_equal(buffers[0]._tree.leaves, buffers[1]._tree.leaves)


@pytest.mark.parametrize("images", [False, True])
def test_a_mix_of_sources_crosses_once(images):
    def source(value):
        shape, dtype = ((1, 4, 4), np.uint8) if images else ((2,), np.float32)
        buffer = ReplayBuffer(10, shape, (), obs_dtype=dtype)
        for _ in range(6):
            obs = np.full((1, *shape), value, dtype)
            buffer.add(obs=obs, actions=np.zeros(1), rewards=np.ones(1), next_obs=obs, dones=np.zeros(1))
        return buffer

    mixed = Mixed((source(1), 0.25), (source(2), 0.75), device=DEVICE)
    with pretend_device.transfers() as crossed:
        batch = mixed.sample(8)
    assert [transfer.way for transfer in crossed] == ["to"]
    assert sorted(batch["obs"].flatten(1)[:, 0].tolist()) == [1, 1, 2, 2, 2, 2, 2, 2]


def test_a_mix_of_sources_that_are_on_the_device_stays_there():
    sources = [filled(ReplayBuffer(20, (2,), (), DEVICE, action_dtype=np.int64)) for _ in range(2)]
    host = [filled(ReplayBuffer(20, (2,), (), action_dtype=np.int64)) for _ in range(2)]
    there, here = (Mixed((a, 0.5), (b, 0.5)).sample(6) for a, b in (sources, host))
    assert torch.equal(there["obs"].cpu(), here["obs"])


class TestNormaliser:
    """Statistics are kept on the host; what learning scales by is on the device."""

    ROWS = np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32)

    def pair(self):
        return ObservationNormalizer((3,)), ObservationNormalizer((3,)).to(DEVICE)

    def same(self, here, there):
        state, found = here.state_dict(), there.state_dict()
        assert all(torch.equal(state[name], found[name].cpu()) for name in state)
        assert np.array_equal(here.host(self.ROWS), there.host(self.ROWS))
        scaled = here(torch.from_numpy(self.ROWS))
        assert torch.equal(scaled, there(torch.from_numpy(self.ROWS).to(DEVICE)).cpu())
        assert np.allclose(here.host(self.ROWS), scaled, atol=1e-6)

    def test_it_observes_and_scales_as_on_a_cpu(self):
        here, there = self.pair()
        for rows in (self.ROWS, 5 * self.ROWS[:4] + 2):
            here.observe(rows)
            there.observe(rows)
            self.same(here, there)
        for one in (here, there):
            one.fit(self.ROWS)
        self.same(here, there)

    def test_acting_reads_nothing_from_the_device_until_something_changes(self):
        _, there = self.pair()
        with pretend_device.transfers() as crossed:
            there.observe(self.ROWS)
        assert [transfer.way for transfer in crossed] == ["to"]
        with pretend_device.transfers() as crossed:
            there.host(self.ROWS)
        assert crossed == []

    def test_loaded_statistics_are_noticed_in_acting(self):
        here, there = self.pair()
        there.observe(5 * self.ROWS)
        there.host(self.ROWS)
        here.observe(self.ROWS)
        there.load_state_dict(here.state_dict())
        self.same(here, there)

    def test_a_copy_acts_by_its_own_statistics(self):
        here, there = self.pair()
        there.observe(self.ROWS)
        copied = copy.deepcopy(there)
        for one in (here, copied):
            one.load_state_dict(ObservationNormalizer((3,)).state_dict())
        self.same(here, copied)
        assert not np.array_equal(copied.host(self.ROWS), there.host(self.ROWS))
