"""Checkpoints whose checksum is right and whose contents are not: one line, exit code 2, and nothing is half loaded."""

import json

import numpy as np
import pytest
import torch

from fuzzing.checkpoints import Contents, mutants
from rl_training.base.saved import Saved, StateError, alike
from rl_training.cli import main
from rl_training.experiment.checkpointing import CheckpointError, load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.workflows import config_of
from toys import tiny_config

SHORT = {"env_kwargs": {"max_episode_steps": 12}}
PICTURES = {
    "env_id": "rl_training.envs.catch:Catch-v0",
    "env_kwargs": {"wrappers": {"pixels": {"resize_shape": [36, 36], "frame_stack": 2}}},
}
# each algorithm's own parts: replay, statistics, pictures with open n-step returns, sequences, a model and its fit
RUNS = {
    "sac": {"num_envs": 2, **SHORT},
    "ppo": {"num_envs": 2, "normalize_rewards": True, "normalize_observations": True, **SHORT},
    "dqn": {"n_step": 3, "prioritized": True, "hidden_sizes": [8], "learning_starts": 60, **PICTURES},
    "dreamer": SHORT,
    "pets": SHORT,
}
OBS = {"sac": [0] * 3, "pets": [0] * 3, "dqn": np.zeros((2, 36, 36)).tolist()}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """``good("sac")``: the bytes of the checkpoint of a short run, which is made once."""
    made = {}

    def bytes_of(algo):
        if algo not in made:
            fields = {"compile": False, "total_timesteps": 96, "eval_interval": 0, "loggers": (), **RUNS[algo]}
            config = tiny_config(algo, tmp_path_factory.mktemp(algo), **fields)
            made[algo] = get_algorithm_spec(algo).train(config).checkpoint_path.read_bytes()
        return made[algo]

    return bytes_of


def changed(data, place, value):
    """A checkpoint with another value at a place such as ``config.seed``."""
    contents = Contents(data)
    keys = tuple(place.split(".", 2 if "model" in place else -1))
    if isinstance(value, np.ndarray):
        contents.arrays[contents.at(keys)["$tensor"]] = value
    else:
        contents.put(keys, value)
    return contents.bytes()


def tensor(data, place):
    return Contents(data).array_at(tuple(place.split(".", 2 if "model" in place else -1)))[1]


def refused(capsys, *argv):
    """The one line with which a command refuses its input."""
    assert main([str(word) for word in argv]) == 2
    text = capsys.readouterr().err.strip()
    assert "\n" not in text and "Traceback" not in text and len(text) < 500, text
    return text


def resume(path, total=104):
    return ("resume", path, "--total-timesteps", total, "--output-dir", path.parent / "out", "--eval-episodes", 1)


@pytest.mark.parametrize("algo", RUNS)
def test_wrong_contents_are_refused_in_one_line_or_harmless(good, algo, tmp_path, capsys, recwarn):
    """A run that goes on from numbers such as 1e30 may still end, as any run whose loss is not finite does."""
    data, path = good(algo), tmp_path / "mutant.ckpt"
    obs = json.dumps(OBS.get(algo, [0] * 4))
    for number, (words, mutant) in enumerate(mutants(data, seed=7, count=24)):
        path.write_bytes(mutant)
        for argv in (["predict", str(path), "--obs", obs], [str(word) for word in resume(path)]):
            if argv[0] == "predict" and number % 2:  # resuming reads all that predicting does
                continue
            code = main(argv)
            text = capsys.readouterr().err.strip()
            diverged = " is nan at step " in text or " is inf at step " in text
            assert code in (0, 2) or (code == 1 and diverged), f"{words}: {code} {text}"
            if code == 2:
                assert text.startswith("rl-training: error: ") and "\n" not in text, f"{words}: {text}"


def test_a_rewritten_checkpoint_is_the_same_one(good, tmp_path):
    (tmp_path / "again.ckpt").write_bytes(Contents(good("sac")).bytes())
    (tmp_path / "good.ckpt").write_bytes(good("sac"))
    again, first = (load_checkpoint(tmp_path / name) for name in ("again.ckpt", "good.ckpt"))
    assert again.config == first.config and again.trainer_state.keys() == first.trainer_state.keys()


WRONG = {
    "trainer_state.step": (-1, "step: is -1, expected 0 to"),
    "trainer_state.update_count": ("many", "update_count: is text, expected a whole number"),
    "trainer_state.counters": ({"pretrain_updates": -3}, "counters.pretrain_updates: is -3"),
    "trainer_state.references": ({"random_return": "x"}, "references.random_return: is text, expected a number"),
    "trainer_state.engine.threads": (10**6, "threads: is 1000000, expected 1 to 1024"),
    "trainer_state.torch_rng.cpu": (None, "torch_rng.cpu: is null, expected uint8 of shape"),
    "metadata.best_eval": ("best", "best_eval: is text, expected a number"),
    "metadata.format": ([3], "has format"),
    "metadata": ([], "metadata: is a list, expected a mapping"),
    "config": ("sac", "config: is text, expected a mapping"),
    "config.seed": (-1, "the checkpoint's config does not hold: seed:"),
    "config.algo_kwargs.learning_rate": (float("nan"), "learning_rate: should be a finite number"),
    "config.num_envs": (10**9, "the run has 2 environments, not 1000000000"),
    "buffer_state": ({"$file": 3, "sha256": "x"}, "does not say which file holds its buffers"),
    "buffer_state.stepped": (1, "stepped: is a whole number, expected true or false"),
    "buffer_state.replay.size": (10**6, "replay.size: is 1000000, expected 0 to 96"),
    "buffer_state.replay.written": (-5, "replay.written: is -5"),
    "buffer_state.replay.rng.state.inc": (2**200, "replay.rng.state.inc: is a number of many digits"),
    "buffer_state.collector.envs": ([], "the run has 0 environments, not 2"),
    "buffer_state.collector.recent": ([[1.0]], "collector.recent: holds what is not a return and a length"),
    "algorithm_state.alpha_optimizer": (None, "alpha_optimizer: is null, expected a mapping"),
    "algorithm_state.extra": (1, "has extra, which nothing reads"),
}


