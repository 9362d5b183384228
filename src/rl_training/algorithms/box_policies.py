"""Acting in the box [-1, 1]: policies as functions of arrays while a run acts, and as modules that can be exported.

Each class reads the outputs of one kind of actor. Networks of a few layers act in numpy; a model whose methods are
overridden acts by those methods, so that what acts is what is learned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from torch import nn

from rl_training.algorithms.base import Greedy, stream
from rl_training.models.heads import HIGHEST, LOWEST
from rl_training.models.host import (
    MOST_ROWS,
    HostFunction,
    numpy_layers,
    overridden,
    redefined,
    through,
    with_arrays,
)
from rl_training.models.mlp_sac import NARROWEST, MLPSACModel

__all__ = ["BoundedGaussianPolicy", "BoxPolicy", "DeterministicPolicy", "SquashedPolicy"]

Gaussian = tuple[np.ndarray, np.ndarray | None]  # mean and log-deviation, (N, A) each; None: no noise
Reader = Callable[[np.ndarray], Gaussian]


class BoxPolicy:
    """A policy by a model's ``actor``. A subclass reads mean and deviation off its outputs, and bounds the sample."""

    REPLACED: ClassVar[tuple[str, ...]] = ()  # methods of the model that numpy stands in for

    def __init__(self, model: Any) -> None:
        self._model = model
        self._gaussian = HostFunction(model, self._numpy_form, self._torch_form)

    @classmethod
    def _reader(cls, model: Any) -> Reader | None:
        """A function from the actor's outputs to mean and log-deviation; None for a model that needs torch for it."""
        raise NotImplementedError

    @staticmethod
    def _torch_form(model: Any, obs: np.ndarray) -> Gaussian:
        mean, log_std = with_arrays(model, model.policy, obs)
        return mean, log_std

    @classmethod
    def _numpy_form(cls, model: Any) -> Reader | None:
        layers = None if overridden(model, *cls.REPLACED) else numpy_layers(model.actor)
        read = None if layers is None else cls._reader(model)
        if layers is None or read is None:
            return None
        return lambda obs: cls._torch_form(model, obs) if len(obs) > MOST_ROWS else read(through(layers, obs))

    @property
    def in_numpy(self) -> bool:
        """Whether, as the model is now, numpy acts."""
        return self._gaussian.in_numpy

    def actions(self, obs: np.ndarray, deterministic: bool, rng: np.random.Generator | None) -> np.ndarray:
        """Actions (N, A) for observations (N, ...)."""
        mean, log_std = self._gaussian(obs)
        if not deterministic and log_std is not None:
            mean = mean + np.exp(log_std) * stream(rng).standard_normal(mean.shape, dtype=np.float32)
        return self._bounded(mean)

    def _bounded(self, sample: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def module(self) -> nn.Module:
        """Acting without noise: observations (B, ...) to actions (B, A)."""
        raise NotImplementedError


class SquashedPolicy(BoxPolicy):
    """A tanh of a Gaussian: SAC's policy. A model's own ``sample_actions``, which is what is learned, also acts."""

    REPLACED = ("policy", "sample_actions")

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.own_sampling = not isinstance(model, MLPSACModel) or redefined(model, "sample_actions")
        self._action_dim: int | None = None

    @classmethod
    def _reader(cls, model: Any) -> Reader:
        def read(outputs: np.ndarray) -> Gaussian:
            mean, log_std = np.split(outputs, 2, axis=-1)
            return mean, np.clip(log_std, LOWEST, HIGHEST)

        return read

    def actions(self, obs: np.ndarray, deterministic: bool, rng: np.random.Generator | None) -> np.ndarray:
        return self._sampled(obs, deterministic, rng) if self.own_sampling else super().actions(obs, deterministic, rng)

    def _sampled(self, obs: np.ndarray, deterministic: bool, rng: np.random.Generator | None) -> np.ndarray:
        """Actions of a model that says itself how it draws them."""
        sample: Callable[..., Any] = self._model.sample_actions
        if deterministic or self._action_dim is None:
            best: np.ndarray = with_arrays(self._model, lambda x: sample(x, deterministic=True).actions, obs)
            self._action_dim = best.shape[-1]
            if deterministic:
                return best
        noise = stream(rng).standard_normal((len(obs), self._action_dim), dtype=np.float32)
        drawn: np.ndarray = with_arrays(self._model, lambda x, z: sample(x, noise=z).actions, obs, noise)
        return drawn

    def _bounded(self, sample: np.ndarray) -> np.ndarray:
        squashed: np.ndarray = np.tanh(sample)
        return squashed

    def module(self) -> nn.Module:
        if self.own_sampling:
            return Greedy(self._model, lambda model, obs: model.sample_actions(obs, deterministic=True).actions)
        if overridden(self._model, "policy"):
            return Greedy(self._model, lambda model, obs: model.policy(obs)[0].tanh())
        return Greedy(self._model.actor, lambda actor, obs: actor(obs).chunk(2, -1)[0].tanh())


class BoundedGaussianPolicy(BoxPolicy):
    """A Gaussian whose mean is a tanh and whose deviation is a parameter, clipped to the box: IQL's policy."""

    REPLACED = ("policy", "actions", "policy_log_std")

    @classmethod
    def _reader(cls, model: Any) -> Reader | None:
        if model.log_std is not model._parameters.get("log_std"):
            return None
        log_std = model.log_std.detach().numpy()
        return lambda outputs: (np.tanh(outputs), np.clip(log_std, NARROWEST, HIGHEST))

    def _bounded(self, sample: np.ndarray) -> np.ndarray:
        clipped: np.ndarray = np.clip(sample, -1, 1)
        return clipped

    def module(self) -> nn.Module:
        if overridden(self._model, "policy", "actions"):
            return Greedy(self._model, lambda model, obs: model.policy(obs)[0].clamp(-1, 1))
        return Greedy(self._model.actor, lambda actor, obs: actor(obs).tanh())


class DeterministicPolicy(BoxPolicy):
    """A tanh of the actor's outputs, without noise: TD3+BC's policy."""

    REPLACED = ("actions",)

    @staticmethod
    def _torch_form(model: Any, obs: np.ndarray) -> Gaussian:
        return with_arrays(model, model.actions, obs), None

    @classmethod
    def _reader(cls, model: Any) -> Reader:
        return lambda outputs: (np.tanh(outputs), None)

    def _bounded(self, sample: np.ndarray) -> np.ndarray:
        return sample  # by the tanh already

    def module(self) -> nn.Module:
        if overridden(self._model, "actions"):
            return Greedy(self._model, lambda model, obs: model.actions(obs))
        return Greedy(self._model.actor, lambda actor, obs: actor(obs).tanh())
