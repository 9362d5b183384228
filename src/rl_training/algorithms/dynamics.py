"""Learning and asking an ensemble of dynamics models: the loss, one gradient step, a whole fit, rollouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from rl_training.algorithms.base import Learner, Tensors, UpdateResult
from rl_training.algorithms.optim import FlatAdam, descend
from rl_training.models.host import device_of
from rl_training.models.mlp_mopo import EndNetwork, disagreement
from rl_training.state import Rng

BOUNDS = 0.01  # weight of the spread of the learned log-variance bounds in the loss
Terminations = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def gaussian_ensemble_loss(batch: Tensors) -> Tensors:
    """Negative log-likelihood (twice, without its constant) of every member, summed over members.

    ``predicted_means``, ``predicted_logvars`` (E, B, D + 1), ``targets`` (B, D + 1) for all or (E, B, D + 1) for each, and
    ``ensemble_disagreement`` (B,) to report. The reward is the last column.
    """
    means, logvars = batch["predicted_means"], batch["predicted_logvars"]
    errors = means - batch["targets"]
    likelihoods = (errors.square() * (-logvars).exp() + logvars).mean((1, 2))
    sizes = errors.detach().abs()
    return {
        "model_loss": likelihoods.sum(),
        "reward_mae": sizes[..., -1].mean(),
        "delta_obs_mae": sizes[..., :-1].mean(),
        "ensemble_disagreement": batch["ensemble_disagreement"].mean(),
    }


def layer_decays(layers: int) -> tuple[float, ...]:
    """Weight decay of each layer, larger towards the output: the papers' for five layers, like it for others."""
    inner = (2.5e-5, 5e-5, *[7.5e-5] * max(0, layers - 3))[: max(0, layers - 1)]
    return (*inner, 1e-4)


