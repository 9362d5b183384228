"""DreamerV3 (Hafner et al., 2023, arXiv:2301.04104) once more: loops over time, distributions of torch, gradients of autograd.

It gets copies of the networks for their weights alone, and computes every layer itself. Random numbers are torch's, drawn in the
learner's order and shape: latents of the sequences, the states to imagine from, then at each imagined step the action and the latents.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical, Independent, Normal, kl_divergence
from torch.nn import functional as F

from oracles.world_model import Weights, WorldModelNetworks, cross_entropy, expected, head, mixed, symlog


def returns_by_recursion(rewards: Any, discounts: Any, values: Any, lam: float, t: int, last: Any = None) -> Any:
    """R_t = r_{t+1} + γ_{t+1} ((1 - λ) v_{t+1} + λ R_{t+1}); R is v at the end of the sequence and of an episode."""
    ahead = values[t + 1]
    if t + 2 < len(rewards):
        ahead = returns_by_recursion(rewards, discounts, values, lam, t + 1, last)
    if last is not None:
        ahead = torch.where(last[t + 1] == 1, values[t + 1], ahead)
    return rewards[t + 1] + discounts[t + 1] * ((1 - lam) * values[t + 1] + lam * ahead)


def detached(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: float(torch.as_tensor(value).detach()) for name, value in metrics.items()}


class LaProp:
    """LaProp (Ziyin et al., 2020) behind adaptive clipping (Brock et al., 2021) of every parameter's gradient to 0.3 of the parameter."""

    def __init__(self, parameters: Any, lr: float) -> None:
        self.parameters, self.lr, self.t = list(parameters), lr, 0
        self.squares, self.means = ([torch.zeros_like(p) for p in self.parameters] for _ in range(2))

    def step(self) -> None:
        self.t += 1
        for p, square, mean in zip(self.parameters, self.squares, self.means):
            most = 0.3 * max(float(p.detach().norm()), 1e-3)
            g = p.grad * min(1.0, most / (float(p.grad.norm()) + 1e-12))
            square.copy_(0.999 * square + 0.001 * g**2)
            mean.copy_(0.9 * mean + 0.1 * g / ((square / (1 - 0.999**self.t)).sqrt() + 1e-20))
            p.data -= self.lr * mean / (1 - 0.9**self.t)


