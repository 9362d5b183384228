"""Learned models, on random rows of HalfCheetah's size: python models.py UNIT [mbrl|axiomrl|sac]

ensemble_update    a gradient step of 7 members of 4x200, batch 256 of each one's own
ensemble_rollout   a step of 10,500 imagined rows, each by one random elite
pets_plan          an action from 400 candidates x 20 steps x 5 iterations x 20 particles, 5 members of 4x200
mbpo_update        a policy update of MBPO, and of SAC alone for ``sac``
"""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace

import numpy as np
import torch
from meter import THREADS, Meter, as_in_a_run

unit, who = sys.argv[1], (sys.argv[2:] or ["ours"])[0]
OBS, ACTIONS, ROWS, BATCH, IMAGINED = 17, 6, 20_000, 256, 10_500
MEMBERS = 5 if unit == "pets_plan" else 7
HIDDEN, ELITES = [200] * 4, 5
PLAN = {"horizon": 20, "num_candidates": 400, "num_iterations": 5, "num_topk": 40, "num_particles": 20}
torch.set_num_threads(THREADS)
torch.manual_seed(0)
rng = np.random.default_rng(0)
data = {
    "obs": rng.standard_normal((ROWS, OBS)).astype(np.float32),
    "actions": rng.uniform(-1, 1, (ROWS, ACTIONS)).astype(np.float32),
    "rewards": rng.standard_normal(ROWS).astype(np.float32),
}
data["next_obs"] = data["obs"] + 0.1 * rng.standard_normal((ROWS, OBS)).astype(np.float32)
data["dones"] = np.zeros(ROWS, np.float32)
starts = {name: torch.from_numpy(data[name][:IMAGINED]) for name in ("obs", "actions")}
low, high = -np.ones(ACTIONS, np.float32), np.ones(ACTIONS, np.float32)


def run(work) -> None:
    meter, total = Meter(1 if unit == "pets_plan" else 50), 0
    while True:
        work()
        total += 1
        if not meter.tick(total):
            break
    meter.report(unit, who)


def ours() -> None:
    from rl_training.algorithms.dynamics import EnsembleDynamics, ModelFit
    from rl_training.base.state import Rng
    from rl_training.models.mlp_mopo import MLPMOPOEnsembleModel

    if unit == "mbpo_update":
        return policy_updates("mbpo")
    model = MLPMOPOEnsembleModel(
        obs_dim=OBS, action_dim=ACTIONS, hidden_sizes=tuple(HIDDEN), num_ensembles=MEMBERS, num_elites=ELITES
    )
    if unit == "ensemble_update":
        dynamics = EnsembleDynamics(model=model, learning_rate=1e-3)
        dynamics.use_compiled()
        fit = ModelFit(dynamics, Rng(0, "fit"), batch_size=BATCH, holdout_ratio=0, most_updates=10**9)
        meter = Meter(150)
        for _ in fit.run(data):
            if not meter.tick(fit.total_updates):
                break
        meter.report(unit, who)
    elif unit == "ensemble_rollout":
        with torch.no_grad():
            run(lambda: model.sample_member(starts["obs"], starts["actions"]))
    else:
        from rl_training.algorithms.pets import PETS

        agent = PETS(dynamics_model=model, learning_rate=1e-3)
        obs = data["obs"][0]
        run(lambda: agent.plan_action(obs, action_low=low, action_high=high, deterministic=False, **PLAN))


def policy_updates(algo: str) -> None:
    from rl_training.data import ReplayBuffer
    from rl_training.envs.spaces import Spaces
    from rl_training.experiment.config import TrainConfig
    from rl_training.experiment.registry import get_algorithm_spec
    from rl_training.runtime.spec import Blueprint

    spaces = Spaces((OBS,), np.dtype(np.float32), "box", (ACTIONS,), low=low, high=high)
    spec = get_algorithm_spec(algo)
    agent = spec.build(spec.options(TrainConfig(algo=algo, env_id="-")), Blueprint(spaces, torch.device("cpu")))
    agent.use_compiled()
    real, imagined = (ReplayBuffer(ROWS, (OBS,), (ACTIONS,), reuse=True) for _ in range(2))
    real.add(**data)
    imagined.add(**data)
    if algo == "mbpo":
        from rl_training.data.sources import Mixed

        source = Mixed((real, 0.05), (imagined, 0.95))
    else:
        source = real
    run(lambda: agent.update(source.sample(BATCH), global_step=0))


