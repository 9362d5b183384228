"""PETS (Chua et al., 2018): an ensemble of probabilistic dynamics models, and actions by planning through it.

A plan's value is the mean over particles of the reward that they collect; a particle keeps one member for the whole
plan (TS∞) or changes members at every step (TS1).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from rl_training.algorithms.base import Acting, Tensors, stream
from rl_training.algorithms.dynamics import EnsembleDynamics, gaussian_ensemble_loss
from rl_training.algorithms.planning import CEM, Planner
from rl_training.algorithms.terminations import LearnedTerminations, Terminations, deciding
from rl_training.base.devices import arrays_to_device, to_host
from rl_training.models.host import device_of
from rl_training.models.mlp_mopo import sample_from_rows

__all__ = ["PETS", "Rewards", "pets_loss"]

Rewards = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def pets_loss(batch: Tensors) -> Tensors:
    """``gaussian_ensemble_loss`` under PETS's name."""
    terms = gaussian_ensemble_loss(batch)
    return {"pets_model_loss": terms.pop("model_loss"), **terms}


def seed_of(obs: np.ndarray) -> int:
    """The seed of a deterministic plan: the same for the same observation, and another one for another.

    With one seed for all, every plan would have the same noise, and err in the same direction step after step. Of the
    observation three digits count, so that the last bits, which differ between processors, do not make another plan.
    """
    with np.errstate(over="ignore"):
        return zlib.crc32(np.asarray(obs).astype(np.float16).tobytes())


