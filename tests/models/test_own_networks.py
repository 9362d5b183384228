"""A network of one's own acts as it learns: numpy acts only where it computes what torch computes."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from compiling import compiles
from rl_training.algorithms.bc import BC
from rl_training.algorithms.cql import CQL, many_values
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.dreamer import Dreamer
from rl_training.algorithms.fqf import FQF
from rl_training.algorithms.gail import GAIL
from rl_training.algorithms.iql import IQL
from rl_training.algorithms.iqn import IQN
from rl_training.algorithms.mbpo import MBPO
from rl_training.algorithms.pets import PETS
from rl_training.algorithms.ppg import PPG
from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.qr_dqn import QRDQN
from rl_training.algorithms.sac import SAC
from rl_training.algorithms.td3_bc import TD3BC
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.models import (
    MLPActorCritic,
    MLPFQFNetwork,
    MLPGAILDiscriminator,
    MLPIQLModel,
    MLPIQNetwork,
    MLPMOPOEnsembleModel,
    MLPPolicy,
    MLPPPGModel,
    MLPQNetwork,
    MLPQRQNetwork,
    MLPSACModel,
    MLPTD3Model,
)
from rl_training.models.dreamer import SIZES as DREAMERS
from rl_training.models.dreamer import PixelDecoder
from rl_training.models.heads import Categorical, SquashedGaussian
from rl_training.models.mlp_iqn_network import midpoints
from rl_training.models.mlp_sac import SampledActions
from rl_training.models.normalizer import ObservationNormalizer
from rl_training.models.rssm import RSSM

OBS, ACTIONS = 3, 4
ON_POLICY = {"learning_rate": 1e-3, "clip_coef": 0.2, "ent_coef": 0.0, "vf_coef": 0.5}
VALUES = {"learning_rate": 1e-3, "gamma": 0.9, "target_update_interval": 10}
AUXILIARY = {"aux_learning_rate": 1e-3, "aux_value_coef": 1.0, "behavior_clone_coef": 1.0, "value_clone_coef": 1.0}
SOFT = {"learning_rate": 1e-3, "gamma": 0.9, "tau": 0.01}
SIZES = {"obs_dim": OBS, "action_dim": ACTIONS, "hidden_sizes": (16, 16)}


class Case(NamedTuple):
    """A model, a learner of it, and what it learns to choose by: scores of choices, or a box's actions.

    ``changes``: its overridable methods, each with a change of its result that reverses the choice.
    """

    base: type
    arguments: dict[str, Any]
    learner: Callable[[Any], Any]
    learned: Callable[[Any, torch.Tensor], torch.Tensor]
    changes: dict[str, Callable[[Any], Any]]
    last: Callable[[Any], nn.Module]  # a layer whose negated output reverses the choice


def negated(x):
    return -x


def first_negated(pair):
    return -pair[0], pair[1]


def one_further(actions):
    return (actions + 1) % ACTIONS


def one_further_output(output):
    return output._replace(actions=one_further(output.actions))


def other_first(probabilities):
    return probabilities._replace(probabilities=-probabilities.probabilities)


CASES: dict[str, Case] = {
    "ppo": Case(
        MLPActorCritic, SIZES, lambda model: PPO(policy=model, **ON_POLICY), lambda model, obs: model(obs)[0],
        {"forward": first_negated, "features": first_negated, "outputs": negated}, lambda model: model.policy_head,
    ),
    "ppo for boxes": Case(
        MLPActorCritic, {**SIZES, "continuous": True}, lambda model: PPO(policy=model, **ON_POLICY),
        lambda model, obs: model(obs)[0][:, :ACTIONS],
        {"forward": first_negated, "features": first_negated, "outputs": negated}, lambda model: model.policy_head,
    ),
    "ppo, one trunk": Case(
        MLPActorCritic, {**SIZES, "towers": 1}, lambda model: PPO(policy=model, **ON_POLICY),
        lambda model, obs: model(obs)[0],
        {"forward": first_negated, "features": first_negated, "outputs": negated}, lambda model: model.policy_head,
    ),
    "ppg": Case(
        MLPPPGModel, SIZES, lambda model: PPG(model=model, **ON_POLICY, **AUXILIARY), lambda model, obs: model(obs)[0],
        {"forward": first_negated, "features": first_negated, "outputs": negated}, lambda model: model.policy_head,
    ),
    "dqn": Case(
        MLPQNetwork, SIZES, lambda model: DQN(q_network=model, **VALUES), lambda model, obs: model(obs),
        {"forward": negated}, lambda model: model.body[1][0],
    ),
    "dueling dqn": Case(
        MLPQNetwork, {**SIZES, "dueling": True}, lambda model: DQN(q_network=model, **VALUES),
        lambda model, obs: model(obs),
        {"forward": negated}, lambda model: model.body[1].advantage[-1],
    ),
    "qr_dqn": Case(
        MLPQRQNetwork, {**SIZES, "num_quantiles": 5}, lambda model: QRDQN(q_network=model, num_quantiles=5, **VALUES),
        lambda model, obs: model(obs).mean(-1), {"forward": negated}, lambda model: model.body[1][0],
    ),
    "iqn": Case(
        MLPIQNetwork, {**SIZES, "embedding_dim": 6},
        lambda model: IQN(q_network=model, num_quantiles=4, action_samples=3, **VALUES),
        lambda model, obs: model(obs, taus=midpoints(3).expand(len(obs), 3))[0].mean(-1),
        {"forward": first_negated, "encode": negated, "quantiles": negated}, lambda model: model.head[-1],
    ),
    "fqf": Case(
        MLPFQFNetwork, {**SIZES, "embedding_dim": 6, "num_quantiles": 4},
        lambda model: FQF(q_network=model, num_quantiles=4, fraction_learning_rate=1e-3, **VALUES),
        lambda model, obs: model.values(obs),
        {"encode": negated, "propose": other_first, "quantiles": negated, "values": negated},
        lambda model: model.head[-1],
    ),
    "sac": Case(
        MLPSACModel, SIZES, lambda model: SAC(model=model, alpha="auto", **SOFT),
        lambda model, obs: model.sample_actions(obs, deterministic=True).actions,
        {"policy": first_negated, "sample_actions": lambda x: SampledActions(-x.actions, x.logprobs)},
        lambda model: model.actor[-1],
    ),
    "cql": Case(
        MLPSACModel, SIZES, lambda model: CQL(model=model, alpha=0.1, cql_alpha=1.0, num_cql_samples=2, **SOFT),
        lambda model, obs: model.sample_actions(obs, deterministic=True).actions,
        {"policy": first_negated, "sample_actions": lambda x: SampledActions(-x.actions, x.logprobs)},
        lambda model: model.actor[-1],
    ),
    "td3_bc": Case(
        MLPTD3Model, SIZES, lambda model: TD3BC(model=model, **SOFT), lambda model, obs: model.actions(obs),
        {"actions": negated}, lambda model: model.actor[-1],
    ),
    "iql": Case(
        MLPIQLModel, SIZES, lambda model: IQL(model=model, **SOFT), lambda model, obs: model.policy(obs)[0],
        {"policy": first_negated, "actions": negated}, lambda model: model.actor[-1],
    ),
    "bc": Case(
        MLPPolicy, {"head": Categorical(ACTIONS), "obs_dim": OBS, "hidden_sizes": (16,)},
        lambda model: BC(policy=model, learning_rate=1e-3), lambda model, obs: model(obs), {"forward": negated},
        lambda model: model.body[-1],
    ),
    "bc for boxes": Case(
        MLPPolicy, {"head": SquashedGaussian(ACTIONS), "obs_dim": OBS, "hidden_sizes": (16,)},
        lambda model: BC(policy=model, learning_rate=1e-3), lambda model, obs: model(obs)[:, :ACTIONS].tanh(),
        {"forward": negated}, lambda model: model.body[-1],
    ),
}  # fmt: skip
BOXES = {"ppo for boxes", "sac", "cql", "td3_bc", "iql", "bc for boxes"}
every_case = pytest.mark.parametrize("name", CASES)
every_method = pytest.mark.parametrize(("name", "method"), [(n, m) for n, case in CASES.items() for m in case.changes])


def randomised(model):
    """With parameters of no special size: heads begin nearly at zero, which would hide differences."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0, 0.1 if "bias" in name else 0.7)
    return model


