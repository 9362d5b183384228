"""The ensemble of dynamics models: its likelihood, bounds, initialisation, bootstrap, fits, elites and rollouts."""

import itertools
import math

import numpy as np
import pytest
import torch

from rl_training.algorithms.dynamics import (
    EnsembleDynamics,
    ModelFit,
    gaussian_ensemble_loss,
    imagine,
    layer_decays,
)
from rl_training.algorithms.terminations import TerminationClassifier
from rl_training.base.saved import StateError
from rl_training.base.state import Rng
from rl_training.models import MLPMOPOEnsembleModel
from rl_training.models.mlp_mopo import clamped_std, disagreement, soft_clamp


def model(obs_dim=2, action_dim=1, members=5, hidden=(16, 16), elites=None):
    torch.manual_seed(0)
    return MLPMOPOEnsembleModel(
        obs_dim=obs_dim, action_dim=action_dim, hidden_sizes=hidden, num_ensembles=members, num_elites=elites
    )


def linear_data(n=600, noise=0.0, seed=0):
    """s' = s + (a, -s1 / 2), r = s1 - a."""
    rng = np.random.default_rng(seed)
    obs, actions = rng.uniform(-1, 1, (n, 2)).astype(np.float32), rng.uniform(-1, 1, (n, 1)).astype(np.float32)
    deltas = np.concatenate([actions, -0.5 * obs[:, :1]], 1) + noise * rng.standard_normal((n, 2))
    return {
        "obs": obs,
        "actions": actions,
        "rewards": (obs[:, 0] - actions[:, 0]).astype(np.float32),
        "next_obs": (obs + deltas).astype(np.float32),
    }


# ---- the network


def test_members_are_independent():
    ensemble = model()
    obs, actions = torch.randn(6, 2), torch.randn(6, 1)
    means, logvars = ensemble.predict_distribution(obs, actions)
    assert means.shape == logvars.shape == (5, 6, 3)
    means[2].sum().backward()
    for layer in ensemble.layers():
        touched = layer.weight.grad.abs().flatten(1).sum(1) > 0
        assert touched.tolist() == [False, False, True, False, False]


def test_weights_are_cut_at_two_deviations_of_their_own():
    layer = model(obs_dim=99, hidden=(300,)).layers()[0]
    sigma = 1 / (2 * math.sqrt(100))
    assert layer.weight.abs().max() <= 2 * sigma
    assert layer.weight.std().item() == pytest.approx(0.880 * sigma, rel=0.01) and layer.bias.abs().max() == 0


def test_log_variances_are_bounded_softly():
    low, high = torch.tensor(-10.0), torch.tensor(0.5)
    for raw in (-1e3, 1e3):
        assert -10.001 <= soft_clamp(torch.tensor(raw), low, high).item() <= 0.501
    for raw in (-13.0, 3.0):
        x = torch.tensor(raw, requires_grad=True)
        soft_clamp(x, low, high).backward()
        assert x.grad.item() > 0.01
    assert soft_clamp(torch.tensor(-5.0), low, high).item() == pytest.approx(-5.0, abs=0.05)


def test_the_short_way_to_a_deviation_is_the_soft_clamps():
    logvars = torch.linspace(-30, 30, 241)[:, None]
    low, high = torch.tensor([-10.0]), torch.tensor([0.5])
    torch.testing.assert_close(clamped_std(logvars, low, high), (0.5 * soft_clamp(logvars, low, high)).exp())


@pytest.mark.parametrize("members", [None, [3, 0]])
def test_drawing_member_by_member_follows_the_predicted_gaussians(members):
    ensemble = model(obs_dim=3, hidden=(32, 32))
    generator = torch.Generator().manual_seed(0)
    who = None if members is None else torch.tensor(members)
    shape = (5 if who is None else 2, 1_700)  # more rows than pass through at a time
    obs, actions = (torch.randn(*shape, d, generator=generator) for d in (3, 1))
    means, logvars = ensemble.predict_distribution(obs, actions, who)
    torch.manual_seed(1)
    drawn = ensemble.draw(obs, actions, who)
    torch.manual_seed(1)
    noise = torch.randn_like(means)
    torch.testing.assert_close(drawn, (means + (0.5 * logvars).exp() * noise).detach(), atol=1e-5, rtol=1e-4)


