"""Compiled updates: as eager ones, independent of each other, and open to schedules."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from rl_training import Callback
from rl_training.algorithms.base import Learner
from rl_training.algorithms.sac import SAC
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models import MLPSACModel
from rl_training.optim.compiled import Compiled, cannot_compile
from rl_training.optim.flat import FlatAdam, descend
from rl_training.runtime.workflows import resume_training
from toys import SMOKE, StopAt, same_end, tiny_config

pytestmark = [
    pytest.mark.skipif(cannot_compile() is not None, reason=f"compiling is not possible here: {cannot_compile()}"),
    pytest.mark.timeout(900),  # a graph takes seconds of a processor, and a minute of one that eight people share
]


def make(gamma, compiled):
    torch.manual_seed(0)
    agent = SAC(
        model=MLPSACModel(obs_dim=3, action_dim=2, hidden_sizes=(16, 16)),
        learning_rate=1e-2,
        gamma=gamma,
        alpha="auto",
        tau=0.01,
    )
    if compiled:
        agent.use_compiled()
    return agent


def batch(rows=8):
    generator = torch.Generator().manual_seed(1)
    shapes = {"obs": (rows, 3), "actions": (rows, 2), "rewards": (rows,), "next_obs": (rows, 3)}
    return {**{k: torch.randn(s, generator=generator) for k, s in shapes.items()}, "dones": torch.zeros(rows)}


def run(agent, updates=5):
    torch.manual_seed(2)
    return [dict(agent.update(batch(), global_step=i).metrics) for i in range(updates)][-1]


def test_two_learners_in_one_process_keep_their_own_constants_and_equal_eager():
    ends = {}
    for gamma in (0.9, 0.5):
        fast = run(make(gamma, True))
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


@pytest.mark.parametrize("algo", [algo for algo in SMOKE if algo != "dreamer"])  # whose updates are no graph
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


def test_two_learners_of_different_shape_do_not_share_a_graph():
    small, large = make(0.9, True), make(0.9, True)
    torch.manual_seed(5)
    large = SAC(
        model=MLPSACModel(obs_dim=3, action_dim=2, hidden_sizes=(24,)),
        learning_rate=1e-2,
        gamma=0.9,
        alpha=0.2,
        tau=0.01,
    )
    torch.manual_seed(5)
    eager = SAC(
        model=MLPSACModel(obs_dim=3, action_dim=2, hidden_sizes=(24,)),
        learning_rate=1e-2,
        gamma=0.9,
        alpha=0.2,
        tau=0.01,
    )
    large.use_compiled()
    run(small)
    assert run(large) == pytest.approx(run(eager), rel=1e-3, abs=1e-4)
    assert small.compiled and large.compiled


def test_a_changed_learning_rate_reaches_the_graph_and_other_shapes_run_eagerly():
    agent = make(0.9, True)
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


def test_what_cannot_be_compiled_runs_eagerly_and_says_so():
    def stubborn(tensors):
        return {
            "x": tensors["x"].sum() if tensors["x"].sum() > 2 else tensors["x"]
        }  # branches on data: no graph can hold that

    function = Compiled(stubborn)
    with pytest.warns(UserWarning, match="updates run eagerly"):
        assert function({"x": torch.ones(3)})[0]["x"] == 3
    assert function({"x": torch.ones(3)})[0]["x"] == 3


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
