"""Optimizers of flat parameters, step for step against torch's own or against the papers' formulas, and what they refuse."""

import copy

import pytest
import torch
from torch import nn

from rl_training.optim.flat import FlatAdam, FlatAdamW, FlatLaProp, FlatParameters, FlatRMSprop, Target, descend

RATE = 2.0**-5  # a power of two, so that float32 holds it exactly
STEPS = 5


def network() -> nn.Sequential:
    """Two layers in float64; the second one's bias is zero, so that its norm is below every bound."""
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    nn.init.zeros_(layers[2].bias)
    return layers


def losses(layers: nn.Module):
    """A different loss for every step."""
    numbers = torch.Generator().manual_seed(2)
    for _ in range(STEPS):
        x, y = torch.randn(6, 5, generator=numbers, dtype=torch.float64).split([3, 2], dim=1)
        yield (layers(x) - y).square().sum()


def assert_equal(ours: nn.Module, theirs: nn.Module) -> None:
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


def walk(layers: nn.Module, optimizer: torch.optim.Optimizer, max_grad_norm: float | None = None) -> None:
    for loss in losses(layers):
        optimizer.zero_grad()
        loss.backward()
        if max_grad_norm is not None:
            nn.utils.clip_grad_norm_(layers.parameters(), max_grad_norm)
        optimizer.step()


@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.3}, {"weight_decay": 0.1, "max_grad_norm": 0.5}])
def test_adamw_is_torchs_adamw(options, compiling, monkeypatch):
    ours, theirs = network(), network()
    optimizer = FlatAdamW(ours.parameters(), lr=RATE, **options)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    for loss in losses(ours):
        optimizer.step(optimizer.gradient(loss))
    limit = options.pop("max_grad_norm", None)
    walk(theirs, torch.optim.AdamW(theirs.parameters(), lr=RATE, **options), limit)
    assert_equal(ours, theirs)


@pytest.mark.parametrize("kind", [FlatAdamW, FlatLaProp, FlatRMSprop])
def test_every_optimizer_cuts_gradients_and_can_share_parameters(kind):
    layers = network()
    first = kind(layers.parameters(), lr=RATE, max_grad_norm=1e-3)
    second = kind(first.params, lr=RATE)
    second.share_memory_of(first)
    assert second.flat is first.flat and first.max_grad_norm == 1e-3
    grad = first.gradient(next(losses(layers)))
    first.step(grad)
    assert float(first.square.max()) <= 1e-6 and not second.square.any()


@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"eps": 0.1}, {"betas": (0.5, 0.8)}, {"max_grad_norm": 0.5}, {"max_grad_norm": 1e4}]
)
def test_adam_is_torchs_adam(options, compiling, monkeypatch):
    """Both of its forms: torch's kernel, and the arithmetic that a compiler is given."""
    ours, theirs = network(), network()
    optimizer = FlatAdam(ours.parameters(), lr=RATE, **options)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    for loss in losses(ours):
        optimizer.step(optimizer.gradient(loss))
    limit = options.pop("max_grad_norm", None)
    adam = torch.optim.Adam(theirs.parameters(), lr=RATE, **options)
    walk(theirs, adam, limit)
    assert_equal(ours, theirs)
    assert optimizer.count == STEPS
    for name, moments in (("exp_avg", optimizer.mean), ("exp_avg_sq", optimizer.square)):
        expected = torch.cat([adam.state[p][name].reshape(-1) for p in theirs.parameters()])
        torch.testing.assert_close(moments, expected, rtol=1e-6, atol=1e-8)


def test_adams_defaults_are_torchs():
    optimizer = FlatAdam(network().parameters(), lr=RATE)
    assert optimizer.betas == (0.9, 0.999) and optimizer.eps == 1e-8 and optimizer.max_grad_norm is None


@pytest.mark.parametrize("options", [{}, {"decay": 0.5, "eps": 0.1}])
def test_rmsprop_is_torchs_rmsprop(options):
    ours, theirs = network(), network()
    optimizer = FlatRMSprop(ours.parameters(), lr=RATE, **options)
    for loss in losses(ours):
        descend((optimizer, loss))
    alpha, eps = options.get("decay", 0.95), options.get("eps", 1e-5)
    walk(theirs, torch.optim.RMSprop(theirs.parameters(), lr=RATE, alpha=alpha, eps=eps))
    assert_equal(ours, theirs)