def own(case, method):
    """A subclass that overrides this method."""
    change = case.changes[method]

    def replaced(self, *args, **kwargs):
        return change(getattr(super(kind, self), method)(*args, **kwargs))

    kind = type("Own", (case.base,), {method: replaced})
    return kind(**case.arguments)


def observations(rows=40):
    return np.random.default_rng(0).standard_normal((rows, OBS)).astype(np.float32)


def chosen(name, scores):
    return scores.detach().numpy() if name in BOXES else scores.argmax(-1).numpy()


def acts_as_it_learns(name, agent, model, obs):
    """What acts, what is exported and what is learned are one function; the actions."""
    case, x = CASES[name], torch.from_numpy(obs)
    actions = agent.act(obs, deterministic=True).actions
    with torch.no_grad():
        learned, exported = case.learned(model, x), agent.policy_module()(x)
    if name in BOXES:
        assert actions == pytest.approx(learned.numpy(), abs=1e-5)
        assert actions == pytest.approx(exported.numpy(), abs=1e-5)
    else:
        assert np.array_equal(actions, learned.argmax(-1).numpy())
        assert np.array_equal(actions, exported.argmax(-1).numpy())
    return actions


def in_numpy(agent):
    holder = getattr(agent, "_values", agent)  # learners of action values act by an object of their own
    return next(getattr(holder, name) for name in ("_forward", "_policy") if hasattr(holder, name)).in_numpy


