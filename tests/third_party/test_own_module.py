"""An environment in a module of the user's own, in the directory where the commands are typed."""

import os
import subprocess
import sys

MODULE = '''
import gymnasium as gym
import numpy as np


class Corridor(gym.Env):
    """Walk to the right end; says in its last info whether it was reached."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = gym.spaces.Dict({"place": gym.spaces.Box(-20, 20, (1,)), "lamp": gym.spaces.Discrete(2)})
    action_space = gym.spaces.Discrete(2)

    def __init__(self, render_mode=None, goal=5):
        self.render_mode, self.goal = render_mode, goal

    def _seen(self):
        return {"place": np.array([self.place], np.float32), "lamp": int(self.place > 0)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = float(self.np_random.uniform(-2, 2))
        return self._seen(), {}

    def step(self, action):
        self.place += 2 * int(action) - 1
        done = self.place >= self.goal
        return self._seen(), float(done) - 0.1, done, False, {"is_success": done}

    def render(self):
        image = np.zeros((40, 80, 3), np.uint8)
        image[10:30, int(40 + 2 * np.clip(self.place, -20, 19))] = 255
        return image


gym.register("Corridor-v0", entry_point=Corridor, max_episode_steps=30)
'''


def run(folder, *words):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "rl_training", *words], cwd=folder, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def test_own_a_module_in_the_current_directory_lives_through_every_command(tmp_path):
    (tmp_path / "my_corridor.py").write_text(MODULE)
    name, trust = "my_corridor:Corridor-v0", ("--trust", "my_corridor")
    said = run(tmp_path, "check-env", name)
    assert "can be trained in" in said and "success: is_success" in said and "!  " not in said, said
    options = ("--set", "num_steps=32", "--set", "hidden_sizes=[16]", "--set", "progress=off", "--eval-episodes", "1")
    run(tmp_path, "train", "--algo", "ppo", "--env", name, "--total-timesteps", "256", *options)
    [folder] = (tmp_path / "runs").iterdir()
    assert "return" in run(tmp_path, "eval", str(folder), "--episodes", "2", *trust)
    run(tmp_path, "resume", str(folder), "--total-timesteps", "320", *trust)
    run(tmp_path, "export", str(folder), "-o", "policy.onnx", *trust)
    run(tmp_path, "video", str(folder), "-o", "film.gif", "--max-steps", "5", *trust)
    assert run(tmp_path, "predict", str(folder), "--obs", '{"place": [0.5], "lamp": 1}', *trust).strip() in ("0", "1")
    assert (tmp_path / "policy.onnx").exists() and (tmp_path / "film.gif").exists()
