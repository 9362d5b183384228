"""Dreamer's kernels beside torch's own functions: pictures through the convolutions, sequences through the recurrence."""

import dataclasses
import warnings
from collections.abc import Callable

import pytest
import torch

from rl_training.algorithms.dreamer import Dreamer
from rl_training.algorithms.optim import cannot_compile
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models import dreamer as models
from rl_training.models import kernels
from rl_training.models.dreamer import SIZES, PixelDecoder, PixelEncoder
from rl_training.models.rssm import RSSM, Size, State
from rl_training.runtime.workflows import resume_training
from toys import StopAt, same_end

pytestmark = pytest.mark.skipif(cannot_compile() is not None, reason=str(cannot_compile()))
WIDE = dataclasses.replace(SIZES["nano"], depth=24, stages=(1, 2, 1, 2))
NETWORKS = {  # shape of pixels, size
    "tiny": ((3, 32, 32), SIZES["tiny"]),
    "channels that fill no vector": ((1, 32, 48), SIZES["nano"]),
    "channels that fill one and a half": ((4, 48, 32), SIZES["1m"]),
    "three vectors": ((2, 32, 32), WIDE),
}
FEATURES = 5


@pytest.fixture(params=NETWORKS)
def network(request: pytest.FixtureRequest) -> tuple[PixelEncoder, PixelDecoder]:
    shape, size = NETWORKS[request.param]
    torch.manual_seed(0)
    encoder, decoder = PixelEncoder(shape, size), PixelDecoder(FEATURES, shape, size)
    for parameter in (
        *encoder.parameters(),
        *decoder.parameters(),
    ):  # gains of one and biases of zero would hide mistakes
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter)
    return encoder, decoder


def pixels(encoder: PixelEncoder, count: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    height, width, channels, *_ = encoder.sizes
    return torch.randint(256, (count, channels, height, width)).to(dtype)


def encoded(encoder: PixelEncoder, target: torch.Tensor, fused: bool) -> list[torch.Tensor]:
    """Tokens, and the gradient of something random of them."""
    encoder.fused = fused
    tokens = encoder(target)
    weights = torch.randn(tokens.shape, generator=torch.Generator().manual_seed(1))
    return [tokens.detach(), *torch.autograd.grad((tokens * weights).sum(), list(encoder.parameters()))]


def painted(decoder: PixelDecoder, target: torch.Tensor, fused: bool) -> list[torch.Tensor]:
    """The loss, and the gradient of three times it."""
    decoder.fused = fused
    features = torch.randn(len(target), FEATURES, generator=torch.Generator().manual_seed(1)).requires_grad_()
    loss = decoder.loss(features, target)
    return [loss.detach(), *torch.autograd.grad(3 * loss, [features, *decoder.parameters()])]


def with_threads(run: Callable[[], list[torch.Tensor]], numbers: tuple[int, ...]) -> list[list[torch.Tensor]]:
    before, results = torch.get_num_threads(), []
    try:
        for threads in numbers:
            torch.set_num_threads(threads)
            results.append(run())
    finally:
        torch.set_num_threads(before)
    return results


def same(ones: list[torch.Tensor], others: list[torch.Tensor], tolerance: float = 1e-5) -> None:
    """Equal, but for rounding, beside the largest number in each."""
    for one, other in zip(ones, others, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance * other.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int16])
def test_the_kernel_encodes_as_torch_does_and_so_does_its_way_back(network, dtype: torch.dtype):
    encoder, _ = network
    target = pixels(encoder, 5, dtype)
    same(encoded(encoder, target, True), encoded(encoder, target, False))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int16])
def test_the_kernel_paints_and_compares_as_torch_does_and_so_does_its_way_back(network, dtype: torch.dtype):
    encoder, decoder = network
    target = pixels(encoder, 5, dtype)
    same(painted(decoder, target, True), painted(decoder, target, False))


def test_pictures_in_portions_make_what_all_at_once_make(network, monkeypatch: pytest.MonkeyPatch):
    encoder, _ = network
    target = pixels(encoder, 5)
    whole = encoded(encoder, target, True)
    monkeypatch.setattr(models, "PICTURES", 2)
    same(encoded(encoder, target, True), whole)


