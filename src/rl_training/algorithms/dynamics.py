"""An ensemble of dynamics models: its loss, one gradient step, a whole fit, and rollouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from rl_training.algorithms.base import Learner, Tensors, UpdateResult
from rl_training.algorithms.terminations import Terminations
from rl_training.base.devices import arrays_to_device, to_device, to_host
from rl_training.base.saved import LARGEST, Saved, StateError, alike, within
from rl_training.base.state import Rng
from rl_training.models.host import device_of
from rl_training.models.mlp_mopo import disagreement
from rl_training.optim.flat import FlatAdam, descend

__all__ = ["EnsembleDynamics", "ModelFit", "gaussian_ensemble_loss", "imagine", "layer_decays"]

BOUNDS = 0.01  # weight of the spread of the learned log-variance bounds in the loss


def gaussian_ensemble_loss(batch: Tensors) -> Tensors:
    """Negative log-likelihood (twice, without its constant) of every member, summed over members.

    ``predicted_means``, ``predicted_logvars`` (E, B, D + 1), ``targets`` (B, D + 1) for all or (E, B, D + 1) for each,
    and ``ensemble_disagreement`` (B,) to report. The reward is the last column.
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
    """Learns an MLPMOPOEnsembleModel, or a module with ``predict_distribution`` and ``ensemble_parameters``."""

    COMPILE_THRESHOLD = 2_000

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
        shared = batch["obs"].ndim == 2  # members with rows of their own have nothing to disagree about
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
        penalty: torch.Tensor = torch.stack(decays).sum() + bounds
        return penalty

    @torch.no_grad()
    def disagreement(self, obs: torch.Tensor, actions: torch.Tensor) -> float:
        """How far members lie apart on the same rows (B, ...), on average."""
        return float(to_host(disagreement(self.model.predict_distribution(obs, actions)[0]).mean())[0])

    @torch.no_grad()
    def holdout_scores(
        self, obs: torch.Tensor, actions: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Every member's mean squared error and negative log-likelihood (as in the loss), (E,) each."""
        errors, likelihoods = torch.zeros(2, self.model.num_ensembles, device=obs.device)
        for rows in torch.split(torch.arange(len(obs), device=obs.device), 2_048):
            means, logvars = self.model.predict_distribution(obs[rows], actions[rows])
            squares = (means - targets[rows]).square()
            errors += squares.mean(-1).sum(1)
            likelihoods += (squares * (-logvars).exp() + logvars).mean(-1).sum(1)
        return errors / len(obs), likelihoods / len(obs)


class ModelFit:
    """Fits the ensemble to all data there is; iterate ``run(data)``, an epoch at a time.

    Every member has a bootstrap sample of its own; all share the holdout. After each epoch, held-out data scores the
    means (mean squared error) and the variances with them (negative log-likelihood). The fit goes on while either
    improves: a member's error by ``IMPROVEMENT`` of its least so far, or the members' mean likelihood by
    ``LIKELIHOOD_IMPROVEMENT`` per dimension. It ends when neither has for more than ``patience`` epochs and
    ``patience_updates`` gradient steps, or ``most_updates`` are spent. Epochs alone would end it at once on little
    data, where an epoch is a step or two. Each member then returns to its best likelihood, and those with the smallest
    errors become the elites. Without a holdout, it makes ``most_updates`` steps. With ``standardise_targets``, a
    model that has a method of this name is given the targets first, to take their deviations as units of its outputs.

    It can be saved between epochs, and goes on there with the same data. Where ``pausing`` says so, it yields between
    two gradient steps of an epoch too, without metrics.
    """

    STATE = ("active", "cut_short", "epoch", "waited", "improved_at", "updates", "fits", "total_updates")
    MOST_HOLDOUT = 5_000  # transitions
    IMPROVEMENT, LIKELIHOOD_IMPROVEMENT = 0.01, 0.1

    def __init__(
        self,
        dynamics: EnsembleDynamics,
        rng: Rng,
        *,
        batch_size: int = 256,
        holdout_ratio: float = 0.2,
        most_updates: int | None = None,
        patience: int = 5,
        patience_updates: int = 200,
        standardise_targets: bool = False,
        pausing: Callable[[], bool] | None = None,
    ) -> None:
        self._pausing = pausing
        self._dynamics, self.rng, self._device = dynamics, rng, device_of(dynamics.model)
        self._standardise_targets = standardise_targets
        self._batch_size, self._ratio = batch_size, holdout_ratio
        self._patience, self._patience_updates = patience, patience_updates
        self.active, self.cut_short = False, False
        self.epoch = self.waited = self.improved_at = self.updates = self.fits = self.total_updates = 0
        self.epoch_updates = 0  # gradient steps of the last epoch
        self.position = 0  # gradient steps of the epoch under way
        self.most_updates = most_updates  # gradient steps that the next fit may take
        self.rows = np.zeros((0, 0), np.int64)  # each member's bootstrap sample, (E, n)
        self.holdout = np.zeros(0, np.int64)
        self.errors, self.likelihoods = np.zeros(0), np.zeros(0)  # held-out scores (E,) of each member's best weights
        self.least_errors, self.least_likelihood = np.zeros(0), math.inf  # each member's, and the mean: progress so far
        self.snapshot: torch.Tensor | None = None  # those best weights

    def run(self, data: dict[str, np.ndarray]) -> Iterator[dict[str, float]]:
        """``data``: obs, actions, rewards, next_obs, the same ones until the fit is done. Yields the metrics of
        each epoch, and nothing (an empty mapping) where it pauses within one."""
        names = ("obs", "actions", "next_obs", "rewards")
        columns = (np.asarray(data[name], np.float32) for name in names)
        obs, actions, next_obs, rewards = arrays_to_device(self._device, *columns)
        targets = torch.cat([next_obs - obs, rewards[:, None]], 1)
        if not self.active:
            self._begin(obs, actions, targets)
        elif max(int(self.rows.max()), int(self.holdout.max(initial=0))) >= len(obs):
            raise StateError(f"a saved fit is of more rows than the {len(obs):,} that there are")
        while self.active:
            yield from self._one_epoch(obs, actions, targets)

    def _begin(self, obs: torch.Tensor, actions: torch.Tensor, targets: torch.Tensor) -> None:
        n, members, rng = len(obs), self._dynamics.model.num_ensembles, self.rng.generator
        order = rng.permutation(n)
        held = min(max(int(self._ratio * n), 1), self.MOST_HOLDOUT, n - 1) if self._ratio > 0 else 0
        self.holdout, train = order[:held], order[held:]
        # never less than a batch, so that all batches are of one size; a bootstrap sample repeats rows anyway
        self.rows = train[rng.integers(len(train), size=(members, max(len(train), self._batch_size)))]
        [used] = arrays_to_device(self._device, train)
        self._dynamics.model.standardise(torch.cat([obs[used], actions[used]], 1))
        if self._standardise_targets and hasattr(self._dynamics.model, "standardise_targets"):
            self._dynamics.model.standardise_targets(targets[used])
        self.errors, self.likelihoods = np.full(members, np.inf), np.full(members, np.inf)
        self.least_errors, self.least_likelihood = np.full(members, np.inf), math.inf
        self.snapshot = self._dynamics.optimizer.flat.clone()
        self.active, self.cut_short = True, False
        self.epoch = self.waited = self.improved_at = self.updates = 0

    def _one_epoch(self, obs: torch.Tensor, actions: torch.Tensor, targets: torch.Tensor) -> Iterator[dict[str, float]]:
        """The epoch, or the rest of one."""
        if not self.position:
            self.rows = self.rng.generator.permuted(self.rows, axis=1)
        size, count = self._batch_size, self.rows.shape[1]
        # the last batch is filled up with the epoch's first rows: every row has its turn, and batches are of one size
        filled = self.rows[:, np.arange(-(-count // size) * size) % count]
        rows, held = arrays_to_device(self._device, filled, self.holdout)
        result: Any = None
        for index in torch.split(rows, size, 1)[self.position :]:
            if self._spent:
                break
            if self.position and self._pausing is not None and self._pausing():
                yield {}
            batch = {"obs": obs[index], "actions": actions[index], "targets": targets[index]}
            result, _ = self._dynamics.learn(batch)
            self.updates += 1
            self.total_updates += 1
            self.position += 1
        self.epoch, self.epoch_updates, self.position = self.epoch + 1, self.position, 0
        metrics = dict(result) if result is not None else {}
        if len(self.holdout):
            metrics |= self._score(obs[held], actions[held], targets[held])
        same = held[:size] if len(held) else rows[0, :size]
        metrics["ensemble_disagreement"] = self._dynamics.disagreement(obs[same], actions[same])
        if self._spent or self._converged:
            self._finish()
        yield {**metrics, "model_epoch": float(self.epoch), "model_updates_done": float(self.total_updates)}

    @property
    def _spent(self) -> bool:
        return self.most_updates is not None and self.updates >= self.most_updates

    @property
    def _converged(self) -> bool:
        """Whether held-out data has shown no progress for as long as patience lasts."""
        waited_updates = self.updates - self.improved_at
        return bool(len(self.holdout)) and self.waited > self._patience and waited_updates > self._patience_updates

    def _score(self, obs: torch.Tensor, actions: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
        """Mean scores on the held-out rows; keeps the weights of members that have improved, and counts epochs without
        progress."""
        scores = to_host(*self._dynamics.holdout_scores(obs, actions, targets))
        errors, likelihoods = (score.astype(np.float64) for score in scores)
        if not (np.isfinite(errors).all() and np.isfinite(likelihoods).all()):
            raise RuntimeError(f"the model's error on held-out data is not finite: {errors}, likelihoods {likelihoods}")
        better = likelihoods < self.likelihoods
        self.errors = np.where(better, errors, self.errors)
        self.likelihoods = np.where(better, likelihoods, self.likelihoods)
        for k in np.flatnonzero(better):
            self._copy_member(int(k), self._dynamics.optimizer.flat, self.snapshot)
        closer = errors < self.least_errors * (1 - self.IMPROVEMENT)
        self.least_errors = np.where(closer, errors, self.least_errors)
        likelier = likelihoods.mean() < self.least_likelihood - self.LIKELIHOOD_IMPROVEMENT
        if likelier:
            self.least_likelihood = float(likelihoods.mean())
        progress = likelier or closer.any()
        self.waited = 0 if progress else self.waited + 1
        self.improved_at = self.updates if progress else self.improved_at
        return {"holdout_error": float(errors.mean()), "holdout_nll": float(likelihoods.mean())}

    def _finish(self) -> None:
        model = self._dynamics.model
        if len(self.holdout):
            self.cut_short = not self._converged
            for k in range(model.num_ensembles):
                self._copy_member(k, self.snapshot, self._dynamics.optimizer.flat)
            best = np.argsort(self.errors, kind="stable")[: len(model.elites)]
            model.elites.copy_(*arrays_to_device(self._device, best))
        self.active, self.fits = False, self.fits + 1
        self.rows, self.holdout, self.snapshot = np.zeros((0, 0), np.int64), np.zeros(0, np.int64), None

    def _copy_member(self, k: int, source: torch.Tensor | None, target: torch.Tensor | None) -> None:
        """Copy one member's weights from one flat tensor of parameters to another; what members share stays."""
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

    def state_dict(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in self.STATE},
            "rng": self.rng.state_dict(),
            "rows": torch.from_numpy(self.rows),
            "holdout": torch.from_numpy(self.holdout),
            "errors": torch.from_numpy(self.errors),
            "likelihoods": torch.from_numpy(self.likelihoods),
            "least_errors": torch.from_numpy(self.least_errors),
            "least_likelihood": self.least_likelihood,
            "most_updates": self.most_updates if self.active else None,  # the next fit has its own
            "position": self.position,
            "snapshot": torch.zeros(0) if self.snapshot is None else self.snapshot,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if isinstance(state, dict) and "best" in state:  # saved before likelihoods were scored: their scores begin now
            best = state["best"]
            new = {"errors": best, "least_errors": best, "likelihoods": torch.full_like(best, math.inf)}
            new |= {"least_likelihood": math.inf, "improved_at": state["updates"], "most_updates": self.most_updates}
            state = {**{name: value for name, value in state.items() if name != "best"}, **new}
        scores = ("errors", "likelihoods", "least_errors")
        tensors = ("rows", "holdout", "snapshot")
        saved = Saved(state, (*self.STATE, *scores, *tensors, "rng", "least_likelihood", "most_updates"), ("position",))
        active, members = saved.flag("active"), self._dynamics.model.num_ensembles
        rows = saved.indices("rows", (members if active else None, None), LARGEST)
        holdout = saved.indices("holdout", (None,), LARGEST)
        scored = [saved.array(name, None, (members if active else None,)) for name in scores]
        least_likelihood = saved.number("least_likelihood", finite=False)
        most_updates = saved.count_or_none("most_updates")
        if active:
            alike(saved["snapshot"], self._dynamics.optimizer.flat)
            if not rows.size:
                raise StateError("is empty in the middle of a fit", "rows")
        for name in self.STATE:
            with within(name):
                setattr(self, name, alike(saved[name], getattr(self, name)))
        with within("rng"):
            self.rng.load_state_dict(saved["rng"])
        self.rows, self.holdout, self.least_likelihood = rows, holdout, least_likelihood
        self.errors, self.likelihoods, self.least_errors = (score.astype(np.float64) for score in scored)
        self.position = saved.count("position") if "position" in saved else 0
        if active:
            self.most_updates = most_updates
        self.snapshot = to_device({"snapshot": state["snapshot"]}, self._device)["snapshot"] if active else None


@torch.no_grad()
def imagine(
    sample: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    act: Callable[[torch.Tensor], torch.Tensor],
    starts: torch.Tensor,
    horizon: int,
    terminated: Terminations | None,
) -> Iterator[dict[str, np.ndarray]]:
    """Transitions of rollouts from ``starts``, a step of all of them at a time; those that terminate go no further.

    ``sample(obs, actions)`` gives next observations and rewards; ``terminated`` (None: never) takes arrays.
    """
    obs = starts
    for _ in range(horizon):
        actions = act(obs)
        next_obs, rewards = sample(obs, actions)
        names = ("obs", "actions", "rewards", "next_obs")
        columns = dict(zip(names, to_host(obs, actions, rewards, next_obs)))
        rows = np.flatnonzero(np.isfinite(columns["next_obs"]).all(1) & np.isfinite(columns["rewards"]))
        if len(rows) < len(obs):
            columns = {name: column[rows] for name, column in columns.items()}
        dones = np.zeros(len(rows), bool)
        if terminated is not None:
            dones = np.asarray(terminated(columns["obs"], columns["actions"], columns["next_obs"]), bool)
        yield {**columns, "dones": dones.astype(np.float32)}
        rows = rows[~dones]
        if not len(rows):
            return
        obs = next_obs if len(rows) == len(next_obs) else next_obs[arrays_to_device(next_obs.device, rows)]