@every_case
@pytest.mark.parametrize("rows", [1, 40, 300])
def test_numpy_and_torch_are_one_function(name, rows):
    case = CASES[name]
    model = randomised(case.base(**case.arguments))
    agent = case.learner(model)
    assert in_numpy(agent)
    acts_as_it_learns(name, agent, model, observations(rows))


@every_method
def test_a_subclass_acts_by_the_method_it_overrides(name, method):
    case, obs = CASES[name], observations()
    model = randomised(own(case, method))
    plain = case.base(**case.arguments)
    plain.load_state_dict(model.state_dict())
    agent = case.learner(model)
    assert not in_numpy(agent)
    actions = acts_as_it_learns(name, agent, model, obs)
    different = case.learner(plain).act(obs, deterministic=True).actions != actions
    assert different.mean() > 0.3  # the method mattered


@every_method
def test_a_method_set_on_the_instance_acts_too_even_if_set_later(name, method):
    case, obs, change = CASES[name], observations(), CASES[name].changes[method]
    model = randomised(case.base(**case.arguments))
    agent = case.learner(model)
    before = agent.act(obs, deterministic=True).actions
    if (name, method) in {("sac", "sample_actions"), ("cql", "sample_actions"), ("fqf", "values")}:
        agent = None  # what learning goes by is decided when the learner is made

    def replaced(self, *args, **kwargs):
        return change(getattr(type(self), method)(self, *args, **kwargs))

    setattr(model, method, MethodType(replaced, model))
    actions = acts_as_it_learns(name, agent or case.learner(model), model, obs)
    assert (actions != before).mean() > 0.3


def negate_output(module, inputs, output):
    return -output


def shift_input(module, inputs):
    return (inputs[0] + 1.0, *inputs[1:])


@every_case
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("kind", ["hook", "pre-hook"])
def test_hooks_act_too(name, kind, later):
    case, obs = CASES[name], observations()
    before = case.learner(randomised(case.base(**case.arguments))).act(obs, deterministic=True).actions
    model = randomised(case.base(**case.arguments))
    agent = case.learner(model) if later else None
    layer = case.last(model)
    if kind == "hook":
        layer.register_forward_hook(negate_output)
    else:
        layer.register_forward_pre_hook(shift_input)
    actions = acts_as_it_learns(name, agent or case.learner(model), model, obs)
    assert (actions != before).any()


@every_case
def test_parametrized_layers_act_by_their_parametrization(name):
    case, obs = CASES[name], observations()
    model = randomised(case.base(**case.arguments))
    torch.nn.utils.parametrizations.weight_norm(case.last(model))
    agent = case.learner(model)
    before = agent.act(obs, deterministic=True).actions
    with torch.no_grad():
        case.last(model).parametrizations.weight.original0.mul_(
            torch.linspace(-2, 2, len(case.last(model).weight))[:, None]
        )
    assert (acts_as_it_learns(name, agent, model, obs) != before).any()


@every_case
def test_layers_of_another_type_act_by_torch(name):
    class Turned(nn.Linear):
        def forward(self, x):
            return -super().forward(x)

    case, obs = CASES[name], observations()
    model = randomised(case.base(**case.arguments))
    before = case.learner(model).act(obs, deterministic=True).actions
    model = randomised(case.base(**case.arguments))
    case.last(model).__class__ = Turned
    agent = case.learner(model)
    assert not in_numpy(agent)
    assert (acts_as_it_learns(name, agent, model, obs) != before).any()