class EnsembleDynamics(Learner):
    """``model`` is an MLPMOPOEnsembleModel, or a module with ``predict_distribution`` and ``ensemble_parameters``."""

    WORTH_COMPILING = 2_000

    def __init__(self, *, model: Any, learning_rate: float, name: str = "model") -> None:
        self.model = model
        self.optimizer = FlatAdam(model.ensemble_parameters(), lr=learning_rate)
        self._loss_name = f"{name}_model_loss" if name != "model" else "model_loss"

    def update(self, batch: Tensors, *, global_step: int) -> UpdateResult:
        """One gradient step on transitions (B, ...) that every member sees, or (E, B, ...) of each one's own."""
        deltas = batch["next_obs"] - batch["obs"]
        targets = torch.cat([deltas, batch["rewards"][..., None]], -1)
        metrics, _ = self.learn({"obs": batch["obs"], "actions": batch["actions"], "targets": targets})
        return UpdateResult(metrics, num_gradient_steps=1)

    def _learn(self, batch: Tensors) -> Tensors:
        means, logvars = self.model.predict_distribution(batch["obs"], batch["actions"])
        predicted = {"predicted_means": means, "predicted_logvars": logvars, "targets": batch["targets"]}
        shared = batch["obs"].ndim == 2  # of rows of their own, members cannot disagree
        apart = disagreement(means.detach()) if shared else torch.zeros(1, device=means.device)
        terms = gaussian_ensemble_loss({**predicted, "ensemble_disagreement": apart})
        if not shared:
            del terms["ensemble_disagreement"]
        descend((self.optimizer, terms["model_loss"] + self._regularisation()))
        named = {self._loss_name: terms.pop("model_loss"), **terms}
        return {name: term.detach() for name, term in named.items()}

    def _regularisation(self) -> torch.Tensor | float:
        """Decay of the weights, layer by layer, and the pull of the log-variance bounds towards each other."""
        if not hasattr(self.model, "layers"):
            return 0.0
        layers = self.model.layers()
        decays = [0.5 * d * layer.weight.square().sum() for d, layer in zip(layer_decays(len(layers)), layers)]
        bounds = BOUNDS * (self.model.max_logvar.sum() - self.model.min_logvar.sum())
        return torch.stack(decays).sum() + bounds

    @torch.no_grad()
    def disagreement(self, obs: torch.Tensor, actions: torch.Tensor) -> float:
        """How far members lie apart on the same rows (B, ...), on average."""
        return float(disagreement(self.model.predict_distribution(obs, actions)[0]).mean())

    @torch.no_grad()
    def holdout_errors(self, obs: torch.Tensor, actions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean squared error of every member's mean, (E,)."""
        total = torch.zeros(self.model.num_ensembles, device=obs.device)
        for rows in torch.arange(len(obs), device=obs.device).split(2_048):
            means, _ = self.model.predict_distribution(obs[rows], actions[rows])
            total += (means - targets[rows]).square().mean(-1).sum(1)
        return total / len(obs)


class ModelFit:
    """Fits the ensemble to all data there is; iterate ``run(data)``, an epoch at a time.

    Every member has a bootstrap sample of its own; all share the holdout. After each epoch, a member whose holdout error fell by
    more than ``improvement`` is remembered; when none has for more than ``patience`` epochs, or ``most_updates`` are spent, each
    returns to its best, and the best of them become the elites. Without a holdout, it makes ``most_updates`` steps.

    It can be saved between epochs, and goes on there with the same data.
    """

    def __init__(
        self,
        dynamics: EnsembleDynamics,
        rng: Rng,
        *,
        batch_size: int = 256,
        holdout_ratio: float = 0.2,
        most_holdout: int = 5_000,
        patience: int = 5,
        improvement: float = 0.01,
        most_updates: int | None = None,
    ) -> None:
        self._dynamics, self.rng = dynamics, rng
        self._batch_size, self._ratio, self._most_holdout = batch_size, holdout_ratio, most_holdout
        self._patience, self._improvement, self._most_updates = patience, improvement, most_updates
        self.active, self.cut_short = False, False
        self.epoch = self.waited = self.updates = self.fits = self.total_updates = 0
        self._rows = np.zeros((0, 0), np.int64)
        self._holdout = np.zeros(0, np.int64)
        self._best = np.zeros(0)
        self._snapshot: torch.Tensor | None = None

    def run(self, data: dict[str, np.ndarray]) -> Iterator[dict[str, float]]:
        """``data``: obs, actions, rewards, next_obs, the same ones until the fit is done. Yields after each epoch."""
        device = device_of(self._dynamics.model)
        obs, actions = (torch.as_tensor(data[name], dtype=torch.float32, device=device) for name in ("obs", "actions"))
        deltas = torch.as_tensor(data["next_obs"], dtype=torch.float32, device=device) - obs
        rewards = torch.as_tensor(data["rewards"], dtype=torch.float32, device=device)
        targets = torch.cat([deltas, rewards[:, None]], 1)
        if not self.active:
            self._begin(obs, actions)
        while self.active:
            yield self._one_epoch(obs, actions, targets)

    def _begin(self, obs: torch.Tensor, actions: torch.Tensor) -> None:
        n, members, rng = len(obs), self._dynamics.model.num_ensembles, self.rng.generator
        order = rng.permutation(n)
        held = min(max(int(self._ratio * n), 1), self._most_holdout, n - 1) if self._ratio > 0 else 0
        self._holdout, train = order[:held], order[held:]
        # never less than a batch, so that all batches are of one size; a bootstrap sample repeats rows anyway
        self._rows = train[rng.integers(len(train), size=(members, max(len(train), self._batch_size)))]
        used = torch.from_numpy(train)
        self._dynamics.model.standardise(torch.cat([obs[used], actions[used]], 1))
        self._best = np.full(members, np.inf)
        self._snapshot = self._dynamics.optimizer.flat.clone()
        self.active, self.cut_short = True, False
        self.epoch = self.waited = self.updates = 0

    def _one_epoch(self, obs: torch.Tensor, actions: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
        self._rows = self.rng.generator.permuted(self._rows, axis=1)
        rows = torch.from_numpy(self._rows)
        size = self._batch_size
        result: Any = None
        for start in range(
            0, rows.shape[1] - size + 1, size
        ):  # rows beyond the last whole batch have their turn another time
            if self._spent:
                break
            index = rows[:, start : start + size]
            batch = {"obs": obs[index], "actions": actions[index], "targets": targets[index]}
            result, _ = self._dynamics.learn(batch)
            self.updates += 1
            self.total_updates += 1
        self.epoch += 1
        metrics = dict(result) if result is not None else {}
        if len(self._holdout):
            metrics["holdout_error"] = self._judge(obs, actions, targets)
        same = torch.from_numpy(self._holdout[:size]) if len(self._holdout) else rows[0, :size]
        metrics["ensemble_disagreement"] = self._dynamics.disagreement(obs[same], actions[same])
        if self._spent or (len(self._holdout) and self.waited > self._patience):
            self._finish()
        return {**metrics, "model_epoch": float(self.epoch), "model_updates_done": float(self.total_updates)}

    @property
    def _spent(self) -> bool:
        return self._most_updates is not None and self.updates >= self._most_updates

    def _judge(self, obs: torch.Tensor, actions: torch.Tensor, targets: torch.Tensor) -> float:
        """Remember the members that have become better; their mean error."""
        held = torch.from_numpy(self._holdout)
        errors = self._dynamics.holdout_errors(obs[held], actions[held], targets[held]).double().cpu().numpy()
        if not np.isfinite(errors).all():
            raise RuntimeError(f"the model's error on held-out data is not finite: {errors}")
        better = errors < self._best * (1 - self._improvement)
        self._best = np.where(better, errors, self._best)
        for k in np.flatnonzero(better):
            self._copy_member(int(k), self._dynamics.optimizer.flat, self._snapshot)
        self.waited = 0 if better.any() else self.waited + 1
        return float(errors.mean())

    def _finish(self) -> None:
        model = self._dynamics.model
        if len(self._holdout):
            self.cut_short = self.waited <= self._patience
            for k in range(model.num_ensembles):
                self._copy_member(k, self._snapshot, self._dynamics.optimizer.flat)
            model.elites.copy_(torch.from_numpy(np.argsort(self._best, kind="stable")[: len(model.elites)]))
        self.active, self.fits = False, self.fits + 1
        self._rows, self._holdout, self._snapshot = np.zeros((0, 0), np.int64), np.zeros(0, np.int64), None

    def _copy_member(self, k: int, source: torch.Tensor | None, target: torch.Tensor | None) -> None:
        """One member's weights from one flat tensor of parameters to another; what members share stays."""
        assert source is not None and target is not None
        start, members = 0, self._dynamics.model.num_ensembles
        own = {id(p) for layer in self._dynamics.model.layers() for p in layer.parameters()}
        for parameter in self._dynamics.optimizer.params:
            size = parameter.numel()
            if id(parameter) in own:
                part = size // members
                place = slice(start + k * part, start + (k + 1) * part)
                target[place] = source[place]
            start += size

    @property
    def best_errors(self) -> np.ndarray:
        """Each member's best holdout error in the last fit, (E,)."""
        return self._best

    def state_dict(self) -> dict[str, Any]:
        plain = ("active", "cut_short", "epoch", "waited", "updates", "fits", "total_updates")
        return {
            **{name: getattr(self, name) for name in plain},
            "rng": self.rng.state_dict(),
            "rows": torch.from_numpy(self._rows),
            "holdout": torch.from_numpy(self._holdout),
            "best": torch.from_numpy(self._best),
            "snapshot": torch.zeros(0) if self._snapshot is None else self._snapshot,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("active", "cut_short", "epoch", "waited", "updates", "fits", "total_updates"):
            setattr(self, name, state[name])
        self.rng.load_state_dict(state["rng"])
        self._rows, self._holdout, self._best = (state[name].numpy() for name in ("rows", "holdout", "best"))
        snapshot = state["snapshot"]
        self._snapshot = snapshot.to(self._dynamics.optimizer.flat.device) if self.active else None


class EndClassifier(Learner):
    """Learns where episodes terminate, for environments of which nobody has said it."""

    UPDATES, ROWS = 500, 256

    def __init__(self, *, obs_dim: int, action_dim: int, device: torch.device, learning_rate: float = 1e-3) -> None:
        self.network = EndNetwork(obs_dim=obs_dim, action_dim=action_dim).to(device)
        self.optimizer = FlatAdam(self.network.parameters(), lr=learning_rate)

    def fit(self, data: dict[str, np.ndarray], rng: np.random.Generator) -> bool:
        """From transitions with ``dones``; False, and nothing learned, while none of them ended an episode."""
        over = np.flatnonzero(data["dones"] > 0)
        rest = np.flatnonzero(data["dones"] == 0)
        if not len(over) or not len(rest):
            return False
        network, device = self.network, self.optimizer.flat.device
        inputs = np.concatenate([data["obs"], data["actions"], data["next_obs"]], 1).astype(np.float32)
        std = inputs.std(0)
        network.input_mean.copy_(torch.from_numpy(inputs.mean(0)))
        network.input_scale.copy_(torch.from_numpy(np.where(std < 1e-6, 1, 1 / np.maximum(std, 1e-6))))
        network.prior.fill_(math.log(len(over) / len(rest)))
        network.fitted.fill_(True)
        labels = torch.cat([torch.ones(self.ROWS // 2), torch.zeros(self.ROWS // 2)]).to(device)
        for _ in range(self.UPDATES):
            index = np.concatenate([rng.choice(kind, self.ROWS // 2) for kind in (over, rest)])
            logits = network(torch.from_numpy(inputs[index]).to(device))
            descend((self.optimizer, F.binary_cross_entropy_with_logits(logits, labels)))
        return True

    @torch.no_grad()
    def __call__(self, obs: np.ndarray, actions: np.ndarray, next_obs: np.ndarray) -> np.ndarray:
        """Which transitions are more likely than not to end an episode; none before the first fit."""
        if not bool(self.network.fitted):
            return np.zeros(len(obs), bool)
        inputs = np.concatenate([obs, actions, next_obs], 1).astype(np.float32)
        logits = self.network(torch.from_numpy(inputs).to(self.optimizer.flat.device)) + self.network.prior
        return (logits > 0).cpu().numpy()


@torch.no_grad()
def imagine(
    sample: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    act: Callable[[torch.Tensor], torch.Tensor],
    starts: torch.Tensor,
    horizon: int,
    terminated: Terminations | None,
) -> Iterator[dict[str, np.ndarray]]:
    """Transitions of rollouts from ``starts``, a step of all of them at a time; one that terminates goes no further.

    ``sample(obs, actions)`` gives next observations and rewards; ``terminated`` (None: never) takes arrays, actions in [-1, 1].
    """
    obs = starts
    for _ in range(horizon):
        actions = act(obs)
        next_obs, rewards = sample(obs, actions)
        sane = torch.isfinite(next_obs).all(1) & torch.isfinite(rewards)
        if not bool(sane.all()):
            obs, actions, next_obs, rewards = obs[sane], actions[sane], next_obs[sane], rewards[sane]
        rows = {"obs": obs, "actions": actions, "rewards": rewards, "next_obs": next_obs}
        columns = {name: column.cpu().numpy() for name, column in rows.items()}
        over = (
            np.zeros(len(obs), bool)
            if terminated is None
            else np.asarray(terminated(columns["obs"], columns["actions"], columns["next_obs"]), bool)
        )
        yield {**columns, "dones": over.astype(np.float32)}
        obs = next_obs[torch.from_numpy(~over).to(next_obs.device)]
        if not len(obs):
            return
