"""Dreamer's kernels beside torch's own functions: images through the convolutions, sequences through the recurrence.

Both are compared with float64, within the error that float32 may make there (``rounding``), so that the processor does
not matter.
"""

import copy
import dataclasses
import warnings
from collections.abc import Callable
from functools import cache

import pytest
import torch

from rl_training.algorithms.dreamer import Dreamer
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models import dreamer as models
from rl_training.models import kernels
from rl_training.models.dreamer import SIZES, PixelDecoder, PixelEncoder
from rl_training.models.kernels import DecoderLoss, Encode, Observe
from rl_training.models.rssm import RSSM, Size, State
from rl_training.optim.compiled import cannot_compile
from rl_training.runtime.workflows import resume_training
from rounding import errors, exact_and_tolerances
from toys import StopAt, same_end

pytestmark = [
    pytest.mark.skipif(cannot_compile() is not None, reason=str(cannot_compile())),
    pytest.mark.timeout(900),  # a compiler on a busy machine
]
WIDE = dataclasses.replace(SIZES["nano"], depth=24, stages=(1, 2, 1, 2))
NETWORKS = {  # shape of pixels, size
    "tiny": ((3, 32, 32), SIZES["tiny"]),
    "channels that fill no vector": ((1, 32, 48), SIZES["nano"]),
    "channels that fill one and a half": ((4, 48, 32), SIZES["1m"]),
    "three vectors": ((2, 32, 32), WIDE),
}
FEATURES = 5


def with_builds(names: list[str], narrow: list[str]) -> list[tuple[str, str]]:
    """Every network with the widest vectors there are here, and some with narrower ones and with none."""
    return [(name, "native") for name in names] + [(name, isa) for isa in ("avx2", "plain") for name in narrow]


def made(name: str) -> tuple[PixelEncoder, PixelDecoder]:
    shape, size = NETWORKS[name]
    torch.manual_seed(0)
    encoder, decoder = PixelEncoder(shape, size), PixelDecoder(FEATURES, shape, size)
    for parameter in (
        *encoder.parameters(),
        *decoder.parameters(),
    ):  # gains of one and biases of zero would hide mistakes
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter)
    return encoder, decoder


@pytest.fixture(
    params=with_builds([*NETWORKS], ["channels that fill no vector", "channels that fill one and a half"]), ids="-".join
)
def network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, PixelEncoder, PixelDecoder]:
    name, isa = request.param
    monkeypatch.setenv(kernels.ISA, isa)
    return name, *made(name)


def pixels(encoder: PixelEncoder, count: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    height, width, channels, *_ = encoder.sizes
    generator = torch.Generator().manual_seed(3)
    return torch.randint(256, (count, channels, height, width), generator=generator).to(dtype)


def random(*shape: int, dtype: torch.dtype, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def encoded(encoder: PixelEncoder, target: torch.Tensor, fused: bool) -> list[torch.Tensor]:
    """Tokens, and the gradient of something random of them."""
    encoder.fused = fused
    tokens = encoder(target)
    loss = (tokens * random(*tokens.shape, dtype=tokens.dtype)).sum()
    return [tokens.detach(), *torch.autograd.grad(loss, list(encoder.parameters()))]


def decoded(decoder: PixelDecoder, target: torch.Tensor, fused: bool) -> list[torch.Tensor]:
    """The loss, and the gradient of three times it."""
    decoder.fused = fused
    features = random(len(target), FEATURES, dtype=next(decoder.parameters()).dtype).requires_grad_()
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


Reference = tuple[list[torch.Tensor], list[float]]


@cache
def encoding(name: str) -> Reference:
    """Of five images, in float64, and how far from it float32 may be."""
    encoder, _ = made(name)
    target = pixels(encoder, 5, torch.float64)
    return exact_and_tolerances(lambda module: encoded(module, target, False), encoder)


@cache
def decoding(name: str) -> Reference:
    encoder, decoder = made(name)
    target = pixels(encoder, 5, torch.float64)
    return exact_and_tolerances(lambda module: decoded(module, target, False), decoder, terms=target.numel())


def right(results: list[torch.Tensor], reference: Reference) -> None:
    assert max(found := errors(results, *reference)) <= 1, found


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int16])
def test_the_kernel_encodes_as_torch_does_forward_and_backward(network, dtype: torch.dtype):
    name, encoder, _ = network
    target = pixels(encoder, 5, dtype)
    right(encoded(encoder, target, True), encoding(name))
    right(encoded(encoder, target, False), encoding(name))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int16])
