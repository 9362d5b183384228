"""Compiled updates, fast and safe: as eager ones, independent of each other, open to schedules; and their failures."""

import copy
import pickle
import re
import types
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import rl_training
from rl_training import Callback, TrainConfig
from rl_training.algorithms.base import Learner
from rl_training.algorithms.sac import SAC
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models import MLPSACModel
from rl_training.optim import compiled
from rl_training.optim.compiled import Compiled, cannot_compile
from rl_training.optim.flat import FlatAdam, descend
from rl_training.runtime.engine import Engine
from rl_training.runtime.workflows import resume_training
from toys import SMOKE, StopAt, assert_same, same_end, tiny_config

pytestmark = [
    pytest.mark.skipif(cannot_compile() is not None, reason=f"compiling is not possible here: {cannot_compile()}"),
    pytest.mark.timeout(900),  # a graph takes seconds of a processor, and a minute of one that eight people share
]


KINDS = ("ppo", "gail", "dqn", "fqf", "sac", "cql", "mbpo")  # of loops and of updates: others differ by a loss
both_modes = pytest.mark.parametrize("safe", [False, True], ids=["fast", "safe"])


def make(gamma, compiled, safe=False):
    torch.manual_seed(0)
    agent = SAC(
        model=MLPSACModel(obs_dim=3, action_dim=2, hidden_sizes=(16, 16)),
        learning_rate=1e-2,
        gamma=gamma,
        alpha="auto",
        tau=0.01,
    )
    if compiled:
        agent.use_compiled(safe=safe)
    return agent


def batch(rows=8):
    generator = torch.Generator().manual_seed(1)
    shapes = {"obs": (rows, 3), "actions": (rows, 2), "rewards": (rows,), "next_obs": (rows, 3)}
    return {**{k: torch.randn(s, generator=generator) for k, s in shapes.items()}, "dones": torch.zeros(rows)}


def run(agent, updates=5):
    torch.manual_seed(2)
    return [dict(agent.update(batch(), global_step=i).metrics) for i in range(updates)][-1]


@both_modes
def test_two_learners_in_one_process_keep_their_own_constants_and_equal_eager(safe):
    ends = {}
    for gamma in (0.9, 0.5):
        fast = run(make(gamma, True, safe))
        assert fast == pytest.approx(run(make(gamma, False)), rel=1e-3, abs=1e-4)
        ends[gamma] = fast["critic_loss"]
    assert abs(ends[0.9] - ends[0.5]) > 1e-3


def graphs(learner):
    """Of a learner and of those it is made of."""
    inner = [graph for part in learner._parts().values() if isinstance(part, Learner) for graph in graphs(part)]
    return [*inner, *learner._updates.graphs]


class Look(Callback):
    def __init__(self):
        self.seen = []

    def on_train_end(self, trainer, result):
        self.seen = [graph for graph in graphs(trainer.algorithm) if graph.used]


def network(state):
    part = next(v for k, v in state.algorithm_state.items() if k in ("model", "policy", "q_network"))
    return part.get("model", part)  # a policy may be a learner of its own


@pytest.mark.parametrize(
    "algo",  # all but Dreamer, whose updates are no graph
    [*KINDS, *(pytest.param(algo, marks=pytest.mark.release) for algo in SMOKE if algo not in (*KINDS, "dreamer"))],
)
def test_compiled_runs_go_straight_to_the_kernels_learn_the_same_and_resume_exactly(algo, tmp_path):
    spec, look = get_algorithm_spec(algo), Look()
    config = tiny_config(algo, tmp_path, compile=True, total_timesteps=96, eval_interval=0)
    straight = load_checkpoint(spec.train(config, run_suffix="straight", callbacks=[look]).checkpoint_path)
    assert look.seen and all(graph.direct for graph in look.seen)
    assert straight.trainer_state["engine"]["compile"] is True
    # eager and compiled differ in the last bits only
    eager = load_checkpoint(spec.train(config.replace(compile=False), run_suffix="eager").checkpoint_path)
    assert eager.trainer_state["engine"]["compile"] is False
    assert straight.trainer_state["update_count"] == eager.trainer_state["update_count"]
    for name, tensor in network(eager).items():
        assert torch.allclose(tensor, network(straight)[name], atol=2e-3), name
    # stopped and resumed, no bit differs
    stopped = spec.train(config, run_suffix="stopped", callbacks=[StopAt(50)])
    same_end(straight, load_checkpoint(resume_training(stopped.run_dir).checkpoint_path))