class PETS(EnsembleDynamics):
    """An ensemble of dynamics models that acts by planning.

    ``dynamics_model`` needs ``predict_distribution``, ``ensemble_parameters``, ``obs_dim``, ``action_dim`` and
    ``num_ensembles``.

    ``terminated`` and ``rewards`` are functions of (obs, actions, next_obs), arrays of rows with actions in [-1, 1];
    without them, plans never terminate, and rewards are the model's.
    """

    def __init__(
        self,
        *,
        dynamics_model: Any,
        learning_rate: float,
        planner: Planner | None = None,
        horizon: int = 20,
        num_particles: int = 20,
        propagation: Literal["ts1", "tsinf"] = "tsinf",
        terminated: Terminations | LearnedTerminations | None = None,
        rewards: Rewards | None = None,
    ) -> None:
        super().__init__(model=dynamics_model, learning_rate=learning_rate, name="pets")
        self._planner: Planner = planner if planner is not None else CEM()
        self._horizon, self._particles, self._propagation = horizon, num_particles, propagation
        self.terminations, self._rewards = terminated, rewards
        self._device = device_of(dynamics_model)

    def initial_carry(self, n: int) -> np.ndarray:
        """Where each environment's next search starts, (N, H, A): the middle of the box."""
        return np.zeros((n, self._horizon, self.model.action_dim), np.float32)

    def _act(self, obs: np.ndarray, carry: Any, deterministic: bool, rng: np.random.Generator | None) -> Acting:
        """One plan for each observation; the rest of it is where the next search starts."""
        carry = self.initial_carry(len(obs)) if carry is None else carry
        high = torch.ones(self._horizon, self.model.action_dim, device=self._device)
        actions, starts = [], []
        for row, start in zip(obs, carry):
            seed = seed_of(row) if deterministic else int(stream(rng).integers(2**62))
            where, mean = arrays_to_device(self._device, row.astype(np.float32), start)
            plan = to_host(self._plan(where, -high, high, self._planner, self._particles, seed, mean))[0]
            actions.append(plan[0])
            starts.append(np.concatenate([plan[1:], np.zeros_like(plan[:1])]))
        return Acting(np.stack(actions), carry=np.stack(starts))

    def policy_module(self) -> nn.Module:
        raise ValueError("pets plans every action with its model: there is no policy that could be exported")

    def plan_action(
        self,
        obs: Any,
        *,
        action_low: Any,
        action_high: Any,
        horizon: int,
        num_candidates: int,
        num_iterations: int,
        num_topk: int,
        num_particles: int = 8,
        deterministic: bool = True,
    ) -> np.ndarray:
        """The first action (A,) of a plan by the cross-entropy method; ``deterministic``: the same every time."""
        arrays = (np.asarray(x, np.float32) for x in (obs, action_low, action_high))
        start, *bounds = arrays_to_device(self._device, *arrays)
        low, high = (bound.expand(horizon, self.model.action_dim) for bound in bounds)
        planner = CEM(candidates=num_candidates, elites=num_topk, iterations=num_iterations)
        seed = seed_of(np.asarray(obs)) if deterministic else int(torch.randint(2**62, ()))
        return to_host(self._plan(start, low, high, planner, num_particles, seed, None)[0])[0]

    def _plan(
        self,
        obs: torch.Tensor,
        low: torch.Tensor,
        high: torch.Tensor,
        planner: Planner,
        particles: int,
        seed: int,
        mean: torch.Tensor | None,
    ) -> torch.Tensor:
        devices = range(torch.cuda.device_count())
        with torch.random.fork_rng(devices=devices):  # planning has random numbers of its own
            torch.manual_seed(seed)
            return planner(lambda plans: self.values_of(obs, plans, particles), low, high, mean)

    @torch.no_grad()
    def values_of(self, obs: torch.Tensor, plans: torch.Tensor, particles: int) -> torch.Tensor:
        """The mean return (N,) of plans (N, H, A) from one observation (D,), over the particles of all members."""
        each = -(-particles // self.model.num_ensembles)
        members, (count, _, dim) = self.model.num_ensembles, plans.shape
        rows = count * each
        state = obs.expand(members, rows, len(obs))
        actions = plans.repeat_interleave(each, 0).transpose(0, 1)  # (H, rows, A)
        total = torch.zeros(members, rows, device=obs.device)
        alive = torch.ones(members, rows, device=obs.device)
        terminated = deciding(self.terminations)
        for step in actions:
            if self._propagation == "ts1":
                state, total, alive = self._shuffled(state, total, alive, each)
            taken = step.expand(members, rows, dim)
            drawn = self._drawn(state, taken)
            next_state = state + drawn[..., :-1]
            rewards = drawn[..., -1] if self._rewards is None else self._known(self._rewards, state, taken, next_state)
            total = total + alive * rewards
            if terminated is not None:
                alive = alive * (1 - self._known(terminated, state, taken, next_state))
            state = next_state
        return total.view(members, count, each).mean((0, 2))

    def _drawn(self, obs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """A sample (E, B, D + 1) of each member's prediction for its own rows (E, B, ...)."""
        draw = getattr(self.model, "draw", None)
        return sample_from_rows(self.model, obs, actions) if draw is None else draw(obs, actions)

    def _shuffled(
        self, state: torch.Tensor, total: torch.Tensor, alive: torch.Tensor, each: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Particles change members, within each plan, so that every member keeps as many of its particles."""
        members, rows = total.shape
        count = rows // each
        order = torch.rand(count, members * each, device=state.device).argsort(1)

        def moved(x: torch.Tensor) -> torch.Tensor:
            by_plan = x.reshape(members, count, each, -1).transpose(0, 1).reshape(count, members * each, -1)
            mixed = by_plan.gather(1, order[..., None].expand_as(by_plan))
            return mixed.view(count, members, each, -1).transpose(0, 1).reshape(members, rows, -1)

        return moved(state), moved(total).squeeze(-1), moved(alive).squeeze(-1)

    def _known(
        self, function: Rewards | Terminations, state: torch.Tensor, actions: torch.Tensor, next_state: torch.Tensor
    ) -> torch.Tensor:
        """A known function of rows, for all members' particles."""
        arrays = to_host(*(x.reshape(-1, x.shape[-1]) for x in (state, actions, next_state)))
        [values] = arrays_to_device(state.device, np.asarray(function(*arrays), np.float32))
        return values.view(state.shape[:2])
