"""Runs in environments with Tuple and Dict actions: learning, resuming, predicting, exporting, serving, filming."""

import json

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple

from rl_training import PPO, SAC
from rl_training.artifacts import export
from rl_training.artifacts.video import record_checkpoint
from rl_training.data.recorder import collect_random
from rl_training.envs.factory import EnvFactory
from rl_training.envs.film import Film
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.workflows import resume_training
from rl_training.serving.messages import Messages
from rl_training.serving.schema import action_schema
from rl_training.serving.served import load_served
from toys import StopAt, same_end

MIX = Dict({"turn": Discrete(3, start=-1), "arm": Tuple([Box(-2, 2, (1,), np.float64), MultiBinary(2)])})


class Aim(gym.Env):
    """Pays for turning to the side of a number, pushing as far as another one, and a switch that is on."""

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = MIX

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.metadata = render_mode, {"render_modes": ["rgb_array"], "render_fps": 10}

    def render(self):
        return np.full((8, 8, 3), 40, np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.obs = 0, self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.obs, {}

    def step(self, action):
        assert self.action_space.contains(action), action
        push, switches = action["arm"]
        pay = float(action["turn"] == np.sign(self.obs[0])) + float(switches[0]) - abs(push[0] - 2 * self.obs[1])
        self.t, self.obs = self.t + 1, self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.obs, pay, self.t >= 5, False, {}


OPTIONS = {"num_envs": 3, "num_steps": 16, "minibatch_size": 24}


def test_choices_and_numbers_are_learned_together(tiny):
    options = {"num_envs": 16, "num_steps": 32, "minibatch_size": 128, "update_epochs": 6, "learning_rate": 8e-3}
    agent = PPO(tiny("ppo", eval_interval=0, total_timesteps=4096, gamma=0.0, **options, hidden_sizes=[32]), env=Aim)
    agent.learn()
    assert agent.evaluate(num_episodes=10)["eval_return_mean"] > 6.5  # of 10; at random about 0.5


@pytest.mark.parametrize("algo", ["ppo", "ppg"])
def test_a_stopped_run_ends_as_if_it_had_never_stopped(algo, tiny):
    spec, config = get_algorithm_spec(algo), tiny(algo, total_timesteps=192, eval_interval=96, **OPTIONS)
    whole = spec.train(config, env=Aim, run_suffix="whole")
    stopped = spec.train(config, env=Aim, run_suffix="stopped", callbacks=[StopAt(90)])
    assert load_checkpoint(stopped.checkpoint_path).trainer_state["step"] < 192
    resumed = resume_training(stopped.checkpoint_path, env=Aim)
    same_end(load_checkpoint(whole.checkpoint_path), load_checkpoint(resumed.checkpoint_path))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    from toys import tiny_config

    config = tiny_config("ppo", tmp_path_factory.mktemp("mix"), total_timesteps=192, eval_interval=0, **OPTIONS)
    agent = PPO(config, env=Aim)
    return agent, agent.learn().checkpoint_path


def test_predictions_have_the_environments_own_form(trained):
    agent, _ = trained
    one = agent.predict([0.1, 0.2])
    assert MIX.contains(one)
    many = agent.predict(np.zeros((3, 2)), deterministic=False)
    assert len(many) == 3 and all(MIX.contains(action) for action in many)


def test_of_no_observations_there_are_no_actions(trained, tiny):
    agent, _ = trained
    assert agent.predict(np.zeros((0, 2), np.float32)) == []

    class Grid(Aim):
        action_space = Box(0, 3, (2, 2), np.uint8)

        def step(self, action):
            return self.obs, 1.0, True, False, {}

    agent = PPO(tiny("ppo", total_timesteps=64, eval_interval=0), env=Grid)
    agent.learn()
    none, two = agent.predict(np.zeros((0, 2), np.float32)), agent.predict(np.zeros((2, 2), np.float32))
    assert none.shape == (0, 2, 2) and two.shape == (2, 2, 2) and none.dtype == two.dtype == np.uint8


def test_what_is_recorded_of_rounded_numbers_is_what_the_environment_took():
    taken = []

    class Whole(Aim):
        action_space = Dict({"level": Box(0, 255, (2,), np.uint8), "push": Box(-1, 1, (1,), np.float32)})

        def step(self, action):
            taken.append([*action["level"], *action["push"]])
            return self.obs, 1.0, len(taken) % 5 == 0, False, {}

    data = collect_random(EnvFactory(Whole, {}), 20, seed=0)
    np.testing.assert_array_equal(data.actions.numpy().astype(np.float32), np.array(taken, np.float32))
    levels = data.actions.numpy()[:, :2]
    assert np.array_equal(levels, np.rint(levels)) and len(np.unique(levels)) > 20


def test_a_server_answers_in_that_form(trained):
    agent, checkpoint = trained
    served = load_served(checkpoint)
    question = Messages(served, 8).read(json.dumps({"obs": [0.1, 0.2]}).encode())
    [action] = json.loads(json.dumps(served.act(question.rows, None, True)[0]))
    expected = agent.predict([0.1, 0.2])
    assert action["turn"] == expected["turn"] and action["arm"][1] == expected["arm"][1].tolist()
    assert action["arm"][0] == pytest.approx(expected["arm"][0])
    assert set(action_schema(served.spaces)["properties"]) == {"turn", "arm"}


@pytest.mark.parametrize("format", ["torch", "onnx"])
def test_an_exported_policy_gives_the_flat_action(trained, format, tmp_path):
    if format == "onnx":
        pytest.importorskip("onnxruntime")
    agent, checkpoint = trained
    path = tmp_path / f"policy{export.ENDINGS[format]}"
    made = export.export_checkpoint(checkpoint, path, env=Aim)  # it is compared with the agent there
    assert made.rows == 1000
    obs = np.array([[0.1, 0.2]], np.float32)
    if format == "onnx":
        import onnxruntime

        flat = onnxruntime.InferenceSession(str(path)).run(None, {"obs": obs})[0]
    else:
        flat = torch.export.load(path).module()(torch.from_numpy(obs)).numpy()
    restored, expected = agent._spaces.form.restored(flat[0]), agent.predict(obs[0])
    assert restored["turn"] == expected["turn"] and restored["arm"][0] == pytest.approx(expected["arm"][0], abs=1e-5)


def test_whole_numbers_are_said_at_the_start_and_a_dict_of_boxes_is_taken_by_sac(tiny):
    class Whole(Aim):
        action_space = Box(0, 3, (2,), np.int32)

        def step(self, action):
            assert self.action_space.contains(action)
            return self.observation_space.sample() * 0, 1.0, True, False, {}

    with pytest.warns(UserWarning, match=r"whole numbers in a Box, and are taken as choices: \(action \[4, 4\]\)"):
        PPO(tiny("ppo", total_timesteps=64, eval_interval=0), env=Whole).learn()
    config = tiny("sac", total_timesteps=64, eval_interval=0, env_kwargs={"integer_actions": "rounded"})
    with pytest.warns(UserWarning, match="are taken as numbers that are rounded"):
        SAC(config, env=Whole).learn()

    class Boxes(Whole):
        action_space = Dict({"x": Box(-1, 1, (2,)), "y": Box(0, 5, (1,))})

    agent = SAC(tiny("sac", total_timesteps=64, eval_interval=0), env=Boxes)
    agent.learn()
    assert Boxes.action_space.contains(agent.predict([0.0, 0.0]))


def test_an_episode_is_filmed(trained, tmp_path):
    record_checkpoint(trained[1], Film(tmp_path / "film.gif"), env=lambda: Aim("rgb_array"))
    assert (tmp_path / "film.gif").stat().st_size > 0