@both_modes
def test_two_learners_of_different_shape_do_not_share_a_graph(safe):
    def wider():
        torch.manual_seed(5)
        model = MLPSACModel(obs_dim=3, action_dim=2, hidden_sizes=(24,))
        return SAC(model=model, learning_rate=1e-2, gamma=0.9, alpha=0.2, tau=0.01)

    small, large, eager = make(0.9, True, safe), wider(), wider()
    large.use_compiled(safe=safe)
    run(small)
    assert run(large) == pytest.approx(run(eager), rel=1e-3, abs=1e-4)
    assert small.compiled and large.compiled


@both_modes
def test_a_changed_learning_rate_reaches_the_graph_and_other_shapes_run_eagerly(safe):
    agent = make(0.9, True, safe)
    run(agent)
    agent.actor_optimizer.scale_lr(0.0)
    before = agent.actor_optimizer.flat.clone()
    agent.update(batch(), global_step=0)
    assert torch.equal(agent.actor_optimizer.flat, before)
    agent.actor_optimizer.scale_lr(1.0)
    agent.update(batch(rows=5), global_step=0)  # a shape the graph was not made for
    assert not torch.equal(agent.actor_optimizer.flat, before)
    transposed = {**batch(), "obs": batch()["obs"].T.contiguous().T}  # the same shape, laid out differently
    expected = make(0.9, False)
    expected.load_state_dict(agent.state_dict())
    torch.manual_seed(3)
    fast = dict(agent.update(transposed, global_step=0).metrics)
    torch.manual_seed(3)
    assert fast == pytest.approx(dict(expected.update(transposed, global_step=0).metrics), rel=1e-4, abs=1e-5)


def test_packed_rows_are_unpacked_inside_the_graph_and_a_changed_batch_is_not():
    from rl_training.algorithms.dqn import DQN
    from rl_training.data import ReplayBuffer
    from rl_training.models import MLPQNetwork

    def learner(compiled):
        torch.manual_seed(0)
        network = MLPQNetwork(obs_dim=2, action_dim=3, hidden_sizes=(8,))
        agent = DQN(q_network=network, learning_rate=1e-2, gamma=0.9, target_update_interval=3)
        if compiled:
            agent.use_compiled()
        return agent

    rng = np.random.default_rng(0)
    replay = ReplayBuffer(64, (2,), (), action_dtype=np.int64, reuse=True)
    replay.add(obs=rng.standard_normal((64, 2)), actions=rng.integers(0, 3, 64), rewards=rng.standard_normal(64),
               next_obs=rng.standard_normal((64, 2)), dones=rng.integers(0, 2, 64))  # fmt: skip
    fast, slow = learner(True), learner(False)
    for _ in range(6):
        rows = replay.sample(16)
        assert rows.packed is not None
        plain = {name: tensor.clone() for name, tensor in rows.items()}
        assert dict(fast.update(rows, global_step=0).metrics) == pytest.approx(
            dict(slow.update(plain, global_step=0).metrics), rel=1e-4
        )
    rows = replay.sample(16)
    rows["weights"] = torch.zeros(16)
    assert fast.update(rows, global_step=0).metrics["loss"] == 0.0
    assert "weights" not in replay.sample(16)


@pytest.mark.parametrize(
    "algo",  # every kind of loop, one part and several
    ["ppo", "sac", *(pytest.param(algo, marks=pytest.mark.release) for algo in ("dqn", "rlpd", "mopo"))],
)
def test_safe_runs_learn_the_same_and_are_stored_as_safe(algo, tmp_path):
    spec, look = get_algorithm_spec(algo), Look()
    config = tiny_config(algo, tmp_path, compile="safe", total_timesteps=64, eval_interval=0)
    safe = load_checkpoint(spec.train(config, run_suffix="safe", callbacks=[look]).checkpoint_path)
    assert look.seen and all(graph.safe and not graph.direct and graph.failed is None for graph in look.seen)
    assert safe.trainer_state["engine"]["compile"] == "safe"
    eager = load_checkpoint(spec.train(config.replace(compile=False), run_suffix="eager").checkpoint_path)
    for name, tensor in network(eager).items():
        assert torch.allclose(tensor, network(safe)[name], atol=2e-3), name


