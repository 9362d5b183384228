"""Dreamer's maths: two-hot bins, KL losses, resets, λ-returns, and which parameters each loss has gradients for."""

import pytest
import torch

from rl_training.algorithms.dreamer import Dreamer, ReturnScale, kl_losses, lambda_returns
from rl_training.models import dreamer
from rl_training.models.dreamer import SIZES, PixelDecoder, PixelEncoder, TwoHot, symexp, symlog
from rl_training.models.rssm import RSSM, UNIMIX, Size, State
from rl_training.optim.flat import FlatLaProp

SMALL = Size(deter=16, hidden=16, latents=3, classes=4, units=16, depth=2, blocks=2)


def agent(**changes):
    torch.manual_seed(0)
    options = {"obs_shape": (2,), "size": SMALL, "num_actions": 3, "imagination_horizon": 4}
    return Dreamer(**{**options, **changes})


def sequences(length=6, n=4, obs=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "obs": torch.randn(length, n, 2, generator=generator) if obs is None else obs,
        "actions": torch.randint(3, (length, n), generator=generator),
        "rewards": torch.randn(length, n, generator=generator),
        "dones": torch.zeros(length, n),
        "episode_starts": torch.zeros(length, n),
    }


def test_symlog_and_back():
    x = torch.tensor([-1e4, -1.0, 0.0, 0.3, 1e4])
    torch.testing.assert_close(symexp(symlog(x)), x)


def test_two_hot_weights_are_two_sum_to_one_and_give_the_number_back():
    bins, x = TwoHot(), torch.tensor([-300.0, -1.0, 0.0, 0.017, 2.5, 12345.0])
    places, weights = bins.neighbours(x)
    assert (places[:, 1] - places[:, 0] == 1).all() and (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(6))
    mean = (weights.double() * bins.bins[places].double()).sum(-1).float()
    torch.testing.assert_close(mean, x, rtol=1e-4, atol=1e-5)


def test_equal_probabilities_everywhere_have_a_mean_of_exactly_zero():
    assert TwoHot().mean(torch.zeros(3, 255)).tolist() == [0.0, 0.0, 0.0]


def test_the_loss_of_bins_is_the_cross_entropy_and_least_at_the_number():
    bins, x = TwoHot(), torch.tensor([3.7])
    _, weights = bins.neighbours(x)
    entropy = -(weights * weights.log()).sum()

    def spread(number):
        return torch.full((1, 255), 1e-8).scatter(1, *bins.neighbours(number)).log()

    assert bins.loss(spread(x), x).item() == pytest.approx(entropy.item(), rel=1e-5)
    assert bins.loss(spread(x + 2), x) > 10


def logprobs(seed, requires_grad=True):
    logits = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(seed)) * 3
    return logits.requires_grad_(requires_grad)


def test_each_kl_loss_has_gradients_for_one_side_only_and_none_below_the_free_nats():
    for which in (0, 1):
        posterior, prior = logprobs(1), logprobs(2)
        kl_losses(posterior.log_softmax(-1), prior.log_softmax(-1))[which].sum().backward()
        moved = [x.grad is not None and bool(x.grad.abs().sum() > 0) for x in (posterior, prior)]
        assert moved == [which == 1, which == 0]
    same = logprobs(1)
    free = kl_losses(same.log_softmax(-1), same.log_softmax(-1))
    assert all(part.tolist() == [1.0] * 5 for part in free)
    torch.stack(free).sum().backward()
    assert same.grad.abs().sum() == 0


def test_every_class_keeps_a_little_probability_and_latents_are_straight_through():
    rssm = RSSM(SMALL, 3, 8)
    logits = torch.full((1, 12), -1e4).index_fill(1, torch.tensor([0, 4, 8]), 1e4)
    assert rssm.logprobs(logits).exp().min().item() == pytest.approx(UNIMIX / 4)
    logp = torch.randn(2, 3, 4).log_softmax(-1).requires_grad_()
    drawn = rssm.sample(logp, rssm.noise(2))
    assert set(drawn.detach().round(decimals=5).unique().tolist()) == {0.0, 1.0} and drawn.shape == (2, 12)
    weights = torch.randn(2, 12)
    (grad,) = torch.autograd.grad((drawn * weights).sum(), logp)
    torch.testing.assert_close(grad, logp.exp().detach() * weights.view(2, 3, 4))


def test_the_start_of_an_episode_resets_state_and_previous_action():
    rssm = RSSM(SMALL, 3, 8)
    length, n = 5, 2
    tokens, noise, starts = torch.randn(length, n, 8), rssm.noise(length, n), torch.zeros(length, n)
    starts[2] = 1
    ends = []
    for seed in (1, 2):
        generator = torch.Generator().manual_seed(seed)
        actions = torch.randn(length, n, 3, generator=generator)
        actions[3:] = 0.5
        before = torch.cat([torch.randn(2, n, 8, generator=generator), tokens[2:]])
        state = State(torch.randn(n, 16, generator=generator), torch.randn(n, 12, generator=generator))
        states, _ = rssm.observe(before, actions, starts, state, noise)
        ends.append(states)
    assert torch.equal(ends[0].deter[2:], ends[1].deter[2:]) and torch.equal(ends[0].stoch[2:], ends[1].stoch[2:])
    assert not torch.equal(ends[0].deter[1], ends[1].deter[1])


