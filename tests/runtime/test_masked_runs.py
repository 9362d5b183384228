"""Runs in environments with masks of actions: acting, exploring, evaluating, resuming, predicting, exporting."""

import json

import gymnasium as gym
import numpy as np
import pytest
import torch

from masked_toys import ACTIONS, Locks, Restricted
from rl_training import DQN, PPO
from rl_training.api import algorithms as managed
from rl_training.artifacts import export
from rl_training.artifacts.collection import export_replay
from rl_training.base.options import ConfigError
from rl_training.data.agent_units import in_agent_units
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec
from rl_training.models import MLPActorCritic
from rl_training.runtime.experience import collect
from rl_training.runtime.prediction import read_observations
from rl_training.runtime.workflows import resume_training
from rl_training.serving.messages import Messages, Refusal
from rl_training.serving.schema import observation_schema
from rl_training.serving.served import load_served
from toys import StopAt, same_end

TAKE_THEM = ("ppo", "ppg", "dqn", "qr_dqn", "iqn", "fqf")
RARELY = {"eval_interval": 0, "train_frequency": 40, "epsilon_schedule": {"type": "constant", "start": 0.5, "end": 0.5}}
OPTIONS = {
    "ppo": {"eval_interval": 0, "num_steps": 128, "minibatch_size": 128, "normalize_observations": True},
    "ppg": {"eval_interval": 0, "num_steps": 128, "minibatch_size": 128},
    "dqn": {**RARELY, "dueling": True, "n_step": 3, "prioritized": True, "initial_random_steps": 300},
    "qr_dqn": {**RARELY, "noisy": True, "double": False},
    "iqn": {**RARELY, "normalize_observations": True},
    "fqf": {**RARELY, "n_step": 2, "double": False},
}

SHORT = {algo: {"num_steps": 32, "minibatch_size": 48} for algo in ("ppo", "ppg")}


def class_of(algo):
    return getattr(managed, ALGORITHMS[algo].public)


def by_info():
    return Restricted()


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("algo", TAKE_THEM)
def test_in_thousands_of_steps_no_masked_action_is_taken(algo, num_envs, tiny):
    """The environment raises at a forbidden action."""
    config = tiny(algo, num_envs=num_envs, total_timesteps=2049, **OPTIONS[algo])
    agent = class_of(algo)(config, env=by_info)
    assert agent.learn().metrics["gradient_steps"] > 0
    agent.evaluate(num_episodes=30)
    agent.evaluate(num_episodes=30, deterministic=False)
    env = by_info()
    obs, _ = env.reset(seed=1)
    for _ in range(60):
        obs, _, over, _, _ = env.step(agent.predict(obs, deterministic=False, action_mask=env.mask))
        if over:
            obs, _ = env.reset()


@pytest.mark.parametrize(("where", "several", "picture"), [("dict", True, True), ("method", True, False)])
def test_several_choices_and_pictures_keep_to_their_masks(where, several, picture, tiny):
    def make():
        return Restricted(where, several=several, picture=picture)

    agent = PPO(tiny("ppo", num_envs=2, eval_interval=0, total_timesteps=512, num_steps=64), env=make)
    agent.learn()
    agent.evaluate(num_episodes=10, deterministic=False)


def test_values_of_pictures_keep_to_their_masks(tiny):
    def make():
        return Restricted("dict", picture=True)

    config = tiny("dqn", num_envs=2, total_timesteps=512, buffer_capacity=100, **{**RARELY, "n_step": 2})
    DQN(config, env=make).learn()