def test_a_picture_knows_nothing_of_the_others(network):
    encoder, _ = network
    target = pixels(encoder, 3)
    together = encoded(encoder, target, True)[0]
    assert all(torch.equal(encoded(encoder, target[i : i + 1], True)[0][0], together[i]) for i in range(3))


def test_two_threads_make_what_one_makes_but_for_rounding(network):
    encoder, decoder = network
    target = pixels(encoder, 5)

    def both() -> list[torch.Tensor]:
        return encoded(encoder, target, True) + painted(decoder, target, True)

    one, two, again = with_threads(both, (1, 2, 2))
    same(two, one)
    assert all(torch.equal(x, y) for x, y in zip(two, again))


def test_pictures_of_other_sides_are_refused_not_read(network):
    encoder, decoder = network
    wrong = pixels(encoder, 2)[..., 1:]
    with pytest.raises(ValueError, match="built for pictures of"):
        encoded(encoder, wrong, True)
    with pytest.raises(ValueError, match="built for pictures of"):
        painted(decoder, wrong, True)


@pytest.mark.parametrize("scale", [1e-3, 50.0, 1e4])
def test_large_and_small_numbers_stay_finite_and_right(scale: float):
    encoder, target = PixelEncoder((3, 32, 32), SIZES["tiny"]), torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        for norm in encoder.stages[1::2]:
            norm.weight.normal_().mul_(scale)
    same(encoded(encoder, target, True), encoded(encoder, target, False), 1e-4)


def test_a_nan_stays_one_and_stays_in_its_picture():
    encoder, target = PixelEncoder((3, 32, 32), SIZES["tiny"]), torch.zeros(3, 3, 32, 32)
    target[1, 0, 4, 4] = torch.nan
    tokens = encoded(encoder, target, True)[0]
    assert torch.isnan(tokens).any(1).tolist() == [False, True, False]


RECURRENCES = {  # size, sequences
    "one block": (SIZES["tiny"], 16),
    "more sequences than go together, and not twice as many": (SIZES["nano"], 11),
    "blocks, and widths that fill no vector": (
        Size(deter=24, hidden=20, latents=3, classes=5, units=16, depth=2, blocks=2, embed=7),
        3,
    ),
}


@pytest.fixture(params=RECURRENCES)
def recurrence(request: pytest.FixtureRequest) -> tuple[RSSM, int]:
    size, n = RECURRENCES[request.param]
    torch.manual_seed(0)
    rssm = RSSM(size, 3, 8)
    for parameter in rssm.parameters():  # far from what it starts with
        torch.nn.init.normal_(parameter, std=0.5 if parameter.ndim < 2 else 0.7 * parameter.shape[-1] ** -0.5)
    return rssm, n


def observed(rssm: RSSM, n: int, fused: bool) -> list[torch.Tensor]:
    """States, latents and posteriors of random sequences in which episodes start here and there, and the gradient of something random."""
    torch.manual_seed(1)
    rssm.fused, length = fused, 6
    tokens, actions, starts = (
        torch.randn(length, n, 8),
        torch.randn(length, n, 3),
        (torch.rand(length, n) < 0.2).float(),
    )
    state, noise = State(torch.randn(rssm.size.deter, n).t(), torch.randn(n, rssm.flat)), rssm.noise(length, n)
    inputs = [x.requires_grad_() for x in (tokens, *state)]
    states, logp = rssm.observe(tokens, actions, starts, state, noise)
    outputs = (*states, logp)
    loss = sum((x * torch.randn(x.shape)).sum() for x in outputs)
    used = [p for name, p in rssm.named_parameters() if "prior" not in name]
    return [x.detach() for x in outputs] + list(torch.autograd.grad(loss, [*inputs, *used]))


def test_the_kernel_recurs_as_torch_does_and_so_does_its_way_back(recurrence):
    same(observed(*recurrence, True), observed(*recurrence, False))


