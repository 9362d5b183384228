"""DreamerV3 (Hafner et al., 2023): a world model learned from sequences, and an actor and a critic learned in what it imagines."""

from __future__ import annotations

import copy
import warnings
from typing import Any, Literal

import numpy as np
import torch
from torch.nn import functional as F

from rl_training.algorithms.base import Acting, Learner, Tensors, UpdateResult, stream
from rl_training.base.metrics import Metrics
from rl_training.models import kernels
from rl_training.models.dreamer import Actor, AtOnce, Critic, GreedyDreamer, WorldModel
from rl_training.models.heads import BoundedNormal, Categorical
from rl_training.models.normalizer import ObservationNormalizer
from rl_training.models.rssm import Size, State, divergence
from rl_training.optim.flat import FlatAdam, FlatLaProp, FlatOptimizer, Target, descend

FREE = 1.0  # nats of either divergence that cost nothing
DYNAMICS, REPRESENTATION, REPLAY_VALUE, SLOW_VALUE = 1.0, 0.1, 0.3, 1.0  # weights of losses
IMAGINED = 1024  # states that actor and critic learn from at a time
SCALE_RATE, LOW, HIGH = 0.01, 0.05, 0.95  # of the return's range


def balanced_divergence(posterior: torch.Tensor, prior: torch.Tensor, free: float = FREE) -> tuple[torch.Tensor, ...]:
    """The prior drawn to the posterior, and the other way round, each (...) and nothing below ``free``."""
    dynamics = divergence(posterior.detach(), prior).clamp(min=free)
    representation = divergence(posterior, prior.detach()).clamp(min=free)
    return dynamics, representation


def lambda_returns(
    rewards: torch.Tensor, goes_on: torch.Tensor, values: torch.Tensor, lam: float, ends: torch.Tensor | None = None
) -> torch.Tensor:
    """R_t = r_{t+1} + c_{t+1} ((1 - λ) v_{t+1} + λ R_{t+1}) for t < T, from (T + 1, ...); beyond the end, R is the value, and so it
    is at the last observation of an episode (``ends``), whatever comes after it."""
    result, following = [], values[-1]
    for t in range(len(rewards) - 1, 0, -1):
        if ends is not None:
            following = torch.where(ends[t] > 0, values[t], following)
        following = rewards[t] + goes_on[t] * ((1 - lam) * values[t] + lam * following)
        result.append(following)
    return torch.stack(result[::-1])


