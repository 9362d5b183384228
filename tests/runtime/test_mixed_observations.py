"""Observations of images and vectors from the environment to the agent, its files and back."""

import json

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

from compiling import compiles
from rl_training import DQN, GAIL, IQN, PPO
from rl_training.artifacts import export
from rl_training.artifacts.collection import export_replay
from rl_training.artifacts.inputs import drawn_rows
from rl_training.artifacts.video import record_checkpoint
from rl_training.base.options import ConfigError
from rl_training.data.dataset_files import read_npz, write_minari, write_npz
from rl_training.data.errors import DatasetError
from rl_training.data.layouts import FrameLayout
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.envs.collector import Collector
from rl_training.envs.factory import EnvFactory
from rl_training.envs.film import Film
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec
from rl_training.models.parts import PartsEncoder, PartsNormalizer, take_apart
from rl_training.runtime.experience import collect
from rl_training.runtime.workflows import resume_training
from rl_training.serving.schema import observation_schema
from rl_training.serving.served import load_served
from toys import Sampled, Signs, StopAt, same_end

FEW = {"eval_interval": 0, "total_timesteps": 96}
TAKE_THEM = ("ppo", "ppg", "gail", "dqn", "qr_dqn", "iqn", "fqf", "bc", "cql")
EVERYTHING = Dict(
    {
        "action": Discrete(3, start=-1),  # a name that exported files use for something else
        "eye": Box(0, 255, (7, 7, 3), np.uint8),
        "in": Tuple([MultiDiscrete([2, 3]), Box(-2, 2, (5, 6, 6), np.float32), Box(0, 1, (6, 6, 2), np.bool_)]),
        "x": Box(-1, 1, (2,), np.float64),
    }
)


def signs():
    return Signs()


def everything():
    return Sampled(EVERYTHING, limit=7)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (PPO, {"num_steps": 64, "minibatch_size": 64, "learning_rate": 2e-3, "update_epochs": 6, "gamma": 0.0}),
        (DQN, {"learning_rate": 1e-3, "batch_size": 64, "learning_starts": 100, "train_frequency": 6, "gamma": 0.0}),
    ],
)
def test_a_reward_that_depends_on_an_image_and_a_number_together_is_learned(kind, options, tiny):
    algo = kind.__name__.lower()
    options = {**options, **({"buffer_capacity": 2000} if algo == "dqn" else {"num_envs": 8})}
    agent = kind(tiny(algo, eval_interval=0, total_timesteps=2048, hidden_sizes=[64], **options), env=signs)
    agent.learn()
    assert agent.evaluate(num_episodes=20)["eval_return_mean"] >= 3.6  # of 4; without either part 2


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_takes_a_mix_or_refuses_it_in_one_line(algo, tiny):
    spec = get_algorithm_spec(algo)
    config = tiny(algo, **FEW)
    if algo in TAKE_THEM:
        assert "mixed" in spec.obs
        result = spec.train(config, env=everything if "discrete" in spec.actions else None)
        assert result.metrics["gradient_steps"] > 0
        return
    with pytest.raises(ValueError, match=r"needs vector.* observations.*has mixed \(sign \(1,\), eye") as refused:
        spec.train(config, env=signs)
    assert "wrappers.parts can drop or flatten parts" in str(refused.value) and "\n" not in str(refused.value)


def test_a_box_of_actions_is_not_learned_from_a_mix_by_cql(tiny):
    class Boxed(Signs):
        action_space = Box(-1, 1, (1,), np.float32)

    with pytest.raises(ValueError, match="cql with Box actions needs vector observations"):
        get_algorithm_spec("cql").train(tiny("cql"), env=Boxed)


def test_what_a_run_chooses_for_a_mix(tiny):
    agent = PPO(tiny("ppo", **FEW), env=signs)
    chosen = load_checkpoint(agent.learn().checkpoint_path).config["algo_kwargs"]
    assert chosen["normalize_observations"] is True and chosen["normalize_rewards"] is False
    assert isinstance(agent.agent.normalizer, PartsNormalizer)
    assert abs(float(agent.agent.normalizer.mean)) < 0.5 and agent.agent.normalizer.mean.shape == (1,)


def test_images_of_floats_alone_are_not_normalised(tiny):
    def floats():
        return Sampled(Box(0, 1, (6, 6, 2), np.float32))

    agent = PPO(tiny("ppo", **FEW), env=floats)
    agent.learn()
    assert agent.agent.normalizer is None
    with pytest.raises(ConfigError, match=r"normalize_observations.*images are scaled by their range"):
        PPO(tiny("ppo", **FEW, normalize_observations=True), env=floats).learn()