def test_the_kernel_computes_the_decoder_loss_as_torch_does_forward_and_backward(network, dtype: torch.dtype):
    name, encoder, decoder = network
    target = pixels(encoder, 5, dtype)
    right(decoded(decoder, target, True), decoding(name))
    right(decoded(decoder, target, False), decoding(name))


MISTAKES = {
    "a gain that is off by a thousandth": lambda shape: (lambda p: p.mul_(1.001)) if len(shape) == 1 else None,
    "one weight too few": lambda shape: (lambda p: p.view(-1)[:1].zero_()) if len(shape) == 4 else None,
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_beyond_what_rounding_can_do(name: str, mistake: str):
    for module, run, reference in zip(made(name), (encoded, decoded), (encoding(name), decoding(name))):
        target = pixels(made(name)[0], 5)
        for index, parameter in enumerate(module.parameters()):
            if not (change := MISTAKES[mistake](parameter.shape)):
                continue
            wrong = copy.deepcopy(module)
            with torch.no_grad():
                change(list(wrong.parameters())[index])
            assert max(errors(run(wrong, target, False), *reference)) > 5, (type(module), index)


def test_images_in_chunks_are_encoded_as_all_at_once(network, monkeypatch: pytest.MonkeyPatch):
    name, encoder, _ = network
    monkeypatch.setattr(models, "IMAGES", 2)
    right(encoded(encoder, pixels(encoder, 5), True), encoding(name))


def test_images_do_not_affect_each_other(network):
    _, encoder, _ = network
    target = pixels(encoder, 3)
    together = encoded(encoder, target, True)[0]
    assert all(torch.equal(encoded(encoder, target[i : i + 1], True)[0][0], together[i]) for i in range(3))


def test_two_threads_make_what_one_makes_but_for_rounding(network):
    name, encoder, decoder = network
    target = pixels(encoder, 5)
    for run, reference in (
        (lambda: encoded(encoder, target, True), encoding(name)),
        (lambda: decoded(decoder, target, True), decoding(name)),
    ):
        two, again = with_threads(run, (2, 2))
        right(two, reference)
        assert all(torch.equal(x, y) for x, y in zip(two, again))


def test_images_of_other_sides_are_refused_not_read(network):
    _, encoder, decoder = network
    wrong = pixels(encoder, 2)[..., 1:]
    with pytest.raises(ValueError, match="built for images of"):
        encoded(encoder, wrong, True)
    with pytest.raises(ValueError, match="built for images of"):
        decoded(decoder, wrong, True)


@pytest.mark.parametrize("scale", [1e-3, 50.0, 1e4])
def test_large_and_small_numbers_stay_finite_and_right(scale: float):
    torch.manual_seed(0)
    encoder = PixelEncoder((3, 32, 32), SIZES["tiny"])
    with torch.no_grad():
        for norm in encoder.stages[1::2]:
            norm.weight.normal_().mul_(scale)
    target = pixels(encoder, 2)
    reference = exact_and_tolerances(lambda module: encoded(module, target.double(), False), encoder)
    right(encoded(encoder, target, True), reference)
    right(encoded(encoder, target, False), reference)


def test_a_nan_stays_one_and_stays_in_its_image():
    encoder, target = PixelEncoder((3, 32, 32), SIZES["tiny"]), torch.zeros(3, 3, 32, 32)
    target[1, 0, 4, 4] = torch.nan
    tokens = encoded(encoder, target, True)[0]
    assert torch.isnan(tokens).any(1).tolist() == [False, True, False]


def test_builds_have_vectors_as_wide_as_asked_and_a_typo_is_an_error(monkeypatch: pytest.MonkeyPatch):
    sizes, lanes = made("channels that fill no vector")[0].sizes, {}
    for isa in kernels.BUILDS:
        monkeypatch.setenv(kernels.ISA, isa)
        lanes[isa] = kernels.convolutions(sizes).axes["lanes"]
    assert lanes["plain"] == 4 <= lanes["avx2"] <= 8 and lanes["avx2"] <= lanes["native"] <= 16
    monkeypatch.setenv(kernels.ISA, "avx3")
    with pytest.raises(ValueError, match="RL_TRAINING_KERNEL_ISA must be one of native, avx2, plain; got 'avx3'"):
        dreamer((4,), "nano").use_compiled()


RECURRENCES = {  # size, sequences
    "one block": (SIZES["tiny"], 16),
    "more sequences than go together, and not twice as many": (SIZES["nano"], 11),
    "blocks, and widths that fill no vector": (
        Size(deter=24, hidden=20, latents=3, classes=5, units=16, depth=2, blocks=2, embed=7),
        3,
    ),
}


def recurrent(name: str) -> tuple[RSSM, int]:
    size, n = RECURRENCES[name]
    torch.manual_seed(0)
    rssm = RSSM(size, 3, 8)
    for parameter in rssm.parameters():  # far from what it starts with
        torch.nn.init.normal_(parameter, std=0.5 if parameter.ndim < 2 else 0.7 * parameter.shape[-1] ** -0.5)
    return rssm, n


@pytest.fixture(params=with_builds([*RECURRENCES], [*RECURRENCES][1:]), ids="-".join)
def recurrence(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, RSSM, int]:
    name, isa = request.param
    monkeypatch.setenv(kernels.ISA, isa)
    return name, *recurrent(name)


def sequences(rssm: RSSM, n: int, length: int = 6) -> dict[str, torch.Tensor]:
    """Random tokens, actions, state and noise of sequences in which episodes start here and there."""
    torch.manual_seed(1)
    return {
        "tokens": torch.randn(length, n, 8),
        "actions": torch.randn(length, n, 3),
        "starts": (torch.rand(length, n) < 0.2).float(),
        "deter": torch.randn(rssm.size.deter, n).t(),
        "stoch": torch.randn(n, rssm.flat),
        "noise": rssm.noise(length, n),
    }


def observed(rssm: RSSM, n: int, fused: bool, **changes: torch.Tensor) -> list[torch.Tensor]:
    """States, latents and posteriors of sequences, and the gradient of something random."""
    rssm.fused = fused
    dtype = rssm.inner.weight.dtype
    given = {name: x.to(dtype) for name, x in sequences(rssm, n).items()} | changes
    inputs = [given[name].requires_grad_() for name in ("tokens", "deter", "stoch")]
    state = State(given["deter"], given["stoch"])
    states, logp = rssm.observe(given["tokens"], given["actions"], given["starts"], state, given["noise"])
    outputs = (*states, logp)
    loss = sum((x * random(*x.shape, dtype=dtype, seed=i)).sum() for i, x in enumerate(outputs))
    used = [p for name, p in rssm.named_parameters() if "prior" not in name]
    return [x.detach() for x in outputs] + list(torch.autograd.grad(loss, [*inputs, *used]))


@cache
def recurring(name: str) -> Reference:
    rssm, n = recurrent(name)
    return exact_and_tolerances(lambda module: observed(module, n, False), rssm)


def test_the_kernel_recurs_as_torch_does_forward_and_backward(recurrence):
    name, rssm, n = recurrence
    right(observed(rssm, n, True), recurring(name))
    right(observed(rssm, n, False), recurring(name))


@pytest.mark.parametrize("name", RECURRENCES)
def test_a_planted_mistake_in_the_recurrence_is_beyond_what_rounding_can_do(name: str):
    rssm, n = recurrent(name)
    for parameter, p in rssm.named_parameters():
        if "prior" in parameter:
            continue
        wrong = copy.deepcopy(rssm)
        with torch.no_grad():
            dict(wrong.named_parameters())[parameter].view(-1)[p.numel() // 2] += 0.01
        assert max(errors(observed(wrong, n, False), *recurring(name))) > 5, parameter


def test_latents_of_the_kernel_are_one_hot(recurrence):
    _, rssm, n = recurrence
    latents = observed(rssm, n, True)[1].unflatten(-1, (rssm.size.latents, rssm.size.classes))
    assert set(latents.unique().tolist()) == {0.0, 1.0} and (latents.sum(-1) == 1).all()


def test_sequences_on_two_threads_are_those_on_one_but_for_rounding(recurrence):
    name, rssm, n = recurrence
    two, again = with_threads(lambda: observed(rssm, n, True), (2, 2))
    right(two, recurring(name))
    assert all(torch.equal(x, y) for x, y in zip(two, again))


# ---- what crosses the border; tests of every declared argument: test_kernel_border.py


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.float64])
def test_episode_starts_of_any_type_are_the_same_starts(dtype: torch.dtype):
    rssm, n = recurrent("blocks, and widths that fill no vector")
    starts = sequences(rssm, n)["starts"]
    plain = observed(rssm, n, True)
    for fused in (False, True):
        other = observed(rssm, n, fused, starts=starts.to(dtype))
        right(other, recurring("blocks, and widths that fill no vector"))
        assert not fused or all(torch.equal(x, y) for x, y in zip(other, plain))


