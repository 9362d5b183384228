"""The ensemble of probabilistic networks (Chua et al., 2018; Janner et al., 2019) once more: member by member, torch's Adam and Normal.

A fit draws from numpy's generator in the learner's order: the order of the rows, every member's bootstrap rows, then a shuffle of each
member's rows at every epoch.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributions import Normal
from torch.nn import functional as F

DECAYS = {  # by the number of layers: the papers' for five
    1: [1e-4], 2: [2.5e-5, 1e-4], 3: [2.5e-5, 5e-5, 1e-4], 4: [2.5e-5, 5e-5, 7.5e-5, 1e-4],
    5: [2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4], 6: [2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 7.5e-5, 1e-4],
}  # fmt: skip


class EnsembleReference:
    """Networks of their own with the weights of a copied model, of which only its parameters and elites are used."""

    def __init__(self, model: Any, learning_rate: float) -> None:
        state = copy.deepcopy(model.state_dict())
        self.max_logvar, self.min_logvar = (nn.Parameter(state[name]) for name in ("max_logvar", "min_logvar"))
        self.mean, self.std = state["input_mean"], 1 / state["input_scale"]
        self.elites = state["elites"].tolist()
        places = [name[: -len(".weight")] for name in state if name.endswith(".weight")]
        self.members = [[self._layer(state, place, k) for place in places] for k in range(len(state["net.0.weight"]))]
        parameters = [p for member in self.members for layer in member for p in layer.parameters()]
        self.optimizer = torch.optim.Adam([*parameters, self.max_logvar, self.min_logvar], lr=learning_rate)

    @staticmethod
    def _layer(state: dict[str, torch.Tensor], place: str, member: int) -> nn.Linear:
        weight, bias = state[f"{place}.weight"][member], state[f"{place}.bias"][member, 0]
        layer = nn.Linear(*weight.shape, dtype=weight.dtype)
        layer.load_state_dict({"weight": weight.T, "bias": bias})
        return layer

    def predict(self, k: int, obs: torch.Tensor, actions: torch.Tensor) -> Normal:
        """Member k's distribution of (next_obs - obs, reward)."""
        x = (torch.cat([obs, actions], -1) - self.mean) / self.std
        for layer in self.members[k][:-1]:
            x = layer(x)
            x = x * x.sigmoid()
        mean, logvar = self.members[k][-1](x).chunk(2, -1)
        logvar = self.max_logvar - F.softplus(self.max_logvar - logvar)
        logvar = self.min_logvar + F.softplus(logvar - self.min_logvar)
        return Normal(mean, (0.5 * logvar).exp())

    def update(self, rows: list[dict[str, torch.Tensor]]) -> dict[str, float]:
        """One step of all members, each on rows of its own: obs, actions, targets."""
        loss, errors = torch.zeros(()), []
        for k, own in enumerate(rows):
            predicted = self.predict(k, own["obs"], own["actions"])
            loss = loss + likelihood(predicted, own["targets"])
            errors.append((predicted.mean - own["targets"]).abs().detach())
        regulariser = 0.01 * (self.max_logvar - self.min_logvar).sum()
        for member in self.members:
            for decay, layer in zip(DECAYS[len(member)], member):
                regulariser = regulariser + decay / 2 * (layer.weight**2).sum()
        self.optimizer.zero_grad()
        (loss + regulariser).backward()
        self.optimizer.step()
        error = torch.stack(errors)
        return {
            "model_loss": float(loss.detach()),
            "reward_mae": float(error[..., -1].mean()),
            "delta_obs_mae": float(error[..., :-1].mean()),
        }

    @torch.no_grad()
    def disagreement(self, obs: torch.Tensor, actions: torch.Tensor) -> float:
        """The largest distance of a member's observation from their mean, averaged over rows."""
        means = [self.predict(k, obs, actions).mean[:, :-1] for k in range(len(self.members))]
        centre = sum(means) / len(means)
        return float(np.mean([max(float((m[i] - centre[i]).norm()) for m in means) for i in range(len(obs))]))

    @torch.no_grad()
    def scores(self, k: int, held: dict[str, torch.Tensor]) -> tuple[float, float]:
        """Squared error and likelihood of member k on held-out rows."""
        predicted = self.predict(k, held["obs"], held["actions"])
        error = (predicted.mean - held["targets"]).square().mean()
        return float(error), float(likelihood(predicted, held["targets"]))

    def fit(
        self, data: dict[str, np.ndarray], rng: np.random.Generator, *, batch_size: int, holdout_ratio: float,
        patience: int, patience_updates: int, most_updates: float = math.inf, most_held: int = 5_000,
    ) -> list[dict[str, float]]:  # fmt: skip
        """Epochs until held-out rows show no progress; every member then returns to its likeliest weights. Metrics of
        each epoch."""
        columns = {name: torch.from_numpy(data[name]) for name in ("obs", "actions")}
        deltas = torch.from_numpy(data["next_obs"]) - columns["obs"]
        columns["targets"] = torch.cat([deltas, torch.from_numpy(data["rewards"])[:, None]], 1)
        n, members = len(deltas), len(self.members)
        order = rng.permutation(n)
        held_count = min(max(int(holdout_ratio * n), 1), most_held) if holdout_ratio else 0
        train = order[held_count:]
        held = {name: column[order[:held_count]] for name, column in columns.items()}
        rows = train[rng.integers(len(train), size=(members, max(len(train), batch_size)))]
        inputs = torch.cat([columns["obs"], columns["actions"]], 1)[train].double()
        self.mean, std = inputs.mean(0).float(), inputs.std(0, correction=0)
        self.std = torch.where(std < 1e-12, 1.0, std).float()

        updates, log, progress = 0, [], Progress(members)
        while True:
            rows = rng.permuted(rows, axis=1)
            for start in range(0, rows.shape[1], batch_size):
                if updates == most_updates:
                    break
                places = [(start + i) % rows.shape[1] for i in range(batch_size)]
                metrics = self.update([{name: x[own[places]] for name, x in columns.items()} for own in rows])
                updates += 1
            log.append({**metrics, "model_epoch": len(log) + 1, "model_updates_done": updates})
            same = {name: x[rows[0, :batch_size]] for name, x in columns.items()}
            if held_count:
                same = {name: x[:batch_size] for name, x in held.items()}
                weights = [[layer.state_dict() for layer in member] for member in self.members]
                scores = [self.scores(k, held) for k in range(members)]
                log[-1] |= progress.note(scores, weights, updates)
            log[-1]["ensemble_disagreement"] = self.disagreement(same["obs"], same["actions"])
            waited = progress.waited > patience and updates - progress.improved_at > patience_updates
            if updates == most_updates or (held_count and waited):
                break
        if held_count:
            for member, (_, _, best) in zip(self.members, progress.best):
                for layer, state in zip(member, best):
                    layer.load_state_dict(state)
            self.elites = sorted(range(members), key=lambda k: progress.best[k][1])[: len(self.elites)]
        return log

    def state_like(self, model: nn.Module) -> dict[str, torch.Tensor]:
        """The weights as the model's own state has them."""
        state = {name: value.clone() for name, value in model.state_dict().items()}
        places = [name[: -len(".weight")] for name in state if name.endswith(".weight")]
        for i, place in enumerate(places):
            state[f"{place}.weight"] = torch.stack([member[i].weight.T for member in self.members])
            state[f"{place}.bias"] = torch.stack([member[i].bias[None] for member in self.members])
        state |= {"max_logvar": self.max_logvar, "min_logvar": self.min_logvar, "elites": torch.tensor(self.elites)}
        return {**state, "input_mean": self.mean, "input_scale": 1 / self.std}