def test_the_bounds_are_learned_and_pulled_together():
    ensemble = model()
    dynamics = EnsembleDynamics(model=ensemble, learning_rate=1e-2)
    before = ensemble.max_logvar.sum().item() - ensemble.min_logvar.sum().item()
    batch = {name: torch.as_tensor(column) for name, column in linear_data(64).items()}
    for _ in range(20):
        dynamics.update(batch, global_step=0)
    assert ensemble.max_logvar.sum().item() - ensemble.min_logvar.sum().item() < before


def test_inputs_are_standardised_and_predictions_are_in_the_datas_units():
    ensemble = model()
    inputs = torch.randn(500, 3) * torch.tensor([3.0, 0.1, 0.0]) + torch.tensor([5.0, -1.0, 2.0])
    ensemble.standardise(inputs)
    scaled = (inputs - ensemble.input_mean) * ensemble.input_scale
    assert torch.allclose(scaled.mean(0), torch.zeros(3), atol=1e-4)
    assert torch.allclose(scaled.std(0, correction=0), torch.tensor([1.0, 1.0, 0.0]), atol=1e-4)
    obs, actions = inputs[:4, :2], inputs[:4, 2:]
    ensemble.net[-1].weight.data.zero_()
    ensemble.net[-1].bias.data[..., :3] = torch.tensor([0.25, -0.5, 7.0])
    ensemble.net[-1].bias.data[..., 3:] = -30.0
    out = ensemble.sample_transition(obs, actions)
    assert torch.allclose(out["next_obs"], obs + torch.tensor([0.25, -0.5]), atol=0.05)
    assert torch.allclose(out["rewards"], torch.full((4,), 7.0), atol=0.05) and out["disagreement"].max() < 1e-6


def test_targets_are_standardised_on_request_and_predictions_stay_in_the_datas_units():
    ensemble = model()
    targets = torch.randn(500, 3) * torch.tensor([0.01, 4.0, 0.0]) + torch.tensor([1.0, -2.0, 5.0])
    ensemble.standardise_targets(targets)
    assert torch.allclose(ensemble.target_scale, torch.tensor([0.01, 4.0, 1.0]), rtol=0.1)  # a constant keeps its units
    ensemble.net[-1].weight.data.zero_()
    ensemble.net[-1].bias.data[..., :3] = torch.tensor([2.0, 1.0, 0.0])  # deviations above the mean
    ensemble.net[-1].bias.data[..., 3:] = -4.0
    obs, actions = torch.zeros(2_000, 2), torch.zeros(2_000, 1)
    means, logvars = ensemble.predict_distribution(obs, actions)
    expected = ensemble.target_mean + torch.tensor([2.0, 1.0, 0.0]) * ensemble.target_scale
    assert torch.allclose(means, expected.expand_as(means))
    assert torch.allclose((0.5 * logvars).exp(), (math.exp(-2) * ensemble.target_scale).expand_as(means), rtol=0.02)
    drawn = ensemble.draw(obs, actions)
    assert torch.allclose(drawn.mean(1), means.mean(1), atol=0.1 * float(ensemble.target_scale.max()))
    assert torch.allclose(drawn.std(1), (0.5 * logvars).exp().mean(1), rtol=0.1)


@pytest.mark.parametrize("standardised", [False, True])
def test_a_fit_takes_the_targets_units_only_on_request(standardised):
    ensemble = model()
    fit = ModelFit(
        EnsembleDynamics(model=ensemble, learning_rate=1e-3), Rng(0, "fit"), batch_size=16, holdout_ratio=0.0,
        most_updates=2, standardise_targets=standardised,
    )  # fmt: skip
    data = linear_data(64)
    list(fit.run(data))
    deltas = np.concatenate([data["next_obs"] - data["obs"], data["rewards"][:, None]], 1)
    expected = deltas.std(0) if standardised else np.ones(3)
    np.testing.assert_allclose(ensemble.target_scale.numpy(), expected, rtol=1e-4)
    np.testing.assert_allclose(ensemble.target_mean.numpy(), deltas.mean(0) if standardised else 0.0, atol=1e-6)


def test_a_model_of_ones_own_need_not_know_of_the_targets_units():
    class Plain(MLPMOPOEnsembleModel):
        standardise_targets = property()  # reading it raises AttributeError, as if it were not there

    plain = Plain(obs_dim=2, action_dim=1, hidden_sizes=(8,), num_ensembles=2)
    dynamics = EnsembleDynamics(model=plain, learning_rate=1e-3)
    fit = ModelFit(dynamics, Rng(0, "fit"), batch_size=16, holdout_ratio=0.0, most_updates=2, standardise_targets=True)
    assert len(list(fit.run(linear_data(64)))) == 1


