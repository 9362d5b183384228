"""Gradient steps, whole fits and predictions of the ensemble of dynamics models against a reference written from the papers."""

import copy

import numpy as np
import pytest
import torch

from compiling import compiles
from oracles.comparing import FLOAT32, FLOAT64, assert_same_metrics, assert_same_parameters
from oracles.ensemble import DECAYS, EnsembleReference
from oracles.precision import double_precision
from rl_training.algorithms.dynamics import EnsembleDynamics, ModelFit
from rl_training.base.state import Rng
from rl_training.models import MLPMOPOEnsembleModel


def ensemble(hidden=(8, 8), members=3, elites=2, seed=0):
    """A model away from its start: with biases, decays that matter, and log-variances near their bounds."""
    torch.manual_seed(seed)
    model = MLPMOPOEnsembleModel(obs_dim=2, action_dim=1, hidden_sizes=hidden, num_ensembles=members, num_elites=elites)
    with torch.no_grad():
        for layer in model.layers():
            layer.bias.normal_(std=0.3)
            layer.weight.mul_(3)
        model.max_logvar.uniform_(-0.5, 0.5)
        model.min_logvar.uniform_(-3, -1)
        model.standardise(torch.randn(50, 3) * torch.tensor([2.0, 0.3, 1.0]) + 1)
    return model


def assert_same(model, reference, tolerance):
    theirs = copy.deepcopy(model)
    theirs.load_state_dict(reference.state_like(model))
    assert_same_parameters(model, theirs, tolerance=tolerance, name="model")


def transitions(n, seed, dtype=None):
    rng = np.random.default_rng(seed)
    obs, actions = rng.normal(1, 2, (n, 2)), rng.uniform(-1, 1, (n, 1))
    deltas = np.concatenate([actions, -0.5 * obs[:, :1]], 1) + 0.1 * rng.standard_normal((n, 2))
    data = {"obs": obs, "actions": actions, "rewards": obs[:, 0] - actions[:, 0], "next_obs": obs + deltas}
    return {name: column.astype(dtype or np.float64) for name, column in data.items()}


@pytest.mark.parametrize("layers", DECAYS)
def test_steps_on_rows_that_all_members_share(layers):
    with double_precision():
        model = ensemble(hidden=(8,) * (layers - 1))
        dynamics, reference = EnsembleDynamics(model=model, learning_rate=3e-3), EnsembleReference(model, 3e-3)
        before = copy.deepcopy(model.state_dict())
        for seed in range(4):
            batch = {name: torch.from_numpy(column) for name, column in transitions(6, seed).items()}
            ours = dynamics.update(batch, global_step=0)
            targets = torch.cat([batch["next_obs"] - batch["obs"], batch["rewards"][:, None]], 1)
            disagreement = reference.disagreement(batch["obs"], batch["actions"])
            theirs = reference.update([{"obs": batch["obs"], "actions": batch["actions"], "targets": targets}] * 3)
            assert set(ours.metrics) == {*theirs, "ensemble_disagreement"} and ours.num_gradient_steps == 1
            assert_same_metrics(ours.metrics, {**theirs, "ensemble_disagreement": disagreement}, tolerance=FLOAT64)
            assert_same(model, reference, FLOAT64)
        assert not [name for name, value in model.named_parameters() if torch.equal(value, before[name])]


def compare_steps_on_own_rows(dynamics, reference, tolerance, dtype):
    for seed in range(4):
        own = [transitions(5, 10 * seed + k, dtype) for k in range(3)]
        batch = {name: torch.from_numpy(np.stack([rows[name] for rows in own])) for name in own[0]}
        ours = dynamics.update(batch, global_step=0).metrics
        targets = torch.cat([batch["next_obs"] - batch["obs"], batch["rewards"][..., None]], -1)
        rows = [{"obs": batch["obs"][k], "actions": batch["actions"][k], "targets": targets[k]} for k in range(3)]
        theirs = reference.update(rows)
        assert set(ours) == set(theirs)
        assert_same_metrics(ours, theirs, tolerance=tolerance)
        assert_same(dynamics.model, reference, tolerance)


def test_steps_on_rows_of_each_members_own():
    with double_precision():
        model = ensemble(hidden=(8, 8))
        reference = EnsembleReference(model, 1e-2)
        compare_steps_on_own_rows(EnsembleDynamics(model=model, learning_rate=1e-2), reference, FLOAT64, np.float64)


class RowsOfItsOwn(MLPMOPOEnsembleModel):
    """A model whose ``predict_distribution`` is its own, and takes rows (B, ...) of all members alone."""

    def predict_distribution(self, obs, actions):
        assert obs.ndim == actions.ndim == 2
        return super().predict_distribution(obs, actions)


@pytest.mark.parametrize("own_rows", [False, True])
@pytest.mark.parametrize("members", [None, [3, 1]])
def test_a_model_with_predictions_of_its_own_is_drawn_from_alike(members, own_rows):
    with double_precision():
        model = ensemble(members=4)
        own = copy.deepcopy(model)
        own.__class__ = RowsOfItsOwn
        who = None if members is None else torch.tensor(members)
        shape = (4 if members is None else 2, 5) if own_rows else (5,)
        obs, actions = torch.randn(*shape, 2), torch.randn(*shape, 1)
        drawn = []
        for kind in (model, own):
            torch.manual_seed(0)
            drawn.append(kind.draw(obs, actions, who).detach())
        torch.testing.assert_close(*drawn)