@pytest.mark.parametrize("algo", TAKE_THEM)
def test_a_stopped_run_ends_as_if_it_had_never_stopped(algo, tiny):
    spec = get_algorithm_spec(algo)
    config = tiny(
        algo, total_timesteps=384, num_envs=3, **{**OPTIONS[algo], "eval_interval": 96, **SHORT.get(algo, {})}
    )
    whole = spec.train(config, env=by_info, run_suffix="whole")
    stopped = spec.train(config, env=by_info, run_suffix="stopped", callbacks=[StopAt(130)])
    assert load_checkpoint(stopped.checkpoint_path).trainer_state["step"] < 384
    resumed = resume_training(stopped.checkpoint_path, env=by_info)
    same_end(load_checkpoint(whole.checkpoint_path), load_checkpoint(resumed.checkpoint_path))


def test_environments_in_processes_give_the_same_run(tiny):
    config = tiny("dqn", total_timesteps=192, num_envs=3, env_id="masked_toys:Restricted-v0", **RARELY)
    gym.register("Restricted-v0", entry_point="masked_toys:Restricted")
    try:
        spec, ends = get_algorithm_spec("dqn"), []
        for backend in ("local", "process"):
            result = spec.train(config.replace(env_id="Restricted-v0", execution_backend=backend))
            ends.append(load_checkpoint(result.checkpoint_path))
    finally:
        del gym.registry["Restricted-v0"]
    same_end(*ends)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Agents, and the checkpoints of their runs."""
    from toys import tiny_config

    made = {}
    for name, algo, make in (("plain", "ppo", by_info), ("dict", "fqf", lambda: Restricted("dict"))):
        config = tiny_config(algo, tmp_path_factory.mktemp(name), **{**OPTIONS[algo], "total_timesteps": 384})
        agent = class_of(algo)(config, env=make)
        made[name] = agent, agent.learn().checkpoint_path, make
    return made


def test_predictions_take_a_mask_beside_the_observation_or_in_it(trained):
    for agent, _, _ in trained.values():
        own = agent is trained["dict"][0]
        seen, rng = np.zeros(3, np.float32), np.random.default_rng(0)
        obs = {"observation": seen} if own else seen
        for only in range(ACTIONS):
            mask = np.arange(ACTIONS) == only
            assert agent.predict(obs, action_mask=mask) == only + 2
            assert agent.predict({"observation": seen, "action_mask": mask.astype(np.int8)}) == only + 2
            assert agent.predict(obs, action_mask=mask.tolist(), deterministic=False) == only + 2
        masks = rng.permutation(np.eye(ACTIONS, dtype=bool))
        many = [{"observation": seen, "action_mask": mask} for mask in masks]
        assert agent.predict(many).tolist() == (masks.argmax(1) + 2).tolist()
        batch = np.zeros((ACTIONS, 3), np.float32)
        together = agent.predict({"observation": batch} if own else batch, action_mask=masks)
        assert together.tolist() == (masks.argmax(1) + 2).tolist()


def test_a_prediction_without_a_mask_or_with_a_wrong_one_is_one_line(trained, tiny):
    agent, seen = trained["plain"][0], np.zeros(3)
    with pytest.raises(ValueError, match=r"it is not said which these are: give action_mask, 5 truth values"):
        agent.predict(seen)
    with pytest.raises(ValueError, match=r"has shape \(4,\), and there are 5 choices"):
        agent.predict(seen, action_mask=np.ones(4))
    with pytest.raises(ValueError, match="allows none"):
        agent.predict(seen, action_mask=np.zeros(5))
    with pytest.raises(ValueError, match="there are 2 observations and 3 masks of actions"):
        agent.predict(np.zeros((2, 3)), action_mask=np.ones((3, 5)))
    with pytest.raises(ValueError, match=r"observations have shape \(3,\)"):
        agent.predict(np.zeros(8), action_mask=np.ones(5))
    without = PPO(tiny("ppo", eval_interval=0))
    without.learn()
    with pytest.raises(ValueError, match="learned without masks of actions: leave action_mask out"):
        without.predict(np.zeros(4), action_mask=[True, False])


@pytest.mark.parametrize(("name", "format"), [("plain", "torch"), ("dict", "onnx")])
def test_an_exported_policy_takes_the_mask_by_its_name(trained, name, format, tmp_path):
    if format == "onnx":
        pytest.importorskip("onnxruntime")
    _, checkpoint, make = trained[name]
    path = tmp_path / f"policy{export.ENDINGS[format]}"
    made = export.export_checkpoint(checkpoint, path, env=make)  # it is compared with the agent there
    assert made.rows == 1000 and made.ties < 100
    rng = np.random.default_rng(0)
    obs = rng.uniform(-1, 1, (ACTIONS, 3)).astype(np.float32)
    masks = np.eye(ACTIONS, dtype=np.float32)
    if format == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path))
        assert [i.name for i in session.get_inputs()] == ["observation", "action_mask"]
        actions = session.run(None, {"observation": obs, "action_mask": masks})[0]
    else:
        actions = torch.export.load(path).module()(torch.from_numpy(obs), torch.from_numpy(masks)).numpy()
    assert actions.tolist() == [2, 3, 4, 5, 6]
    exec(made.program, there := {})
    assert there["action"].shape == (1,)


def test_a_server_needs_no_environment_to_keep_to_masks(trained):
    for agent, checkpoint, _ in trained.values():
        served = load_served(checkpoint)
        messages, mask = Messages(served, 8), [False, False, True, False, True]
        one = {"observation": [0.1, 0.2, 0.3], "action_mask": mask}
        question = messages.read(json.dumps({"obs": [one, one]}).encode())
        assert served.act(question.rows, None, True)[0] == [agent.predict(one)] * 2
        with pytest.raises(Refusal, match="it is not said which these are"):
            messages.read(json.dumps({"obs": {"observation": [0.1, 0.2, 0.3]}}).encode())
        schema = observation_schema(served.spaces)
        assert schema["required"] == ["observation", "action_mask"]
        assert schema["properties"]["action_mask"]["minItems"] == ACTIONS


class Pairs(Restricted):
    """Observations that are a Tuple."""

    def __init__(self):
        super().__init__()
        self.observation_space = gym.spaces.Tuple((self.seen, gym.spaces.Discrete(3)))

    def _answer(self):
        obs, info = super()._answer()
        return (obs, 1), info


def test_tuples_come_beside_their_mask_in_json():
    spaces, mask = EnvFactory(Pairs, {}).spaces(), [True, False, False, True, False]
    schema = observation_schema(spaces)["properties"]
    assert schema["observation"]["type"] == "array" and set(schema) == {"observation", "action_mask"}
    one = {"observation": [[0.1, 0.2, 0.3], 1], "action_mask": mask}
    for given, count in ((one, None), ([one, one], 2)):
        rows, single = read_observations(spaces, json.loads(json.dumps(given)))
        assert single == (count is None) and len(rows) == (count or 1)
        expected = [[0.1, 0.2, 0.3, 0, 1, 0, *mask]] * len(rows)
        np.testing.assert_allclose(rows, expected, atol=1e-6)


def test_datasets_hold_observations_without_their_masks(trained, tiny):
    for _, checkpoint, make in trained.values():
        state = load_checkpoint(checkpoint)
        env_id = f"Masked{state.config['algo']}-v0"
        config = TrainConfig(**{**state.config, "env_id": env_id})
        gym.register(env_id, entry_point=make)
        try:
            data = collect(config, get_algorithm_spec(config.algo).load_fn(config, state), steps=40)
            drop = {"wrappers": {"parts": {"drop": ["action_mask"]}}} if make is not by_info else {}
            spaces = EnvFactory(env_id, {**drop, "action_masks": False}).spaces()
        finally:
            del gym.registry[env_id]
        assert data.obs.shape == data.next_obs.shape == (40, 3)
        assert in_agent_units(data, spaces, "data").actions.max() < ACTIONS
        same = ~(data.dones + data.truncations)[:-1].bool()
        assert same.any() and torch.equal(data.obs[1:][same], data.next_obs[:-1][same])


def test_a_replay_is_exported_without_masks(tiny):
    gym.register("Replayed-v0", entry_point="masked_toys:Restricted")
    try:
        config = tiny("dqn", total_timesteps=60, num_envs=2, env_id="Replayed-v0", **{**RARELY, "train_frequency": 20})
        data = export_replay(get_algorithm_spec("dqn").train(config).checkpoint_path)
    finally:
        del gym.registry["Replayed-v0"]
    assert data.obs.shape == data.next_obs.shape == (60, 3) and data.obs.abs().max() <= 1


def test_hindsight_is_refused_beside_masks(tiny):
    class Goals(Restricted):
        def __init__(self):
            super().__init__()
            names = ("observation", "achieved_goal", "desired_goal")
            self.observation_space = gym.spaces.Dict(dict.fromkeys(names, self.seen))

        def _answer(self):
            obs, info = super()._answer()
            return dict.fromkeys(self.observation_space, obs), info

        def compute_reward(self, achieved, desired, info):
            return 0.0

    with pytest.raises(ConfigError, match=r"hindsight: Goals gives masks of actions.*action_masks: false leaves them"):
        DQN(tiny("dqn", hindsight="future"), env=Goals).learn()


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_starting_from_an_agent_without_masks_says_how(algo, tiny):
    config = tiny(algo, total_timesteps=64, eval_interval=0)
    spec = get_algorithm_spec(algo)
    path = spec.train(config.replace(env_kwargs={"action_masks": False}), env=Locks).checkpoint_path
    with pytest.raises(ConfigError, match=r"init_from: .*set env_kwargs.action_masks to false, as there"):
        spec.train(config.replace(init_from=str(path)), env=Locks, run_suffix="next")


@pytest.mark.parametrize("algo", sorted(set(ALGORITHMS) - set(TAKE_THEM)))
def test_algorithms_that_take_no_masks_say_so_in_one_line(algo, tiny):
    spec = get_algorithm_spec(algo)
    if "discrete" not in spec.actions:
        return
    with pytest.raises(ValueError, match=f"{algo} takes no masks of actions.*action_masks: false leaves them out"):
        spec.train(tiny(algo, env_id="CartPole-v1"), env=by_info)


def test_a_network_of_ones_own_needs_masks(tiny):
    class Bare(torch.nn.Module):
        def __init__(self, **arguments):
            super().__init__()
            self.head = arguments["head"]
            self.inner = MLPActorCritic(**arguments)

    with pytest.raises(ValueError, match=r"Bare has no masks.*subclass MLPActorCritic"):
        PPO(tiny("ppo"), env=by_info, network=Bare).learn()


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_a_memory_and_masks_are_not_together(algo, tiny):
    with pytest.raises(ConfigError, match=r"recurrent: keeps to no masks of actions.*action_masks: false"):
        get_algorithm_spec(algo).train(tiny(algo, recurrent="gru"), env=by_info)


def test_masks_make_learnable_what_is_not_without_them(tiny):
    options = {"num_envs": 8, "total_timesteps": 4096, "num_steps": 64, "minibatch_size": 128, "update_epochs": 6}
    options |= {"learning_rate": 5e-3, "eval_interval": 0, "hidden_sizes": [32]}
    returns = []
    for masks in (True, False):
        agent = PPO(tiny("ppo", **options), env=lambda masks=masks: Locks(masks))
        agent.learn()
        returns.append(agent.evaluate(num_episodes=2)["eval_return_mean"])
    assert returns[0] == 6 and returns[1] <= 2


def test_values_learn_by_masks_too(tiny):
    options = {"total_timesteps": 3000, "learning_starts": 100, "train_frequency": 2, "learning_rate": 3e-3}
    agent = DQN(tiny("dqn", eval_interval=0, buffer_capacity=3000, batch_size=64, **options), env=Locks)
    agent.learn()
    assert agent.evaluate(num_episodes=2)["eval_return_mean"] == 6