def test_a_safe_run_resumes_exactly_and_safe(tmp_path):
    spec, look = get_algorithm_spec("dqn"), Look()
    config = tiny_config("dqn", tmp_path, compile="safe", total_timesteps=96, eval_interval=0)
    straight = load_checkpoint(spec.train(config, run_suffix="straight").checkpoint_path)
    stopped = spec.train(config, run_suffix="stopped", callbacks=[StopAt(50)])
    resumed = load_checkpoint(resume_training(stopped.run_dir, callbacks=[look]).checkpoint_path)
    same_end(straight, resumed)
    assert look.seen and all(graph.safe for graph in look.seen)


# ---- the switch


def engine(setting, expected_updates=10):
    return Engine.choose(
        TrainConfig(algo="sac", env_id="X", compile=setting, threads=1), make(0.9, False), expected_updates
    )


@pytest.mark.parametrize(
    ("setting", "updates", "kind", "why"),
    [
        (True, 10, True, "updates are compiled, on 1 thread: compile is true; "),
        ("safe", 10, "safe", "updates are compiled with torch.compile's guards, on 1 thread: compile is safe; "),
        (False, 10**9, False, "updates run eagerly, on 1 thread: compile is false"),
        ("auto", 10, False, "updates run eagerly, on 1 thread: 10 updates are too few (compiling pays from 5,000 on)"),
        ("auto", 5000, True, "updates are compiled, on 1 thread: 5,000 expected; "),
    ],
)
def test_the_switch_decides_and_a_run_says_so(setting, updates, kind, why):
    chosen = engine(setting, updates)
    assert (chosen.compile, chosen.why) == (kind, why + "the first one takes a while" * bool(kind))
    assert Engine.restored(chosen.state_dict()).compile == kind


@pytest.mark.parametrize("kind", [True, False, "safe"])
def test_a_run_goes_on_as_it_was_stored(kind):
    agent = make(0.9, False)
    Engine.restored({"compile": kind, "threads": 1}).prepare(agent)
    assert agent.compiled == bool(kind) and [graph.safe for graph in agent._updates.graphs] == (
        [kind == "safe"] if kind else []
    )


@pytest.mark.parametrize("value", ["fast", "yes", 1])
def test_no_other_value_of_the_switch_is_taken(value):
    with pytest.raises(ValueError, match="compile"):
        TrainConfig(algo="sac", env_id="X", compile=value)


def test_a_run_whose_compilation_failed_is_resumed_eagerly():
    agent = make(0.9, True)
    agent._updates.graphs[0].failed = "some reason"
    assert Engine(True, 1).state_dict(agent) == {"compile": False, "threads": 1, "onednn": False}


# ---- one module knows torch's internals


def test_no_other_module_names_torchs_internals():
    package, allowed = Path(rl_training.__file__).parent, re.compile(r"torch\._(fused_adam_|foreach_\w+)")
    private = re.compile(r"torch\._\w+|from torch import _\w+|\b_(?:dynamo|inductor|functorch)\b")
    exempt = {package / "optim" / "compiled.py", *(package / "models" / "kernels").rglob("*.py")}
    named = {
        (str(path.relative_to(package)), name)
        for path in set(package.rglob("*.py")) - exempt
        for name in private.findall(path.read_text())
        if not allowed.fullmatch(name)
    }
    assert not named - {("commands/doctor.py", "torch.__version__")}


# ---- assumptions, broken on purpose


class Model:
    """A function with a Python number, a tensor and a parameter, which it changes."""

    def __init__(self):
        self.number, self.tensor, self.weight = 1.0, torch.tensor(1.0), torch.ones(3)

    def update(self, batch):
        loss = self.number * (self.tensor * self.weight * batch["x"]).sum()
        with torch.no_grad():
            self.weight.sub_(0.1 * batch["x"])
        return {"loss": loss, "weight": self.weight * 1}


def x(*values, dtype=torch.float32):
    return {"x": torch.tensor(values, dtype=dtype)}