def test_sequences_and_images_with_other_strides_are_read_as_they_are_meant():
    rssm, n = recurrent("blocks, and widths that fill no vector")
    turned = {k: x.transpose(0, 1).contiguous().transpose(0, 1) for k, x in sequences(rssm, n).items()}
    assert not any(x.is_contiguous() for k, x in turned.items() if k != "deter")
    assert all(torch.equal(x, y) for x, y in zip(observed(rssm, n, True, **turned), observed(rssm, n, True)))
    encoder, decoder = made("channels that fill no vector")
    target = pixels(encoder, 5).repeat(1, 2, 1, 1)
    gapped = target[:, :1]
    assert not gapped.is_contiguous()
    for run, module in ((encoded, encoder), (decoded, decoder)):
        both = zip(run(module, gapped, True), run(module, gapped.contiguous(), True))
        assert all(torch.equal(x, y) for x, y in both)


def refused(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Tensors that are not what ``tensor`` is, by what the error says of them."""
    return {
        "float64": tensor.double(),
        "bfloat16": tensor.bfloat16(),
        "int64": tensor.long(),
        "shape": torch.cat([tensor, tensor], -1),
        "device meta": tensor.to("meta"),
    }


def test_what_the_recurrence_cannot_read_is_refused_in_one_line():
    rssm, n = recurrent("blocks, and widths that fill no vector")
    _, deter, hidden, embed, latents, classes = rssm.sizes
    shapes = {
        "keep": (6, n, 1), "exp_noise": (6, n, latents, classes), "deter": (n, deter), "stoch": (n, latents * classes),
        "embedded": (6, n, embed), "encoded": (6, n, hidden),
    }  # fmt: skip
    parameters = [torch.randn(shape) for shape in kernels.border.recurrence_parameters(rssm.sizes)]
    right_ones = {name: torch.rand(shape) for name, shape in shapes.items()}
    assert len(Observe.apply(rssm.sizes, 1e-3, 0.01, *right_ones.values(), *parameters)) == 3
    for name, tensor in right_ones.items():
        for reason, wrong in refused(tensor).items():
            given = {**right_ones, name: wrong}
            with pytest.raises(ValueError, match=f"{name} of kernel observe must be .*{reason}"):
                Observe.apply(rssm.sizes, 1e-3, 0.01, *given.values(), *parameters)
    for i, tensor in enumerate(parameters):
        for reason, wrong in refused(tensor).items():
            given_parameters = [*parameters[:i], wrong, *parameters[i + 1 :]]
            with pytest.raises(ValueError, match=f"parameter {i} of observe must be .*{reason}"):
                Observe.apply(rssm.sizes, 1e-3, 0.01, *right_ones.values(), *given_parameters)
    with pytest.raises(ValueError, match="observe has 17 parameters, got 16"):
        Observe.apply(rssm.sizes, 1e-3, 0.01, *right_ones.values(), *parameters[:-1])


def test_what_the_convolutions_cannot_read_is_refused_in_one_line():
    encoder, _ = made("channels that fill no vector")
    sizes, target = encoder.sizes, pixels(encoder, 2)
    calls = {
        "encode": (kernels.border.encoder_parameters(sizes), lambda x, p: Encode.apply(x["pixels"], sizes, 1e-3, *p)),
        "decoder_loss": (
            kernels.border.decoder_parameters(sizes),
            lambda x, p: DecoderLoss.apply(x["inputs"], x["pixels"], sizes, 1e-3, *p),
        ),
    }
    tokens = kernels.convolutions(sizes).axes["tokens"]
    right_ones = {"pixels": target, "inputs": torch.randn(2, tokens)}
    for name, (shapes, call) in calls.items():
        parameters = [torch.randn(shape) for shape in shapes]
        assert torch.isfinite(call(right_ones, parameters)).all()
        with pytest.raises(ValueError, match=f"pixels of kernel {name} must be .*device meta"):
            call({**right_ones, "pixels": target.to("meta")}, parameters)
        for i, tensor in enumerate(parameters):
            for reason, wrong in refused(tensor).items():
                with pytest.raises(ValueError, match=f"parameter {i} of {name} must be .*{reason}"):
                    call(right_ones, [*parameters[:i], wrong, *parameters[i + 1 :]])
    shapes, call = calls["decoder_loss"]
    parameters = [torch.randn(shape) for shape in shapes]
    for reason, wrong in refused(right_ones["inputs"]).items():
        with pytest.raises(ValueError, match=f"inputs of kernel decoder_loss must be .*{reason}"):
            call({**right_ones, "inputs": wrong}, parameters)


def dreamer(obs_shape: tuple[int, ...] = (3, 32, 32), size: str = "tiny") -> Dreamer:
    torch.manual_seed(0)
    return Dreamer(obs_shape=obs_shape, size=SIZES[size], num_actions=2)


def batch(obs_shape: tuple[int, ...] = (3, 32, 32)) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    shape = (4, 2)
    image = len(obs_shape) == 3
    return {
        "obs": torch.randint(256, (*shape, *obs_shape), dtype=torch.uint8)
        if image
        else torch.randn(*shape, *obs_shape),
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
    assert losses[1][0] == pytest.approx(losses[0][0], rel=1e-5)
    # Adam first moves by the sign of a gradient, which rounding decides where it is next to zero; three steps: -5 %
    assert losses[1] == pytest.approx(losses[0], rel=5e-3) and losses[1][2] < 0.98 * losses[1][0]


@pytest.mark.parametrize(("obs_shape", "size"), [((3, 32, 32), "tiny"), ((4,), "nano")])
def test_under_autocast_kernels_compute_in_float32_and_learn_as_without(obs_shape: tuple[int, ...], size: str):
    losses = []
    for autocast in (False, True):
        agent = dreamer(obs_shape, size)
        agent.use_compiled()
        torch.manual_seed(2)
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                metrics = agent.update(batch(obs_shape), global_step=0).metrics
        losses.append(metrics["dreamer_world_model_loss"])
    assert losses[1] == pytest.approx(losses[0], rel=2e-2)  # bfloat16 has eight bits
    assert all(p.dtype == torch.float32 for p in agent.world_model.parameters())


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


def test_without_images_the_recurrence_alone_is_compiled():
    agent = dreamer((4,), "nano")
    agent.use_compiled()
    assert [type(part) for part in kernels.fusible(agent.world_model)] == [RSSM] and agent.compiled


def test_elsewhere_than_on_a_cpu_nothing_is_compiled():
    agent = Dreamer(obs_shape=(3, 32, 32), size=SIZES["nano"], num_actions=2, device="meta")
    agent.use_compiled()
    assert not agent.compiled and agent.COMPILE_THRESHOLD > 10**9


def test_why_a_kernel_cannot_be_built_is_the_compilers_first_error(monkeypatch: pytest.MonkeyPatch):
    def failing(sizes: tuple[int, ...]) -> kernels.border.Library:
        raise RuntimeError(
            "C++ compile error\n\nCommand: ...\nmain.cpp:3:1: error: what is this?\nmain.cpp:9:1: error: and that?"
        )

    agent = dreamer()
    monkeypatch.setattr(PixelEncoder, "kernel", staticmethod(failing))
    assert kernels.cannot_build(kernels.fusible(agent.world_model)) == "main.cpp:3:1: error: what is this?"


def test_without_a_library_updates_stay_eager_and_say_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernels, "cannot_build", lambda parts: "no compiler today")
    agent = dreamer()
    with pytest.warns(UserWarning, match="no compiler today"):
        agent.use_compiled()
    assert not agent.compiled
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent.update(batch(), global_step=0)