@pytest.mark.parametrize(
    ("activation", "number"), [(nn.LeakyReLU(), "negative_slope"), (nn.ELU(), "alpha")], ids=["leaky_relu", "elu"]
)
def test_an_activations_number_that_is_changed_later_acts_too(activation, number):
    network = randomised(nn.Sequential(nn.Linear(OBS, 16), activation, nn.Linear(16, ACTIONS)))
    agent, obs = DQN(q_network=network, **VALUES), observations()
    before = agent.act(obs, deterministic=True).actions
    setattr(activation, number, -5.0)
    actions = agent.act(obs, deterministic=True).actions
    assert in_numpy(agent) and (actions != before).any()
    assert np.array_equal(actions, network(torch.from_numpy(obs)).argmax(-1).numpy())


@pytest.mark.parametrize("name", ["ppo", "ppo for boxes", "ppg"])
def test_stored_log_probabilities_and_values_are_those_that_are_learned(name):
    class Own(CASES[name].base):
        def evaluate_actions(self, obs, actions):
            output = super().evaluate_actions(obs, actions)
            return output._replace(values=2 * output.values + 1, logprobs=3 * output.logprobs)

    model, obs = randomised(Own(**CASES[name].arguments)), observations()
    agent = CASES[name].learner(model)
    acting = agent.act(obs)
    with torch.no_grad():
        expected = model.evaluate_actions(torch.from_numpy(obs), torch.from_numpy(acting.actions))
    assert acting.extras["logprobs"] == pytest.approx(expected.logprobs.numpy(), abs=1e-5)
    assert acting.extras["values"] == pytest.approx(expected.values.numpy(), abs=1e-5)
    assert agent.values(obs) == pytest.approx(expected.values.numpy(), abs=1e-5)
    acts_as_it_learns(name, agent, model, obs)


@pytest.mark.parametrize("name", ["ppo", "ppg", "dqn", "qr_dqn", "iqn", "fqf"])
def test_a_networks_own_act_acts_and_is_exported(name):
    case = CASES[name]
    further = one_further_output if name in ("ppo", "ppg") else one_further

    class Own(case.base):
        def act(self, obs, *args, **kwargs):
            return further(super().act(obs, *args, **kwargs))

    model, obs = randomised(Own(**case.arguments)), observations()
    agent = case.learner(model)
    with torch.no_grad():
        expected = model.act(torch.from_numpy(obs), **({"deterministic": True} if name in ("ppo", "ppg") else {}))
        scores = agent.policy_module()(torch.from_numpy(obs))
    expected = getattr(expected, "actions", expected).numpy()
    assert np.array_equal(agent.act(obs, deterministic=True).actions, expected)
    assert np.array_equal(scores.argmax(-1).numpy(), expected)


def test_random_actions_of_a_models_own_sampling_are_its_own_and_follow_the_stream():
    class Half(MLPSACModel):
        def sample_actions(self, obs, *, deterministic=False, noise=None):
            sampled = super().sample_actions(obs, deterministic=deterministic, noise=noise)
            return SampledActions(0.5 * sampled.actions, sampled.logprobs + ACTIONS * np.log(2))

    model, obs = randomised(Half(**SIZES)), observations()
    agent = SAC(model=model, alpha="auto", **SOFT)
    actions = agent.act(obs, rng=np.random.default_rng(3)).actions
    noise = torch.from_numpy(np.random.default_rng(3).standard_normal(actions.shape, dtype=np.float32))
    with torch.no_grad():
        assert actions == pytest.approx(
            model.sample_actions(torch.from_numpy(obs), noise=noise).actions.numpy(), abs=1e-6
        )
    assert np.abs(actions).max() <= 0.5