def test_disagreement_is_the_largest_distance_from_the_mean():
    means = torch.tensor([[[0.0, 0.0, 9.0]], [[3.0, 4.0, -9.0]], [[0.0, 0.0, 0.0]]])
    assert disagreement(means).item() == pytest.approx(math.hypot(2, 8 / 3))  # the reward does not count


# ---- the loss


def test_the_loss_by_hand():
    means = torch.tensor([[[1.0, 2.0]], [[0.0, 0.0]]])
    logvars = torch.tensor([[[0.0, math.log(4.0)]], [[0.0, 0.0]]])
    batch = {"predicted_means": means, "predicted_logvars": logvars, "targets": torch.zeros(1, 2), "ensemble_disagreement": torch.ones(1)}  # fmt: skip
    terms = gaussian_ensemble_loss(batch)
    first, second = ((1 + 0) + (4 / 4 + math.log(4))) / 2, 0.0
    assert terms["model_loss"].item() == pytest.approx(first + second)
    assert terms["reward_mae"].item() == 1.0 and terms["delta_obs_mae"].item() == 0.5


def test_the_optimum_is_mean_and_variance_of_the_data():
    torch.manual_seed(0)
    ensemble = MLPMOPOEnsembleModel(obs_dim=1, action_dim=1, hidden_sizes=(8,), num_ensembles=2)
    dynamics = EnsembleDynamics(model=ensemble, learning_rate=1e-2)
    rng = np.random.default_rng(0)
    deltas, rewards = 1.5 + 0.3 * rng.standard_normal(4_000), -2 + 0.1 * rng.standard_normal(4_000)
    zeros = torch.zeros(4_000, 1)
    batch = {"obs": zeros, "actions": zeros, "next_obs": torch.as_tensor(deltas, dtype=torch.float32)[:, None], "rewards": torch.as_tensor(rewards, dtype=torch.float32)}  # fmt: skip
    for _ in range(800):
        dynamics.update(batch, global_step=0)
    means, logvars = ensemble.predict_distribution(zeros[:1], zeros[:1])
    for k in range(2):
        assert means[k, 0].tolist() == pytest.approx([deltas.mean(), rewards.mean()], abs=0.05)
        assert logvars[k, 0].tolist() == pytest.approx([math.log(deltas.var()), math.log(rewards.var())], abs=0.05)


def test_decay_grows_towards_the_output():
    assert layer_decays(5) == (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4)
    assert (
        layer_decays(4) == (2.5e-5, 5e-5, 7.5e-5, 1e-4)
        and layer_decays(2) == (2.5e-5, 1e-4)
        and layer_decays(1) == (1e-4,)
    )


# ---- fits


def fit(dynamics, **options):
    return ModelFit(dynamics, Rng(0, "fit"), **{"batch_size": 64, "patience": 3, **options})


def test_every_member_has_a_bootstrap_of_its_own_and_all_share_the_holdout():
    process = fit(EnsembleDynamics(model=model(members=4), learning_rate=1e-3))
    next(process.run(linear_data(2_000)))
    rows, holdout = process.rows, process.holdout
    assert rows.shape == (4, 1_600) and len(holdout) == 400
    assert not np.isin(rows, holdout).any()
    unique = [len(np.unique(row)) / 1_600 for row in rows]
    assert unique == pytest.approx([1 - 1 / math.e] * 4, abs=0.03)
    assert not np.array_equal(np.sort(rows[0]), np.sort(rows[1]))


def test_a_fit_learns_restores_each_members_best_and_ranks_them():
    dynamics = EnsembleDynamics(model=model(members=5, elites=3), learning_rate=3e-3)
    process = fit(dynamics)
    data = linear_data(800, noise=0.05)
    errors = [metrics["holdout_error"] for metrics in process.run(data)]
    assert errors[-1] < 0.2 * errors[0] and not process.active and process.fits == 1 and not process.cut_short
    held = Rng(0, "fit").generator.permutation(800)[:160]
    columns = {name: torch.as_tensor(column[held]) for name, column in data.items()}
    targets = torch.cat([columns["next_obs"] - columns["obs"], columns["rewards"][:, None]], 1)
    again, likelihoods = (x.numpy() for x in dynamics.holdout_scores(columns["obs"], columns["actions"], targets))
    assert np.allclose(again, process.errors, rtol=1e-4)
    # what members share (the bounds of the variances) has moved on since then, a little
    assert np.allclose(likelihoods, process.likelihoods, rtol=0.05)
    assert dynamics.model.elites.tolist() == np.argsort(again, kind="stable")[:3].tolist()