class DreamerReference(WorldModelNetworks):
    """World model, actor and critic with the learner's initial weights."""

    def __init__(self, learner: Any, *, blocks: int, latents: int, options: dict[str, Any]) -> None:
        self.modules: dict[str, nn.Module] = {
            name: copy.deepcopy(getattr(learner, name)) for name in ("world_model", "actor", "critic", "slow_critic")
        }
        self.w, self.actor, self.critic, self.slow = (dict(m.named_parameters()) for m in self.modules.values())
        self.blocks, self.latents, self.o = blocks, latents, options
        self.discrete = options.get("num_actions") is not None
        self.low, self.high = float(learner.scale.low), float(learner.scale.high)
        rates = {"world_model": 3e-4, "actor": 1e-4, "critic": 1e-4}
        for name in rates:
            rates[name] = options.get(f"{name}_learning_rate", rates[name])
        parameters = {name: list(self.modules[name].parameters()) for name in rates}
        self.optimizers: dict[str, Any] = {
            name: LaProp(parameters[name], lr)
            if options.get("optimizer") == "laprop"
            else torch.optim.Adam(parameters[name], lr, eps=1e-5)
            for name, lr in rates.items()
        }
        self.gamma, self.lam = options.get("gamma", 0.997), options.get("lam", 0.95)

    # ---- policy

    def policy(self, features: torch.Tensor) -> Any:
        outputs = head(self.actor, "net", 3, features)
        if self.discrete:
            return mixed(outputs)
        mean, std = outputs.chunk(2, -1)
        return Independent(Normal(mean.tanh(), 0.1 + 0.9 * (std + 2).sigmoid()), 1)

    def as_input(self, actions: torch.Tensor) -> torch.Tensor:
        if self.discrete:
            return F.one_hot(actions, self.o["num_actions"]).to(torch.get_default_dtype())
        return actions.clamp(-1, 1)

    def targets(self, obs: torch.Tensor) -> torch.Tensor:
        if obs.dtype == torch.uint8:
            return obs.to(torch.get_default_dtype())
        if "mean_and_std" in self.o:
            mean, std = self.o["mean_and_std"]
            obs = ((obs - mean) / std).clamp(-10, 10)
        return symlog(obs)

    # ---- losses

    def observe(self, batch: Weights) -> tuple[torch.Tensor, torch.Tensor, list[Categorical], list[Categorical]]:
        """Features (T, B, ...) and targets of a sequence, with its posteriors and priors."""
        length, n = batch["rewards"].shape
        noise = self.gumbel(length, n)
        h, z = torch.zeros(n, self.w["rssm.inner_norm.bias"].numel()), torch.zeros(n, noise[0, 0].numel())
        actions = self.as_input(batch["actions"])
        before = torch.zeros_like(actions[0])
        features, posteriors, priors = [], [], []
        target = self.targets(batch["obs"])
        for t in range(length):
            keep = (batch["episode_starts"][t] == 0)[:, None]
            h = self.recur(h * keep, z * keep, before * keep)
            posteriors.append(self.posterior(h, self.encode(target[t])))
            priors.append(self.prior(h))
            z, before = self.latent(posteriors[-1], noise[t]), actions[t]
            features.append(torch.cat([h, z], -1))
        return torch.stack(features), target, posteriors, priors

    def world_model_loss(self, batch: Weights) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        features, target, posteriors, priors = self.observe(batch)
        sums: dict[str, list[torch.Tensor]] = {
            name: [] for name in ("reconstruction", "reward", "continue", "dynamics", "representation")
        }
        for t, (x, q, p) in enumerate(zip(features, posteriors, priors)):
            goes_on = head(self.w, "goes_on", 1, x)[:, 0].sigmoid()
            discount = self.gamma * (1 - batch["dones"][t])
            stopped_q, stopped_p = Categorical(probs=q.probs.detach()), Categorical(probs=p.probs.detach())
            sums["reconstruction"].append(self.reconstruction_error(x, target[t]))
            sums["reward"].append(cross_entropy(head(self.w, "reward", 1, x), batch["rewards"][t]))
            sums["continue"].append(-discount * goes_on.log() - (1 - discount) * (1 - goes_on).log())
            sums["dynamics"].append(kl_divergence(stopped_q, p).sum(-1).clamp(min=1))
            sums["representation"].append(kl_divergence(q, stopped_p).sum(-1).clamp(min=1))
        terms = {name: torch.stack(parts).mean() for name, parts in sums.items()}
        loss = sum(terms.values()) - 0.9 * terms["representation"]
        return loss, features, {f"dreamer_{name}_loss": term for name, term in {**terms, "world_model": loss}.items()}

    @torch.no_grad()
    def imagine(self, features: torch.Tensor) -> dict[str, torch.Tensor]:
        x = features.flatten(0, 1)
        few = self.o.get("imagination_batch_size")
        if few is not None and few < len(x):
            x = x[torch.randperm(len(x))[:few]]
        states, actions, width = [x], [], self.w["rssm.inner_norm.bias"].numel()
        for _ in range(self.o["imagination_horizon"]):
            pi = self.policy(x)
            if self.discrete:
                actions.append(torch.multinomial(pi.probs, 1)[:, 0])
            else:
                actions.append(pi.base_dist.loc + pi.base_dist.scale * torch.randn_like(pi.base_dist.loc))
            h = self.recur(x[:, :width], x[:, width:], self.as_input(actions[-1]))
            x = torch.cat([h, self.latent(self.prior(h), self.gumbel(len(h)))], -1)
            states.append(x)
        rewards = [expected(head(self.w, "reward", 1, x)) for x in states]
        discounts = [head(self.w, "goes_on", 1, x)[:, 0].sigmoid() for x in states]
        values = [expected(head(self.critic, "net", 3, x)) for x in states]
        returns = [returns_by_recursion(rewards, discounts, values, self.lam, t) for t in range(len(actions))]
        weights = [math.prod(discounts[: t + 1]) / self.gamma for t in range(len(actions))]  # type: ignore[arg-type]
        names = ("states", "actions", "returns", "weights", "values", "rewards")
        return dict(zip(names, map(torch.stack, (states, actions, returns, weights, values, rewards))))

    def value_loss(self, features: torch.Tensor, returns: torch.Tensor) -> torch.Tensor:
        logits = head(self.critic, "net", 3, features)
        slow = expected(head(self.slow, "net", 3, features))
        return cross_entropy(logits, returns) + cross_entropy(logits, slow)

    def actor_and_critic_losses(self, imagined: dict[str, torch.Tensor]) -> tuple[Any, Any, dict[str, Any]]:
        returns, weights = imagined["returns"], imagined["weights"]
        low, high = np.percentile(returns.numpy(), [5, 95])
        self.low, self.high = 0.99 * self.low + 0.01 * low, 0.99 * self.high + 0.01 * high
        scale = max(1.0, self.high - self.low)
        actor, critic, entropies = [], [], []
        for t, x in enumerate(imagined["states"][:-1]):
            pi = self.policy(x)
            advantage = (returns[t] - imagined["values"][t]) / scale
            entropies.append(pi.entropy())
            bonus = self.o.get("entropy_coef", 3e-4) * pi.entropy()
            actor.append(-weights[t] * (advantage * pi.log_prob(imagined["actions"][t]) + bonus))
            critic.append(weights[t] * self.value_loss(x, returns[t]))
        losses = torch.stack(actor).mean(), torch.stack(critic).mean()
        horizon, rewards = len(returns), imagined["rewards"][1:].mean()
        return *losses, {
            "dreamer_actor_loss": losses[0], "dreamer_critic_loss": losses[1], "dreamer_return_scale": scale,
            "dreamer_entropy": torch.stack(entropies).mean(), "dreamer_return_mean": returns.mean(),
            "dreamer_imagination_horizon": horizon, "dreamer_imagination_reward_mean": rewards,
        }  # fmt: skip

    def replay_value_loss(
        self, batch: Weights, features: torch.Tensor, imagined: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """From the rewards of the sequence, up to each episode's last observation, which has no return of its own."""
        length, n = batch["rewards"].shape
        values = expected(head(self.critic, "net", 3, features)).detach()
        if imagined["returns"].shape[1] == length * n:
            values = imagined["returns"][0].view(length, n)
        last = torch.cat([batch["episode_starts"][1:], torch.zeros(1, n)])
        discounts = self.gamma * (1 - batch["dones"])
        returns = [
            returns_by_recursion(batch["rewards"], discounts, values, self.lam, t, last) for t in range(length - 1)
        ]
        losses = [self.value_loss(features[t], returns[t])[last[t] == 0] for t in range(length - 1)]
        return torch.cat(losses).mean()

    # ---- acting

    @torch.no_grad()
    def act(self, obs: np.ndarray, carry: np.ndarray, rng: np.random.Generator | None) -> tuple[np.ndarray, np.ndarray]:
        """Actions and the next carry (state, latents, action) of one step; without ``rng``, the most probable of everything.

        ``rng`` draws Gumbel noise for the latents, then a uniform number for each choice or a normal one for each entry of a box.
        """
        width, flat = self.w["rssm.inner_norm.bias"].numel(), self.w["rssm.prior_net.2.bias"].numel()
        h, z, before = torch.from_numpy(carry).split([width, flat, carry.shape[1] - width - flat], -1)
        h = self.recur(h, z, before)
        q = self.posterior(h, self.encode(self.targets(torch.from_numpy(obs))))
        noise = np.zeros(q.probs.shape) if rng is None else rng.gumbel(size=q.probs.shape)
        z = self.latent(q, torch.from_numpy(noise))
        pi = self.policy(torch.cat([h, z], -1))
        if self.discrete:
            uniform = None if rng is None else rng.random((len(obs), 1), dtype=np.float32)
            chosen = [int(p.argmax()) for p in pi.probs]
            if uniform is not None:
                chosen = [next(k for k in range(len(p)) if p[: k + 1].sum() >= u[0]) for p, u in zip(pi.probs, uniform)]
            actions = np.array(chosen)
        else:
            mean, std = pi.base_dist.loc.numpy(), pi.base_dist.scale.numpy()
            noise = 0 if rng is None else rng.standard_normal(mean.shape, dtype=np.float32)
            actions = np.clip(mean + std * noise, -1, 1)
        return actions, torch.cat([h, z, self.as_input(torch.from_numpy(actions))], -1).numpy()

    # ---- updates

    def step(self, **losses: torch.Tensor) -> None:
        gradients = {}
        for name, loss in losses.items():
            parameters = list(self.modules[name].parameters())
            gradients[name] = torch.autograd.grad(loss, parameters, retain_graph=True)
        for name in losses:
            parameters = list(self.modules[name].parameters())
            for p, g in zip(parameters, gradients[name]):
                p.grad = g
            most = self.o.get("max_grad_norm", 100.0)
            if most is not None and self.o.get("optimizer") != "laprop":
                nn.utils.clip_grad_norm_(parameters, most)
            self.optimizers[name].step()

    def follow(self) -> None:
        rate = self.o.get("slow_rate", 0.02)
        for name, slow in self.slow.items():
            slow.data.copy_((1 - rate) * slow.data + rate * self.critic[name].data)

    def update(self, batch: Weights) -> dict[str, float]:
        world, features, metrics = self.world_model_loss(batch)
        imagined = self.imagine(features.detach())
        replay = self.replay_value_loss(batch, features, imagined)
        alone = self.replay_value_loss(batch, features.detach(), imagined)
        actor, critic, more = self.actor_and_critic_losses(imagined)
        self.step(world_model=world + 0.3 * replay, actor=actor, critic=critic + 0.3 * alone)
        self.follow()
        return detached({**metrics, **more, "dreamer_replay_value_loss": replay})

    def update_world_model(self, batch: Weights) -> dict[str, float]:
        loss, _, metrics = self.world_model_loss(batch)
        self.step(world_model=loss)
        return detached(metrics)

    def update_actor_critic(self, batch: Weights) -> dict[str, float]:
        with torch.no_grad():
            features, *_ = self.observe(batch)
        actor, critic, metrics = self.actor_and_critic_losses(self.imagine(features))
        self.step(actor=actor, critic=critic)
        self.follow()
        return detached(metrics)