CASES = {
    "ppo": {"num_envs": 2},
    "gail": {"num_envs": 2},
    "dqn": {"num_envs": 3, "normalize_observations": True, "n_step": 3, "prioritized": True, "buffer_capacity": 60},
}


@pytest.mark.parametrize("algo", CASES)
def test_a_stopped_run_ends_as_if_it_had_never_stopped(algo, tiny):
    spec = get_algorithm_spec(algo)
    config = tiny(algo, total_timesteps=192, eval_interval=64, **CASES[algo])
    whole = spec.train(config, env=everything, run_suffix="whole")
    stopped = spec.train(config, env=everything, run_suffix="stopped", callbacks=[StopAt(70)])
    state = load_checkpoint(stopped.checkpoint_path)
    assert state.trainer_state["step"] < 192
    resumed = resume_training(stopped.checkpoint_path, env=everything)
    same_end(load_checkpoint(whole.checkpoint_path), load_checkpoint(resumed.checkpoint_path))


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_sample_of_replay_is_what_a_plain_list_holds(num_envs):
    collector = Collector(EnvFactory(everything, {}), num_envs, seed=0)
    spaces = collector.spaces
    assert spaces.obs_dtype == np.uint8
    capacity = 40
    replay = ReplayBuffer(capacity, spaces.obs_shape, (), obs_dtype=spaces.obs_dtype, action_dtype=np.int64, reuse=True)
    rows = []
    rng = np.random.default_rng(0)
    for _ in range(60 // num_envs):
        actions = rng.integers(2, size=num_envs)
        step = collector.step(actions)
        replay.add(obs=step.obs, actions=actions, rewards=step.rewards, next_obs=step.next_obs, dones=step.terminated)
        rows += [(step.obs[i].copy(), step.next_obs[i].copy()) for i in range(num_envs)]
    kept = rows[-capacity:]
    index = np.arange(len(replay))
    batch = replay.rows((index + replay.written - len(replay)) % capacity)
    assert np.array_equal(batch["obs"].numpy(), np.stack([row for row, _ in kept]))
    assert np.array_equal(batch["next_obs"].numpy(), np.stack([row for _, row in kept]))
    drawn = replay.sample(16)
    known = {(obs.tobytes(), then.tobytes()) for obs, then in kept}
    assert {(o.tobytes(), n.tobytes()) for o, n in zip(drawn["obs"].numpy(), drawn["next_obs"].numpy())} <= known
    assert all(
        torch.isfinite(part).all() for part in take_apart(drawn["obs"], spaces.parts) if part.dtype.is_floating_point
    )


def test_an_observation_is_stored_once():
    collector = Collector(EnvFactory(everything, {}), 1, seed=0)
    spaces = collector.spaces
    replay = ReplayBuffer(100, spaces.obs_shape, obs_dtype=np.uint8)
    for _ in range(70):
        step = collector.step(np.zeros(1, np.int64))
        replay.add(
            obs=step.obs, actions=np.zeros(1), rewards=step.rewards, next_obs=step.next_obs, dones=step.terminated
        )
    assert isinstance(replay._layout, FrameLayout)
    assert replay._layout.frames.count == 70 + 10  # and one more for each of ten episodes


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run and its agent for two forms of observations."""
    from toys import tiny_config

    made = {}
    for name, kind, options in (
        ("ppo", PPO, {}),
        ("iqn", IQN, {"normalize_observations": True}),
    ):
        agent = kind(tiny_config(name, tmp_path_factory.mktemp(name), **FEW, **options), env=everything)
        made[name] = agent, agent.learn()
    return made


def test_an_agent_predicts_for_what_the_environment_gives_one_or_many(trained):
    agent, _ = trained["iqn"]
    env = everything()
    observations = [env.reset(seed=0)[0], *(env.step(0)[0] for _ in range(4))]
    singly = [agent.predict(one) for one in observations]
    assert all(action in (0, 1) for action in singly)
    assert agent.predict(observations).tolist() == singly
    batched = {
        name: np.stack([one[name] for one in observations])
        if name != "in"
        else tuple(np.stack([one["in"][i] for one in observations]) for i in range(3))
        for name in EVERYTHING.spaces
    }
    assert agent.predict(batched).tolist() == singly
    with pytest.raises(ValueError, match=r"the observation has no part 'in.0'"):
        agent.predict({**observations[0], "in": ()})
    with pytest.raises(ValueError, match="the observation has no part 'action'"):
        agent.predict(np.zeros(12))


def test_vectors_in_a_dict_are_predicted_for_flat_or_as_they_are(tiny):
    space = Dict({"observation": Box(-1, 1, (3,)), "goal": Box(-1, 1, (2,))})
    agent = PPO(tiny("ppo", **FEW), env=lambda: Sampled(space))
    agent.learn()
    one = {"observation": [0.1, 0.2, 0.3], "goal": [0.4, 0.5]}
    flat = gym.spaces.flatten(space, {name: np.array(value, np.float32) for name, value in one.items()})
    action = agent.predict(one)
    assert action == agent.predict(flat) and agent.predict([one, one]).tolist() == [action] * 2
    assert agent.predict(np.stack([flat, flat])).tolist() == [action] * 2


def test_a_server_needs_no_environment_to_take_the_parts(trained):
    from rl_training.serving.messages import Messages, Refusal

    agent, result = trained["ppo"]
    served = load_served(result.checkpoint_path)
    messages, env = Messages(served, 8), everything()
    one = env.reset(seed=0)[0]
    plain = {"action": int(one["action"]), "eye": one["eye"].tolist(), "in": [x.tolist() for x in one["in"]]}
    plain["x"] = one["x"].tolist()
    question = messages.read(json.dumps({"obs": [plain, plain]}).encode())
    assert served.act(question.rows, None, True)[0] == [agent.predict(one)] * 2
    with pytest.raises(Refusal, match="part 'action' of the observation is 9"):
        messages.read(json.dumps({"obs": {**plain, "action": 9}}).encode())

    schema = observation_schema(served.spaces)
    assert schema["required"] == ["action", "in", "x", "eye"]
    assert schema["properties"]["action"] == {"type": "integer", "minimum": -1, "maximum": 1}
    eye = schema["properties"]["eye"]
    assert [eye["minItems"], eye["items"]["minItems"], eye["items"]["items"]["minItems"]] == [7, 7, 3]
    assert len(schema["properties"]["in"]["prefixItems"]) == 3


@pytest.mark.parametrize(("algo", "format"), [("ppo", "torch"), ("iqn", "onnx")])
def test_exported_policies_take_the_parts_by_name(trained, algo, format, tmp_path):
    if format == "onnx":
        pytest.importorskip("onnxruntime")
    agent, result = trained[algo]
    path = tmp_path / f"policy{export.ENDINGS[format]}"
    made = export.export_checkpoint(result.checkpoint_path, path, env=everything)
    assert made.rows == 1000
    env = everything()
    one = env.reset(seed=5)[0]
    given = {"obs_action": np.array([one["action"]], np.int64), "in.0": np.asarray(one["in"][0], np.int64)[None]}
    given |= {"x": np.asarray(one["x"], np.float32)[None], "in.1": one["in"][1][None]}
    given |= {"eye": one["eye"][None], "in.2": one["in"][2][None]}
    if format == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path))
        assert [i.name for i in session.get_inputs()] == list(given)
        action = session.run(None, given)[0]
    else:
        program = torch.export.load(path)
        action = program.module()(*map(torch.from_numpy, given.values())).numpy()
        assert "view.dtype" not in str(program.graph)
    assert action.tolist() == [agent.predict(one)]
    exec(made.program, there := {})
    assert there["action"].shape == (1,)


def test_rows_for_the_check_of_an_export_are_observations_of_their_space(trained):
    spaces = trained["ppo"][0]._spaces
    real = np.stack([spaces.parts.pack(everything().reset(seed=0)[0])] * 3)
    rows = drawn_rows(spaces.parts, real, 20, np.random.default_rng(0))
    for one in zip(*spaces.parts.unpack(rows)):
        action, choices, x, image, eye, board = one
        assert action in (-1, 0, 1) and choices[0] in (0, 1) and choices[1] in (0, 1, 2)
        assert np.isfinite(x).all() and np.isfinite(image).all() and eye.shape == (7, 7, 3) and board.dtype == bool
    assert np.array_equal(spaces.parts.read(_observation(spaces.parts, rows))[0], rows)


def _observation(parts, rows):
    action, choices, x, image, eye, board = parts.unpack(rows)
    return {"action": action, "in": (choices, image, board), "x": x, "eye": eye}


def test_what_is_recorded_of_a_mix_is_read_again_for_the_same_environment_alone(tiny, tmp_path):
    config = tiny("bc", env_id="own", **FEW)
    gym.register("own", entry_point=Signs)
    gym.register("other", entry_point=everything)
    try:
        data = collect(config, None, steps=40)
        write_npz(tmp_path / "data.npz", data)
        assert torch.equal(read_npz(tmp_path / "data.npz").obs, data.obs)
        read = {"dataset_kind": "npz", "dataset_path": str(tmp_path / "data.npz"), "dataset_size": None}
        read = {name: value for name, value in read.items() if value is not None}
        given = {**{k: v for k, v in config.algo_kwargs.items() if k != "dataset_size"}, **read}
        get_algorithm_spec("bc").train(config.replace(algo_kwargs=given))
        allowed = {**given, "dataset_env_mismatch": "allow"}
        with pytest.raises(DatasetError, match=r"mix images and vectors \(action.*read only from what this package"):
            get_algorithm_spec("bc").train(config.replace(algo_kwargs=allowed, env_id="other"))
        with pytest.raises(DatasetError, match="Minari takes no observations that mix"):
            write_minari("a/b-v0", data, None)
        data.meta.pop("parts")
        write_npz(tmp_path / "data.npz", data)
        with pytest.raises(DatasetError, match="read only from what this package recorded"):
            get_algorithm_spec("bc").train(config.replace(algo_kwargs=given))
        result = get_algorithm_spec("dqn").train(tiny("dqn", env_id="own", **FEW))
        assert export_replay(result.run_dir).meta["parts"][1]["name"] == "eye"
    finally:
        gym.registry.pop("own")
        gym.registry.pop("other")


def test_the_discriminator_sees_both_parts_and_scales_the_vectors(tiny):
    agent = GAIL(tiny("gail", **FEW), env=signs)
    agent.learn()
    discriminator = agent.agent.discriminator
    assert isinstance(discriminator.normalizer, PartsNormalizer) and float(discriminator.normalizer.count) > 0
    assert sum(isinstance(module, PartsEncoder) for module in discriminator.modules()) == 1
    assert agent.agent.discriminator_reward(torch.from_numpy(_two_rows()), torch.tensor([0, 1])).shape == (2,)


def _two_rows():
    collector = Collector(EnvFactory(signs, {}), 2, seed=0)
    return collector.obs


def test_networks_of_ones_own_get_the_parts(tiny):
    from rl_training.models import MLPQNetwork

    seen = []

    class Own(MLPQNetwork):
        def __init__(self, **arguments):
            seen.append(arguments["obs_parts"])
            super().__init__(**arguments)

    DQN(tiny("dqn", **FEW), env=signs, network=Own).learn()
    assert [part.name for part in seen[0].all] == ["sign", "eye"]


@compiles
def test_compiled_updates_learn_what_eager_ones_learn(tiny):
    spec, factory = get_algorithm_spec("dqn"), EnvFactory(signs, {})
    config = tiny("dqn", hidden_sizes=[8], normalize_observations=True)
    learners = []
    for _ in range(2):
        torch.manual_seed(0)
        learners.append(spec.build(spec.options(config), spec.blueprint(config, factory, None, "cpu")))
    compiled = learners[1]
    compiled.use_compiled()
    step = Collector(factory, 8, seed=0).step(np.zeros(8, np.int64))
    batch = {"obs": torch.from_numpy(step.obs.copy()), "next_obs": torch.from_numpy(step.next_obs.copy())}
    batch |= {"actions": torch.arange(8) % 2, "rewards": torch.ones(8), "dones": torch.zeros(8)}
    for number in range(3):
        losses = [learner.update(dict(batch), global_step=number).metrics["loss"] for learner in learners]
        assert compiled.compiled and losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_films_of_an_agent_that_sees_parts(tiny, tmp_path):
    pytest.importorskip("PIL")

    class Filmed(Signs):
        metadata = {"render_modes": ["rgb_array"], "render_fps": 4}

        def __init__(self, render_mode=None):
            super().__init__()
            self.render_mode = render_mode

        def render(self):
            return np.zeros((16, 16, 3), np.uint8)

    gym.register("Filmed-v0", entry_point=Filmed)
    try:
        result = PPO(tiny("ppo", env_id="Filmed-v0", **FEW)).learn()
        record_checkpoint(result.checkpoint_path, Film(tmp_path / "film.gif"))
        assert (tmp_path / "film.gif").stat().st_size > 0
    finally:
        gym.registry.pop("Filmed-v0")