class ReturnScale:
    """The range between the 5th and the 95th percentile of returns, slowly followed; never less than one."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.low, self.high = torch.zeros((), device=device), torch.zeros((), device=device)

    @torch.no_grad()
    def update(self, returns: torch.Tensor) -> torch.Tensor:
        low, high = torch.quantile(returns.flatten()[:1_000_000], torch.tensor([LOW, HIGH], device=returns.device))
        self.low.lerp_(low, SCALE_RATE)
        self.high.lerp_(high, SCALE_RATE)
        return self.value

    @property
    def value(self) -> torch.Tensor:
        return (self.high - self.low).clamp(min=1)

    def state_dict(self) -> Tensors:
        return {"low": self.low, "high": self.high}

    def load_state_dict(self, state: Tensors) -> None:
        self.low.copy_(state["low"])
        self.high.copy_(state["high"])


class Dreamer(Learner):
    """Sequences are dicts of (T, B, ...): obs, actions (taken at them), rewards and dones (arrived with them), episode_starts.

    ``num_actions`` for choices, ``action_dim`` for boxes. ``carry`` is one row per environment: recurrent state, latents, last action;
    zeros, as at the start of an episode, when it is None.
    """

    CONTROLS = ("entropy_coef",)

    def __init__(
        self,
        *,
        obs_shape: tuple[int, ...],
        size: Size,
        num_actions: int | None = None,
        action_dim: int | None = None,
        world_model_learning_rate: float = 3e-4,
        actor_learning_rate: float = 1e-4,
        critic_learning_rate: float = 1e-4,
        gamma: float = 0.997,
        lam: float = 0.95,
        entropy_coef: float = 3e-4,
        imagination_horizon: int = 15,
        imagination_batch_size: int | None = None,
        slow_rate: float = 0.02,
        optimizer: Literal["adam", "laprop"] = "adam",
        max_grad_norm: float | None = 100.0,
        normalizer: ObservationNormalizer | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.normalizer = normalizer
        self._choices = num_actions
        self._actions = num_actions if num_actions is not None else action_dim
        assert self._actions is not None, "give num_actions or action_dim"
        self.head = Categorical(num_actions) if num_actions is not None else BoundedNormal(self._actions)
        self.world_model = WorldModel(obs_shape=obs_shape, action_dim=self._actions, size=size).to(device)
        width = self.world_model.width
        self.actor = Actor(width, size, self.head.size, num_actions is not None).to(device)
        self.critic = Critic(width, size).to(device)
        self.slow_critic = copy.deepcopy(self.critic)

        def made(module: torch.nn.Module, rate: float) -> FlatOptimizer:
            if optimizer == "laprop":
                return FlatLaProp(module.parameters(), lr=rate)
            return FlatAdam(module.parameters(), lr=rate, eps=1e-5, max_grad_norm=max_grad_norm)

        self.world_optimizer = made(self.world_model, world_model_learning_rate)
        self.actor_optimizer = made(self.actor, actor_learning_rate)
        self.critic_optimizer = made(self.critic, critic_learning_rate)
        self._slow = Target(self.critic, self.slow_critic, lambda module: module.parameters())
        self.scale = ReturnScale(device)
        self._device, self._gamma, self._lam, self._entropy_coef = torch.device(device), gamma, lam, entropy_coef
        self._horizon, self._starts, self._slow_rate = imagination_horizon, imagination_batch_size, slow_rate
        self._sizes = (size.deter, self.world_model.rssm.flat, self._actions)
        self.COMPILE_THRESHOLD = 100 if self._fusible() else 10**12  # type: ignore[misc]

    def use_compiled(self, *, safe: bool = False) -> None:
        """Updates stay eager, since as a graph they would be unrolled over time and take minutes to compile; what is compiled are
        kernels of our own, for pictures on their way through the convolutions and for the recurrence."""
        parts = self._fusible()
        if parts and (obstacle := kernels.cannot_build(parts)):
            warnings.warn(f"updates run eagerly: compiling failed ({obstacle})", stacklevel=2)
            return
        for part in parts:
            part.fused = True

    @property
    def compiled(self) -> bool:
        return any(part.fused for part in self._fusible())

    def _fusible(self) -> list[kernels.Fusible]:
        """The parts that have a kernel of our own here."""
        on_cpu = self._device.type == "cpu"
        return [part for part in self.world_model.modules() if isinstance(part, kernels.Fusible) and on_cpu]

    # ---- acting

    def initial_carry(self, n: int) -> np.ndarray:
        return np.zeros((n, sum(self._sizes)), np.float32)

    @torch.no_grad()
    def _act(self, obs: np.ndarray, carry: Any, deterministic: bool, rng: np.random.Generator | None) -> Acting:
        model, rssm = self.world_model, self.world_model.rssm
        held = torch.from_numpy(self.initial_carry(len(obs)) if carry is None else carry).to(self._device)
        deter, stoch, last = held.split(self._sizes, -1)
        deter, logp = model.believe(State(deter, stoch), last, torch.from_numpy(obs).to(self._device))
        noise = None
        if not deterministic:
            noise = torch.from_numpy(stream(rng).gumbel(size=tuple(logp.shape)).astype(np.float32)).to(self._device)
        stoch = rssm.draw(logp, noise)
        outputs = self.actor(torch.cat([deter, stoch], -1)).cpu().numpy()
        actions, _ = self.head.sample(outputs, stream(rng), deterministic)
        if (
            self._choices is None
        ):  # a sample of the normal distribution may lie outside; what counts is the nearest bound
            actions = actions.clip(-1, 1)
        taken = self.as_inputs(torch.from_numpy(np.ascontiguousarray(actions)).to(self._device))
        return Acting(actions, carry=torch.cat([deter, stoch, taken], -1).cpu().numpy())

    def policy_module(self) -> torch.nn.Module:
        world_model = copy.deepcopy(self.world_model)
        for unused in ("decoder", "reward", "goes_on", "bins"):
            delattr(world_model, unused)
        del world_model.rssm.prior_net
        for part in world_model.modules():
            if isinstance(part, kernels.Fusible):
                part.fused = False
        return GreedyDreamer(world_model, self.actor, self.head, self._sizes)

    def as_inputs(self, actions: torch.Tensor) -> torch.Tensor:
        """Actions as the world model takes them: one-hot, or within the bounds of a box."""
        if self._choices is None:
            return actions.float().clamp(-1, 1)
        return F.one_hot(actions.long(), self._choices).float()

    # ---- learning

    def update(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        """One step of everything: the world model, and actor and critic from all it went through."""
        self._check_networks()
        world, states, metrics = self._world_loss(batch)
        imagined = self._imagine(states)
        replayed, replayed_alone = self._replay_value_losses(batch, states, imagined)
        # first, for it takes most of the memory; what actor and critic learn from is imagined already
        descend((self.world_optimizer, world + REPLAY_VALUE * replayed))
        actor, critic, more = self._behaviour_losses(imagined)
        descend((self.actor_optimizer, actor), (self.critic_optimizer, critic + REPLAY_VALUE * replayed_alone))
        self._follow()
        return UpdateResult(_metrics({**metrics, **more, "dreamer_replay_value_loss": replayed}), 1)

    def update_world_model(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        self._check_networks()
        world, _, metrics = self._world_loss(batch)
        descend((self.world_optimizer, world))
        return UpdateResult(_metrics(metrics), 1)

    def update_actor_critic(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        """From the states that the world model, as it is, finds in these sequences."""
        self._check_networks()
        with torch.no_grad():
            states, _, _ = self._observed(batch)
        actor, critic, metrics = self._behaviour_losses(self._imagine(states))
        descend((self.actor_optimizer, actor), (self.critic_optimizer, critic))
        self._follow()
        return UpdateResult(_metrics(metrics), 1)

    @torch.no_grad()
    def _follow(self) -> None:
        self._slow.flat.lerp_(self.critic_optimizer.flat, self._slow_rate)

    def target(self, obs: torch.Tensor) -> torch.Tensor:
        """Observations as the world model learns them."""
        return self.world_model.encoder.target(obs if self.normalizer is None else self.normalizer(obs))

    def _observed(self, batch: Tensors) -> tuple[State, torch.Tensor, torch.Tensor]:
        """States, posteriors, and what was to be reconstructed."""
        model, actions = self.world_model, self.as_inputs(batch["actions"])
        before = torch.cat([torch.zeros_like(actions[:1]), actions[:-1]])
        target = self.target(batch["obs"])
        length, n = actions.shape[:2]
        noise = model.rssm.noise(length, n)
        starts = batch["episode_starts"]
        states, logp = model.rssm.observe(model.encoder(target), before, starts, model.rssm.initial(n), noise)
        return states, logp, target

    def _world_loss(self, batch: Tensors) -> tuple[torch.Tensor, State, Tensors]:
        model = self.world_model
        states, posterior, target = self._observed(batch)
        features = model.features(states)
        dynamics, representation = balanced_divergence(posterior, model.rssm.prior(states.deter))
        reconstruction = model.decoder.loss(features, target)
        reward = model.bins.loss(model.reward(features).log_softmax(-1), batch["rewards"])
        lasting = (1 - batch["dones"]) * self._gamma
        goes_on = F.binary_cross_entropy_with_logits(model.goes_on(features).squeeze(-1), lasting, reduction="none")
        parts = {
            "dreamer_reconstruction_loss": reconstruction,
            "dreamer_reward_loss": reward.mean(),
            "dreamer_continue_loss": goes_on.mean(),
            "dreamer_dynamics_loss": dynamics.mean(),
            "dreamer_representation_loss": representation.mean(),
        }
        weights = (1.0, 1.0, 1.0, DYNAMICS, REPRESENTATION)
        total = sum((w * part for w, part in zip(weights, parts.values())), torch.zeros((), device=self._device))
        return total, states, {"dreamer_world_model_loss": total, **parts}

    @torch.no_grad()
    def _imagine(self, states: State) -> Tensors:
        """What follows from observed states: features, actions, rewards, continuation and values, (H + 1, N, ...)."""
        model, rssm = self.world_model, self.world_model.rssm
        deter, stoch = (part.detach().flatten(0, 1) for part in states)
        if self._starts is not None and self._starts < len(deter):
            chosen = torch.randperm(len(deter), device=self._device)[: self._starts]
            deter, stoch = deter[chosen], stoch[chosen]
        features, actions = [torch.cat([deter, stoch], -1)], []
        for _ in range(self._horizon):
            action, taken = self._sampled(self.actor(features[-1]))
            actions.append(action)
            deter = rssm.recur(State(deter, stoch), rssm.embed(taken))
            stoch = rssm.draw(rssm.prior(deter), rssm.noise(len(deter)))
            features.append(torch.cat([deter, stoch], -1))
        # step by step: the bins of all at once would be the largest thing in memory, and in no cache
        rewards = torch.stack([model.bins.mean(model.reward(x)) for x in features])
        goes_on = torch.stack([model.goes_on(x).squeeze(-1).sigmoid() for x in features])
        values = torch.stack([self.critic.values(x) for x in features])
        returns = lambda_returns(rewards, goes_on, values, self._lam)
        # the chance of ever getting there; of the discount, the first state has none
        weights = goes_on.cumprod(0)[:-1] / self._gamma
        return {
            "features": torch.stack(features), "actions": torch.stack(actions), "rewards": rewards, "values": values, "returns": returns,
            "weights": weights,
        }  # fmt: skip

    def _sampled(self, outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Actions as they were drawn, for their log-probability, and as the model takes them."""
        if isinstance(self.head, Categorical):
            action = torch.multinomial(outputs.exp(), 1).squeeze(-1)
        else:
            action = self.head.draw(outputs)
        return action, self.as_inputs(action)

    def _behaviour_losses(self, imagined: Tensors) -> tuple[torch.Tensor, torch.Tensor, Tensors]:
        features, returns, weights = imagined["features"][:-1], imagined["returns"], imagined["weights"]
        scale = self.scale.update(returns)
        advantages = (returns - imagined["values"][:-1]) / scale
        rows, actions = features.flatten(0, 1), imagined["actions"].flatten(0, 1)
        returns, weights, advantages = returns.flatten(), weights.flatten(), advantages.flatten()
        entropies = []

        def acting(x: torch.Tensor, place: slice) -> torch.Tensor:
            logp, entropy = self.head.evaluate(self.actor(x), actions[place])
            entropies.append(entropy.detach())
            return -weights[place] * (logp * advantages[place] + self._entropy_coef * entropy)

        def valuing(x: torch.Tensor, place: slice) -> torch.Tensor:
            return weights[place] * self._value_loss(x, returns[place])

        actor = AtOnce.apply(acting, IMAGINED, rows, *self.actor.parameters())
        critic = AtOnce.apply(valuing, IMAGINED, rows, *self.critic.parameters())
        metrics = {
            "dreamer_actor_loss": actor,
            "dreamer_critic_loss": critic,
            "dreamer_imagination_horizon": torch.tensor(float(self._horizon), device=self._device),
            "dreamer_imagination_reward_mean": imagined["rewards"][1:].mean(),
            "dreamer_return_mean": returns.mean(),
            "dreamer_return_scale": scale,
            "dreamer_entropy": torch.cat(entropies).mean(),
        }
        return actor, critic, metrics

    def _value_loss(self, features: torch.Tensor, returns: torch.Tensor) -> torch.Tensor:
        """Cross-entropy to the returns, and to what the slow critic says."""
        logp, bins = self.critic(features).log_softmax(-1), self.critic.bins
        with torch.no_grad():
            slow = self.slow_critic.values(features)
        return bins.loss(logp, returns) + SLOW_VALUE * bins.loss(logp, slow)

    def _replay_value_losses(
        self, batch: Tensors, states: State, imagined: Tensors
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The critic on what was lived through: real rewards, and imagined returns beyond them; once for the world model, which it
        shapes too, and once for the critic alone."""
        shape = batch["rewards"].shape
        if self._starts is not None and imagined["returns"].shape[1] < batch["rewards"].numel():
            with torch.no_grad():
                beyond = self.critic.values(WorldModel.features(states))
        else:
            beyond = imagined["returns"][0].view(shape)
        starts = batch["episode_starts"]
        ends = torch.cat([starts[1:], torch.zeros_like(starts[:1])])  # what follows is another episode
        goes_on = (1 - batch["dones"]) * self._gamma
        returns = lambda_returns(batch["rewards"], goes_on, beyond, self._lam, ends)
        weights = (1 - ends)[:-1]
        features = WorldModel.features(states)[:-1]

        def loss(seen: torch.Tensor) -> torch.Tensor:
            return (weights * self._value_loss(seen, returns)).sum() / weights.sum().clamp(min=1)

        return loss(features), loss(features.detach())


def _metrics(terms: Tensors) -> Metrics:
    return Metrics(list(terms), [term.detach() for term in terms.values()])
