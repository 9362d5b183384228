"""DreamerV3 (Hafner et al., 2023): a world model learned from replay; actor and critic learned in imagination.

Where it leaves the paper: docs/dreamer.md.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from rl_training.algorithms.base import Acting, Learner, Tensors, UpdateResult, stream
from rl_training.base.devices import arrays_to_device, to_host
from rl_training.base.metrics import Metrics
from rl_training.base.saved import alike
from rl_training.models import kernels
from rl_training.models.dreamer import Actor, Critic, GreedyDreamer, WorldModel, chunked_mean
from rl_training.models.heads import BoundedNormal, Categorical
from rl_training.models.normalizer import ObservationNormalizer
from rl_training.models.rssm import Size, State, kl_divergence
from rl_training.optim.flat import FlatAdam, FlatLaProp, FlatOptimizer, Target, descend

__all__ = ["Dreamer", "ReturnScale", "kl_losses", "lambda_returns"]

FREE_NATS = 1.0  # of either KL loss, below which it has no gradient
DYNAMICS, REPRESENTATION, REPLAY_VALUE, SLOW_VALUE = 1.0, 0.1, 0.3, 1.0  # weights of losses
CHUNK = 1024  # imagined states that actor and critic learn from at a time
SCALE_RATE, LOW, HIGH = 0.01, 0.05, 0.95  # of the return range: rate of its moving average, quantiles


def kl_losses(posterior: torch.Tensor, prior: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Dynamics loss KL(sg(q) || p) and representation loss KL(q || sg(p)), each (...) and at least ``FREE_NATS``."""
    dynamics = kl_divergence(posterior.detach(), prior).clamp(min=FREE_NATS)
    representation = kl_divergence(posterior, prior.detach()).clamp(min=FREE_NATS)
    return dynamics, representation


def lambda_returns(
    rewards: torch.Tensor, discounts: torch.Tensor, values: torch.Tensor, lam: float, last: torch.Tensor | None = None
) -> torch.Tensor:
    """R_t = r_{t+1} + γ_{t+1} ((1 - λ) v_{t+1} + λ R_{t+1}) for t < T, from (T + 1, ...).

    R bootstraps from the value at the end, and wherever ``last`` marks the last observation of an episode.
    """
    returns, following = [], values[-1]
    for t in range(len(rewards) - 1, 0, -1):
        if last is not None:
            following = torch.where(last[t] > 0, values[t], following)
        following = rewards[t] + discounts[t] * ((1 - lam) * values[t] + lam * following)
        returns.append(following)
    return torch.stack(returns[::-1])