def test_a_fit_to_400_rows_learns_their_noise_before_it_ends():
    """Of s' = s + (a, -s1 / 2) + noise: five epochs of patience are ten gradient steps here, and would end it at once."""
    dynamics = EnsembleDynamics(model=model(members=5, elites=3, hidden=(32, 32)), learning_rate=3e-3)
    process = ModelFit(dynamics, Rng(0, "fit"), batch_size=256)
    data = linear_data(400, noise=0.1)
    errors = [metrics["holdout_error"] for metrics in process.run(data)]
    assert process.updates >= 400 and not process.cut_short
    assert process.errors.max() < 0.1 * errors[0]
    fresh = {name: torch.as_tensor(column) for name, column in linear_data(500, seed=1).items()}
    means, logvars = dynamics.model.predict_distribution(fresh["obs"], fresh["actions"])
    elites = dynamics.model.elites
    deviations = (0.5 * logvars[elites]).exp().mean((0, 1))
    assert all(0.1 / 1.5 < deviation < 0.1 * 1.5 for deviation in deviations[:2].tolist())
    assert deviations[2] < 0.05  # the reward has no noise
    wrong = (means[elites][..., :2] - (fresh["next_obs"] - fresh["obs"])).square().mean().sqrt()
    assert wrong < 0.06  # of means, where data has no noise


def test_variances_that_still_improve_keep_a_fit_going():
    """Means that are right from the start: only the likelihood shows that a deviation of 0.8 is not yet one of 0.1."""
    ensemble = model(members=3, hidden=(16,))
    data = linear_data(500)
    data["next_obs"] = data["obs"] + 0.1 * np.random.default_rng(0).standard_normal((500, 2)).astype(np.float32)
    data["rewards"] = np.zeros(500, np.float32)
    last = ensemble.layers()[-1]
    last.weight.data.zero_()  # every mean is zero, which is the best there is
    process = fit(EnsembleDynamics(model=ensemble, learning_rate=1e-3), batch_size=256, patience_updates=100)
    metrics = list(process.run(data))
    assert metrics[-1]["holdout_error"] > 0.9 * metrics[0]["holdout_error"]  # nothing to gain there
    assert metrics[-1]["holdout_nll"] < metrics[0]["holdout_nll"] - 2 and process.updates > 300


