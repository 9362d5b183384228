"""MBPO (Janner et al., 2019): SAC on short rollouts of a learned model, branched from visited states."""

from __future__ import annotations

from typing import Any

import torch

from rl_training.algorithms.base import Tensors
from rl_training.algorithms.dynamics import gaussian_ensemble_loss
from rl_training.algorithms.mopo import MOPO

__all__ = ["MBPO", "mbpo_model_loss", "rollout_length"]


def mbpo_model_loss(batch: Tensors) -> Tensors:
    """``gaussian_ensemble_loss`` under MBPO's name."""
    terms = gaussian_ensemble_loss(batch)
    return {"mbpo_model_loss": terms.pop("model_loss"), **terms}


def rollout_length(schedule: tuple[int, int, int, int], epoch: float) -> int:
    """The length of rollouts by (first epoch, last epoch, length before, length after), rising in a line in between."""
    first, last, short, long = schedule
    share = min(max((epoch - first) / max(last - first, 1), 0.0), 1.0)
    return int(short + share * (long - short))


class MBPO(MOPO):
    """MOPO without a penalty, so that of each row only the elite that predicts it is evaluated."""

    NAME = "mbpo"

    def __init__(self, **options: Any) -> None:
        """Options: MOPO's, but for the penalty."""
        super().__init__(**options, penalty_coef=0.0)

    @torch.no_grad()
    def imagined_step(self, obs: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        next_obs, rewards = self.dynamics.model.sample_member(obs, actions)
        return next_obs, rewards