@pytest.mark.parametrize("options", [{}, {"share": 0.01, "least": 0.5, "eps": 0.1}])
def test_laprop_clips_every_parameter_then_scales_then_averages(options):
    ours, theirs = network(), network()
    optimizer = FlatLaProp(ours.parameters(), lr=RATE, **options)
    for loss in losses(ours):
        descend((optimizer, loss))
    share, least, eps = options.get("share", 0.3), options.get("least", 1e-3), options.get("eps", 1e-20)
    moments = {p: (torch.zeros_like(p), torch.zeros_like(p)) for p in theirs.parameters()}
    for t, loss in enumerate(losses(theirs), start=1):
        gradients = torch.autograd.grad(loss, list(theirs.parameters()))
        for p, gradient in zip(theirs.parameters(), gradients):
            largest = share * max(float(p.detach().norm()), least)
            gradient = gradient * min(1.0, largest / float(gradient.norm()))
            mean, square = moments[p]
            square.mul_(0.999).add_(0.001 * gradient**2)
            scaled = gradient / ((square / (1 - 0.999**t)).sqrt() + eps)
            mean.mul_(0.9).add_(0.1 * scaled)
            p.data -= RATE * mean / (1 - 0.9**t)
    for a, b in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)  # the correction for bias is a float32 power


def test_adaptive_clipping_cuts_to_a_share_of_each_parameters_norm_and_leaves_smaller_gradients():
    weights = [
        nn.Parameter(torch.tensor([3.0, 4.0])),
        nn.Parameter(torch.tensor([3.0, 4.0])),
        nn.Parameter(torch.zeros(1)),
    ]
    optimizer = FlatLaProp(weights, lr=RATE)
    clipped = optimizer.clipped(torch.tensor([0.6, 0.8, 60.0, 80.0, 5.0]))
    # 0.3 of a norm of 5 is 1.5: a gradient of norm 1 stays, one of norm 100 is cut; a norm of 0 counts as 0.001
    torch.testing.assert_close(clipped, torch.tensor([0.6, 0.8, 0.9, 1.2, 0.0003]))


def test_a_parameter_without_a_gradient_gets_zero_and_a_frozen_one_is_left_alone():
    layers = network()
    layers[0].weight.requires_grad_(False)
    frozen, unused = layers[0].weight.clone(), layers[2].weight.detach().clone()
    optimizer = FlatAdam(layers.parameters(), lr=RATE)
    gradient = optimizer.gradient(layers[0].bias.square().sum())
    assert [p.shape for p in optimizer.params] == [(4,), (2, 4), (2,)]
    assert torch.equal(gradient, torch.cat([2 * layers[0].bias.detach(), torch.zeros(10).double()]))
    optimizer.step(gradient)
    assert torch.equal(layers[0].weight, frozen) and torch.equal(layers[2].weight, unused)


@pytest.mark.parametrize("kind", [FlatAdam, FlatRMSprop, FlatLaProp])
def test_autograd_does_not_see_a_step(kind):
    optimizer = kind(network().parameters(), lr=RATE)
    optimizer.step(torch.ones_like(optimizer.flat).requires_grad_())
    assert not optimizer.flat.requires_grad and not optimizer.square.requires_grad


def test_all_gradients_are_taken_before_any_step():
    a, b = nn.Parameter(torch.tensor([2.0])), nn.Parameter(torch.tensor([3.0]))
    first, second = FlatAdam([a], lr=1.0, eps=1.0), FlatAdam([b], lr=1.0, eps=1.0)
    descend((first, (a * b).sum()), (second, (a * b).sum()))
    # Adam's first step is g / (|g| + eps): 3 / 4 and 2 / 3, of the gradients at (2, 3)
    torch.testing.assert_close(torch.cat([a, b]).detach(), torch.tensor([2 - 3 / 4, 3 - 2 / 3]))


def test_what_cannot_be_learned_is_refused():
    layers = network()
    with pytest.raises(ValueError, match="FlatAdam got no parameters"):
        FlatAdam([], lr=RATE)
    with pytest.raises(ValueError, match="FlatAdam got no parameters"):
        FlatAdam(network().requires_grad_(False).parameters(), lr=RATE)
    optimizer = FlatAdam(layers.parameters(), lr=RATE)
    with pytest.raises(RuntimeError, match="depends on none of the optimizer's parameters"):
        optimizer.gradient(next(losses(network())))
    with pytest.raises(ValueError, match="share all of their parameters, in the same order"):
        FlatAdam(reversed(list(layers.parameters())), lr=RATE).share_memory_of(optimizer)
    layers.float()
    with pytest.raises(RuntimeError, match="no longer share memory"):
        optimizer.gradient(layers(torch.ones(1, 3)).sum())


