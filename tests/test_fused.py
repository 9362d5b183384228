"""Layer normalisation and SiLU in one kernel, beside torch's own two."""

import warnings

import pytest
import torch
from torch.nn import functional as F

from rl_training.algorithms.dreamer import Dreamer
from rl_training.algorithms.optim import cannot_compile
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models import fused
from rl_training.models.dreamer import SIZES, PictureNorm
from rl_training.runtime.workflows import resume_training
from toys import StopAt, same_end

pytestmark = pytest.mark.skipif(cannot_compile() is not None, reason=str(cannot_compile()))
EPS = 1e-3


def rows(width: int, count: int = 257) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(width)
    x, gain, bias = 3 * torch.randn(count, width) + 1, torch.randn(width), torch.randn(width)
    return tuple(t.requires_grad_() for t in (x, gain, bias))


def both(inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    x, gain, bias = inputs
    return F.silu(F.layer_norm(x, gain.shape, gain, bias, EPS)), fused.NormSiLU.apply(x, gain, bias, EPS)


@pytest.mark.parametrize("count", [1, 256, 257])  # rows of eight go in pairs, if they can
@pytest.mark.parametrize("width", [8, 16, 24, 64, 128])  # unrolled, and not
def test_the_kernel_is_layer_norm_and_silu(width: int, count: int):
    plain, one = both(rows(width, count))
    torch.testing.assert_close(one, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [1, 256, 257])
@pytest.mark.parametrize("width", [8, 16, 24, 64, 128])
def test_so_are_its_gradients(width: int, count: int):
    inputs = rows(width, count)
    weights = torch.randn(count, width)
    plain, one = (torch.autograd.grad((y * weights).sum(), inputs) for y in both(inputs))
    for ours, theirs in zip(one, plain):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scale", [1e-3, 50.0, 1e4])
def test_large_and_small_numbers_stay_finite_and_right(scale: float):
    x, gain, bias = rows(8)
    plain, one = both((x, scale * gain, bias))
    torch.testing.assert_close(one, plain, rtol=1e-5, atol=1e-5 * max(1.0, scale))


def test_a_nan_stays_one():
    x = torch.ones(4, 8)
    x[1, 3] = torch.nan
    y = fused.NormSiLU.apply(x, torch.ones(8), torch.zeros(8), EPS)
    assert torch.isnan(y).any(1).tolist() == [False, True, False, False]


@pytest.mark.parametrize(("width", "count"), [(8, 256), (8, 258), (8, 257), (16, 257)])
def test_two_threads_make_what_one_makes_but_for_rounding(width: int, count: int):
    inputs, before, results = rows(width, count), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            results.append(torch.autograd.grad(both(inputs)[1].square().sum(), inputs))
    finally:
        torch.set_num_threads(before)
    for one, two, again in zip(*results):
        torch.testing.assert_close(two, one, rtol=1e-5, atol=1e-5)
        assert torch.equal(two, again)


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
    norm = next(part for part in agent.world_model.modules() if isinstance(part, PictureNorm))
    pictures = torch.rand(2, len(norm.weight), 8, 8).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        eager = norm(pictures)
    agent.use_compiled()
    with torch.no_grad():
        assert torch.equal(norm(pictures), eager)
    exported = agent.policy_module()
    assert not any(part.fused for part in exported.modules() if isinstance(part, PictureNorm))
    assert agent.compiled


def test_without_pictures_nothing_is_compiled_nor_worth_it():
    agent = dreamer((4,))
    agent.use_compiled()
    assert not agent.compiled and agent.WORTH_COMPILING > 10**9


def test_only_norms_of_eight_channels_or_more_are_fused():
    agent = dreamer(size="nano")  # of 2, 4, 8 and 16 channels
    agent.use_compiled()
    norms = [part for part in agent.world_model.encoder.modules() if isinstance(part, PictureNorm)]
    assert [norm.fused for norm in norms] == [False, False, True, True]


def test_without_a_library_updates_stay_eager_and_say_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fused, "cannot_build", lambda: "no compiler today")
    agent = dreamer()
    with pytest.warns(UserWarning, match="no compiler today"):
        agent.use_compiled()
    assert not agent.compiled
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent.update(batch(), global_step=0)
