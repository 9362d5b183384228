"""The kernel that takes pictures through Dreamer's convolutions, beside torch's own functions."""

import dataclasses
import warnings

import pytest
import torch

from rl_training.algorithms.dreamer import Dreamer
from rl_training.algorithms.optim import cannot_compile
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models import dreamer as models
from rl_training.models import pictures
from rl_training.models.dreamer import SIZES, PixelDecoder, PixelEncoder
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


def same(ones: list[torch.Tensor], others: list[torch.Tensor], tolerance: float = 1e-5) -> None:
    """Equal, but for rounding, beside the largest number in each."""
    for one, other in zip(ones, others, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance * other.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_the_kernel_encodes_as_torch_does_and_so_does_its_way_back(network, dtype: torch.dtype):
    encoder, _ = network
    target = pixels(encoder, 5, dtype)
    same(encoded(encoder, target, True), encoded(encoder, target, False))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
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
    target, before, results = pixels(encoder, 5), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            results.append(encoded(encoder, target, True) + painted(decoder, target, True))
    finally:
        torch.set_num_threads(before)
    one, two, again = results
    same(two, one)
    assert all(torch.equal(x, y) for x, y in zip(two, again))


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
    assert exported.world_model.encoder.fused is False
    assert agent.compiled


def test_without_pictures_nothing_is_compiled_nor_worth_it():
    agent = dreamer((4,))
    agent.use_compiled()
    assert not agent.compiled and agent.WORTH_COMPILING > 10**9


def test_without_a_library_updates_stay_eager_and_say_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pictures, "cannot_build", lambda sizes: "no compiler today")
    agent = dreamer()
    with pytest.warns(UserWarning, match="no compiler today"):
        agent.use_compiled()
    assert not agent.compiled
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent.update(batch(), global_step=0)
