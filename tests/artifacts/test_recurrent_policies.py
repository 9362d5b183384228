"""Agents with a memory outside of training: as files, by ``predict``, served, and as a source of data."""

from importlib.util import find_spec

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training import DQN, PPO
from rl_training.artifacts.export import Policy, export_checkpoint
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.experience import collect_from_checkpoint
from toys import Counter, Pictures, tiny_config

FORMATS = [name for name in ("torch", "onnx") if name == "torch" or find_spec("onnxruntime")]
ENDINGS = {"torch": "pt2", "onnx": "onnx"}
MEMORY = {"recurrent_size": 6, "sequence_length": 8, "normalize_observations": True}
CASES = {
    "ppo": (PPO, "lstm", "Pendulum-v1", {}),
    "dqn": (DQN, "gru", "CartPole-v1", {}),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    made = {}

    def run(case):
        if case not in made:
            cls, kind, env_id, options = CASES[case]
            folder = tmp_path_factory.mktemp("runs")
            config = tiny_config(case.split()[0], folder, env_id=env_id, recurrent=kind, **MEMORY, **options)
            agent = cls(config)
            made[case] = agent, agent.learn()
        return made[case]

    return run


def episode(env_id, steps=40):
    """Observations of an episode of random actions."""
    env = gym.make(env_id)
    env.action_space.seed(1)
    obs, rows = env.reset(seed=1)[0], []
    for _ in range(steps):
        rows.append(obs)
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            break
    return np.stack(rows)


def agent_of(algo, kind, env):
    """A learner with random weights."""
    spec = get_algorithm_spec(algo)
    options = {"recurrent": kind, "recurrent_size": 6, "hidden_sizes": [7]}
    if "num_quantiles" in spec.config.model_fields:
        options["num_quantiles"] = 4
    config = TrainConfig(algo=algo, env_id="own", device="cpu", algo_kwargs=options)
    plan = spec.blueprint(config, EnvFactory(env, {}), None, "cpu")
    torch.manual_seed(0)
    agent = spec.build(spec.options(config), plan)
    with torch.no_grad():
        for name, parameter in agent.state_dict()["model" if algo == "ppo" else "q_network"].items():
            if parameter.is_floating_point() and "head" not in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    agent.set_eval_mode()
    return agent, plan.spaces


@pytest.mark.filterwarnings("ignore:.*has no time limit")
@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize(
    ("algo", "env"),
    [(algo, Counter) for algo in ("ppo", "dqn", "qr_dqn", "iqn", "fqf")] + [("ppo", Pictures), ("dqn", Pictures)],
)
def test_what_goes_into_a_file_is_the_agents_policy_with_its_carry(algo, env, kind):
    agent, spaces = agent_of(algo, kind, env)
    policy, rng = Policy(agent, spaces), np.random.default_rng(0)
    carry = agent.initial_carry(9)
    for _ in range(3):
        rows = rng.integers(0, 200, (9, *spaces.obs_shape)).astype(spaces.obs_dtype)
        acting = agent.act(rows, carry=carry, deterministic=True)
        actions, after = policy(torch.from_numpy(rows), torch.from_numpy(carry))
        assert actions.tolist() == list(spaces.to_env(acting.actions))
        np.testing.assert_allclose(after.detach().numpy(), acting.carry, atol=1e-5)
        assert not np.allclose(carry, acting.carry)
        carry = acting.carry


@pytest.mark.parametrize(("case", "format"), [("ppo", FORMATS[-1]), ("dqn", "torch")])
def test_a_file_with_a_carry_lives_through_an_episode_as_the_agent_does(runs, tmp_path, case, format):
    agent, result = runs(case)
    made = export_checkpoint(result.run_dir, tmp_path / f"policy.{ENDINGS[format]}")
    assert made.rows == 1_000 and made.difference < 1e-5
    rows = episode(CASES[case][2])
    carry, state = np.zeros((1, *np.shape(agent.predict(rows[0], return_state=True)[1])), np.float32), None
    if format == "torch":
        policy = torch.export.load(made.path).module()
        run = lambda obs, carry: [x.numpy() for x in policy(*map(torch.from_numpy, (obs, carry)))]  # noqa: E731
    else:
        import onnxruntime

        session = onnxruntime.InferenceSession(made.path)
        run = lambda obs, carry: session.run(["action", "next_carry"], {"obs": obs, "carry": carry})  # noqa: E731
    for obs in rows:
        action, carry = run(obs[None], carry)
        expected, state = agent.predict(obs, state=state, return_state=True)
        np.testing.assert_allclose(action[0], expected, atol=1e-4)
        np.testing.assert_allclose(carry[0], state, atol=1e-4)
    assert np.abs(state).max() > 1e-3


@pytest.mark.parametrize("case", list(CASES))
def test_predictions_go_on_from_a_state_and_begin_where_an_episode_starts(runs, case):
    agent, _ = runs(case)
    rows = episode(CASES[case][2])[:3]
    together, states = agent.predict(rows, return_state=True)
    assert together.shape[0] == states.shape[0] == 3
    _, later = agent.predict(rows, state=states, return_state=True)
    _, mixed = agent.predict(rows, state=states, episode_start=np.array([True, False, True]), return_state=True)
    np.testing.assert_allclose(mixed, np.where([[True], [False], [True]], states, later), atol=1e-6)
    assert not np.allclose(later, states)


def test_data_is_collected_with_the_memory_of_every_episode(runs):
    agent, result = runs("dqn")
    data = collect_from_checkpoint(result.run_dir, episodes=2, deterministic=True, seed=3)
    state, start = None, True
    for obs, action, done in zip(data.obs, data.actions, data._ended()):
        expected, state = agent.predict(obs.numpy(), state=None if start else state, return_state=True)
        assert int(action) == int(expected)
        start = bool(done)
    assert len(data) > 10