def test_conservative_learning_draws_by_a_models_own_sampling():
    asked = []

    class Own(MLPSACModel):
        def sample_actions(self, obs, *, deterministic=False, noise=None):
            sampled = super().sample_actions(obs, deterministic=deterministic, noise=noise)
            asked.append(noise)
            return SampledActions(-sampled.actions, sampled.logprobs)

    def gap(kind):
        model = randomised(kind(**SIZES))
        agent = CQL(model=model, alpha=0.1, cql_alpha=1.0, num_cql_samples=2, **SOFT)
        torch.manual_seed(2)
        return dict(agent.update(box_batch(), global_step=0).metrics)

    plain, turned = gap(MLPSACModel), gap(Own)
    assert asked[0].shape == (2 * 8 * 3, ACTIONS)
    assert plain["cql_gap"] != pytest.approx(turned["cql_gap"], abs=1e-3)
    assert plain["entropy"] == pytest.approx(turned["entropy"], abs=1e-5)  # the same draws, turned round


def box_batch(rows=8):
    generator = torch.Generator().manual_seed(0)
    shapes = {"obs": (rows, OBS), "actions": (rows, ACTIONS), "rewards": (rows,), "next_obs": (rows, OBS)}
    batch = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {**batch, "actions": batch["actions"].tanh(), "dones": torch.zeros(rows)}


def test_many_values_are_a_models_own_values():
    class Doubled(MLPSACModel):
        def q_values(self, obs, actions, members=None):
            return tuple(2 * q for q in super().q_values(obs, actions, members))

    plain, doubled, hooked = (randomised(kind(**SIZES)) for kind in (MLPSACModel, Doubled, MLPSACModel))
    hooked.critics.register_forward_hook(lambda module, inputs, output: 3 * output)
    obs, actions = torch.randn(5, OBS), torch.rand(5, 6, ACTIONS) * 2 - 1
    single = torch.stack([torch.stack(plain.q_values(obs, actions[:, i])) for i in range(6)], -1)
    with torch.no_grad():
        assert torch.allclose(many_values(plain, obs, actions), single, atol=1e-5)
        assert torch.allclose(many_values(doubled, obs, actions), 2 * single, atol=1e-5)
        assert torch.allclose(many_values(hooked, obs, actions), 3 * single, atol=1e-5)


def test_an_own_forward_holds_in_the_auxiliary_phase_of_ppg():
    class Own(MLPPPGModel):
        def forward(self, obs):
            outputs, values = super().forward(obs)
            return -outputs, 2 * values

    model, obs = randomised(Own(**SIZES)), torch.from_numpy(observations())
    with torch.no_grad():
        outputs, values = model(obs)
        logits, again, _ = model.all_outputs(obs)
    assert (
        torch.equal(logits, outputs) and torch.equal(again, values) and torch.equal(model.policy_logits(obs), outputs)
    )


def test_an_own_discriminator_is_what_the_gradient_penalty_learns():
    class Own(MLPGAILDiscriminator):
        def forward(self, obs, actions, absorbed=None):
            return super().forward(obs, actions, absorbed) + 5

    discriminator = Own(obs_dim=OBS, action_dim=ACTIONS, hidden_sizes=(8,))
    agent = GAIL(
        policy=MLPActorCritic(**SIZES), discriminator=discriminator, **ON_POLICY, discriminator_learning_rate=1e-3,
        gradient_penalty=1.0,
    )  # fmt: skip
    rows = {"obs": torch.from_numpy(observations(8)), "actions": torch.arange(8) % ACTIONS}
    metrics = agent.update_discriminator(rows, rows, global_step=0).metrics
    assert metrics["gail_discriminator_expert_logit_mean"] > 3


def test_a_network_of_fqf_that_only_has_its_own_forward_is_refused():
    class Own(MLPFQFNetwork):
        def forward(self, obs):
            return super().forward(obs)

    with pytest.raises(
        ValueError, match="Own overrides forward, which FQF neither learns nor acts by: override encode"
    ):
        CASES["fqf"].learner(Own(**CASES["fqf"].arguments))


def test_an_own_scaling_of_observations_acts_too():
    class Halved(ObservationNormalizer):
        def forward(self, x):
            return super().forward(x) / 2

    agent = DQN(q_network=randomised(MLPQNetwork(**SIZES)), normalizer=Halved((OBS,)), **VALUES)
    obs = observations()
    with torch.no_grad():
        expected = agent.q_network(torch.from_numpy(obs) / 2).argmax(-1).numpy()
    assert np.array_equal(agent.act(obs, deterministic=True).actions, expected)


