"""A copy of a learner is a copy, and networks that were moved or replaced behind a learner's back are refused."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from compiling import compiles
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.ppg import PPG
from rl_training.algorithms.sac import SAC
from rl_training.envs.factory import EnvFactory
from rl_training.envs.spaces import Spaces
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec
from rl_training.models import MLPPPGModel, MLPQNetwork, MLPSACModel
from rl_training.optim.flat import FlatAdam, Target, descend
from rl_training.runtime.spec import Blueprint
from toys import assert_same

everyone = pytest.mark.parametrize("algo", ALGORITHMS)


def build(algo, tiny):
    spec, config = get_algorithm_spec(algo), tiny(algo)
    spaces = Spaces.of(EnvFactory(config.env_id, {}).make(training=False))
    torch.manual_seed(0)
    return spec.build(spec.options(config), Blueprint(spaces, torch.device("cpu"))), spaces


def batches(algo, spaces, seed):
    """(method, arguments) of one update of each kind that the algorithm has."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    def actions(*shape):
        if spaces.action_kind == "box":
            return normal(*shape, *spaces.action_shape).tanh()
        return torch.randint(spaces.num_actions, shape, generator=generator)

    if algo == "dreamer":
        starts = torch.zeros(5, 3)
        starts[0] = 1
        rows = {"obs": normal(5, 3, *spaces.obs_shape), "actions": actions(5, 3), "rewards": normal(5, 3)}
        return [("update", ({**rows, "dones": torch.zeros(5, 3), "episode_starts": starts},))]
    rows = {"obs": normal(12, *spaces.obs_shape), "actions": actions(12)}
    if algo in ("ppo", "ppg", "gail"):
        more = {name: normal(12) for name in ("logprobs", "advantages", "returns", "values")}
        kinds = [("update", ({**rows, **more},))]
        if algo == "ppg":
            logits = normal(12, spaces.num_actions)
            kinds.append(("auxiliary_update", ({"obs": rows["obs"], "returns": normal(12), "teacher_logits": logits},)))
        if algo == "gail":
            kinds.append(
                ("update_discriminator", (rows, {"obs": normal(12, *spaces.obs_shape), "actions": actions(12)}))
            )
        return kinds
    rows |= {"rewards": normal(12), "next_obs": normal(12, *spaces.obs_shape), "dones": torch.zeros(12)}
    return [("update", (rows,)), *([("update_model", (rows,))] if algo in ("mopo", "mbpo") else [])]


def learn(agent, algo, spaces, seed):
    for method, arguments in batches(algo, spaces, seed):
        torch.manual_seed(seed)
        result = getattr(agent, method)(*arguments, global_step=seed)
    return dict(result.metrics)


def acted(agent, spaces):
    obs = np.random.default_rng(0).standard_normal((4, *spaces.obs_shape)).astype(np.float32)
    one, other = agent.act(obs, deterministic=True), agent.act(obs, rng=np.random.default_rng(1))
    return np.concatenate([one.actions, other.actions])


def snapshot(agent):
    return copy.deepcopy(agent.state_dict())


def memory(state):
    parts = [memory(part) if isinstance(part, dict) else part for part in state.values()]
    spans = [{part.untyped_storage().data_ptr()} for part in parts if isinstance(part, torch.Tensor) and part.numel()]
    return set().union(*spans, *(part for part in parts if isinstance(part, set)))


def is_a_copy(agent, twin, algo, spaces):
    """Acts and learns as the original would, and neither is touched by the other's updates."""
    assert_same(twin.state_dict(), agent.state_dict())
    assert not memory(twin.state_dict()) & memory(agent.state_dict())
    actions = acted(agent, spaces)
    assert np.array_equal(acted(twin, spaces), actions)

    before = snapshot(agent)
    learned = learn(twin, algo, spaces, seed=7)
    assert_same(agent.state_dict(), before)
    assert np.array_equal(acted(agent, spaces), actions)
    with pytest.raises(AssertionError):
        assert_same(twin.state_dict(), before)  # it did learn

    after = snapshot(twin)
    assert learn(agent, algo, spaces, seed=7) == learned
    assert_same(twin.state_dict(), after)
    for seed in (8, 9, 10):
        assert learn(agent, algo, spaces, seed) == learn(twin, algo, spaces, seed)
    assert_same(agent.state_dict(), twin.state_dict())
    assert np.array_equal(acted(agent, spaces), acted(twin, spaces))


@everyone
def test_a_deep_copy_is_a_learner_of_its_own(algo, tiny):
    agent, spaces = build(algo, tiny)
    for seed in (1, 2):
        learn(agent, algo, spaces, seed)
    acted(agent, spaces)
    is_a_copy(agent, copy.deepcopy(agent), algo, spaces)