def eager_only(*_):
    raise AssertionError("ran eagerly")


@both_modes
def test_a_batch_of_another_layout_runs_eagerly_with_the_same_numbers(safe):
    fast, slow = Model(), Model()
    graph = Compiled(fast.update, safe=safe)
    wide = torch.arange(6.0).view(3, 2)
    layouts = [
        x(1, 2, 3),
        {"x": wide[:, 0]},  # other strides
        x(1, 2, 3, dtype=torch.float64),
        {"x": torch.tensor(2.0)},  # other shape
        {**x(1, 2, 3), "y": torch.zeros(2)},  # one tensor more
    ]
    for number, batch in enumerate(layouts):
        metrics, rest = graph(batch)
        expected = slow.update(batch)
        assert metrics["loss"] == pytest.approx(float(expected["loss"]))
        assert torch.allclose(rest["weight"], expected["weight"]), number
    graph._function = eager_only
    graph(x(1, 2, 3))  # the layout that it was made for
    for batch in layouts[1:]:
        with pytest.raises(AssertionError, match="ran eagerly"):
            graph(batch)


@both_modes
def test_a_changed_tensor_is_seen_and_a_changed_number_only_by_guards(safe):
    model = Model()
    model.weight.zero_()
    graph, batch = Compiled(lambda batch: {"y": model.number * model.tensor * batch["x"].sum()}, safe=safe), x(1, 2)
    assert graph(batch)[0]["y"] == 3
    model.tensor.fill_(10.0)
    assert graph(batch)[0]["y"] == 30
    model.number = 2.0
    assert graph(batch)[0]["y"] == (60 if safe else 30)


def test_numbers_that_never_stop_changing_end_safe_graphs_with_one_warning():
    model = Model()
    graph = Compiled(lambda batch: {"y": model.number * batch["x"].sum()}, safe=True)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", UserWarning)
        for number in range(12):
            model.number = float(number) + 0.5
            assert graph(x(1, 2))[0]["y"] == pytest.approx(3 * model.number)
    assert len([w for w in seen if "updates run eagerly" in str(w.message)]) == 1 and graph.failed is not None


def test_graphs_of_one_function_are_apart():
    """Dynamo keeps graphs by code object: without one for each, the second would run the first one's graph."""
    models = [Model() for _ in range(3)]
    for number, model in enumerate(models, start=1):
        model.number = float(number)
    graphs = [Compiled(model.update) for model in models]
    for _ in range(2):
        losses = [graph(x(1, 1, 1))[0]["loss"] for graph in graphs]
        assert losses == pytest.approx([losses[0], 2 * losses[0], 3 * losses[0]])
    assert all(torch.allclose(model.weight, torch.full((3,), 0.8)) for model in models)


def test_a_first_call_that_is_not_plain_keeps_to_the_public_entry():
    state = torch.zeros(2)

    def update(batch):
        state.add_(batch["x"])
        return {"sum": state.sum(), "same": batch["x"]}  # an output that is an input

    graph = Compiled(update)
    for number in (1, 2, 3):
        metrics, rest = graph(x(1, 2))
        assert metrics["sum"] == 3 * number and torch.equal(rest["same"], x(1, 2)["x"])
    assert not graph.direct and graph.failed is None


def records(kernels=None, given=(), made=(), after=None):
    recorder = compiled._Recorder()
    after = [x.clone() for x in given] if after is None else after
    recorder._calls.append((kernels or (lambda inputs: made), list(given), list(made), after))
    return recorder


def test_the_recorder_refuses_what_it_does_not_understand():
    batch, scalars, weight, new = torch.ones(2), torch.zeros(1), torch.full((3,), 2.0), torch.full((3,), 2.0)
    old = torch.ones(3)
    plain = {"given": [batch, weight], "made": [scalars, new], "after": [batch.clone(), old]}
    assert records(**plain).shortcut((batch,), [], scalars, {}) is not None
    assert compiled._Recorder().shortcut((batch,), [], scalars, {}) is None  # saw nothing
    twice = records(**plain)
    twice._calls *= 2
    assert twice.shortcut((batch,), [], scalars, {}) is None
    strange = {
        "an output of unknown use": {**plain, "made": [scalars, new, torch.ones(5)]},
        "a parameter that changed by itself": {**plain, "made": [scalars]},
        "two parameters with the same new value": {
            "given": [batch, weight, weight.clone()],
            "made": [scalars, new, new.clone()],
            "after": [batch.clone(), old, old],
        },
        "a result from elsewhere": {**plain, "made": [scalars.clone(), new]},
        "the batch as two inputs": {
            "given": [batch, weight, batch],
            "made": [scalars, new],
            "after": [batch, old, batch],
        },
    }
    for what, call in strange.items():
        assert records(**call).shortcut((batch,), [], scalars, {}) is None, what