def test_blocks_of_the_recurrence_do_not_see_each_others_state():
    rssm = RSSM(SMALL, 3, 8)
    for parameter in rssm.of_deter.parameters():  # the only way round the blocks
        torch.nn.init.zeros_(parameter)
    deter = torch.randn(1, 16, requires_grad=True)
    pre = rssm.inner(torch.cat([deter.view(1, 2, 8), torch.zeros(1, 2, 48)], -1))
    (grad,) = torch.autograd.grad(pre[0, 0].sum(), deter)
    assert grad[0, :8].abs().sum() > 0 and grad[0, 8:].abs().sum() == 0


def test_lambda_returns_by_hand_and_their_fixed_point():
    rewards = torch.tensor([[9.0], [1.0], [2.0]])
    discounts, values = torch.tensor([[9.0], [0.5], [0.5]]), torch.tensor([[9.0], [4.0], [8.0]])
    last = 2 + 0.5 * 8
    assert lambda_returns(rewards, discounts, values, 0.5)[:, 0].tolist() == [1 + 0.5 * (0.5 * 4 + 0.5 * last), last]
    right = torch.full((6, 1), 10.0)  # r = 1 for ever at 0.9 is ten
    torch.testing.assert_close(lambda_returns(torch.ones(6, 1), right * 0.09, right, 0.7), right[:-1])


def test_returns_stop_at_the_last_observation_of_an_episode():
    rewards, discounts = torch.tensor([[0.0], [1.0], [50.0]]), torch.ones(3, 1)
    values, last = torch.tensor([[0.0], [3.0], [70.0]]), torch.tensor([[0.0], [1.0], [0.0]])
    assert lambda_returns(rewards, discounts, values, 0.9, last)[0, 0].item() == pytest.approx(1 + 3)


def test_the_scale_of_returns_follows_their_range():
    scale, returns = ReturnScale(), torch.linspace(0, 50 / 0.9, 10_001)
    for n in range(1, 4):
        assert scale.update(returns).item() == pytest.approx(max(1, 50 * (1 - 0.99**n)), rel=1e-3)


def test_imagined_states_after_a_termination_weigh_nothing_and_others_are_discounted():
    learner = agent()
    states, _, _ = learner.observe(sequences())
    with torch.no_grad():
        last = learner.world_model.goes_on[-1]
        last.weight.zero_()
        for bias, weights in ((-100.0, [0, 0, 0, 0]), (100.0, [1 / 0.997] * 4)):
            last.bias.fill_(bias)
            imagined = learner._imagine(states)
            assert imagined["weights"][:, 0].tolist() == pytest.approx(weights, abs=1e-6)


def touched(loss, module):
    grads = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True, retain_graph=True)
    return any(g is not None and bool(g.abs().sum() > 0) for g in grads)


def test_gradients_go_where_they_should():
    learner, batch = agent(), sequences()
    for module in (learner.world_model.reward, learner.critic.net):  # away from their start at zero
        torch.nn.init.normal_(module[-1].weight, std=0.1)
    world, states, _ = learner._world_model_loss(batch)
    imagined = learner._imagine(states)
    (actor, _), critic = learner._actor_loss(imagined), learner._critic_loss(imagined)
    shaping, alone = learner._replay_value_losses(batch, states, imagined)
    parts = (learner.world_model, learner.actor, learner.critic)
    assert [touched(world, part) for part in parts] == [True, False, False]
    assert [touched(actor, part) for part in parts] == [False, True, False]
    assert [touched(critic, part) for part in parts] == [False, False, True]
    assert touched(shaping, learner.world_model) and touched(alone, learner.critic)
    assert not touched(alone, learner.world_model)


def test_the_size_of_rewards_does_not_change_the_actors_gradient():
    learner = agent()
    states, _, _ = learner.observe(sequences())
    imagined = learner._imagine(states)
    imagined["returns"], imagined["values"] = imagined["returns"] * 0 + torch.randn(4, 24) * 20, imagined["values"] * 0
    grads = []
    for factor in (1.0, 1000.0):
        learner.scale = ReturnScale()
        scaled = {**imagined, "returns": imagined["returns"] * factor}
        for _ in range(2000):
            learner.scale.update(scaled["returns"])
        learner._entropy_coef = 0.0
        loss, _ = learner._actor_loss(scaled)
        grads.append(torch.autograd.grad(loss, list(learner.actor.parameters())))
    for small, large in zip(*grads):
        torch.testing.assert_close(small, large, rtol=1e-3, atol=1e-7)