@everyone
def test_a_pickled_learner_is_one_of_its_own(algo, tiny):
    agent, spaces = build(algo, tiny)
    learn(agent, algo, spaces, 1)
    is_a_copy(agent, pickle.loads(pickle.dumps(agent)), algo, spaces)


@everyone
def test_a_shallow_copy_is_refused(algo, tiny):
    agent, _ = build(algo, tiny)
    with pytest.raises(
        TypeError, match=rf"copy\.copy of a {type(agent).__name__} would share its networks and optimizers"
    ):
        copy.copy(agent)


@compiles
@pytest.mark.parametrize("algo", ["dqn", "sac", "ppo"])
def test_a_copy_of_a_compiled_learner_compiles_its_own_updates(algo, tiny):
    agent, spaces = build(algo, tiny)
    agent.use_compiled()
    learn(agent, algo, spaces, 1)
    twin = copy.deepcopy(agent)
    is_a_copy(agent, twin, algo, spaces)
    assert agent.compiled and twin.compiled and all(graph.direct for graph in twin._updates.graphs)


def test_a_copy_keeps_rates_counters_and_shared_weights(tiny):
    agent, _ = build("ppg", tiny)
    agent.optimizer.scale_lr(0.5)
    twin = copy.deepcopy(agent)
    assert twin.optimizer.flat is twin.aux_optimizer.flat and twin.optimizer.lr is not agent.optimizer.lr
    assert float(twin.optimizer.lr) == float(agent.optimizer.lr) and twin.optimizer.scale == 0.5
    twin.optimizer.scale_lr(1.0)
    assert agent.optimizer.scale == 0.5


def test_a_module_copied_with_its_optimizer_is_learned_by_it():
    layer = nn.Linear(2, 1)
    optimizer = FlatAdam(layer.parameters(), lr=0.1)
    target = Target(layer, copy.deepcopy(layer), lambda module: module.parameters())
    twin, its_optimizer, its_target = copy.deepcopy((layer, optimizer, target))
    before = layer.weight.clone()
    descend((its_optimizer, twin(torch.ones(3, 2)).sum()))
    its_target.flat.copy_(its_optimizer.flat)
    assert torch.equal(layer.weight, before) and not torch.equal(twin.weight, before)
    assert torch.equal(its_target.params[0], twin.weight) and torch.equal(target.params[0], before)


def moved(agent, network):
    network.to(torch.float64)


def one_parameter_moved(agent, network):
    last = list(network.parameters())[-1]
    last.data = last.data.clone()


def assigned(agent, network):
    network.load_state_dict(copy.deepcopy(network.state_dict()), assign=True)


def layer_replaced(agent, network):
    network.body[1] = nn.Sequential(nn.Linear(8, 2))


def parameter_replaced(agent, network):
    network.body[1][0].bias = nn.Parameter(torch.zeros(2))


def same_memory_in_another_object(agent, network):
    network.body[1][0].bias = nn.Parameter(network.body[1][0].bias.data)


def network_replaced(agent, network):
    agent.q_network = copy.deepcopy(network)


def target_replaced(agent, network):
    agent.target_network = copy.deepcopy(network)


def target_moved(agent, network):
    moved(agent, agent.target_network)


REFUSED = {
    moved: "DQN: the parameters no longer share memory",
    one_parameter_moved: "DQN: the parameters no longer share memory",
    assigned: "DQN: a module or parameter was replaced",
    layer_replaced: "DQN: a module or parameter was replaced",
    parameter_replaced: "DQN: a module or parameter was replaced",
    same_memory_in_another_object: "DQN: a module or parameter was replaced",
    network_replaced: "DQN.q_network was re-assigned after the learner was made",
    target_replaced: "DQN.target_network was re-assigned after the learner was made",
    target_moved: "DQN: the parameters no longer share memory",
}


def small_dqn():
    torch.manual_seed(0)
    network = MLPQNetwork(obs_dim=3, action_dim=2, hidden_sizes=(8,))
    return DQN(q_network=network, learning_rate=1e-2, gamma=0.9, target_update_interval=2)


def rows():
    generator = torch.Generator().manual_seed(0)
    obs, next_obs = torch.randn(2, 6, 3, generator=generator)
    return {
        "obs": obs,
        "actions": torch.arange(6) % 2,
        "rewards": torch.ones(6),
        "next_obs": next_obs,
        "dones": torch.zeros(6),
    }


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("change", REFUSED)
def test_networks_changed_behind_a_learners_back_are_neither_learned_nor_copied(change, used):
    agent = small_dqn()
    if used:
        agent.update(rows(), global_step=0)
    change(agent, agent.q_network)
    for attempt in (lambda: agent.update(rows(), global_step=0), lambda: copy.deepcopy(agent)):
        with pytest.raises(RuntimeError, match=REFUSED[change]) as caught:
            attempt()
        assert "\n" not in str(caught.value)