@pytest.mark.parametrize(("patience", "patience_updates", "rows"), [(2, 40, 100), (6, 1, 100), (2, 40, 2_000)])
def test_patience_lasts_for_its_epochs_and_for_its_updates(patience, patience_updates, rows):
    process = fit(
        EnsembleDynamics(model=model(members=2), learning_rate=1e-2),
        **{"patience": patience, "patience_updates": patience_updates},
    )
    list(process.run(linear_data(rows, noise=1.0)))
    each = -(-max(int(0.8 * rows), 64) // 64)  # updates of an epoch
    waited = max(patience + 1, patience_updates // each + 1)
    assert process.waited == waited and process.updates - process.improved_at == waited * each


def test_every_row_has_its_turn_in_every_epoch_and_batches_are_of_one_size():
    dynamics = EnsembleDynamics(model=model(members=3), learning_rate=1e-3)
    process, seen = fit(dynamics, batch_size=64), []
    learn = dynamics.learn
    dynamics.learn = lambda batch: (seen.append(batch["obs"].clone()), learn(batch))[1]
    data = linear_data(250)
    next(process.run(data))
    assert [tuple(obs.shape) for obs in seen] == [(3, 64, 2)] * 4  # of 200 rows: three batches and a filled-up one
    for k in range(3):
        drawn = {tuple(row) for obs in seen for row in obs[k].tolist()}
        assert drawn == {tuple(row) for row in data["obs"][process.rows[k]].tolist()}


@pytest.mark.parametrize("holdout_ratio", [0.2, 0.0])
def test_members_disagree_about_the_same_rows_not_about_their_own(holdout_ratio):
    dynamics = EnsembleDynamics(model=model(members=4), learning_rate=3e-3)
    process = fit(dynamics, holdout_ratio=holdout_ratio, most_updates=60)
    data = linear_data(400, noise=0.05)
    metrics = next(process.run(data))
    rows = process.holdout[:64] if holdout_ratio else process.rows[0, :64]
    means, _ = dynamics.model.predict_distribution(
        torch.as_tensor(data["obs"][rows]), torch.as_tensor(data["actions"][rows])
    )
    assert metrics["ensemble_disagreement"] == pytest.approx(disagreement(means).mean().item(), rel=1e-5)


def test_a_budget_ends_a_fit_and_is_reported():
    process = fit(EnsembleDynamics(model=model(), learning_rate=1e-3), most_updates=25)
    metrics = list(process.run(linear_data(800)))
    assert process.updates == 25 and process.cut_short and metrics[-1]["model_updates_done"] == 25


def test_without_a_holdout_it_makes_its_updates():
    process = fit(EnsembleDynamics(model=model(), learning_rate=1e-3), holdout_ratio=0.0, most_updates=17)
    metrics = list(process.run(linear_data(200)))
    assert process.updates == 17 and "holdout_error" not in metrics[0]


def test_a_fit_saved_before_it_was_judged_by_likelihood_goes_on():
    process = fit(EnsembleDynamics(model=model(), learning_rate=3e-3))
    run = process.run(linear_data(400, noise=0.05))
    next(run)
    state = process.state_dict()
    old = {
        name: state[name]
        for name in state
        if name not in ("likelihoods", "least_errors", "least_likelihood", "improved_at", "most_updates")
    }
    old["best"] = old.pop("errors")
    process = fit(EnsembleDynamics(model=model(), learning_rate=3e-3))
    process.load_state_dict(old)
    list(process.run(linear_data(400, noise=0.05)))
    assert process.fits == 1 and not process.active and np.isfinite(process.errors).all()


def test_a_fit_stopped_between_epochs_goes_on_there():
    data = linear_data(400, noise=0.05)
    ends = []
    for stop in (None, 3):
        dynamics = EnsembleDynamics(model=model(), learning_rate=3e-3)
        process = fit(dynamics)
        if stop is None:
            list(process.run(data))
        else:
            run = process.run(data)
            for _ in range(stop):
                next(run)
            saved, parameters = process.state_dict(), dynamics.state_dict()
            saved = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in saved.items()}
            parameters = {k: {n: t.clone() for n, t in part.items()} for k, part in parameters.items()}
            dynamics = EnsembleDynamics(model=model(), learning_rate=3e-3)
            process = fit(dynamics)
            dynamics.load_state_dict(parameters)
            process.load_state_dict(saved)
            list(process.run(data))
        ends.append((dynamics.optimizer.flat.clone(), process.updates, process.epoch))
    assert torch.equal(ends[0][0], ends[1][0]) and ends[0][1:] == ends[1][1:]


def test_a_fit_does_not_go_on_with_fewer_rows_than_it_was_of():
    process, data = fit(EnsembleDynamics(model=model(), learning_rate=3e-3)), linear_data(400)
    next(process.run(data))
    with pytest.raises(StateError, match=r"^a saved fit is of more rows than the 399 that there are$"):
        next(process.run({name: column[:399] for name, column in data.items()}))
    next(process.run(data))


def test_a_saved_fit_under_way_has_rows():
    process, again = (fit(EnsembleDynamics(model=model(), learning_rate=3e-3)) for _ in range(2))
    next(process.run(linear_data(400)))
    state = {**process.state_dict(), "rows": torch.zeros((5, 0), dtype=torch.int64)}
    with pytest.raises(StateError, match=r"^rows: is empty in the middle of a fit$"):
        again.load_state_dict(state)


def test_of_weights_that_are_equally_likely_the_first_are_kept(monkeypatch):
    dynamics = EnsembleDynamics(model=model(), learning_rate=3e-3)
    monkeypatch.setattr(dynamics, "holdout_scores", lambda *rows: (torch.ones(5), torch.ones(5)))
    process, kept = fit(dynamics), []
    for _ in itertools.islice(process.run(linear_data(400)), 2):
        kept.append(process.snapshot.clone())
    assert process.active and torch.equal(*kept)


def test_a_fit_that_has_ended_saves_no_limit_of_its_own():
    """The next fit is given one; a run that was resumed in between ends in the same state as one that was not."""
    process = fit(EnsembleDynamics(model=model(), learning_rate=3e-3))
    process.most_updates = 3
    assert process.state_dict()["most_updates"] is None
    next(process.run(linear_data(400, noise=0.05)))
    assert process.state_dict()["most_updates"] == (3 if process.active else None)


# ---- rollouts


class Oracle:
    """s' = s + a, r = s, exactly."""

    def __call__(self, obs, actions):
        return obs + actions, obs[:, 0]


def test_rollouts_of_an_exact_model_are_exact_and_stop_where_episodes_do():
    starts = torch.tensor([[0.0], [1.0], [2.5], [-5.0]])
    steps = list(imagine(Oracle(), lambda obs: torch.ones(len(obs), 1), starts, 4, lambda o, a, n: n[:, 0] >= 3))
    for rows in steps:
        assert np.array_equal(rows["next_obs"], rows["obs"] + 1) and np.array_equal(rows["rewards"], rows["obs"][:, 0])
        assert np.array_equal(rows["dones"], (rows["next_obs"][:, 0] >= 3).astype(np.float32))
        assert (rows["obs"] < 3).all()  # none starts where an episode is over
    assert [len(rows["obs"]) for rows in steps] == [4, 3, 2, 1]


def test_what_is_not_finite_goes_no_further():
    starts = torch.tensor([[0.0], [torch.inf], [1.0]])
    (rows,) = imagine(Oracle(), lambda obs: torch.ones(len(obs), 1), starts, 1, None)
    assert rows["obs"][:, 0].tolist() == [0.0, 1.0]


def test_each_row_asks_one_elite_and_elites_share_the_rows():
    ensemble = model(members=4, elites=2)
    ensemble.elites.copy_(torch.tensor([3, 1]))
    for layer in ensemble.layers():
        layer.weight.data.zero_()
        layer.bias.data.zero_()
    last = ensemble.layers()[-1]
    last.bias.data[:, 0, :3] = torch.arange(4.0)[:, None] * 10
    last.bias.data[:, 0, 3:] = -30.0
    next_obs, rewards = ensemble.sample_member(torch.zeros(101, 2), torch.zeros(101, 1))
    asked = rewards.round().tolist()
    assert sorted(set(asked)) == [10.0, 30.0] and abs(asked.count(10.0) - 50.5) <= 1
    assert torch.allclose(next_obs[:, 0], rewards, atol=0.2)


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_a_few_rows_are_enough(rows):
    next_obs, rewards = model(members=6, elites=5).sample_member(torch.zeros(rows, 2), torch.zeros(rows, 1))
    assert next_obs.shape == (rows, 2) and rewards.shape == (rows,) and torch.isfinite(next_obs).all()


def test_a_fit_on_next_to_nothing_ends():
    process = fit(EnsembleDynamics(model=model(), learning_rate=1e-3), holdout_ratio=0.001)
    assert len(list(process.run(linear_data(20)))) < 2_000 and not process.active


def test_models_are_less_sure_outside_the_data():
    gaps = []
    for seed in range(3):
        torch.manual_seed(seed)
        dynamics = EnsembleDynamics(model=MLPMOPOEnsembleModel(obs_dim=2, action_dim=1, hidden_sizes=(32, 32), num_ensembles=5), learning_rate=3e-3)  # fmt: skip
        list(ModelFit(dynamics, Rng(seed, "fit"), batch_size=64, most_updates=400).run(linear_data(600, seed=seed)))
        near, far = torch.rand(200, 2) * 2 - 1, torch.rand(200, 2) + 3
        actions = torch.rand(200, 1) * 2 - 1
        apart = [
            disagreement(dynamics.model.predict_distribution(obs, actions)[0]).mean().item() for obs in (near, far)
        ]
        gaps.append(apart[1] / apart[0])
    assert min(gaps) > 1.5


# ---- where episodes end


def test_a_classifier_learns_where_episodes_end():
    rng = np.random.default_rng(0)
    obs, actions = rng.uniform(-1, 1, (3_000, 2)).astype(np.float32), rng.uniform(-1, 1, (3_000, 1)).astype(np.float32)
    next_obs = (obs + 0.1 * actions).astype(np.float32)
    over = next_obs[:, 0] > 0.8
    data = {"obs": obs, "actions": actions, "next_obs": next_obs, "dones": over.astype(np.float32)}
    ends = TerminationClassifier(obs_dim=2, action_dim=1, device=torch.device("cpu"))
    assert not ends(obs, actions, next_obs).any()  # before it has seen anything
    assert not ends.fit({**data, "dones": np.zeros(3_000)}, rng) and not ends(obs, actions, next_obs).any()
    assert ends.fit(data, rng)
    assert (ends(obs, actions, next_obs) == over).mean() > 0.98