def test_latents_of_the_kernel_are_one_hot(recurrence):
    rssm, n = recurrence
    latents = observed(rssm, n, True)[1].unflatten(-1, (rssm.size.latents, rssm.size.classes))
    assert set(latents.unique().tolist()) == {0.0, 1.0} and (latents.sum(-1) == 1).all()


def test_sequences_on_two_threads_are_those_on_one_but_for_rounding(recurrence):
    one, two, again = with_threads(lambda: observed(*recurrence, True), (1, 2, 2))
    same(two, one)
    assert all(torch.equal(x, y) for x, y in zip(two, again))


def dreamer(obs_shape: tuple[int, ...] = (3, 32, 32), size: str = "tiny") -> Dreamer:
    torch.manual_seed(0)
    return Dreamer(obs_shape=obs_shape, size=SIZES[size], num_actions=2)


def batch() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    shape = (4, 2)
    return {
        "obs": torch.randint(256, (*shape, 3, 32, 32), dtype=torch.uint8),
        "actions": torch.randint(2, shape),
        "rewards": torch.randn(shape),
        "dones": torch.zeros(shape),
        "episode_starts": torch.zeros(shape),
    }


def test_a_compiled_dreamer_learns_what_an_eager_one_learns():
    losses = []
    for compiled in (False, True):
        agent = dreamer()
        if compiled:
            agent.use_compiled()
        assert agent.compiled is compiled
        torch.manual_seed(2)
        losses.append([agent.update(batch(), global_step=0).metrics["dreamer_world_model_loss"] for _ in range(3)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_a_compiled_run_resumes_exactly_and_compiled(tiny):
    spec = get_algorithm_spec("dreamer")
    config = tiny(
        "dreamer", env_id="rl_training.envs.catch:Catch-v0", total_timesteps=96, compile=True, eval_interval=0
    )
    straight = load_checkpoint(spec.train(config, run_suffix="straight").checkpoint_path)
    assert straight.trainer_state["engine"]["compile"] is True
    stopped = spec.train(config, run_suffix="stopped", callbacks=[StopAt(50)])
    same_end(straight, load_checkpoint(resume_training(stopped.run_dir).checkpoint_path))


def test_acting_and_exports_do_not_depend_on_the_engine():
    agent = dreamer()
    encoder, target = agent.world_model.encoder, torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        eager = encoder(target)
    agent.use_compiled()
    with torch.no_grad():
        assert torch.equal(encoder(target), eager)
    exported = agent.policy_module()
    assert not any(part.fused for part in exported.modules() if isinstance(part, kernels.Fusible))
    assert agent.compiled


def test_without_pictures_the_recurrence_alone_is_compiled():
    agent = dreamer((4,), "nano")
    agent.use_compiled()
    assert [type(part) for part in agent._fusible()] == [RSSM] and agent.compiled


def test_elsewhere_than_on_a_cpu_nothing_is_compiled_nor_worth_it():
    agent = Dreamer(obs_shape=(3, 32, 32), size=SIZES["nano"], num_actions=2, device="meta")
    agent.use_compiled()
    assert not agent.compiled and agent.WORTH_COMPILING > 10**9


def test_why_a_kernel_cannot_be_built_is_the_compilers_first_error(monkeypatch: pytest.MonkeyPatch):
    def failing(sizes: kernels.Sizes) -> kernels.Library:
        raise RuntimeError(
            "C++ compile error\n\nCommand: ...\nmain.cpp:3:1: error: what is this?\nmain.cpp:9:1: error: and that?"
        )

    agent = dreamer()
    monkeypatch.setattr(PixelEncoder, "kernel", staticmethod(failing))
    assert kernels.cannot_build(agent._fusible()) == "main.cpp:3:1: error: what is this?"


def test_without_a_library_updates_stay_eager_and_say_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernels, "cannot_build", lambda parts: "no compiler today")
    agent = dreamer()
    with pytest.warns(UserWarning, match="no compiler today"):
        agent.use_compiled()
    assert not agent.compiled
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent.update(batch(), global_step=0)