def test_the_recorders_shortcut_gives_the_kernels_the_batch_and_copies_back_new_values():
    batch, scalars, weight = torch.ones(2), torch.zeros(1), torch.full((3,), 2.0)
    made = [scalars, weight.clone()]
    kernels = lambda inputs: [inputs[0].sum(), inputs[1] + 1]  # noqa: E731
    call = records(kernels, [batch, weight], made, [batch.clone(), torch.ones(3)]).shortcut((batch,), [], scalars, {})
    names, result, rest = call((torch.full((2,), 5.0),))
    assert names == [] and result == 10 and rest == {} and torch.equal(weight, torch.full((3,), 3.0))


# ---- failures: something slower and right, with one warning


def warned(graph, batch, times=3):
    """The warnings of some calls, and the metrics of each."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", UserWarning)
        results = [dict(graph(batch)[0]) for _ in range(times)]
    return [str(w.message) for w in seen if issubclass(w.category, UserWarning)], results


@both_modes
def test_what_cannot_be_compiled_runs_eagerly_and_says_so_once(safe):
    def stubborn(batch):  # branches on data: no graph can hold that
        return {"y": batch["x"].sum() if batch["x"].sum() > 2 else batch["x"].mean()}

    said, results = warned(Compiled(stubborn, safe=safe), x(1, 1, 1))
    assert len(said) == 1 and said[0].startswith("updates run eagerly: compiling failed (")
    assert results == [{"y": 3.0}] * 3


@pytest.mark.parametrize(
    ("where", "safe"),
    [
        ("torch.compile", False),
        ("torch.compile", True),
        ("torch._inductor.compile_fx.compile_fx", False),
        ("torch._inductor.compile_fx.compile_fx", True),
        ("torch._inductor.compile_fx.compile_fx_inner", False),
    ],
)
def test_a_compiler_that_raises_leaves_eager_updates_with_one_warning(where, safe, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("out of order")

    monkeypatch.setattr(where, broken)
    fast, slow = make(0.9, True, safe), make(0.9, False)
    with pytest.warns(UserWarning, match=r"updates run eagerly: compiling failed \(.*out of order") as seen:
        assert run(fast) == run(slow)
    assert len(seen) == 1 and not fast.compiled
    assert_same(fast.state_dict(), slow.state_dict())


def test_a_torch_without_a_private_name_gets_safe_graphs_with_one_warning(monkeypatch):
    monkeypatch.setitem(compiled.FAST, "setting_of_another_torch", True)
    assert "setting_of_another_torch" in compiled.lacking()
    model = Model()
    graph = Compiled(model.update)
    said, results = warned(graph, x(1, 1, 1))
    assert len(said) == 1 and said[0].startswith("updates are compiled with torch.compile's guards: ")
    assert graph.safe and not graph.direct and graph.failed is None
    assert [r["loss"] for r in results] == pytest.approx([3.0, 2.7, 2.4])
    chosen = engine(True)
    assert chosen.compile == "safe" and "setting_of_another_torch" in chosen.why


@pytest.mark.parametrize("name", ["compile_fx", "compile_fx_inner"])
def test_every_private_function_is_looked_for(name, monkeypatch):
    import torch._inductor.compile_fx

    assert compiled.lacking() is None
    monkeypatch.delattr(torch._inductor.compile_fx, name)
    assert name in compiled.lacking()


def test_a_torch_that_cannot_trace_gradients_or_a_machine_without_a_compiler_runs_eagerly(monkeypatch):
    import torch._dynamo

    with monkeypatch.context() as patch:
        patch.setattr(torch._dynamo, "config", types.SimpleNamespace())
        assert engine("safe").compile is False and "cannot trace autograd" in engine(True).why
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert engine(True).compile is False and "no C++ compiler found" in engine("safe").why


# ---- random numbers, and copies


@both_modes
def test_random_numbers_are_those_of_an_eager_update(safe):
    def draw(batch):
        noise = torch.randn_like(batch["x"])
        return {"y": noise.sum(), "noise": noise, "kept": F.dropout(batch["x"], 0.5), "which": torch.randint(100, (4,))}

    graph = Compiled(draw, safe=safe)
    for _ in range(3):
        before = torch.get_rng_state()
        _, rest = graph(x(1, 2, 3, 4))
        after = torch.get_rng_state()
        torch.set_rng_state(before)
        expected = draw(x(1, 2, 3, 4))
        assert all(torch.equal(rest[name], expected[name]) for name in rest)
        assert torch.equal(torch.get_rng_state(), after)
    assert graph.failed is None


@both_modes
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda agent: pickle.loads(pickle.dumps(agent))], ids=["deepcopy", "pickle"]
)
def test_a_copy_has_no_graph_yet_and_compiles_its_own(copied, safe):
    agent = make(0.9, True, safe)
    run(agent)
    twin = copied(agent)
    [graph], [own] = agent._updates.graphs, twin._updates.graphs
    assert graph.used and not own.used and own.safe is safe
    before = {name: value.clone() for name, value in agent.model.state_dict().items()}
    learned = run(twin)
    assert own.used and own.direct is not safe
    assert_same(agent.model.state_dict(), before)
    assert run(agent) == learned


def test_flat_adam_is_adam():
    torch.manual_seed(0)
    ours, theirs = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    adam = FlatAdam(ours.parameters(), lr=0.01, eps=1e-5)
    reference = torch.optim.Adam(theirs.parameters(), lr=0.01, eps=1e-5)
    for step in range(20):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
        descend((adam, F.mse_loss(ours(x), x[:, :2])))
        reference.zero_grad()
        F.mse_loss(theirs(x), x[:, :2]).backward()
        reference.step()
    for a, b in zip(ours.parameters(), theirs.parameters()):
        assert torch.allclose(a, b, atol=1e-6)


def test_every_gradient_is_taken_before_any_step():
    """Two losses over shared parameters: the second must see the parameters as they were."""
    a, b = torch.nn.Parameter(torch.tensor([1.0])), torch.nn.Parameter(torch.tensor([1.0]))
    first, second = FlatAdam([a], lr=0.1), FlatAdam([b], lr=0.1)
    descend((first, (a * 3).sum()), (second, (a * b).sum()))
    assert second.mean.item() == pytest.approx(0.1 * 1.0)  # d(ab)/db = a = 1, not the stepped 0.9


def test_moving_a_module_behind_its_optimizer_is_an_error():
    layer = torch.nn.Linear(2, 1)
    optimizer = FlatAdam(layer.parameters(), lr=0.1)
    layer.weight.data = layer.weight.data.clone()
    with pytest.raises(RuntimeError, match="no longer share memory"):
        optimizer.gradient(layer(torch.ones(1, 2)).sum())


def test_a_safe_graph_that_is_compiled_again_names_its_metrics_anew():
    """A guard fails, and the update then returns other scalars: their names must not be those of the first graph."""

    class Changing:
        scale = 1.0

        def learn(self, batch):
            total = batch["x"].sum() * self.scale
            return {"a": total} if self.scale == 1.0 else {"new": 50 * total, "a": total}

    learner = Changing()
    graph = compiled.Compiled(learner.learn, safe=True)
    batch = {"x": torch.ones(3)}
    assert dict(graph(batch)[0]) == {"a": 3.0}
    learner.scale = 2.0
    assert dict(graph(batch)[0]) == {"new": 300.0, "a": 6.0}


def test_only_learners_with_graphs_are_announced_as_guarded():
    class Graphs:
        PARTS, EAGER = ("_learn",), ""

        def _parts(self):
            return {}

    class Kernels(Graphs):
        PARTS = ()

    config = TrainConfig(algo="dreamer", env_id="X", compile="safe", threads=1)
    assert "guards" in Engine.choose(config, Graphs(), 10).why
    assert "guards" not in Engine.choose(config, Kernels(), 10).why
