"""What is true of every registered algorithm."""

from __future__ import annotations

import math
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import goal_toys  # noqa: F401  (registers its environments)
import rl_training
from rl_training.base.metrics import Metrics
from rl_training.base.options import ConfigError
from rl_training.envs.factory import EnvFactory
from rl_training.envs.spaces import Spaces
from rl_training.experiment.checkpointing import load_checkpoint, save_checkpoint
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec
from rl_training.experiment.yaml_config import presets, read_config
from rl_training.runtime.spec import Blueprint
from toys import SMOKE, Pictures, assert_same

ROOT = Path(__file__).parents[2]
everyone = pytest.mark.parametrize("algo", ALGORITHMS)


def build(algo, tiny):
    spec = get_algorithm_spec(algo)
    config = tiny(algo)
    spaces = Spaces.of(EnvFactory(config.env_id, {}).make(training=False))
    torch.manual_seed(0)
    return spec.build(spec.options(config), Blueprint(spaces, torch.device("cpu"))), spaces


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """One short run per algorithm, made once."""
    from toys import tiny_config

    runs = {}

    def run(algo):
        if algo not in runs:
            config = tiny_config(algo, tmp_path_factory.mktemp(algo))
            runs[algo] = get_algorithm_spec(algo).train(config)
        return runs[algo]

    return run


@everyone
def test_builds_from_its_defaults(algo, tiny):
    spec = get_algorithm_spec(algo)
    config = tiny(algo).replace(algo_kwargs={})
    spaces = Spaces.of(EnvFactory(config.env_id, {}).make(training=False))
    assert spec.build(spec.options(config), Blueprint(spaces, torch.device("cpu"))).optimizers()


@everyone
def test_acting_has_the_right_shape_type_and_bounds(algo, tiny):
    agent, spaces = build(algo, tiny)
    obs = np.random.default_rng(0).standard_normal((5, *spaces.obs_shape)).astype(np.float32)
    for deterministic in (True, False):
        actions = agent.act(obs, deterministic=deterministic, rng=np.random.default_rng(1)).actions
        assert actions.shape == (5, *spaces.action_shape) and actions.dtype == spaces.action_dtype
    again = agent.act(obs, deterministic=True, rng=np.random.default_rng(7)).actions
    assert np.array_equal(agent.act(obs, deterministic=True).actions, again)
    assert np.array_equal(
        agent.act(obs, rng=np.random.default_rng(2)).actions, agent.act(obs, rng=np.random.default_rng(2)).actions
    )


@everyone
def test_training_returns_finite_metrics_under_stable_names_and_changes_parameters(algo, tiny, trained):
    result = trained(algo)
    assert {
        "global_step",
        "gradient_steps",
        "eval_return_mean",
        "update_count",
        "epoch",
        "learning_rate",
        "lr_scale",
    } <= set(result.metrics)
    assert all(math.isfinite(v) for k, v in result.metrics.items() if k != "explained_variance")
    assert result.metrics["gradient_steps"] > 0
    fresh, _ = build(algo, tiny)
    saved = load_checkpoint(result.checkpoint_path).algorithm_state
    with pytest.raises(AssertionError):
        assert_same(fresh.state_dict(), saved)


@everyone
def test_every_declared_option_is_read(algo, tiny):
    spec = get_algorithm_spec(algo)
    switches = {"prioritized": True} if "prioritized" in spec.config.model_fields else {}  # what others depend on
    configs = [tiny(algo, total_timesteps=96, **switches)]
    if algo == "cql":  # learns boxes and choices by options of their own
        configs.append(configs[0].replace(env_id="CartPole-v1"))
    if "dataset_mix" in spec.config.model_fields:
        mixed = {"dataset_mix": [{"dataset_kind": "random", "dataset_size": 64}]}
        given = {name: value for name, value in configs[0].algo_kwargs.items() if not name.startswith("dataset_")}
        configs.append(configs[0].replace(algo_kwargs={**given, **mixed}))
    if "hindsight" in spec.config.model_fields:
        goals = "GoalPoint-v0" if configs[0].env_id == "Pendulum-v1" else "GoalBitFlips-v0"
        configs.append(tiny(algo).replace(env_id=goals, algo_kwargs={**tiny(algo).algo_kwargs, "hindsight": "future"}))
    if "recurrent" in spec.config.model_fields:
        configs.append(tiny(algo, recurrent="gru"))
    pictures = {"env": Pictures} if algo == "gail" else None  # has options for them
    seen = set()

    class Watched(spec.config):
        def __getattribute__(self, name):
            seen.add(name)
            return super().__getattribute__(name)

    object.__setattr__(spec, "config", Watched)
    try:
        for config in configs:
            spec.train(config)
        if pictures:
            spec.train(configs[0], **pictures)
    finally:
        object.__setattr__(spec, "config", Watched.__mro__[1])
    declared = set(spec.config.model_fields) - {"early_stopping"}  # read from the config by its callback
    assert declared <= seen, f"nobody reads {sorted(declared - seen)}"


