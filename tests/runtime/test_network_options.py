"""Options for activations, first weights and optimizers: where they reach, where they are refused, and exact resume."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from rl_training import DQN, PPO, SAC
from rl_training.algorithms.iql import IQL
from rl_training.algorithms.ppg import PPG
from rl_training.base.options import ConfigError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec
from rl_training.models import MLPQNetwork
from rl_training.models.variants import ACTIVATIONS
from rl_training.optim.flat import FlatAdam, FlatAdamW, FlatLaProp, FlatRMSprop
from rl_training.runtime.workflows import resume_training
from toys import StopAt, tiny_config

KINDS = {"adam": FlatAdam, "adamw": FlatAdamW, "rmsprop": FlatRMSprop, "laprop": FlatLaProp}
NETWORKS = [name for name in ALGORITHMS if name not in ("pets", "dreamer")]
OPTIMIZERS = [name for name in NETWORKS if name not in ("mbpo", "mopo")]


def built(algo, tmp_path, network=None, **options):
    spec = get_algorithm_spec(algo)
    from rl_training.envs.factory import EnvFactory

    config = tiny_config(algo, tmp_path, **options)
    torch.manual_seed(0)
    plan = spec.blueprint(config, EnvFactory(config.env_id, {}), network, "cpu")
    return spec.build(spec.options(config), plan)


def main_optimizers(learner):
    names = ("optimizer", "aux_optimizer", "actor_optimizer", "critic_optimizer", "value_optimizer")
    return [vars(learner)[name] for name in names if name in vars(learner)]


@pytest.mark.parametrize("algo", NETWORKS)
def test_activation_and_first_weights_reach_the_policy_of_every_algorithm_with_networks_of_this_kind(algo, tmp_path):
    learner = built(algo, tmp_path, activation="elu", initialisation="orthogonal")
    learner = getattr(learner, "policy", learner) if algo in ("mbpo", "mopo") else learner
    names = ("model", "target_model", "q_network", "target_network", "policy")
    found = [vars(learner)[name] for name in names if isinstance(vars(learner).get(name), torch.nn.Module)]
    assert found
    for network in found:
        kinds = {type(part) for part in network.modules() if type(part) in ACTIVATIONS.values()}
        assert kinds == {ACTIVATIONS["elu"]}


@pytest.mark.parametrize("algo", OPTIMIZERS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_optimizer_is_that_of_every_network_that_acts_or_is_valued(algo, kind, tmp_path):
    found = main_optimizers(built(algo, tmp_path, optimizer=kind, optimizer_epsilon=0.25))
    assert found and all(type(optimizer) is KINDS[kind] and optimizer.eps == 0.25 for optimizer in found)


def test_coefficients_keep_adam(tmp_path):
    assert type(built("sac", tmp_path, optimizer="rmsprop").alpha_optimizer) is FlatAdam
    assert type(built("cql", tmp_path, optimizer="laprop", lagrange=1.0).weight_optimizer) is FlatAdam
    assert type(built("gail", tmp_path, optimizer="adamw").discriminator_optimizer) is FlatAdam
    assert type(built("fqf", tmp_path, optimizer="adamw").fraction_optimizer) is FlatRMSprop


def test_defaults_are_those_of_the_algorithms(tmp_path):
    """PPO's 1e-5 is added to Adam's denominator alone; other optimizers have their own."""
    assert [main_optimizers(built("ppo", tmp_path, optimizer=kind))[0].eps for kind in KINDS] == [
        1e-5,
        1e-5,
        1e-5,
        1e-20,
    ]
    assert main_optimizers(built("ppo", tmp_path))[0].max_grad_norm == 0.5
    assert main_optimizers(built("ppo", tmp_path, optimizer="laprop"))[0].max_grad_norm == 0.5
    assert main_optimizers(built("dqn", tmp_path, adam_epsilon=0.5, optimizer="adamw"))[0].eps == 0.5
    assert main_optimizers(built("sac", tmp_path, optimizer="adamw"))[0].weight_decay == 0.01
    assert isinstance(built("ppg", tmp_path), PPG) and isinstance(built("iql", tmp_path), IQL)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"weight_decay": 0.1}, "weight_decay does nothing with optimizer: adam; it belongs to adamw"),
        (
            {"optimizer": "rmsprop", "optimizer_betas": [0.9, 0.99]},
            "optimizer_betas does nothing with optimizer: rmsprop",
        ),
        ({"optimizer_decay": 0.5}, "optimizer_decay does nothing with optimizer: adam; it belongs to rmsprop"),
        ({"optimizer": "adan"}, "optimizer: should be 'adam', 'adamw', 'rmsprop' or 'laprop', got 'adan'"),
        ({"optimizer_betas": [0.9, 1.0]}, "optimizer_betas.1: should be less than 1"),
        ({"activation": "swish"}, "activation: should be 'relu'"),
        ({"initialisation": "zeros"}, "initialisation: should be 'orthogonal'"),
        ({"adam_epsilon": 1e-3, "optimizer": "laprop"}, "adam_epsilon does nothing with another optimizer"),
        ({"adam_epsilon": 1e-3, "optimizer_epsilon": 1e-4}, "adam_epsilon does nothing .* beside optimizer_epsilon"),
    ],
)
def test_what_would_do_nothing_is_refused(options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        DQN("CartPole-v1", **options)


@pytest.mark.parametrize(
    ("algo", "option"),
    [("pets", "activation"), ("dreamer", "activation"), ("mbpo", "optimizer"), ("pets", "optimizer")],
)
def test_algorithms_whose_networks_do_not_allow_it_do_not_know_the_option(algo, option, tmp_path):
    with pytest.raises(ConfigError, match=f"{option}: unknown option of {algo}"):
        get_algorithm_spec(algo).options(tiny_config(algo, tmp_path, **{option: "relu"}))


@pytest.mark.parametrize("option", [{"activation": "elu"}, {"initialisation": "xavier"}])
def test_a_network_of_ones_own_decides_itself(option, tmp_path):
    with pytest.raises(ConfigError, match="is for the algorithm's own network, and network= gives another"):
        built("dqn", tmp_path, network=MLPQNetwork, **option)


@pytest.mark.parametrize(("managed", "kind"), [(PPO, "laprop"), (SAC, "adamw"), (DQN, "rmsprop")])
def test_a_run_with_another_optimizer_and_activation_resumes_exactly_and_can_be_loaded(managed, kind, tmp_path):
    def run(folder, callbacks=None):
        options = {
            "optimizer": kind,
            "activation": "gelu",
            "initialisation": "kaiming",
            "learning_rate_schedule": "linear",
        }
        config = tiny_config(managed.algo_name, tmp_path / folder, total_timesteps=96, **options)
        return get_algorithm_spec(config.algo).train(config, callbacks=callbacks)

    whole, part = run("whole"), run("part", [StopAt(50)])
    assert part.metrics["global_step"] < 96
    a, b = (
        load_checkpoint(result.checkpoint_path).algorithm_state for result in (whole, resume_training(part.run_dir))
    )
    assert a.keys() == b.keys() and flat(a) == flat(b)
    assert managed.load(whole.run_dir).evaluate(1) == managed.load(part.run_dir).evaluate(1)


def flat(state):
    if isinstance(state, dict):
        return {name: flat(value) for name, value in state.items()}
    return state.tolist() if isinstance(state, torch.Tensor) else state


def test_a_learner_with_a_chosen_optimizer_can_be_copied_and_pickled(tmp_path):
    learner = built("iql", tmp_path, optimizer="adamw")
    for twin in (copy.deepcopy(learner), pickle.loads(pickle.dumps(learner))):
        assert type(twin.value_optimizer) is FlatAdamW and twin.value_optimizer.flat is not learner.value_optimizer.flat