def sac() -> None:
    policy_updates("sac")


def mbrl() -> None:
    from gymnasium.spaces import Box
    from mbrl.models import GaussianMLP, ModelEnv, OneDTransitionRewardModel
    from mbrl.planning import CEMOptimizer
    from mbrl.types import TransitionBatch
    from mbrl.util.replay_buffer import BootstrapIterator
    from omegaconf import OmegaConf

    plan = unit == "pets_plan"
    network = GaussianMLP(
        OBS + ACTIONS, OBS + 1, "cpu", num_layers=4, ensemble_size=MEMBERS, hid_size=200,
        propagation_method="fixed_model" if plan else "random_model",
        activation_fn_cfg=OmegaConf.create({"_target_": "torch.nn.SiLU"}),
    )  # fmt: skip
    model = OneDTransitionRewardModel(network, target_is_delta=True, normalize=True, learned_rewards=True)
    if not plan:
        model.set_elite(list(range(ELITES)))
    flags = np.zeros(ROWS, bool)
    batch = TransitionBatch(data["obs"], data["actions"], data["next_obs"], data["rewards"], flags, flags)
    model.update_normalizer(batch)
    spaces = SimpleNamespace(observation_space=Box(-np.inf, np.inf, (OBS,)), action_space=Box(low, high))
    never = lambda actions, next_obs: torch.zeros(len(actions), 1, dtype=torch.bool)  # noqa: E731
    world = ModelEnv(spaces, model, never)
    if unit == "ensemble_update":
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=5e-5)
        meter, total = Meter(150), 0
        while True:
            for rows in BootstrapIterator(batch, BATCH, MEMBERS, shuffle_each_epoch=True):
                model.update(rows, optimizer)
                total += 1
            if not meter.tick(total):
                break
        meter.report(unit, who)
    elif unit == "ensemble_rollout":
        state = world.reset(data["obs"][:IMAGINED])
        run(lambda: world.step(data["actions"][:IMAGINED], state, sample=True))
    else:
        box = [[-1.0] * ACTIONS] * PLAN["horizon"], [[1.0] * ACTIONS] * PLAN["horizon"]
        cem = CEMOptimizer(
            PLAN["num_iterations"], 0.1, PLAN["num_candidates"], *box, 0.1, "cpu", return_mean_elites=True
        )
        value = lambda plans: world.evaluate_action_sequences(plans, data["obs"][0], PLAN["num_particles"])  # noqa: E731
        run(lambda: cem.optimize(value, torch.zeros(PLAN["horizon"], ACTIONS)))


def axiomrl() -> None:
    from axiomrl.algorithms.pets import PETS
    from axiomrl.models.mlp_mopo import MLPMOPOEnsembleModel

    model = MLPMOPOEnsembleModel(obs_dim=OBS, action_dim=ACTIONS, hidden_sizes=tuple(HIDDEN), num_ensembles=MEMBERS)
    agent = PETS(dynamics_model=model, learning_rate=1e-3)
    columns = {name: torch.from_numpy(column) for name, column in data.items()}

    def update() -> None:
        rows = torch.from_numpy(rng.integers(ROWS, size=BATCH))
        agent.update({name: column[rows] for name, column in columns.items()}, global_step=0)

    def step() -> None:
        with torch.no_grad():
            model.sample_transition(starts["obs"], starts["actions"])

    def plan() -> None:
        agent.plan_action(data["obs"][0], action_low=low, action_high=high, deterministic=False, **PLAN)

    run({"ensemble_update": update, "ensemble_rollout": step, "pets_plan": plan}[unit])


with as_in_a_run() if who in ("ours", "sac") else contextlib.nullcontext():
    {"ours": ours, "sac": sac, "mbrl": mbrl, "axiomrl": axiomrl}[who]()