def test_acting_never_changes_the_observations():
    network = nn.Sequential(nn.Identity(), nn.Tanh(), nn.ReLU(), nn.Linear(OBS, ACTIONS))
    agent, obs = DQN(q_network=network, **VALUES), observations()
    before = obs.copy()
    assert np.array_equal(
        agent.act(obs, deterministic=True).actions, network(torch.from_numpy(before)).argmax(-1).numpy()
    )
    assert np.array_equal(obs, before)


def test_noisy_networks_without_chance_have_no_noise_in_training_mode_for_any_number_of_rows():
    agent = DQN(q_network=MLPQNetwork(**SIZES, noisy=True), **VALUES)
    obs = observations(300)
    assert agent.q_network.training
    assert np.array_equal(agent.act(obs, deterministic=True).actions, agent.act(obs, deterministic=True).actions)


class ZeroMean(MLPMOPOEnsembleModel):
    """Predicts that nothing happens, without doubt, and takes rows alone, with no ``members``."""

    def predict_distribution(self, obs, actions):
        assert obs.ndim == 2
        means, logvars = super().predict_distribution(obs, actions)
        return 0 * means, 0 * logvars - 1e9


def test_plans_and_rollouts_ask_an_own_prediction():
    sizes = {"obs_dim": OBS, "action_dim": ACTIONS, "hidden_sizes": (8,), "num_ensembles": 3, "num_elites": 2}
    plain, still = MLPMOPOEnsembleModel(**sizes), ZeroMean(**sizes)
    planner = PETS(dynamics_model=still, learning_rate=1e-3)
    assert planner.values_of(torch.zeros(OBS), torch.zeros(4, 3, ACTIONS), 6).abs().max() == 0
    assert (
        PETS(dynamics_model=plain, learning_rate=1e-3)
        .values_of(torch.zeros(OBS), torch.zeros(4, 3, ACTIONS), 6)
        .abs()
        .max()
        > 0
    )
    agent = MBPO(policy_model=MLPSACModel(**SIZES), dynamics_model=ZeroMean(**sizes), policy_learning_rate=1e-3,
                 model_learning_rate=1e-3, gamma=0.9, alpha=0.1, tau=0.01)  # fmt: skip
    obs = torch.from_numpy(observations(7))
    next_obs, rewards = agent.imagined_step(obs, torch.zeros(7, ACTIONS))
    assert torch.equal(next_obs, obs) and rewards.abs().max() == 0


class OwnRecurrence(RSSM):
    def recur(self, state, action):
        return -super().recur(state, action)


class OwnDecoder(PixelDecoder):
    def _decode(self, features):
        return 1 - super()._decode(features)


CHANGED_WORLDS = {
    "recurrence": lambda world: setattr(world.rssm, "__class__", OwnRecurrence),
    "posterior of the instance": lambda world: setattr(
        world.rssm, "posterior", lambda deter, encoded: RSSM.posterior(world.rssm, deter, -encoded)
    ),
    "hook on the recurrence": lambda world: world.rssm.of_deter[0].register_forward_hook(negate_output),
    "activation of the recurrence": lambda world: world.rssm.of_stoch.__setitem__(2, nn.Tanh()),
    "hook on the encoder": lambda world: world.encoder.stages[0].register_forward_hook(negate_output),
    "hook on the decoder": lambda world: world.decoder.last.register_forward_hook(negate_output),
    "decoder": lambda world: setattr(world.decoder, "__class__", OwnDecoder),
}


@compiles
@pytest.mark.parametrize("name", CHANGED_WORLDS)
def test_a_world_model_that_was_changed_is_learned_as_it_acts_and_not_by_kernels(name):
    generator = torch.Generator().manual_seed(0)
    batch = {
        "obs": torch.randint(0, 256, (3, 2, 1, 32, 32), generator=generator, dtype=torch.uint8),
        "actions": torch.randint(2, (3, 2), generator=generator), "rewards": torch.ones(3, 2),
        "dones": torch.zeros(3, 2), "episode_starts": torch.tensor([[1.0, 1.0], [0, 0], [0, 0]]),
    }  # fmt: skip

    def losses(*, compiled, change=None):
        torch.manual_seed(1)
        agent = Dreamer(obs_shape=(1, 32, 32), size=DREAMERS["nano"], num_actions=2)
        for parameter in agent.world_model.parameters():  # norms and biases begin where signs do not matter
            parameter.data.add_(0.05 * torch.randn(parameter.shape))
        if compiled:
            agent.use_compiled()
        if change is not None:
            change(agent.world_model)
        torch.manual_seed(2)
        return dict(agent.update_world_model(batch, global_step=0).metrics)

    change = CHANGED_WORLDS[name]
    expected = losses(compiled=False, change=change)
    assert losses(compiled=True, change=change) == pytest.approx(expected, rel=1e-4)
    assert losses(compiled=True)["dreamer_world_model_loss"] != pytest.approx(
        expected["dreamer_world_model_loss"], rel=1e-4
    )  # it mattered


