"""Updates alone, on random rows of HalfCheetah's size: python updates.py rlpd_update|cql_update [plain|d3rlpy]

``plain`` is the straightforward eager way to write RLPD's critic update: ten separate networks and torch's own Adam.
"""

from __future__ import annotations

import sys
from itertools import pairwise

import numpy as np
import torch
from meter import THREADS, Meter, as_in_a_run

unit, who = sys.argv[1], (sys.argv[2:] or ["ours"])[0]
OBS, ACTIONS, ROWS, BATCH, STEPS = 17, 6, 20_000, 256, 20
HIDDEN = {"rlpd_update": [256, 256], "cql_update": [256, 256]}[unit]
torch.set_num_threads(THREADS)
torch.manual_seed(0)
rng = np.random.default_rng(0)
data = {
    "obs": rng.standard_normal((ROWS, OBS)).astype(np.float32),
    "actions": rng.uniform(-1, 1, (ROWS, ACTIONS)).astype(np.float32),
    "rewards": rng.standard_normal(ROWS).astype(np.float32),
    "next_obs": rng.standard_normal((ROWS, OBS)).astype(np.float32),
    "dones": np.zeros(ROWS, np.float32),
}


def ours() -> None:
    from rl_training.data import ReplayBuffer
    from rl_training.envs.spaces import Spaces
    from rl_training.experiment.config import TrainConfig
    from rl_training.experiment.registry import get_algorithm_spec
    from rl_training.runtime.spec import Blueprint

    spaces = Spaces((OBS,), np.dtype(np.float32), "box", (ACTIONS,), low=-np.ones(ACTIONS), high=np.ones(ACTIONS))
    algo = unit.split("_")[0]
    spec = get_algorithm_spec(algo)
    extra = {"gradient_updates_per_step": STEPS} if algo == "rlpd" else {}
    options = spec.options(TrainConfig(algo=algo, env_id="-", algo_kwargs={"hidden_sizes": HIDDEN, **extra}))
    agent = spec.build(options, Blueprint(spaces, torch.device("cpu")))
    agent.use_compiled()
    buffer = ReplayBuffer(ROWS, (OBS,), (ACTIONS,), reuse=True)
    buffer.add(**data)
    rows = BATCH * (STEPS if algo == "rlpd" else 1)
    with as_in_a_run():
        run(lambda: agent.update(buffer.sample(rows), global_step=0).num_gradient_steps)


def network(sizes: list[int], norm: bool) -> torch.nn.Sequential:
    """A perceptron of torch's own layers."""
    layers: list[torch.nn.Module] = []
    for i, o in pairwise(sizes[:-1]):
        layers += [torch.nn.Linear(i, o), *([torch.nn.LayerNorm(o)] if norm else []), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(sizes[-2], sizes[-1]))


def plain() -> None:
    import copy

    from torch.nn import functional as F

    actor = network([OBS, *HIDDEN, 2 * ACTIONS], False)
    critics = torch.nn.ModuleList(network([OBS + ACTIONS, *HIDDEN, 1], True) for _ in range(10))
    targets = copy.deepcopy(critics)
    actor_adam = torch.optim.Adam(actor.parameters(), lr=3e-4, foreach=True)
    critic_adam = torch.optim.Adam(critics.parameters(), lr=3e-4, foreach=True)
    log_alpha = torch.zeros((), requires_grad=True)
    alpha_adam = torch.optim.Adam([log_alpha], lr=3e-4)
    columns = {name: torch.from_numpy(column) for name, column in data.items()}

    def policy(obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = actor(obs).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        u = normal.rsample()
        return u.tanh(), (normal.log_prob(u) - 2 * (np.log(2) - u - F.softplus(-2 * u))).sum(-1)

    def update() -> int:
        index = torch.from_numpy(rng.integers(ROWS, size=BATCH * STEPS))
        rows = {name: column[index] for name, column in columns.items()}
        for i in range(STEPS):
            part = {name: column[i * BATCH : (i + 1) * BATCH] for name, column in rows.items()}
            with torch.no_grad():
                actions, logp = policy(part["next_obs"])
                x = torch.cat([part["next_obs"], actions], -1)
                first, second = (targets[k](x).squeeze(-1) for k in rng.choice(10, 2, replace=False))
                y = torch.minimum(first, second) - log_alpha.exp() * logp
                y = part["rewards"] + 0.99 * (1 - part["dones"]) * y
            x = torch.cat([part["obs"], part["actions"]], -1)
            loss = torch.stack([(critic(x).squeeze(-1) - y).square().mean() for critic in critics]).mean()
            critic_adam.zero_grad()
            loss.backward()
            critic_adam.step()
            with torch.no_grad():
                torch._foreach_lerp_(list(targets.parameters()), list(critics.parameters()), 0.005)
        actions, logp = policy(part["obs"])
        x = torch.cat([part["obs"], actions], -1)
        values = torch.stack([critic(x).squeeze(-1) for critic in critics]).mean(0)
        actor_adam.zero_grad()
        (log_alpha.exp().detach() * logp - values).mean().backward()
        actor_adam.step()
        alpha_adam.zero_grad()
        (-log_alpha * (logp.detach() - ACTIONS / 2)).mean().backward()
        alpha_adam.step()
        return STEPS

    run(update)


def d3rlpy() -> None:
    import d3rlpy
    from d3rlpy.dataset import MDPDataset
    from d3rlpy.models import VectorEncoderFactory

    ends = np.zeros(ROWS, np.float32)
    ends[199::200] = 1
    dataset = MDPDataset(data["obs"], data["actions"], data["rewards"], terminals=np.zeros(ROWS), timeouts=ends)
    encoder = VectorEncoderFactory(HIDDEN)
    config = d3rlpy.algos.CQLConfig(actor_encoder_factory=encoder, critic_encoder_factory=encoder, n_action_samples=10)
    algo = config.create(device=False)
    algo.build_with_dataset(dataset)

    def update() -> int:
        algo.update(dataset.sample_transition_batch(BATCH))
        return 1

    run(update)


def run(update) -> None:
    meter, total = Meter(3 * STEPS), 0
    while True:
        total += update()
        if not meter.tick(total):
            break
    meter.report(unit, who)


{"ours": ours, "plain": plain, "d3rlpy": d3rlpy}[who]()