@everyone
def test_state_survives_a_file_that_cannot_run_code(algo, trained, tmp_path):
    state = load_checkpoint(trained(algo).checkpoint_path)
    again = load_checkpoint(save_checkpoint(tmp_path / "copy.ckpt", state))
    for part in ("algorithm_state", "buffer_state", "trainer_state", "config"):
        assert_same(getattr(state, part), getattr(again, part), part)


@everyone
def test_no_two_tensors_of_the_learner_are_the_same_memory(algo, tiny):
    agent, _ = build(algo, tiny)
    spans = []

    def walk(state):
        for value in state.values():
            if isinstance(value, dict):
                walk(value)
            elif isinstance(value, torch.Tensor) and value.numel():
                spans.append((value.data_ptr(), value.data_ptr() + value.numel() * value.element_size()))

    walk(agent.state_dict())
    spans.sort()
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


@everyone
def test_mistakes_are_named(algo, tiny):
    spec = get_algorithm_spec(algo)
    rates = ("learning_rate", "model_learning_rate", "actor_learning_rate")
    rate = next(name for name in rates if name in spec.config.model_fields)
    typo = rate[:-1]
    with pytest.raises(ConfigError, match=rf"algo_kwargs.{typo}: unknown option of {algo}; did you mean '{rate}'\?"):
        spec.options(tiny(algo, **{typo: 1.0}))
    with pytest.raises(ConfigError, match=rf"algo_kwargs\.{rate}: should be greater than 0, got -1\.0"):
        spec.options(tiny(algo, **{rate: -1.0}))
    with pytest.raises(ConfigError, match=rf"algo_kwargs\.{rate}: should be a valid number, got 'fast'"):
        spec.options(tiny(algo, **{rate: "fast"}))


@everyone
def test_the_wrong_space_is_refused_with_both_sides_named(algo, tiny):
    spec = get_algorithm_spec(algo)
    wrong = {"discrete": "Pendulum-v1", "box": "CartPole-v1"}
    allowed = set(spec.actions)
    for kind, env_id in wrong.items():
        if kind in allowed and {"discrete", "box"} <= allowed:
            continue
        if kind in allowed:
            with pytest.raises(ValueError, match=rf"{algo} needs .* actions; {env_id} has vector"):
                spec.train(tiny(algo, env_id=env_id))


@everyone
def test_public_names_agree(algo):
    entry = ALGORITHMS[algo]
    managed = getattr(rl_training, entry.public)
    assert (
        managed
        is getattr(rl_training.api, entry.public)
        is getattr(import_module("rl_training.algorithms"), entry.public)
    )
    learner = getattr(import_module("rl_training.algorithms"), f"{entry.public}Algorithm")
    assert learner is getattr(import_module(f"rl_training.algorithms.{algo}"), entry.public)
    assert learner.__name__ == entry.public
    trainer = import_module(f"rl_training.runtime.{entry.trainer}")
    assert getattr(trainer, f"train_{algo}") == get_algorithm_spec(algo).train


@everyone
def test_files_agree_with_the_registry(algo):
    assert any(p.startswith(f"configs/{algo}/") for p in presets())
    assert list((ROOT / "examples").glob(f"{algo}_*_reference.py"))
    assert (ROOT / "docs" / f"{algo}.md").exists()
    assert ALGORITHMS[algo].public in (ROOT / "docs" / "sourcebook.md").read_text()
    assert ALGORITHMS[algo].public in (ROOT / "README.md").read_text()
    assert (ROOT / "tests" / f"test_{algo}_update.py").exists()
    assert algo in SMOKE