def test_gradients_of_actor_and_critic_do_not_depend_on_the_size_of_chunks(monkeypatch):
    learner = agent()
    torch.nn.init.normal_(learner.critic.net[-1].weight, std=0.1)
    imagined = learner._imagine(learner.observe(sequences())[0])
    ends = []
    for count in (7, 10_000):  # of 96
        monkeypatch.setattr("rl_training.algorithms.dreamer.CHUNK", count)
        learner.scale = ReturnScale()
        losses = [learner._actor_loss(imagined)[0], learner._critic_loss(imagined)]
        modules = (learner.actor, learner.critic)
        grads = [torch.autograd.grad(loss, list(module.parameters())) for loss, module in zip(losses, modules)]
        ends.append([*losses, *grads[0], *grads[1]])
    for few, many in zip(*ends):
        torch.testing.assert_close(few, many, rtol=1e-4, atol=1e-6)


def test_the_first_step_of_laprop_has_the_size_of_the_rate_and_gradients_are_cut_to_their_weights():
    weight = torch.nn.Parameter(torch.tensor([3.0, -4.0]))
    optimizer = FlatLaProp([weight], lr=0.1)
    cut = optimizer.clipped(torch.tensor([300.0, -400.0]))
    assert cut.norm().item() == pytest.approx(0.3 * 5)
    optimizer.step(torch.tensor([0.002, -7.0]))
    torch.testing.assert_close(weight.data, torch.tensor([2.9, -3.9]))


@pytest.mark.parametrize("side", [32, 64, 84, 96])
def test_images_of_any_size_are_reconstructed_at_the_size_of_the_target(side):
    size = SIZES["tiny"]
    encoder, decoder = PixelEncoder((3, side, side), size), PixelDecoder(20, (3, side, side), size)
    target = encoder.target(torch.randint(256, (2, 5, 3, side, side), dtype=torch.uint8))
    assert encoder(target).shape == (2, 5, encoder.width)
    assert decoder(torch.randn(2, 5, 20)).shape == target.shape == (2, 5, 3, *encoder.sides)
    assert encoder.sides == ((80, 80) if side == 84 else (side, side))


def test_the_decoder_loss_in_chunks_is_that_of_all_images_and_so_are_its_gradients(monkeypatch):
    monkeypatch.setattr(dreamer, "IMAGES", 4)  # of six: in two chunks
    torch.manual_seed(0)
    decoder, features, target = (
        PixelDecoder(20, (3, 32, 48), SMALL),
        torch.randn(2, 3, 20, requires_grad=True),
        torch.randint(256, (2, 3, 3, 32, 48), dtype=torch.uint8),
    )
    plain, quick = (decoder(features) - target / 255).square().sum((-3, -2, -1)).mean(), decoder.loss(features, target)
    torch.testing.assert_close(quick, plain)
    leaves = [features, *decoder.parameters()]
    expected = torch.autograd.grad(3 * plain, leaves)
    for got, grad in zip(torch.autograd.grad(3 * quick, leaves), expected):
        torch.testing.assert_close(got, grad, rtol=1e-4, atol=1e-4)


def test_a_batch_can_be_learned_by_heart():
    wide = Size(deter=128, hidden=64, latents=8, classes=8, units=64, depth=2, blocks=1)
    learner, batch = agent(size=wide, world_model_learning_rate=3e-3), sequences(length=8, n=4)
    first = dict(learner.update_world_model(batch, global_step=0).metrics)
    for _ in range(200):
        last = learner.update_world_model(batch, global_step=0).metrics
    assert last["dreamer_reconstruction_loss"] < 0.1 * first["dreamer_reconstruction_loss"]
    assert last["dreamer_reward_loss"] < 0.5 * first["dreamer_reward_loss"]


@pytest.mark.parametrize("changes", [{}, {"num_actions": None, "action_dim": 2}, {"optimizer": "laprop"}])
def test_an_update_moves_everything_and_reports_it(changes):
    learner, batch = agent(**changes), sequences()
    if "action_dim" in changes:
        batch["actions"] = torch.rand(6, 4, 2) * 2 - 1
    before = [o.flat.clone() for o in learner.optimizers()]
    metrics = learner.update(batch, global_step=0).metrics
    assert all(not torch.equal(a, o.flat) for a, o in zip(before, learner.optimizers()))
    names = ("world_model_loss", "reconstruction_loss", "reward_loss", "actor_loss", "critic_loss")
    assert {f"dreamer_{name}" for name in (*names, "imagination_horizon", "imagination_reward_mean")} <= set(metrics)


def test_acting_step_by_step_finds_the_states_of_the_whole_sequence():
    """With latents at their likeliest, carried state equals the sequence's."""
    learner, batch = agent(), sequences(length=5, n=2)
    carry, rssm = None, learner.world_model.rssm
    silent = torch.zeros(5, 2, 3, 4)
    actions = []
    for t in range(5):
        acting = learner.act(batch["obs"][t].numpy(), carry=carry, deterministic=True)
        carry = acting.carry
        actions.append(torch.from_numpy(acting.actions))
    taken = learner.actor.as_inputs(torch.stack(actions))
    before = torch.cat([torch.zeros_like(taken[:1]), taken[:-1]])
    tokens = learner.world_model.encoder(learner.world_model.encoder.target(batch["obs"]))
    states, _ = rssm.observe(tokens, before, batch["episode_starts"], rssm.initial(2), silent)
    torch.testing.assert_close(torch.from_numpy(carry[:, :16]), states.deter[-1].detach())