@pytest.mark.parametrize("change", ["subclass", "hook"])
def test_fast_inference_of_an_ensemble_is_its_forward(change):
    from rl_training.models.mlp import EnsembleLinear, ensemble_mlp

    class Doubled(EnsembleLinear):
        def forward(self, x, members=None):
            return 2 * super().forward(x, members)

    network, x = ensemble_mlp(3, (OBS, 8, 2), nn.SiLU), torch.randn(3, 5, OBS)
    assert torch.allclose(network.infer(x), network(x), atol=1e-6)
    if change == "subclass":
        network[0].__class__ = Doubled
    else:
        network[1].register_forward_hook(lambda module, inputs, output: 2 * output)
    assert torch.allclose(network.infer(x), network(x), atol=1e-6)


def test_draws_of_the_fast_form_are_those_of_the_prediction():
    torch.manual_seed(0)
    model = MLPMOPOEnsembleModel(obs_dim=OBS, action_dim=ACTIONS, hidden_sizes=(8,), num_ensembles=3)
    obs, actions = torch.randn(3, 6, OBS), torch.randn(3, 6, ACTIONS)
    means, logvars = model.predict_distribution(obs, actions)
    torch.manual_seed(1)
    drawn = model.draw(obs, actions)
    torch.manual_seed(1)
    assert torch.allclose(drawn, means + (0.5 * logvars).exp() * torch.randn_like(means), atol=1e-5)


class Partly(MLPQNetwork):
    """A frozen layer, a layer nobody uses, and a statistic of batches."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.body[0][0].requires_grad_(False)
        self.unused = nn.Linear(2, 2)
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, obs):
        if len(obs) > 1:
            self.batches += 1
        return super().forward(obs)


def test_frozen_and_unused_parameters_and_batch_statistics(tiny):
    from rl_training import DQN  # the managed class

    agent = DQN(tiny("dqn", target_update_interval=1, compile=False), network=Partly)
    result = agent.learn()
    state = load_checkpoint(result.checkpoint_path).algorithm_state
    online, target = state["q_network"], state["target_network"]
    assert all(torch.equal(online[name], target[name]) for name in online if "unused" not in name)
    assert online["batches"] > 0


@every_case
def test_dropout_is_for_updates_and_not_for_acting(name):
    case = CASES[name]
    torch.manual_seed(0)
    model = randomised(case.base(**case.arguments))
    model.dropout = nn.Dropout(0.5)
    case.last(model).register_forward_pre_hook(lambda layer, inputs: (model.dropout(inputs[0]), *inputs[1:]))
    learner, obs = case.learner(model), observations()
    greedy = [learner.act(obs, deterministic=True).actions for _ in range(3)]
    assert model.dropout.training
    assert not torch.equal(case.learned(model, torch.tensor(obs)), case.learned(model, torch.tensor(obs)))
    learner.set_eval_mode()
    for actions in greedy:
        np.testing.assert_array_equal(actions, learner.act(obs, deterministic=True).actions)


class Normalised(MLPQNetwork):
    """Observations are normalised by batches."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, obs):
        return super().forward(self.norm(obs))


def test_batch_normalisation_learns_from_batches_and_acts_by_its_running_statistics(tiny):
    from rl_training import DQN  # the managed class

    agent = DQN(tiny("dqn", compile=False), network=Normalised)
    agent.learn()  # in one environment, whose single row has no statistics
    learner = agent.agent
    learner.set_train_mode()
    learned = {name: value.clone() for name, value in learner.q_network.norm.state_dict().items()}
    assert learned["num_batches_tracked"] > 1
    obs = 3 * np.random.default_rng(0).standard_normal((6, 4), np.float32)
    alone = [int(learner.act(row[None], deterministic=True).actions[0]) for row in obs]
    assert alone == learner.act(obs, deterministic=True).actions.tolist()
    assert all(torch.equal(learner.q_network.norm.state_dict()[name], value) for name, value in learned.items())