def test_two_optimizers_of_the_same_parameters_change_the_same_memory_with_a_state_each():
    ours, theirs = network(), network()
    one = FlatAdam(ours.parameters(), lr=RATE)
    other = FlatAdam(ours.parameters(), lr=2 * RATE)
    other.share_memory_of(one)
    assert other.flat is one.flat
    both = [torch.optim.Adam(theirs.parameters(), lr=rate) for rate in (RATE, 2 * RATE)]
    for i, (loss, same) in enumerate(zip(losses(ours), losses(theirs))):
        descend(((one, other)[i % 2], loss))
        both[i % 2].zero_grad()
        same.backward()
        both[i % 2].step()
    assert_equal(ours, theirs)


def test_a_learning_rate_is_scaled_from_its_initial_value():
    optimizer = FlatAdam(network().parameters(), lr=0.5)
    rate = optimizer.lr
    assert (optimizer.base_lr, optimizer.scale, rate.item()) == (0.5, 1.0, 0.5)
    for scale in (0.5, 0.25):
        assert optimizer.scale_lr(scale) == 0.5 * scale == rate.item() and optimizer.scale == scale
    assert optimizer.lr is rate  # in place: graphs hold it


@pytest.mark.parametrize("kind", [FlatAdam, FlatRMSprop, FlatLaProp])
def test_the_state_is_restored_in_place(kind):
    ours, again = network(), network()
    optimizer, restored = kind(ours.parameters(), lr=RATE), kind(again.parameters(), lr=RATE)
    batches = list(losses(ours))
    for loss in batches[:2]:
        descend((optimizer, loss))
    places = {name: tensor.data_ptr() for name, tensor in restored.state_dict().items()}
    restored.load_state_dict(optimizer.state_dict())
    again.load_state_dict(ours.state_dict())
    assert {name: tensor.data_ptr() for name, tensor in restored.state_dict().items()} == places
    for made, layers in ((optimizer, ours), (restored, again)):
        descend((made, list(losses(layers))[-1]))
    for a, b in zip(ours.parameters(), again.parameters()):
        assert torch.equal(a, b)


def test_parameters_are_views_of_one_tensor_in_their_order():
    layers = network()
    values = torch.cat([p.detach().reshape(-1) for p in layers.parameters()]).clone()
    flat = FlatParameters(layers.parameters())
    assert flat.attached and torch.equal(flat.flat, values) and not flat.flat.requires_grad
    flat.flat.mul_(2)
    assert torch.equal(torch.cat([p.detach().reshape(-1) for p in layers.parameters()]), 2 * values)


@pytest.mark.parametrize("which", [0, 1, 3])
def test_a_parameter_that_left_its_place_is_noticed(which):
    layers = network()
    flat = FlatParameters(layers.parameters())
    moved = list(layers.parameters())[which]
    moved.data = moved.data.clone()
    assert not flat.attached
    with pytest.raises(RuntimeError, match="no longer share memory"):
        copy.deepcopy(flat)


def test_a_copy_has_a_flat_tensor_of_its_own():
    layers = network()
    optimizer = FlatAdam(layers.parameters(), lr=RATE)
    layers_again, again = copy.deepcopy((layers, optimizer))
    before = again.flat.clone()
    descend((optimizer, next(losses(layers))))
    assert again.attached and torch.equal(again.flat, before) and not torch.equal(optimizer.flat, before)
    descend((again, next(losses(layers_again))))
    assert torch.equal(again.flat, optimizer.flat)


def test_a_target_holds_what_the_online_network_learns_and_copies_its_buffers():
    online = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    online[0].bias.requires_grad_(False)
    follower = copy.deepcopy(online)
    target = Target(online, follower, lambda module: module.parameters())
    assert [p.shape for p in target.params] == [(2, 2), (2,), (2,)]  # all but the frozen bias
    assert not any(p.requires_grad for p in follower.parameters()) and online[0].weight.requires_grad
    online(torch.randn(8, 2))
    assert not torch.equal(online[1].running_mean, follower[1].running_mean)
    target.copy_buffers()
    for ours, theirs in zip(online.buffers(), follower.buffers()):
        assert torch.equal(ours, theirs)
    target.flat.zero_()
    assert follower[0].weight.abs().sum() == 0 and online[0].weight.abs().sum() > 0