class ReturnScale:
    """The range between the 5th and the 95th percentile of returns, as a moving average; never less than one."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.low, self.high = torch.zeros((), device=device), torch.zeros((), device=device)
        self._levels = torch.tensor([LOW, HIGH], device=device)

    @torch.no_grad()
    def update(self, returns: torch.Tensor) -> torch.Tensor:
        low, high = torch.quantile(returns.flatten()[:1_000_000], self._levels)
        self.low.lerp_(low, SCALE_RATE)
        self.high.lerp_(high, SCALE_RATE)
        return (self.high - self.low).clamp(min=1)

    def state_dict(self) -> Tensors:
        return {"low": self.low, "high": self.high}

    def load_state_dict(self, state: Tensors) -> None:
        for name, bound in alike(state, self.state_dict()).items():
            getattr(self, name).copy_(bound)


class Dreamer(Learner):
    """World model, actor, critic and slow critic, learned from sequences (T, B, ...).

    A sequence has obs, actions (taken at them), rewards and dones (which arrived with them) and episode_starts.
    ``num_actions`` for choices, ``action_dim`` for boxes. ``carry`` is one row per environment: deterministic state,
    latents, last action; zeros, as at the start of an episode, when it is None.
    """

    CONTROLS, PARTS = ("entropy_coef",), ()  # no graphs of updates: ``use_compiled`` switches kernels on

    def __init__(
        self, *, obs_shape: tuple[int, ...], size: Size, num_actions: int | None = None, action_dim: int | None = None,
        world_model_learning_rate: float = 3e-4, actor_learning_rate: float = 1e-4, critic_learning_rate: float = 1e-4,
        gamma: float = 0.997, lam: float = 0.95, entropy_coef: float = 3e-4, slow_rate: float = 0.02,
        imagination_horizon: int = 15, imagination_batch_size: int | None = None,
        optimizer: Literal["adam", "laprop"] = "adam", max_grad_norm: float | None = 100.0,
        normalizer: ObservationNormalizer | None = None, device: torch.device | str = "cpu",
    ) -> None:  # fmt: skip
        inputs = num_actions if num_actions is not None else action_dim
        assert inputs is not None, "give num_actions or action_dim"
        self.head = Categorical(inputs) if num_actions is not None else BoundedNormal(inputs)
        self.world_model = WorldModel(obs_shape=obs_shape, action_dim=inputs, size=size).to(device)
        self.actor = Actor(self.world_model.width, size, self.head).to(device)
        self.critic = Critic(self.world_model.width, size).to(device)
        self.slow_critic = copy.deepcopy(self.critic)

        adam = partial(FlatAdam, eps=1e-5, max_grad_norm=max_grad_norm)
        make: Callable[..., FlatOptimizer] = FlatLaProp if optimizer == "laprop" else adam
        self.world_optimizer = make(self.world_model.parameters(), lr=world_model_learning_rate)
        self.actor_optimizer = make(self.actor.parameters(), lr=actor_learning_rate)
        self.critic_optimizer = make(self.critic.parameters(), lr=critic_learning_rate)
        self._slow = Target(self.critic, self.slow_critic, lambda module: module.parameters())
        self.scale, self.normalizer = ReturnScale(device), normalizer
        self._device, self._gamma, self._lam, self._entropy_coef = torch.device(device), gamma, lam, entropy_coef
        self._horizon, self._starts, self._slow_rate = imagination_horizon, imagination_batch_size, slow_rate
        self._sizes = (size.deter, self.world_model.rssm.flat, inputs)  # of a carry's parts
        self.COMPILE_THRESHOLD = 100 if kernels.fusible(self.world_model) else 10**12  # type: ignore[misc]

    def use_compiled(self, *, safe: bool = False) -> None:
        """Learn through our own kernels. A graph of the whole update would be unrolled over time, for minutes."""
        kernels.fuse(self.world_model)

    @property
    def compiled(self) -> bool:
        return any(module.fused and module.as_built for module in kernels.fusible(self.world_model))

    # ---- acting

    def initial_carry(self, n: int) -> np.ndarray:
        return np.zeros((n, sum(self._sizes)), np.float32)

    @torch.no_grad()
    def _act(self, obs: np.ndarray, carry: Any, deterministic: bool, rng: np.random.Generator | None) -> Acting:
        size, carry = self.world_model.rssm.size, self.initial_carry(len(obs)) if carry is None else carry
        drawn = [] if deterministic else [stream(rng).gumbel(size=(len(obs), size.latents, size.classes))]
        x, before, *noise = arrays_to_device(self._device, obs, carry, *(gumbel.astype(np.float32) for gumbel in drawn))
        deter, stoch, last_action = torch.split(before, list(self._sizes), -1)
        deter, logp = self.world_model.posterior(State(deter, stoch), last_action, x)
        state = State(deter, self.world_model.rssm.sample(logp, noise[0] if noise else None))
        outputs, *parts = to_host(self.actor(state.features), *state)
        actions, _ = self.head.sample(outputs, stream(rng), deterministic)
        if not self.actor.categorical:  # a sample outside of the bounds acts as the nearest bound
            actions = actions.clip(-1, 1)
        taken = self.actor.as_inputs(torch.from_numpy(np.ascontiguousarray(actions))).numpy()
        return Acting(actions, carry=np.concatenate([*parts, taken], -1))

    def policy_module(self) -> torch.nn.Module:
        return GreedyDreamer(self.world_model, self.actor, self._sizes)

    # ---- learning

    def update(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        """One gradient step of world model, actor and critic, which imagine from the world model's posterior states."""
        self._check_networks()
        world_loss, states, metrics = self._world_model_loss(batch)
        imagined = self._imagine(states)
        replay_loss, critic_replay_loss = self._replay_value_losses(batch, states, imagined)
        # first, since its graph takes most of the memory; what is imagined does not change by it
        descend((self.world_optimizer, world_loss + REPLAY_VALUE * replay_loss))
        metrics["dreamer_replay_value_loss"] = replay_loss
        return self._step_actor_critic(imagined, metrics, REPLAY_VALUE * critic_replay_loss)

    def update_world_model(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        self._check_networks()
        loss, _, metrics = self._world_model_loss(batch)
        descend((self.world_optimizer, loss))
        return _result(metrics)

    def update_actor_critic(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        """In imagination from the posterior states of these sequences, with the world model as it is."""
        self._check_networks()
        with torch.no_grad():
            states, _, _ = self.observe(batch)
        return self._step_actor_critic(self._imagine(states), {})

    def _step_actor_critic(self, imagined: Tensors, metrics: Tensors, extra: torch.Tensor | float = 0) -> UpdateResult:
        """A gradient step of the actor, of the critic, to whose loss ``extra`` is added, and of the slow critic."""
        actor_loss, actor_metrics = self._actor_loss(imagined)
        critic_loss = self._critic_loss(imagined)
        descend((self.actor_optimizer, actor_loss), (self.critic_optimizer, critic_loss + extra))
        with torch.no_grad():
            self._slow.flat.lerp_(self.critic_optimizer.flat, self._slow_rate)
        return _result({**metrics, **actor_metrics, "dreamer_critic_loss": critic_loss})

    def observe(self, batch: Tensors) -> tuple[State, torch.Tensor, torch.Tensor]:
        """Posterior states and log-posteriors of sequences, and the observations in the form that is reconstructed."""
        encoder, rssm, actions = self.world_model.encoder, self.world_model.rssm, self.actor.as_inputs(batch["actions"])
        previous_actions = torch.cat([torch.zeros_like(actions[:1]), actions[:-1]])
        target = encoder.target(batch["obs"] if self.normalizer is None else self.normalizer(batch["obs"]))
        noise, initial = rssm.noise(*actions.shape[:2]), rssm.initial(actions.shape[1])
        states, posterior = rssm.observe(encoder(target), previous_actions, batch["episode_starts"], initial, noise)
        return states, posterior, target

    def _world_model_loss(self, batch: Tensors) -> tuple[torch.Tensor, State, Tensors]:
        model = self.world_model
        states, posterior, target = self.observe(batch)
        features, discounts = states.features, (1 - batch["dones"]) * self._gamma

        dynamics, representation = (kl.mean() for kl in kl_losses(posterior, model.rssm.prior(states.deter)))
        reconstruction = model.decoder.loss(features, target)
        reward = model.reward_loss(features, batch["rewards"]).mean()
        continuation = model.continue_loss(features, discounts).mean()

        loss = reconstruction + reward + continuation + DYNAMICS * dynamics + REPRESENTATION * representation
        return loss, states, {
            "dreamer_world_model_loss": loss, "dreamer_reconstruction_loss": reconstruction,
            "dreamer_reward_loss": reward, "dreamer_continue_loss": continuation,
            "dreamer_dynamics_loss": dynamics, "dreamer_representation_loss": representation,
        }  # fmt: skip

    @torch.no_grad()
    def _imagine(self, states: State) -> Tensors:
        """Trajectories imagined from posterior states: (H + 1, N, ...), of which returns and weights have H steps."""
        model = self.world_model
        state = State(*(part.detach().flatten(0, 1) for part in states))
        if self._starts is not None and self._starts < len(state.deter):
            chosen = torch.randperm(len(state.deter), device=self._device)[: self._starts]
            state = State(*(part[chosen] for part in state))
        features, actions = [state.features], []
        for _ in range(self._horizon):
            actions.append(self.actor.sample(features[-1]))
            state = model.rssm.imagine(state, self.actor.as_inputs(actions[-1]))
            features.append(state.features)

        # step by step: the bins of all steps together would be the largest tensor in memory, and in no cache
        rewards = torch.stack([model.rewards(x) for x in features])
        discounts = torch.stack([model.continue_logits(x).sigmoid() for x in features])
        values = torch.stack([self.critic.values(x) for x in features])
        returns = lambda_returns(rewards, discounts, values, self._lam)
        # the probability of reaching a state, discounted from the first on
        weights = discounts.cumprod(0)[:-1] / self._gamma
        return {
            "features": torch.stack(features), "actions": torch.stack(actions), "rewards": rewards, "values": values,
            "returns": returns, "weights": weights,
        }  # fmt: skip

    def _actor_loss(self, imagined: Tensors) -> tuple[torch.Tensor, Tensors]:
        """REINFORCE on imagined actions, with advantages divided by the return range, and an entropy bonus."""
        scale = self.scale.update(imagined["returns"])
        advantages = ((imagined["returns"] - imagined["values"][:-1]) / scale).flatten()
        features, actions = imagined["features"][:-1].flatten(0, 1), imagined["actions"].flatten(0, 1)
        weights, entropies = imagined["weights"].flatten(), []

        def loss(x: torch.Tensor, rows: slice) -> torch.Tensor:
            logp, entropy = self.head.evaluate(self.actor(x), actions[rows])
            entropies.append(entropy.detach())
            return -weights[rows] * (logp * advantages[rows] + self._entropy_coef * entropy)

        actor_loss = chunked_mean(loss, CHUNK, features, *self.actor.parameters())
        return actor_loss, {
            "dreamer_actor_loss": actor_loss, "dreamer_entropy": torch.cat(entropies).mean(),
            "dreamer_imagination_horizon": torch.full((), float(self._horizon), device=self._device),
            "dreamer_imagination_reward_mean": imagined["rewards"][1:].mean(),
            "dreamer_return_mean": imagined["returns"].mean(), "dreamer_return_scale": scale,
        }  # fmt: skip

    def _critic_loss(self, imagined: Tensors) -> torch.Tensor:
        features = imagined["features"][:-1].flatten(0, 1)
        weights, returns = imagined["weights"].flatten(), imagined["returns"].flatten()

        def loss(x: torch.Tensor, rows: slice) -> torch.Tensor:
            return weights[rows] * self._value_loss(x, returns[rows])

        return chunked_mean(loss, CHUNK, features, *self.critic.parameters())

    def _value_loss(self, features: torch.Tensor, returns: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of the critic's bins to the returns, and to the slow critic's values, which regularises it."""
        logp, bins = self.critic(features).log_softmax(-1), self.critic.bins
        with torch.no_grad():
            slow_values = self.slow_critic.values(features)
        return bins.loss(logp, returns) + SLOW_VALUE * bins.loss(logp, slow_values)

    def _replay_value_losses(self, batch: Tensors, states: State, imagined: Tensors) -> tuple[torch.Tensor, ...]:
        """The critic's loss on replayed sequences: λ-returns of real rewards, which bootstrap from imagined returns.

        Two equal numbers: one with gradients through the states, for the world model, and one for the critic alone.
        """
        features, rewards, starts = states.features, batch["rewards"], batch["episode_starts"]
        with torch.no_grad():
            complete = imagined["returns"].shape[1] == rewards.numel()  # whether every state was imagined from
            values = imagined["returns"][0].view(rewards.shape) if complete else self.critic.values(features)
        last = torch.cat([starts[1:], torch.zeros_like(starts[:1])])  # before another episode's first observation
        returns = lambda_returns(rewards, (1 - batch["dones"]) * self._gamma, values, self._lam, last)
        weights = (1 - last)[:-1]

        def loss(features: torch.Tensor) -> torch.Tensor:
            return (weights * self._value_loss(features, returns)).sum() / weights.sum().clamp(min=1)

        return loss(features[:-1]), loss(features[:-1].detach())


def _result(metrics: Tensors) -> UpdateResult:
    return UpdateResult(Metrics(list(metrics), [metric.detach() for metric in metrics.values()]), 1)