@compiles
def test_compiled_steps_are_the_same():
    model = ensemble(hidden=(8, 8))
    dynamics, reference = EnsembleDynamics(model=model, learning_rate=3e-3), EnsembleReference(model, 3e-3)
    dynamics.use_compiled()
    compare_steps_on_own_rows(dynamics, reference, FLOAT32, np.float32)
    assert dynamics.compiled


FITS = {
    "until patience ends": {},
    "with little patience in updates": {"patience": 4, "patience_updates": 0},
    "cut short in the middle of an epoch": {"most_updates": 8},
    "without a holdout": {"holdout_ratio": 0.0, "most_updates": 11},
    "with less data than a batch": {"rows": 9, "patience_updates": 5},
    "with a holdout of one": {"holdout_ratio": 0.001, "most_updates": 20},
    "with most of it held out": {"holdout_ratio": 0.7},
}


def fits(changes):
    """A learner's fit and a reference, with what they are to be fitted to."""
    options = {"batch_size": 16, "patience": 1, "patience_updates": 8, "holdout_ratio": 0.25, **changes}
    model = ensemble(members=3, elites=2)
    reference = EnsembleReference(model, 1e-2)
    data = transitions(options.pop("rows", 70), 3, np.float32)
    data["actions"][:, 0] = 0.25  # an input that never changes
    dynamics = EnsembleDynamics(model=model, learning_rate=1e-2)
    return ModelFit(dynamics, Rng(0, "fit"), **options), reference, data, options, model


@pytest.mark.parametrize("changes", FITS.values(), ids=FITS)
def test_whole_fits(changes):
    """Two fits, one after the other: the second goes on with the weights and Adam's moments of the first."""
    fit, reference, data, options, model = fits(changes)
    rng, total = Rng(0, "fit").generator, 0
    for round_ in range(2):
        theirs = reference.fit(data, rng, **options)
        ours = list(fit.run(data))
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs):
            other["model_updates_done"] += total
            assert set(mine) == set(other)
            assert_same_metrics(mine, other, tolerance=20 * FLOAT32)
        total += fit.updates
        assert_same(model, reference, 20 * FLOAT32)
        assert not fit.active and fit.fits == round_ + 1 and fit.total_updates == total
        assert fit.cut_short == ("most_updates" in changes and options["holdout_ratio"] > 0)
        data = {name: np.concatenate([column, column[:20] * 0.9]) for name, column in data.items()}


def test_a_fit_puts_no_more_than_so_many_rows_aside(monkeypatch):
    monkeypatch.setattr(ModelFit, "MOST_HOLDOUT", 7)
    fit, reference, data, options, model = fits({"most_updates": 5})
    ours = list(fit.run(data))
    theirs = reference.fit(data, Rng(0, "fit").generator, **options, most_held=7)
    assert_same_metrics(ours[-1], theirs[-1], tolerance=FLOAT32)
    assert_same(model, reference, FLOAT32)
    assert ModelFit(fit._dynamics, Rng(0, "fit")).MOST_HOLDOUT == 7 and vars(ModelFit)["IMPROVEMENT"] == 0.01


def test_data_in_double_precision_is_fitted_as_in_single():
    ends = []
    for dtype in (np.float32, np.float64):
        fit, _, data, _, model = fits({"most_updates": 3})
        list(fit.run({name: column.astype(dtype) for name, column in data.items()}))
        ends.append(model)
    assert_same_parameters(*ends, tolerance=0.0)


def test_a_fit_that_diverges_says_so():
    fit, _, data, _, _ = fits({})
    data["rewards"][:] = np.nan
    with pytest.raises(RuntimeError, match="error on held-out data is not finite"):
        list(fit.run(data))


def test_predictions_and_samples_of_chosen_members():
    with double_precision():
        model = ensemble(members=4, elites=2)
        reference = EnsembleReference(model, 1e-3)
        rows = {name: torch.from_numpy(column) for name, column in transitions(5, 1).items()}
        means, logvars = model.predict_distribution(rows["obs"], rows["actions"])
        chosen = torch.tensor([3, 1])
        torch.manual_seed(0)
        drawn = model.draw(rows["obs"], rows["actions"], chosen)
        torch.manual_seed(0)
        noise = torch.randn(2, 5, 3)
        assert not drawn.requires_grad
        for k in range(4):
            theirs = reference.predict(k, rows["obs"], rows["actions"])
            torch.testing.assert_close(means[k], theirs.mean)
            torch.testing.assert_close(logvars[k].exp(), theirs.variance)
        for place, k in enumerate(chosen.tolist()):
            theirs = reference.predict(k, rows["obs"], rows["actions"])
            torch.testing.assert_close(drawn[place], (theirs.mean + theirs.stddev * noise[place]).detach())


def test_scores_of_many_rows_are_those_of_all_at_once():
    with double_precision():
        model = ensemble()
        data = {name: torch.from_numpy(column) for name, column in transitions(2_100, 1).items()}  # in two parts
        targets = torch.cat([data["next_obs"] - data["obs"], data["rewards"][:, None]], 1)
        scores = EnsembleDynamics(model=model, learning_rate=1e-3).holdout_scores(data["obs"], data["actions"], targets)
        held, reference = (
            {"obs": data["obs"], "actions": data["actions"], "targets": targets},
            EnsembleReference(model, 1),
        )
        theirs = torch.tensor([reference.scores(k, held) for k in range(3)]).T
        torch.testing.assert_close(torch.stack(scores), theirs)
