"""Matrices are multiplied by oneDNN where MKL is slow, and only if that changes no more than the rounding of float32."""

import contextlib

import pytest
import torch

from built_learners import built, transitions
from rl_training.optim import products
from rl_training.optim.products import by_onednn, exact_in_float32, onednn_is_faster
from rl_training.runtime import engine
from rl_training.runtime.engine import Engine

here = pytest.mark.skipif(not onednn_is_faster(), reason="MKL is as fast on this processor")
setting = torch.backends.mkldnn.matmul


def rounded(bits):
    """Numbers with so many bits of the 23 after the point."""
    return lambda x: (x.contiguous().view(torch.int32) & -(1 << (23 - bits))).view(torch.float32)


def test_products_of_float32_are_found_exact():
    assert exact_in_float32(lambda a, b: (a.double() @ b.double()).float())


@pytest.mark.parametrize("bits", [7, 10], ids=["bfloat16", "TF32"])
@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_products_of_rounded_numbers_are_found_out(bits, side):
    cut = rounded(bits)

    def multiply(a, b):
        return (cut(a) if side != "right" else a) @ (cut(b) if side != "left" else b)

    assert not exact_in_float32(multiply)


def test_products_that_are_rounded_in_some_layouts_only_are_found_out():
    def multiply(a, b):
        return rounded(7)(a) @ b if a.ndim == 3 else a @ b

    assert not exact_in_float32(multiply)


def test_the_setting_holds_inside_and_is_put_back():
    before = setting.fp32_precision
    with by_onednn(False):
        assert setting.fp32_precision == before
    with contextlib.suppress(ZeroDivisionError), by_onednn(True):
        assert setting.fp32_precision == "bf16"
        raise ZeroDivisionError
    assert setting.fp32_precision == before == "none"


def test_a_precision_that_somebody_has_set_stays():
    setting.fp32_precision = "ieee"
    try:
        with by_onednn(True):
            assert setting.fp32_precision == "ieee"
        assert setting.fp32_precision == "ieee"
    finally:
        setting.fp32_precision = "none"


def test_a_variable_of_the_environment_turns_it_off(monkeypatch):
    monkeypatch.setenv("RL_TRAINING_ONEDNN", "never")
    assert not products._mkl_is_narrow()


@pytest.mark.parametrize("faster", [False, True])
def test_wide_networks_multiply_by_onednn_where_it_is_faster(monkeypatch, tiny, faster):
    monkeypatch.setattr(engine, "onednn_is_faster", lambda: faster)
    for sizes, wide in (([200, 200], True), ([199, 200], False), ([8, 8], False)):
        chosen = Engine.choose(tiny("sac", threads=1), built("sac", hidden_sizes=sizes), 10)
        assert chosen.onednn == (wide and faster)
        assert ("products by oneDNN" in chosen.why) == chosen.onednn
        with chosen.running():
            assert setting.fp32_precision == ("bf16" if chosen.onednn else "none")
        assert setting.fp32_precision == "none"


def test_a_resumed_run_multiplies_as_it_did_before(monkeypatch):
    monkeypatch.setattr(engine, "onednn_is_faster", lambda: True)
    for onednn in (True, False):
        assert Engine.restored(Engine(False, 1, "", onednn).state_dict()).onednn == onednn
    assert not Engine.restored({"compile": False, "threads": 1}).onednn  # of a run that began before there was a choice
    monkeypatch.setattr(engine, "onednn_is_faster", lambda: False)
    assert not Engine.restored(Engine(False, 1, "", True).state_dict()).onednn  # on another processor


@here
@pytest.mark.parametrize("algo", ["sac", "td3_bc", "iql"])
def test_an_update_by_onednn_is_the_same_to_rounding(algo):
    learners = []
    for onednn in (False, True):
        learner = built(algo, hidden_sizes=[256, 256])
        with by_onednn(onednn):
            for k in range(3):
                torch.manual_seed(k)
                learner.update(transitions(256, seed=k), global_step=k)
        learners.append(learner.model.state_dict())
    assert learners[0].keys() == learners[1].keys()
    for name, value in learners[0].items():
        # three steps of Adam at 0.01: a gradient next to zero may round to another sign
        torch.testing.assert_close(learners[1][name], value, rtol=1e-3, atol=2e-3)
