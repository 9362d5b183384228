"""Action distributions: sampled on the host in numpy while acting, differentiated in torch while learning.

One class per action space. Each maps the outputs of a network, (N, size) or (B, size):

- ``sample``: to actions and their log-probabilities, with noise from a given numpy generator
- ``evaluate``: with stored actions to log-probability and entropy, each (B,); None where the entropy has no closed form
- ``divergence``: with other outputs to KL(first || second), (B,)
- ``best``: to the scores of choices, whose largest is the deterministic action, or to the action of a box itself

``scores`` is the inverse of the last: actions (B, ...) to scores that have them as the deterministic action.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.nn import functional as F

__all__ = [
    "FORBIDDEN",
    "HIGHEST",
    "INSIDE",
    "LOG_2",
    "LOWEST",
    "MAX_STD",
    "MIN_STD",
    "Bernoulli",
    "BoundedNormal",
    "BoxHead",
    "Categorical",
    "ChoiceHead",
    "ClonedHead",
    "DiagonalGaussian",
    "Head",
    "MaskedCategorical",
    "MultiCategorical",
    "Point",
    "SquashedGaussian",
    "squash",
]

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
LOG_2 = math.log(2.0)
LOWEST, HIGHEST = -20.0, 2.0  # log-deviations of a squashed Gaussian
MIN_STD, MAX_STD, STD_SHIFT = (
    0.1,
    1.0,
    2.0,
)  # of a bounded normal; an output of zero gives sigmoid(2) of the range, 0.89
FORBIDDEN = -1e8  # the logit of a masked choice: its probability, and what it adds to an entropy, are exactly zero
INSIDE = 1 - 1e-6  # bound of the actions whose inverse tanh is taken


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    logp: np.ndarray = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return logp


class ChoiceHead:
    """Base of distributions over choices, whose outputs are their scores."""

    def best(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs


class Categorical(ChoiceHead):
    """One of ``n`` actions: Discrete(n)."""

    def __init__(self, n: int) -> None:
        self.size = n
        self.action_shape: tuple[int, ...] = ()
        self.action_dtype = np.dtype(np.int64)

    def sample(
        self, logits: np.ndarray, rng: np.random.Generator, deterministic: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        logp = _log_softmax(logits)
        if deterministic:
            actions = logp.argmax(-1)
        else:  # inverse of the cumulative distribution; the clip guards against a sum that rounds below 1
            actions = (np.exp(logp).cumsum(-1) < rng.random((len(logp), 1), dtype=np.float32)).sum(-1)
            actions = np.minimum(actions, self.size - 1)
        return actions, logp[np.arange(len(logp)), actions]

    def evaluate(self, logits: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logp = logits.log_softmax(-1)
        return logp.gather(-1, actions[:, None]).squeeze(-1), -(logp.exp() * logp).sum(-1)

    def scores(self, actions: torch.Tensor) -> torch.Tensor:
        return (torch.arange(self.size, device=actions.device) == actions[:, None]).float()

    def divergence(self, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        logp = p.log_softmax(-1)
        return (logp.exp() * (logp - q.log_softmax(-1))).sum(-1)


class MaskedCategorical(Categorical):
    """One of ``n`` actions, of which some have the logit ``FORBIDDEN``: these are never drawn."""

    def sample(
        self, logits: np.ndarray, rng: np.random.Generator, deterministic: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        actions, logp = super().sample(logits, rng, deterministic)
        rows = np.flatnonzero(logp <= FORBIDDEN / 2)  # a draw of exactly zero, or beyond a sum that rounds below 1
        if len(rows):
            actions[rows] = logits[rows].argmax(-1)
            logp[rows] = _log_softmax(logits[rows]).max(-1)
        return actions, logp


class MultiCategorical(ChoiceHead):
    """Several independent choices: MultiDiscrete(nvec)."""

    def __init__(self, nvec: tuple[int, ...], part: type[Categorical] = Categorical) -> None:
        self.parts = [part(n) for n in nvec]
        self.sizes = list(nvec)
        self.size = sum(nvec)
        self.action_shape = (len(nvec),)
        self.action_dtype = np.dtype(np.int64)

    def sample(
        self, logits: np.ndarray, rng: np.random.Generator, deterministic: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        pieces = np.split(logits, np.cumsum(self.sizes)[:-1], axis=-1)
        drawn = [part.sample(piece, rng, deterministic) for part, piece in zip(self.parts, pieces)]
        return np.stack([a for a, _ in drawn], -1), np.sum([logp for _, logp in drawn], axis=0)

    def evaluate(self, logits: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pieces = zip(self.parts, torch.split(logits, self.sizes, -1), actions.unbind(-1))
        logps, entropies = zip(*(part.evaluate(piece, action) for part, piece, action in pieces))
        return torch.stack(logps).sum(0), torch.stack(entropies).sum(0)

    def scores(self, actions: torch.Tensor) -> torch.Tensor:
        return torch.cat([part.scores(action) for part, action in zip(self.parts, actions.unbind(-1))], -1)

    def divergence(self, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        pieces = zip(self.parts, torch.split(p, self.sizes, -1), torch.split(q, self.sizes, -1))
        return torch.stack([part.divergence(a, b) for part, a, b in pieces]).sum(0)


class Bernoulli(ChoiceHead):
    """Independent switches: MultiBinary(n)."""

    def __init__(self, n: int) -> None:
        self.size = n
        self.action_shape = (n,)
        self.action_dtype = np.dtype(np.int64)

    def sample(
        self, logits: np.ndarray, rng: np.random.Generator, deterministic: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        threshold = 0.5 if deterministic else rng.random(logits.shape, dtype=np.float32)
        actions = (threshold < 1 / (1 + np.exp(-logits))).astype(np.int64)
        return actions, -np.logaddexp(0, np.where(actions == 1, -logits, logits)).sum(-1)

    def evaluate(self, logits: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logp = -F.binary_cross_entropy_with_logits(logits, actions.to(logits.dtype), reduction="none").sum(-1)
        entropy = (F.softplus(-logits) + (1 - logits.sigmoid()) * logits).sum(-1)
        return logp, entropy

    def scores(self, actions: torch.Tensor) -> torch.Tensor:
        return 2.0 * actions - 1

    def divergence(self, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        on = p.sigmoid() * (F.logsigmoid(p) - F.logsigmoid(q))
        return (on + (-p).sigmoid() * (F.logsigmoid(-p) - F.logsigmoid(-q))).sum(-1)


class BoxHead:
    """Base of distributions over boxes, with ``PER_DIMENSION`` outputs for each dimension of an action."""

    PER_DIMENSION = 2

    def __init__(self, dim: int) -> None:
        self.size = self.PER_DIMENSION * dim
        self.dim = dim
        self.action_shape = (dim,)
        self.action_dtype = np.dtype(np.float32)

    def best(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs[:, : self.dim].tanh()

    def scores(self, actions: torch.Tensor) -> torch.Tensor:
        return actions


class DiagonalGaussian(BoxHead):
    """A Gaussian with a log-deviation per dimension; outputs are (mean, log-deviation) side by side."""

    def best(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs[:, : self.dim]

    def sample(
        self, outputs: np.ndarray, rng: np.random.Generator, deterministic: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        mean, log_std = outputs[:, : self.dim], outputs[:, self.dim :]
        if deterministic:
            return mean, -(log_std + np.float32(HALF_LOG_2PI)).sum(-1)
        noise = rng.standard_normal(mean.shape, dtype=np.float32)
        return mean + np.exp(log_std) * noise, -(0.5 * noise * noise + log_std + np.float32(HALF_LOG_2PI)).sum(-1)

    def evaluate(self, outputs: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = torch.split(outputs, self.dim, -1)
        z = (actions - mean) * (-log_std).exp()
        return -(0.5 * z * z + log_std + HALF_LOG_2PI).sum(-1), (log_std + 0.5 + HALF_LOG_2PI).sum(-1)

    def divergence(self, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        (p_mean, p_log_std), (q_mean, q_log_std) = torch.split(p, self.dim, -1), torch.split(q, self.dim, -1)
        scaled = ((2 * p_log_std).exp() + (p_mean - q_mean).square()) * (-2 * q_log_std).exp()
        return (q_log_std - p_log_std + 0.5 * scaled - 0.5).sum(-1)


class SquashedGaussian(BoxHead):
    """tanh of a Gaussian; outputs are (mean, log-deviation) side by side."""

    def sample(
        self, outputs: np.ndarray, rng: np.random.Generator, deterministic: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        mean, log_std = outputs[:, : self.dim], np.clip(outputs[:, self.dim :], LOWEST, HIGHEST)
        noise = np.float32(0) * mean if deterministic else rng.standard_normal(mean.shape, dtype=np.float32)
        u = mean + np.exp(log_std) * noise
        correction = 2 * (np.float32(LOG_2) - u - np.logaddexp(np.float32(0), -2 * u))
        return np.tanh(u), -(0.5 * noise * noise + log_std + np.float32(HALF_LOG_2PI) + correction).sum(-1)

    def evaluate(self, outputs: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Actions at the bounds have no density: they count as just inside. The entropy of a squashed Gaussian has no
        closed form; that of the Gaussian before squashing is no substitute, since it rises where this one falls."""
        mean, log_std = torch.split(outputs, self.dim, -1)
        log_std = log_std.clamp(LOWEST, HIGHEST)
        u = actions.clamp(-INSIDE, INSIDE).atanh()
        _, logp = squash(mean, log_std, (u - mean) * (-log_std).exp())
        return logp, None


