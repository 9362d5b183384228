"""DQN, QR-DQN, IQN, FQF and CQL for choices: whole updates equal those of their oracles, to the rounding of float64."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch

from compiling import compiles
from oracles import discrete_cql, dqn, fqf, iqn, qr_dqn
from oracles.comparing import FLOAT32
from oracles.value_based import BATCHES, LEARNERS, NETWORKS, OPTIONS, SHAPE, assert_updates_agree, batch, scatter
from rl_training.algorithms.cql import DiscreteCQL
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.fqf import FQF
from rl_training.algorithms.iqn import IQN
from rl_training.algorithms.qr_dqn import QRDQN
from rl_training.envs.spaces import Spaces
from rl_training.models import MLPFQFNetwork, MLPIQNetwork, MLPQNetwork, MLPQRQNetwork
from rl_training.models.normalizer import ObservationNormalizer
from rl_training.runtime import cql_trainer
from rl_training.runtime.spec import Blueprint

QUANTILES = {"num_quantiles": 4}
EMBEDDED = {**QUANTILES, "embedding_dim": 5}
# learner, oracle, network; the arguments of the network; those of learner and oracle
FAMILY = {
    "dqn": (DQN, dqn.DQN, MLPQNetwork, {}, {}),
    "qr_dqn": (QRDQN, qr_dqn.QRDQN, MLPQRQNetwork, QUANTILES, QUANTILES),
    "iqn": (IQN, iqn.IQN, MLPIQNetwork, EMBEDDED, {**QUANTILES, "action_samples": 3}),
    "fqf": (FQF, fqf.FQF, MLPFQFNetwork, EMBEDDED, {**QUANTILES, "fraction_learning_rate": 0.02}),
    "discrete_cql": (DiscreteCQL, discrete_cql.DiscreteCQL, MLPQNetwork, {}, {"cql_alpha": 0.7}),
}
OWN = {
    "qr_dqn": {"a narrow threshold": {"kappa": 0.3}, "a wide threshold": {"kappa": 2.5, "double_q": True}},
    "iqn": {
        "one fraction of each part": {"stratified": True},
        "a narrow threshold": {"kappa": 0.3},
        "one fraction to choose by": {"action_samples": 1},
        "many fractions to choose by": {"action_samples": 9, "double_q": True},
    },
    "fqf": {
        "quantiles trained at midpoints alone": {"train_at_fractions": False},
        "as published": {"train_at_fractions": False, "fraction_scaling": "none", "entropy_coef": 0.0},
        "fractions by the size of returns": {"fraction_scaling": "none", "double_q": True},
        "entropy": {"entropy_coef": 0.5},
        "a narrow threshold": {"kappa": 0.3},
    },
    "discrete_cql": {"a large penalty": {"cql_alpha": 5.0, "double_q": True}},
}


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def pair(kind, architecture=None, spread=0.3, **changes):
    """A learner and its oracle, with the same weights in networks of their own."""
    learner, oracle, network, arguments, own = FAMILY[kind]
    torch.manual_seed(3)
    weights = scatter(network(**{**SHAPE, **arguments, **(architecture or {})}), spread)
    options = {**OPTIONS, **own, **changes}
    theirs = oracle(copy.deepcopy(weights), **options)
    ours = learner(q_network=weights, **options)
    scatter(theirs.target, spread)  # it differs from the online network from the start
    ours.target_network.load_state_dict(theirs.target.state_dict())
    return ours, theirs


def agree(kind, architecture=None, extra=(), **changes):
    assert_updates_agree(*pair(kind, architecture, **changes), [batch(seed, *extra) for seed in range(3)])


@pytest.mark.parametrize("kind", FAMILY)
@pytest.mark.parametrize("options", LEARNERS)
def test_whole_updates_with_every_option_of_the_learner(kind, options):
    agree(kind, **LEARNERS[options])


@pytest.mark.parametrize("kind", FAMILY)
@pytest.mark.parametrize("architecture", [name for name in NETWORKS if name != "plain"])
def test_whole_updates_with_every_architecture(kind, architecture):
    agree(kind, NETWORKS[architecture], double_q=True)


@pytest.mark.parametrize("kind", FAMILY)
def test_noise_without_double_comes_from_the_target_network_alone(kind):
    agree(kind, NETWORKS["noisy"])


@pytest.mark.parametrize("kind", FAMILY)
@pytest.mark.parametrize("columns", BATCHES)
def test_rows_with_their_own_discount_and_weight(kind, columns):
    agree(kind, extra=BATCHES[columns])


@pytest.mark.parametrize(("kind", "options"), [(kind, name) for kind in OWN for name in OWN[kind]])
def test_whole_updates_with_options_of_one_learner(kind, options):
    agree(kind, **OWN[kind][options])


@pytest.mark.parametrize("kind", FAMILY)
def test_a_schedule_scales_the_rate_of_every_optimizer(kind):
    assert_updates_agree(*pair(kind), [batch(seed) for seed in range(3)], rates=(1.0, 0.4, 0.1))


@pytest.mark.parametrize("kind", FAMILY)
def test_observations_are_normalised_before_every_network(kind):
    """The oracle gets observations that are normalised already: (x - mean) / deviation, within ±10."""
    normalizer = ObservationNormalizer((3,))
    seen = np.random.default_rng(0).normal((1.0, -2.0, 0.0), (0.5, 2.0, 1e-2), (50, 3))
    normalizer.observe(seen)
    deviation = torch.from_numpy(np.sqrt(seen.var(0) + 1e-8))
    learner, oracle = pair(kind, double_q=True)
    learner.normalizer = normalizer

    class Normalised:
        """The oracle, behind the normalisation."""

        def __getattr__(self, name):
            return getattr(oracle, name)

        def update(self, rows):
            scaled = {
                name: ((rows[name] - torch.from_numpy(seen.mean(0))) / deviation).clamp(-10, 10)
                for name in ("obs", "next_obs")
            }
            assert (scaled["obs"].abs() == 10).any()
            return oracle.update({**rows, **scaled})

    assert_updates_agree(learner, Normalised(), [batch(seed) for seed in range(3)])


@pytest.mark.parametrize("kind", FAMILY)
def test_pictures_pass_through_the_convolutions(kind):
    torch.set_default_dtype(torch.float32)  # pixels become float32
    shape = {"obs_dim": None, "obs_shape": (1, 36, 36), "hidden_sizes": (6,)}
    ours, theirs = pair(kind, shape, spread=0.01, double_q=True, adam_epsilon=1e-2)
    pictures = [batch(seed) for seed in range(2)]
    for rows in pictures:
        rows |= {
            name: torch.randint(256, (len(rows["obs"]), 1, 36, 36), dtype=torch.uint8) for name in ("obs", "next_obs")
        }
    assert_updates_agree(ours, theirs, pictures, tolerance=FLOAT32)


class Three(gym.Env):
    """Three numbers to observe and three choices."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(3)