def likelihood(predicted: Normal, targets: torch.Tensor) -> torch.Tensor:
    """Twice the negative log-likelihood, without its constant, averaged over rows and dimensions."""
    return (-2 * predicted.log_prob(targets) - math.log(2 * math.pi)).mean()


class Progress:
    """Of a fit, on held-out rows: some member's error falls by a hundredth, or the mean likelihood by a tenth."""

    def __init__(self, members: int) -> None:
        self.least_errors, self.least_likelihood = [math.inf] * members, math.inf
        self.best: list[Any] = [(math.inf, math.inf, None)] * members  # likelihood, error and weights
        self.waited = self.improved_at = 0

    def note(self, scores: list[tuple[float, float]], weights: list[Any], updates: int) -> dict[str, float]:
        error, mean = (float(np.mean(part)) for part in zip(*scores))
        progress = mean < self.least_likelihood - 0.1
        self.least_likelihood = mean if progress else self.least_likelihood
        for k, (own_error, own_likelihood) in enumerate(scores):
            if own_likelihood < self.best[k][0]:
                self.best[k] = own_likelihood, own_error, copy.deepcopy(weights[k])
            if own_error < 0.99 * self.least_errors[k]:
                self.least_errors[k], progress = own_error, True
        self.waited, self.improved_at = (0, updates) if progress else (self.waited + 1, self.improved_at)
        return {"holdout_error": error, "holdout_nll": mean}