@pytest.mark.parametrize("place", WRONG)
def test_a_wrong_value_is_named_with_its_place(good, place, tmp_path, capsys):
    value, message = WRONG[place]
    path = tmp_path / "wrong.ckpt"
    path.write_bytes(changed(good("sac"), place, value))
    assert message in refused(capsys, *resume(path))


WEIGHT = "algorithm_state.model.actor.0.weight"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda w: w.astype(np.float64), r"model.actor.0.weight: is float64 of shape \(16, 3\), expected float32"),
        (
            lambda w: w.T.copy(),
            r"model.actor.0.weight: is float32 of shape \(3, 16\), expected float32 of shape \(16, 3\)",
        ),
        (lambda w: np.full_like(w, np.nan), "model.actor.0.weight: is not finite"),
        (lambda w: np.zeros((0, 2**40), np.float32), "expected float32 of shape"),
    ],
    ids=["type", "shape", "nan", "no rows of a trillion"],
)
def test_weights_of_another_type_or_shape_or_not_finite_are_refused_by_whatever_loads_them(
    good, value, message, tmp_path, capsys
):
    path = tmp_path / "wrong.ckpt"
    path.write_bytes(changed(good("sac"), WEIGHT, value(tensor(good("sac"), WEIGHT))))
    with pytest.raises(CheckpointError, match=message):
        get_algorithm_spec("sac").load(config_of(load_checkpoint(path)), load_checkpoint(path))
    lines = [
        refused(capsys, "predict", path, "--obs", "[0,0,0]"),
        refused(capsys, "eval", path, "--episodes", 1),
        refused(capsys, "export", "--checkpoint", path, "-o", tmp_path / "policy.onnx"),
        refused(capsys, *resume(path)),
    ]
    assert len({line.replace("agent.", "") for line in lines}) == 1
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".onnx"] == []


def test_options_that_would_make_a_network_beyond_what_the_file_holds_take_no_memory(good, tmp_path, capsys):
    path = tmp_path / "wide.ckpt"
    for sizes in ([10**6, 10**6], [2**62, 2**62]):
        path.write_bytes(changed(good("sac"), "config.algo_kwargs.hidden_sizes", sizes))
        assert "which it does not hold" in refused(capsys, "predict", path, "--obs", "[0,0,0]")
    path.write_bytes(changed(good("dreamer"), "config.algo_kwargs.features_dim", 10**9))
    assert "which it does not hold" in refused(capsys, "predict", path, "--obs", "[0,0,0,0]")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "RecursionError|recursion"),
        ('{"algorithm_state": {"$tensor": ["x"]}}', "refers to a tensor that it does not hold"),
        ("null", "is not a checkpoint of rl_training"),
        ('{"format": ' + "9" * 9000 + "}", "is damaged"),
    ],
    ids=["deep", "no tensor", "nothing", "digits"],
)
def test_a_tree_that_is_none_is_refused(good, text, message, tmp_path):
    contents = Contents(good("sac"))
    contents.text = text
    (tmp_path / "a.ckpt").write_bytes(contents.bytes())
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path / "a.ckpt")


def test_tensors_of_types_that_no_checkpoint_has_are_refused_before_they_are_read(good, tmp_path):
    contents = Contents(good("sac"))
    name = next(name for name, array in contents.arrays.items() if array.dtype == np.float32)
    contents.arrays[name], contents.codes[name] = contents.arrays[name].astype(np.float16), "BF16"
    (tmp_path / "a.ckpt").write_bytes(contents.bytes())
    with pytest.raises(CheckpointError, match="a tensor of type BF16"):
        load_checkpoint(tmp_path / "a.ckpt")


def test_frames_that_rows_show_must_be_there(good, tmp_path, capsys):
    """Rows of pictures hold the places of their frames; a place beyond them would read other memory."""
    packed = tensor(good("dqn"), "buffer_state.replay.packed").copy()
    packed[:, 0] = 1e6
    path = tmp_path / "a.ckpt"
    path.write_bytes(changed(good("dqn"), "buffer_state.replay.packed", packed))
    assert "rows show frames that are not there" in refused(capsys, *resume(path))
    path.write_bytes(changed(good("dqn"), "buffer_state.replay.frames.grown", 2**33))
    assert "frames.grown: is 8589934592" in refused(capsys, *resume(path))


# ---- the readers


def test_a_reader_takes_exactly_the_names_it_knows():
    with pytest.raises(StateError, match="lacks b and has c, which nothing reads"):
        Saved({"a": 1, "c": 2}, ("a", "b"))
    assert "b" not in Saved({"a": 1}, ("a",), ("b",))


@pytest.mark.parametrize("value", [True, 1.0, "1", None, -1, 2**63])
def test_a_count_is_a_whole_number_from_zero_on(value):
    with pytest.raises(StateError, match=r"^n: is "):
        Saved({"n": value}, ("n",)).count("n")


def test_alike_compares_forms_and_not_values():
    present = {"a": torch.zeros(2), "b": {"c": 0, "d": 0.5, "e": False}}
    saved = {"a": torch.ones(2), "b": {"c": 7, "d": 1, "e": True}}
    assert alike(saved, present) is saved
    with pytest.raises(StateError, match=r"b\.e: is a whole number, expected true or false"):
        alike({**saved, "b": {**saved["b"], "e": 1}}, present)
