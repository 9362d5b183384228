"""``precision: bf16``: convolutions learn in bfloat16, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from compiling import compiles
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.ppo import PPO
from rl_training.base.options import ConfigError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models import MLPActorCritic, MLPQNetwork
from rl_training.models.cnn import Convolutions
from rl_training.runtime.engine import set_precision
from toys import Pictures, StopAt, same_end

ROUNDING = 2.0**-8  # half the distance of neighbouring bfloat16 numbers, relative to them
SHAPE, ROWS = (2, 40, 40), 16


def dqn(precision):
    torch.manual_seed(0)
    network = MLPQNetwork(obs_shape=SHAPE, action_dim=3, hidden_sizes=(32,), dueling=True)
    learner = DQN(q_network=network, learning_rate=1e-3, gamma=0.9, target_update_interval=2)
    set_precision(learner, precision)
    return learner


def ppo(precision):
    torch.manual_seed(0)
    policy = MLPActorCritic(obs_shape=SHAPE, action_dim=3, hidden_sizes=(32,))
    learner = PPO(policy=policy, learning_rate=1e-3, clip_coef=0.2, ent_coef=0.01, vf_coef=0.5)
    set_precision(learner, precision)
    return learner


def batch():
    rng = np.random.default_rng(1)
    names = ("rewards", "dones", "logprobs", "advantages", "returns", "values")
    rows = {name: rng.standard_normal(ROWS).astype(np.float32) for name in names}
    rows |= {"dones": (rows["dones"] > 1).astype(np.float32), "actions": rng.integers(3, size=ROWS)}
    rows |= {name: rng.integers(0, 256, (ROWS, *SHAPE), np.uint8) for name in ("obs", "next_obs")}
    return {name: torch.from_numpy(column) for name, column in rows.items()}


@pytest.mark.parametrize("make", [dqn, ppo])
def test_losses_are_those_of_float32_to_the_rounding_of_bfloat16(make):
    """Four roundings on the way (pixels and three layers), each of a sum whose terms do not all round the same way."""
    metrics = [dict(make(precision).update(batch(), global_step=0).metrics) for precision in ("float32", "bf16")]
    full, half = metrics
    assert full != half
    for name, value in full.items():
        assert half[name] == pytest.approx(value, rel=4 * ROUNDING, abs=4 * ROUNDING), name


@pytest.mark.parametrize("make", [dqn, ppo])
def test_gradients_are_those_of_float32_to_the_rounding_of_bfloat16(make):
    """As Adam's running mean shows them. The backward pass rounds as often again, and units near zero switch."""
    means = []
    for precision in ("float32", "bf16"):
        learner = make(precision)
        learner.update(batch(), global_step=0)
        means.append(learner.optimizer.mean.clone())
    full, half = means
    assert full.dtype == half.dtype == torch.float32
    assert (full - half).norm() < 25 * ROUNDING * full.norm() and not torch.equal(full, half)


def test_weights_features_acting_and_targets_stay_float32():
    learner, obs = dqn("bf16"), batch()["obs"]
    [found] = [part for part in learner.q_network.modules() if isinstance(part, Convolutions)]
    seen = []
    found[1].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    assert found(obs).dtype == torch.float32 and found(obs).requires_grad
    with torch.no_grad():
        learner.q_network(obs)
        learner.target_network(obs)
    assert seen == [torch.bfloat16, torch.bfloat16, torch.float32]
    assert all(parameter.dtype == torch.float32 for parameter in learner.q_network.parameters())
    exact = dqn("float32").act(obs.numpy(), deterministic=True).actions
    assert np.array_equal(learner.act(obs.numpy(), deterministic=True).actions, exact)


@pytest.mark.parametrize("algo", ["sac", "ppo", "dreamer", "pets"])
def test_it_is_refused_where_there_are_no_convolutions_of_that_kind(algo, tiny):
    with pytest.raises(ConfigError, match=r"precision: bf16 is for the convolutions of .*: there are none here"):
        get_algorithm_spec(algo).train(tiny(algo, precision="bf16"))


def test_another_precision_is_refused(tiny):
    with pytest.raises(ConfigError, match="precision"):
        tiny("dqn", precision="fp16")


@pytest.mark.parametrize("algo", ["bc", "dqn", "fqf", "gail", "iqn", "ppg", "ppo", "qr_dqn"])
def test_every_learner_with_convolutions_has_them_set(algo, tiny, monkeypatch):
    from rl_training.runtime import spec as module

    seen = []
    monkeypatch.setattr(module, "set_precision", lambda agent, name: seen.append((agent, set_precision(agent, name))))
    get_algorithm_spec(algo).train(tiny(algo, total_timesteps=4, precision="bf16"), env=Pictures)
    [(agent, _)] = seen
    networks = [part for part in vars(agent).values() if isinstance(part, torch.nn.Module)]
    found = [part for network in networks for part in network.modules() if isinstance(part, Convolutions)]
    assert found and all(part.in_bf16 for part in found)


def test_a_resumed_run_goes_on_in_bf16_to_the_last_bit(tiny):
    spec, config = get_algorithm_spec("dqn"), tiny("dqn", total_timesteps=40, precision="bf16")
    whole = spec.train(config, env=Pictures)
    part = spec.train(config, env=Pictures, callbacks=[StopAt(28)])
    state = load_checkpoint(part.checkpoint_path)
    assert state.config["precision"] == "bf16"
    rest = spec.train(config, env=Pictures, checkpoint_state=state)
    same_end(load_checkpoint(whole.checkpoint_path), load_checkpoint(rest.checkpoint_path))


@compiles
def test_compiled_updates_learn_in_bf16_too():
    """Their gradients are those of an eager update in bf16, nearer than float32's."""
    eager, compiled, full = dqn("bf16"), dqn("bf16"), dqn("float32")
    compiled.use_compiled()
    for learner in (eager, compiled, full):
        learner.update(batch(), global_step=0)
    assert compiled.compiled
    means = [learner.optimizer.mean for learner in (eager, compiled, full)]
    assert (means[1] - means[0]).norm() < 0.25 * (means[1] - means[2]).norm()