class BoundedNormal(BoxHead):
    """The normal distribution of DreamerV3's actor (Hafner et al., 2023); outputs are (mean, deviation) side by side,
    both raw.

    The mean is a tanh, in (-1, 1), and the deviation is between ``MIN_STD`` and ``MAX_STD``. Samples are not squashed:
    they can lie outside of [-1, 1], where the environment and the world model take the nearest bound. Their
    log-probability is that of the sample as it was drawn, so it and the entropy are the normal distribution's own, in
    closed form.
    """

    def sample(
        self, outputs: np.ndarray, rng: np.random.Generator, deterministic: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        mean = np.tanh(outputs[:, : self.dim])
        share = 0.5 + 0.5 * np.tanh(0.5 * (outputs[:, self.dim :] + STD_SHIFT))  # a sigmoid that cannot overflow
        std = MIN_STD + (MAX_STD - MIN_STD) * share
        noise = np.zeros_like(mean) if deterministic else rng.standard_normal(mean.shape, dtype=np.float32)
        return mean + std * noise, -(0.5 * noise * noise + np.log(std) + np.float32(HALF_LOG_2PI)).sum(-1)

    def distribution(self, outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and standard deviation, each (..., A)."""
        mean, std = torch.split(outputs, self.dim, -1)
        return mean.tanh(), MIN_STD + (MAX_STD - MIN_STD) * (std + STD_SHIFT).sigmoid()

    def draw(self, outputs: torch.Tensor) -> torch.Tensor:
        """Samples (..., A) with torch's own random numbers, without a gradient."""
        mean, std = self.distribution(outputs.detach())
        return mean + std * torch.randn_like(mean)

    def evaluate(self, outputs: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, std = self.distribution(outputs)
        log_std, z = std.log(), (actions - mean) / std
        return -(0.5 * z * z + log_std + HALF_LOG_2PI).sum(-1), (log_std + 0.5 + HALF_LOG_2PI).sum(-1)


class Point(BoxHead):
    """One deterministic action, tanh of the outputs; in place of a log-probability, minus the mean squared error."""

    PER_DIMENSION = 1

    def sample(
        self, outputs: np.ndarray, rng: np.random.Generator, deterministic: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        return np.tanh(outputs), np.zeros(len(outputs), np.float32)

    def evaluate(self, outputs: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, None]:
        return -(outputs.tanh() - actions).square().mean(-1), None


Head = Categorical | MultiCategorical | Bernoulli | DiagonalGaussian  # with an entropy and a divergence
ClonedHead = Head | SquashedGaussian | Point  # of policies that only imitate


def squash(mean: torch.Tensor, log_std: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """tanh of a Gaussian sample, in (-1, 1), and its log-density summed over dimensions: (B, A), (B,).

    The log-derivative of tanh is written as 2 (log 2 - u - softplus(-2u)): exact and finite for any u.
    """
    u = mean + log_std.exp() * noise
    log_prob = -0.5 * noise.square() - log_std - HALF_LOG_2PI - 2 * (LOG_2 - u - F.softplus(-2 * u))
    return u.tanh(), log_prob.sum(-1)
