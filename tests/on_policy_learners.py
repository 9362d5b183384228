"""Actor-critic networks of some ten units, oracles that begin with their weights, and rollouts to learn from."""

from __future__ import annotations

from typing import Any

import torch

from oracles.policies import ActorCritic
from rl_training.models import MLPActorCritic
from rl_training.models.heads import Bernoulli, Categorical, DiagonalGaussian, MultiCategorical

CHOICES = (2, 3)
HEADS = {
    "discrete": Categorical(3),
    "multi_discrete": MultiCategorical(CHOICES),
    "multi_binary": Bernoulli(3),
    "box": DiagonalGaussian(2),
}
VECTORS = {"obs_dim": 3, "hidden_sizes": (9, 8)}
IMAGES = {"obs_shape": (1, 36, 36), "hidden_sizes": (8,)}
# numbers that float32 holds exactly, as the learners keep them
OPTIONS = {"learning_rate": 2**-7, "clip_coef": 0.25, "ent_coef": 2**-5, "vf_coef": 0.75, "max_grad_norm": 0.5}
# images are in float32, and their networks have many weights: small steps keep roundings from growing
SMALL_STEPS = {"learning_rate": 2**-10}
FIFTH_OF_A_STEP = 2e-4  # of those; Adam makes up to a whole step of a gradient that is nothing but roundings


def network(kind: str, cls: Any = MLPActorCritic, dtype: torch.dtype = torch.float64, **shape: Any) -> Any:
    """A network for a kind of actions, with a policy that is not uniform."""
    torch.manual_seed(7)
    images = "obs_shape" in shape
    made = cls(head=HEADS[kind], **shape if images else {**VECTORS, **shape}).to(dtype)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_((0.02 if images else 0.1) * torch.randn_like(parameter))
        made.policy_head.weight.mul_(10)
    return made


def oracle_network(ours: Any, kind: str, **options: Any) -> ActorCritic:
    return ActorCritic(ours.state_dict(), kind, CHOICES if kind == "multi_discrete" else (), **options)


def rollout(policy: ActorCritic, rows: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Rows from a policy that has moved since: ratios lie on both sides of the clipping range, and within it."""
    generator = torch.Generator().manual_seed(seed)
    dtype = policy.weights["policy_head.bias"].dtype
    if any(value.ndim == 4 for value in policy.weights.values()):
        obs = torch.randint(256, (rows, 1, 36, 36), generator=generator, dtype=torch.uint8)
    else:
        obs = torch.randn(rows, 3, generator=generator, dtype=dtype)
    torch.manual_seed(seed)
    with torch.no_grad():
        drawn = [part.sample() for part in policy.policies(obs)]
        actions = torch.stack(drawn, 1) if len(drawn) > 1 else drawn[0]
        if policy.weights.get("log_std") is None:
            actions = actions.long()
        noise = torch.randn(4, rows, generator=generator, dtype=dtype)
        values = policy.values(obs)
        return {
            "obs": obs, "actions": actions, "logprobs": policy.log_probs(obs, actions) + 0.4 * noise[0],
            "values": values + 0.4 * noise[1], "returns": values + noise[2], "advantages": 2 * noise[3] + 0.5,
        }  # fmt: skip