def test_cql_for_choices_gets_its_options_from_the_config():
    torch.set_default_dtype(torch.float32)
    given = {"learning_rate": 0.02, "gamma": 0.8, "target_update_interval": 2, "cql_alpha": 0.3}
    plan = Blueprint(Spaces.of(Three()), torch.device("cpu"))
    learner = cql_trainer.build(cql_trainer.CQLOptions(**given, hidden_sizes=[8, 6]), plan)
    scatter(learner.target_network)
    oracle = discrete_cql.DiscreteCQL(copy.deepcopy(learner.q_network), **given, double_q=True)
    oracle.target.load_state_dict(learner.target_network.state_dict())
    assert [p.shape[0] for name, p in learner.q_network.named_parameters() if name.endswith("weight")] == [8, 6, 3]
    assert_updates_agree(learner, oracle, [batch(seed) for seed in range(3)], tolerance=FLOAT32)
    normalised = cql_trainer.build(cql_trainer.CQLOptions(**given, normalize_observations=True), plan)
    assert learner.normalizer is None and normalised.normalizer.clip == float("inf")


class Contrary(MLPFQFNetwork):
    """Prefers the action with the lowest mean."""

    def values(self, obs):
        return -super().values(obs)


@pytest.mark.parametrize("double", [True, False])
def test_the_next_action_is_chosen_by_the_networks_own_values(double):
    torch.manual_seed(0)
    learner = FQF(q_network=scatter(Contrary(**SHAPE, **EMBEDDED)), **OPTIONS, **FAMILY["fqf"][4], double_q=double)
    scatter(learner.target_network)
    next_obs = torch.randn(40, 3)
    with torch.no_grad():
        values, mass = learner.next_return(next_obs)
        target, choosing = learner.target_network, learner.q_network if double else learner.target_network
        fractions = target.propose(target.encode(next_obs))
        quantiles = target.quantiles(target.encode(next_obs), fractions.tau_hats)
        best = choosing.values(next_obs).argmax(1)
    assert torch.equal(values, quantiles[range(40), best]) and torch.equal(mass, fractions.probabilities)


def test_returns_without_a_range_give_fractions_no_gradient():
    learner, _ = pair("fqf")
    with torch.no_grad():
        for parameter in learner.q_network.head[-1].parameters():
            parameter.zero_()
    metrics = learner.update(batch(0), global_step=0).metrics
    assert metrics["fraction_loss"] == 0 and metrics["fraction_entropy"] > 0
    assert all(torch.isfinite(parameter).all() for parameter in learner.q_network.parameters())


@compiles
@pytest.mark.parametrize(("kind", "architecture"), [("dqn", "dueling and noisy"), ("iqn", "plain"), ("fqf", "dueling")])
def test_compiled_updates_are_the_oracles_too(kind, architecture):
    torch.set_default_dtype(torch.float32)  # as in every run; a larger epsilon of Adam does not magnify rounding
    learner, oracle = pair(kind, NETWORKS[architecture], double_q=True, max_grad_norm=0.5, adam_epsilon=1e-2)
    learner.use_compiled()
    rows = [batch(seed, "discounts", "weights") for seed in range(5)]
    assert_updates_agree(learner, oracle, rows, rates=(1.0, 0.5, 0.4, 0.3, 0.2), tolerance=FLOAT32)
    assert learner.compiled