@pytest.mark.parametrize("preset", presets())
def test_presets_are_valid_and_lie_in_the_folder_of_their_algorithm(preset):
    config = read_config(preset)
    assert config.algo == preset.split("/")[1]


@everyone
def test_metrics_read_lazily_are_what_they_were(algo, tiny):
    """An update's numbers do not change when later updates happen."""
    from rl_training import Callback

    class Keep(Callback):
        def __init__(self):
            self.early, self.late = [], []

        def on_update_end(self, trainer, result):
            self.early.append(result.metrics)
            self.late.append(dict(result.metrics) if len(self.late) % 2 else result.metrics)

    keep = Keep()
    get_algorithm_spec(algo).train(tiny(algo, total_timesteps=64), callbacks=[keep])
    values = [dict(metrics) for metrics in keep.early]
    assert len({tuple(v.values()) for v in values}) == len(values)  # all different: none was overwritten by a later one


@everyone
def test_what_is_exported_acts_as_the_agent_does(algo, trained, tmp_path):
    from rl_training.artifacts.export import export_checkpoint

    if algo == "pets":  # plans
        with pytest.raises(ValueError, match="no policy that could be exported"):
            export_checkpoint(trained(algo).run_dir, tmp_path / "policy.pt2")
        return
    exported = export_checkpoint(trained(algo).run_dir, tmp_path / "policy.pt2")  # compares them
    assert exported.rows == 1_000 and exported.ties < 100 and exported.difference < 1e-5


@everyone
def test_a_config_or_a_checkpoint_of_another_algorithm_is_refused_in_one_line(algo, tiny, trained):
    """Whether the algorithm trains, goes on, loads, evaluates, predicts or has only its trainer's function."""
    other = "sac" if algo != "sac" else "ppo"
    spec, own, foreign = get_algorithm_spec(algo), tiny(algo), tiny(other)
    state = load_checkpoint(trained(other).checkpoint_path)
    trainer = import_module(f"rl_training.runtime.{ALGORITHMS[algo].trainer}")
    calls = [
        lambda: spec.train_fn(foreign),
        lambda: getattr(trainer, f"train_{algo}")(foreign),
        lambda: spec.load_fn(foreign, state),
        lambda: spec.evaluate_fn(foreign, state, "cpu", 1),
        lambda: spec.predict_fn(foreign, state, "cpu", [0.0]),
        lambda: getattr(rl_training, ALGORITHMS[algo].public)(foreign),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=rf"^[^\n]*{algo}[^\n]*{other}[^\n]*$"):
            call()
    loads = [
        lambda: spec.train_fn(own, checkpoint_state=state),
        lambda: spec.load_fn(own, state),
        lambda: spec.evaluate_fn(own, state, "cpu", 1),
    ]
    for call in loads:
        with pytest.raises(ValueError, match=rf"^{algo} cannot go on from a checkpoint of {other}"):
            call()
    assert not list(own.output_dir.glob("*"))  # refused before anything was made


@everyone
def test_all_options_in_force_written_out_are_the_same_options(algo, tiny):
    spec = get_algorithm_spec(algo)
    for config in (tiny(algo), tiny(algo).replace(algo_kwargs={})):
        options = spec.options(config)
        whole = options.model_dump(mode="json", exclude=options.idle())
        assert spec.options(config.replace(algo_kwargs=whole)) == options


@everyone
def test_metrics_that_nobody_has_read_keep_no_graph_alive(algo, tiny, monkeypatch):
    begin, names_seen, with_graph = Metrics.__init__, set(), set()

    def watched(self, names, tensors):
        names_seen.update(names)
        with_graph.update(name for name, tensor in zip(names, tensors) if tensor.requires_grad)
        begin(self, names, tensors)

    monkeypatch.setattr(Metrics, "__init__", watched)
    get_algorithm_spec(algo).train(tiny(algo, total_timesteps=64, compile=False))
    assert names_seen and not with_graph
