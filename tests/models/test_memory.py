"""Recurrent layers: sequences of any lengths give what a plain loop over time gives, and acting in numpy gives it too."""

import copy

import numpy as np
import pytest
import torch

from oracles.memory import PlainActorCritic, one_step, plain_layer
from rl_training.models import MLPActorCritic, MLPFQFNetwork, MLPIQNetwork, MLPQNetwork, MLPQRQNetwork
from rl_training.models.action_values import ActionValues, FractionQuantileMeans, ProposedQuantileMeans, QuantileMeans
from rl_training.models.host import host_forward
from rl_training.models.memory import Memory, MemorySize, RecurrentTrunk, Sequences, Warmup, memory_of

KINDS = ("lstm", "gru")
LENGTHS = [3, 1, 5, 2]


def memory(kind, dtype=torch.float64):
    torch.manual_seed(3)
    return Memory(4, kind, 6).to(dtype)


def inputs(made, lengths=LENGTHS, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(sum(lengths), 4, generator=generator, dtype=dtype)
    return x, torch.tensor(lengths), torch.randn(len(lengths), made.state_size, generator=generator, dtype=dtype).tanh()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [LENGTHS, [4], [1, 1, 1], [2, 2], [7, 1]])
def test_sequences_of_any_lengths_give_what_a_loop_over_time_gives(kind, lengths):
    made = memory(kind)
    x, counts, states = inputs(made, lengths)
    layer, size = plain_layer(made.state_dict(), "layer.")
    expected, stepped, row = [], [], 0
    for length, state in zip(lengths, states):
        own = state[None]
        for _ in range(length):
            state, own = one_step(layer, size, x[row], state), made.step(x[row : row + 1], own)
            expected.append(state[:size])
            stepped.append(own[0, :size])
            row += 1
    torch.testing.assert_close(made.unroll(x, counts, states), torch.stack(expected), rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.stack(stepped), torch.stack(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_padded_changes_neither_outputs_nor_gradients(kind):
    made = memory(kind)
    x, counts, states = inputs(made)

    def results():
        given = x.clone().requires_grad_()
        outputs = made.unroll(given, counts, states)
        made.zero_grad()
        outputs.square().sum().backward()
        return [outputs, given.grad, *(p.grad.clone() for p in made.parameters())]

    expected, filled = results(), []

    def fill(layer, arguments):
        padded, state = arguments
        empty = (padded == 0).all(-1, keepdim=True)
        filled.append(int(empty.sum()))
        return torch.where(empty, torch.full_like(padded, 1e3), padded), state

    made.layer.register_forward_pre_hook(fill)
    given = results()
    assert filled == [max(LENGTHS) * len(LENGTHS) - sum(LENGTHS)]
    for one, other in zip(expected, given):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_the_first_step_of_a_sequence_and_no_other_sequence(kind):
    made = memory(kind)
    x, counts, states = inputs(made)
    x.requires_grad_()
    made.unroll(x, counts, states)[8].sum().backward()  # the last of rows 4 to 8, the third sequence
    reached = x.grad.abs().sum(1) > 0
    assert reached.tolist() == [4 <= row <= 8 for row in range(11)]


def network(cls, kind, **options):
    torch.manual_seed(2)
    made = cls(**{"obs_dim": 3, "action_dim": 4, "hidden_sizes": (8, 7), "memory": MemorySize(kind, 5), **options})
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made


def values_of(made):
    if isinstance(made, MLPQRQNetwork):
        return QuantileMeans(made, made.num_quantiles)
    kinds = {MLPQNetwork: ActionValues, MLPFQFNetwork: ProposedQuantileMeans}
    return FractionQuantileMeans(made, 6) if isinstance(made, MLPIQNetwork) else kinds[type(made)](made)


NETWORKS = [
    (MLPQNetwork, {}),
    (MLPQNetwork, {"dueling": True}),
    (MLPQRQNetwork, {"num_quantiles": 5}),
    (MLPIQNetwork, {"num_quantiles": 5, "embedding_dim": 6}),
    (MLPFQFNetwork, {"num_quantiles": 5, "embedding_dim": 6}),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("cls", "options"), NETWORKS)
def test_values_in_numpy_are_those_of_torch_and_so_are_states(kind, cls, options):
    made = network(cls, kind, **options)
    values, rng = values_of(made), np.random.default_rng(0)
    obs, carry = rng.normal(size=(3, 3)).astype("f4"), rng.normal(size=(3, memory_of(made).state_size)).astype("f4")
    given, same = Sequences(obs, carry), Sequences(torch.from_numpy(obs), torch.from_numpy(carry))
    assert values._forward.in_numpy
    with torch.no_grad():
        expected = values.on_tensors(made, same).numpy()
    np.testing.assert_allclose(values.on_arrays(given, None), expected, rtol=0, atol=2e-6)
    np.testing.assert_allclose(given.after, same.after.numpy(), rtol=0, atol=1e-6)
    by_torch = Sequences(obs, carry)
    made.register_forward_hook(lambda *_: None)
    assert not values._forward.in_numpy
    np.testing.assert_allclose(values.on_arrays(by_torch, None), expected, rtol=0, atol=2e-6)
    np.testing.assert_allclose(by_torch.after, given.after, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 4, 300])
def test_an_actor_and_its_critic_have_a_memory_each_and_act_in_numpy_as_a_plain_loop_does(kind, rows):
    made = network(MLPActorCritic, kind)
    forward, plain, rng = made.host(), PlainActorCritic(made), np.random.default_rng(0)
    obs, carry = rng.normal(size=(rows, 3)).astype("f4"), rng.normal(size=(rows, made.trunk.state_size)).astype("f4")
    given = Sequences(obs, carry)
    outputs, values = forward(given)
    with torch.no_grad():
        expected = [plain.step(*map(torch.from_numpy, row)) for row in zip(obs, carry)]
    assert forward.in_numpy and len(made.trunk.memories) == 2
    for one, other in zip((outputs, values, given.after), zip(*expected)):
        np.testing.assert_allclose(one, torch.stack(other).numpy(), rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    "change",
    [
        lambda trunk: trunk.register_forward_hook(lambda module, given, features: features + 1),
        lambda trunk: trunk.memories[0].layer.register_forward_hook(lambda *_: None),
        lambda trunk: setattr(trunk.memories[0], "step", lambda x, state: 0 * state),
        lambda trunk: setattr(trunk, "forward", lambda given: RecurrentTrunk.forward(trunk, given) + 1),
    ],
    ids=["hook", "hook of the layer", "step", "forward"],
)
def test_a_memory_that_was_changed_acts_by_torch(change):
    made = network(MLPActorCritic, "gru")
    forward = made.host()
    assert forward.in_numpy
    change(made.trunk)
    assert not forward.in_numpy
    obs, carry = np.ones((2, 3), np.float32), np.zeros((2, 10), np.float32)
    given, same = Sequences(obs, carry), Sequences(torch.from_numpy(obs), torch.from_numpy(carry))
    with torch.no_grad():
        expected = made(same)
    for one, other in zip(forward(given), expected):
        np.testing.assert_array_equal(one, other.numpy())
    np.testing.assert_array_equal(given.after, same.after.numpy())


class Leaking(Memory):
    """Forgets half of its state at every step."""

    def step(self, x, state):
        return super().step(x, 0.5 * state)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on", ["class", "instance"])
def test_a_step_of_ones_own_is_learned_as_it_acts(kind, on):
    made = network(MLPQNetwork, kind)
    memory, lengths = memory_of(made).memories[0], torch.tensor([5, 2])
    if on == "class":
        memory.__class__ = Leaking
    else:
        memory.step = lambda x, state: Memory.step(memory, x, 0.5 * state)
    rows, forward, acted = torch.randn(7, 3), host_forward(made), []
    with torch.no_grad():
        learned = made(Sequences(rows, torch.zeros(2, memory.state_size), lengths)).numpy()
    for sequence in rows.split(lengths.tolist()):
        carry = np.zeros((1, memory.state_size), np.float32)
        for row in sequence:
            given = Sequences(row[None].numpy(), carry)
            acted.append(forward(given))
            carry = given.after
    np.testing.assert_allclose(learned, np.concatenate(acted), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_warm_up_is_a_plain_loop_from_the_last_start_of_an_episode_and_has_no_gradient(kind):
    made = network(MLPQNetwork, kind).double()
    trunk, generator = memory_of(made), torch.Generator().manual_seed(4)
    rows = torch.randn(4, 3, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    starts = torch.zeros(4, 3, dtype=torch.float64)
    starts[2, 1] = starts[0, 2] = 1  # in the middle of the second, at the start of the third
    carry = torch.randn(3, trunk.state_size, generator=generator, dtype=torch.float64).tanh().requires_grad_()
    x = torch.randn(8, 3, generator=generator, dtype=torch.float64)
    lengths, first = torch.tensor([2, 1, 2, 1, 2]), torch.tensor([0, -1, 1, 2, -1])
    features = trunk(Sequences(x, carry, lengths, warmup=Warmup(rows, starts, carry, first)))

    layer, size = plain_layer(trunk.state_dict(), "memories.0.layer.")
    warmed = []
    for b, begin in enumerate((0, 2, 0)):
        state = carry[b].detach() * (starts[begin, b] == 0)
        for t in range(begin, 4):
            state = one_step(layer, size, trunk.encoder(rows[t, b : b + 1])[0], state)
        warmed.append(state)
    expected, row = [], 0
    for length, source in zip(lengths.tolist(), first.tolist()):
        state = warmed[source] if source >= 0 else torch.zeros_like(warmed[0])
        for _ in range(length):
            state = one_step(layer, size, trunk.encoder(x[row : row + 1])[0], state)
            expected.append(state[:size])
            row += 1
    torch.testing.assert_close(features, torch.stack(expected), rtol=0, atol=1e-12)
    features.sum().backward()
    assert rows.grad is None and carry.grad is None


def test_a_copy_of_a_network_has_a_memory_of_its_own():
    made = network(MLPActorCritic, "lstm")
    other = copy.deepcopy(made)
    with torch.no_grad():
        other.trunk.memories[0].layer.weight_hh_l0.add_(1)
    obs, carry = torch.ones(2, 3), torch.zeros(1, made.trunk.state_size)
    one, two = (Sequences(obs, carry, torch.tensor([2])) for _ in range(2))
    with torch.no_grad():
        assert not torch.allclose(made(one)[0], other(two)[0])


def test_a_trunk_that_was_given_no_memory_is_the_one_it_was():
    plain = MLPQNetwork(obs_dim=3, action_dim=2)
    assert memory_of(plain) is None and "memories" not in " ".join(plain.state_dict())
