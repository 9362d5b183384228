"""A plain web server of Stable-Baselines3's ``predict``: python sb3_server.py ppo|sac PORT async|threads

FastAPI with a pydantic model of the request, as its manual has it; ``async``: predictions in the event loop, ``threads``: in FastAPI's
threads. The network has the sizes of ours, the server the same uvicorn with uvloop and httptools.
"""

import sys

import gymnasium as gym
import numpy as np
import stable_baselines3
import torch
import uvicorn
from fastapi import FastAPI
from gymnasium import spaces
from pydantic import BaseModel

torch.set_num_threads(1)
kind, port, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
SPACES = {
    "ppo": (spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(2)),
    "sac": (spaces.Box(-np.inf, np.inf, (17,), np.float32), spaces.Box(-1, 1, (6,), np.float32)),
}


class Shapes(gym.Env):
    """An environment of which only the spaces are asked for."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = SPACES[kind]


if kind == "ppo":
    model = stable_baselines3.PPO("MlpPolicy", Shapes(), policy_kwargs={"net_arch": [64, 64]}, device="cpu")
else:
    network = {"net_arch": [256, 256]}
    model = stable_baselines3.SAC("MlpPolicy", Shapes(), buffer_size=10, policy_kwargs=network, device="cpu")
app = FastAPI()


class Request(BaseModel):
    obs: list[float]


def answer(request: Request) -> dict:
    action, _ = model.predict(np.array(request.obs, dtype=np.float32), deterministic=True)
    return {"action": action.tolist()}


if how == "async":

    @app.post("/predict")
    async def predict(request: Request) -> dict:
        return answer(request)

else:
    app.post("/predict")(answer)

uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False, loop="uvloop", http="httptools")