@compiles
@pytest.mark.parametrize("safe", [False, True], ids=["fast", "safe"])
def test_compiled_updates_refuse_them_too(safe):
    agent = small_dqn()
    agent.use_compiled(safe=safe)
    agent.update(rows(), global_step=0)
    network, target = agent.q_network, agent.target_network
    places = {p: p.data for module in (network, target) for p in module.parameters()}
    owners = {m: dict(m._parameters) for module in (network, target) for m in module.modules()}
    children = dict(network.body._modules)
    for change in REFUSED:
        if change is same_memory_in_another_object:
            continue  # a graph goes by memory
        change(agent, network)
        before = agent.optimizer.flat.clone()
        with pytest.raises(RuntimeError, match=REFUSED[change]):
            agent.update(rows(), global_step=0)
        assert torch.equal(agent.optimizer.flat, before)
        agent.q_network, agent.target_network = network, target  # as it was
        network.body._modules.update(children)
        for module, parameters in owners.items():
            module._parameters.update(parameters)
        for parameter, data in places.items():
            parameter.data = data
        agent.update(rows(), global_step=0)
        assert not torch.equal(agent.optimizer.flat, before) and agent.compiled


@compiles
@pytest.mark.parametrize("safe", [False, True], ids=["fast", "safe"])
def test_a_hook_after_compiling_is_learned_with_eagerly(safe):
    agent, expected = small_dqn(), small_dqn()
    agent.use_compiled(safe=safe)
    for learner in (agent, expected):
        learner.update(rows(), global_step=0)
        learner.q_network.body[1].register_forward_hook(lambda module, inputs, output: 3 * output)
    with pytest.warns(UserWarning, match="DQN: updates run eagerly from now on, since a network was changed"):
        result = agent.update(rows(), global_step=0).metrics
    assert dict(result) == pytest.approx(dict(expected.update(rows(), global_step=0).metrics), rel=1e-4)
    assert not agent.compiled


def small_ppg():
    coefs = dict.fromkeys(("aux_value_coef", "behavior_clone_coef", "value_clone_coef", "clip_coef", "vf_coef"), 1.0)
    model = MLPPPGModel(obs_dim=3, action_dim=2, hidden_sizes=(8,))
    return PPG(model=model, learning_rate=1e-3, aux_learning_rate=1e-3, ent_coef=0.0, **coefs)


def test_a_learner_is_compiled_if_each_of_its_parts_can_be():
    agent = small_ppg()
    assert not agent.compiled
    agent.use_compiled()
    assert agent.compiled
    agent._updates.graphs[1].failed = "no compiler"
    assert not agent.compiled


def test_a_change_ends_all_graphs_if_only_one_part_was_compiled():
    agent = small_ppg()
    agent.use_compiled()
    policy_phase, auxiliary_phase = agent._updates.graphs
    policy_phase._call = lambda tensors: None  # as if its first batch had come
    assert policy_phase.used and not auxiliary_phase.used
    agent.model.policy_head.register_forward_hook(lambda module, inputs, output: 3 * output)
    with pytest.warns(UserWarning, match="PPG: updates run eagerly from now on, since a network was changed"):
        agent._updates.check()
    assert not agent._updates.graphs


def test_acting_follows_parameters_wherever_they_are():
    agent = SAC(
        model=MLPSACModel(obs_dim=3, action_dim=2, hidden_sizes=(8,)),
        learning_rate=1e-3,
        gamma=0.9,
        alpha=0.1,
        tau=0.01,
    )
    obs = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    agent.act(obs)
    with torch.no_grad():
        for p in agent.model.actor.parameters():
            p.data = p.data + 1.0
        expected = agent.model.sample_actions(torch.from_numpy(obs), deterministic=True).actions.numpy()
    assert agent.act(obs, deterministic=True).actions == pytest.approx(expected, abs=1e-6)
    agent.model = MLPSACModel(obs_dim=3, action_dim=2, hidden_sizes=(8,))
    with pytest.raises(RuntimeError, match=r"SAC\.model was re-assigned after the learner was made"):
        agent.act(obs)


def test_what_no_optimizer_owns_may_move():
    class Scaled(MLPQNetwork):
        def __init__(self, **sizes):
            super().__init__(**sizes)
            self.register_buffer("scale", torch.ones(()))
            self.fixed = nn.Parameter(torch.ones(2), requires_grad=False)

        def forward(self, obs):
            self.scale = self.scale * 1.0  # a new tensor every time
            return super().forward(obs) * self.scale * self.fixed

    torch.manual_seed(0)
    agent = DQN(q_network=Scaled(obs_dim=3, action_dim=2), learning_rate=1e-2, gamma=0.9, target_update_interval=2)
    first = agent.update(rows(), global_step=0).metrics["loss"]
    agent.q_network.fixed.data = torch.full((2,), 2.0)
    agent.q_network.probe = nn.Linear(1, 1)
    for _ in range(20):
        last = agent.update(rows(), global_step=0).metrics["loss"]
    assert last != first
