"""Whole runs of the offline algorithms, beside the same runs as one plain loop over a reference in plain torch."""

import numpy as np
import pytest
import torch

from oracles.bc import BC
from oracles.comparing import assert_same_metrics, assert_same_parameters
from oracles.cql import CQL
from oracles.iql import IQL
from oracles.td3_bc import TD3BC
from rl_training.experiment.checkpointing import load_checkpoint
from scripted_runs import (
    ENV_KWARGS,
    LIMIT,
    Scripted,
    Watch,
    assert_same_batches,
    rate,
    recorded,
    set_rates,
    stream,
    write_npz,
)
from toys import StopAt, tiny_config

SEED, TOTAL, ROWS, BATCH = 3, 12, 15, 5
WHOLE_RUN = 1e-4  # of float32 roundings that have gone through a dozen updates
GIVEN = {"hidden_sizes": [8, 8], "learning_rate": 0.01, "batch_size": BATCH, "eval_interval": 4}
STEPS = {"gamma": 0.9, "tau": 0.1}
NETWORKS = {"bc": "policy"}
ORACLES = {
    "bc": lambda weights: BC(weights, learning_rate=0.01, kind="mse"),
    "td3_bc": lambda weights: TD3BC(
        weights, learning_rate=0.01, **STEPS, alpha=2.5, policy_noise=0.2, noise_clip=0.5, policy_delay=2
    ),
    "iql": lambda weights: IQL(
        weights, learning_rate=0.01, **STEPS, expectile=0.7, inverse_temperature=3.0, largest_weight=100.0
    ),
    "cql": lambda weights: CQL(
        weights, learning_rate=0.01, actor_learning_rate=1e-4, **STEPS, alpha="auto", target_entropy=-2.0,
        backup_entropy=False, cql_alpha=5.0, num_cql_samples=3,
    ),
}  # fmt: skip
OWN = {"cql": {"num_cql_samples": 3}, "td3_bc": {"normalize_observations": False}, "iql": {"actor_rate_schedule": None}}


def trained(folder, algo, data, options, env_kwargs, stop=None):
    """A run from a file of this data, or one that stops in the middle and goes on; and who watched it."""
    file = {"dataset_kind": "npz", "dataset_path": write_npz(folder / "data.npz", data)}
    given = tiny_config(algo, folder, seed=SEED, total_timesteps=TOTAL, checkpoint_interval=TOTAL)
    given = given.replace(env_kwargs=env_kwargs, algo_kwargs={**GIVEN, **options, **file})
    watch = Watch(algo, NETWORKS.get(algo, "model"))
    result = watch.spec.train(given, callbacks=[watch, *([StopAt(stop)] if stop else [])], env=Scripted)
    if stop:
        assert 0 < result.metrics["global_step"] < TOTAL
        state = load_checkpoint(result.checkpoint_path)
        again = {"checkpoint_state": state, "run_dir": result.run_dir}
        result = watch.spec.train(given, callbacks=[watch], env=Scripted, **again)
    return result, watch


def scripted(watch, oracle, data, options):
    """The same updates in a plain loop; returns their batches and the last metrics."""
    torch.set_rng_state(watch.random)
    drawing, batches = stream(SEED, "dataset sampling"), []
    mean, std = data["obs"].mean(0, dtype=np.float64), data["obs"].std(0, dtype=np.float64)
    for step in range(TOTAL):
        scale = rate(options.get("learning_rate_schedule"), step, TOTAL, options.get("warmup_steps", 0))
        set_rates(oracle, scale)
        if options.get("actor_rate_schedule"):
            oracle.rates = [scale * rate(options["actor_rate_schedule"], step, TOTAL, 0)]
        index = drawing.integers(len(data["rewards"]), size=BATCH)
        batch = {name: torch.tensor(column[index]) for name, column in data.items()}
        batches.append((step, batch))
        if options.get("normalize_observations"):
            scaled = {
                name: (batch[name] - torch.tensor(mean)) / torch.tensor(std + 1e-3) for name in ("obs", "next_obs")
            }
            batch = {**batch, **{name: column.float() for name, column in scaled.items()}}
        metrics = oracle.update(batch)
    return batches, {name: torch.as_tensor(value).detach() for name, value in metrics.items()}


def assert_run_as_scripted(watch, result, algo, data, options):
    oracle = ORACLES[algo](watch.weights)
    batches, metrics = scripted(watch, oracle, data, options)
    assert_same_batches(watch.batches, batches)
    agent = watch.loop.agent
    assert_same_metrics(result.metrics, metrics, tolerance=WHOLE_RUN)
    assert_same_parameters(getattr(agent, NETWORKS.get(algo, "model")), oracle.weights, tolerance=WHOLE_RUN)
    if algo != "bc":
        assert_same_parameters(agent.target_model, oracle.target, tolerance=WHOLE_RUN)
    assert result.metrics["update_count"] == TOTAL and result.metrics["dataset_size"] == len(data["rewards"])
    assert result.metrics["epoch"] == TOTAL * BATCH // len(data["rewards"])
    assert watch.evaluated == [4, 8, TOTAL]


@pytest.mark.parametrize(
    ("algo", "options", "stop"),
    [
        ("bc", {}, None),
        ("bc", {"normalize_observations": True, "learning_rate_schedule": "linear", "warmup_steps": 4}, 6),
        ("td3_bc", {}, 5),
        ("td3_bc", {"normalize_observations": True, "learning_rate_schedule": "cosine"}, None),
        ("iql", {}, None),
        ("iql", {"actor_rate_schedule": "cosine", "learning_rate_schedule": "linear"}, 6),
        ("cql", {"normalize_observations": True}, 6),
    ],
    ids=str,
)
def test_an_offline_run_is_the_scripted_one(tmp_path, algo, options, stop):
    """A step is an update on rows drawn from the data; truncated episodes bootstrap, terminated ones do not."""
    data, options = recorded(ROWS), {**STEPS, **OWN.get(algo, {}), **options}
    given = {name: value for name, value in options.items() if algo != "bc" or name not in STEPS}
    result, watch = trained(tmp_path, algo, data, given, ENV_KWARGS, stop)
    assert_run_as_scripted(watch, result, algo, data, options)


@pytest.mark.parametrize(
    ("changes", "reward"),
    [
        ({"reward_scale": 0.5, "reward_shift": 0.25}, lambda rewards: 3 * rewards * 0.5 + 0.25),
        ({"reward_clip_min": -2.0, "reward_clip_max": 4.5}, lambda rewards: np.clip(3 * rewards, -2.0, 4.5)),
    ],
    ids=["scale and shift", "clip"],
)
def test_rewards_are_changed_by_the_wrapper_then_by_the_options(tmp_path, changes, reward):
    data, options = recorded(ROWS), {**STEPS, **OWN["iql"], **changes}
    wrapped = {**ENV_KWARGS, "wrappers": {"reward": {"scale": 3.0}}}
    result, watch = trained(tmp_path, "iql", data, options, wrapped)
    assert_run_as_scripted(watch, result, "iql", {**data, "rewards": reward(data["rewards"])}, options)


def returns_of(data):
    """For every row, the return of its episode; of the unfinished last one, not a number."""
    totals, start = np.full(len(data["rewards"]), np.nan), 0
    for i, ended in enumerate(data["dones"] + data["truncations"]):
        if ended:
            totals[start : i + 1] = data["rewards"][start : i + 1].sum()
            start = i + 1
    return totals


def test_rewards_are_scaled_to_a_range_of_returns_of_a_thousand(tmp_path):
    data, options = recorded(ROWS), {**STEPS, **OWN["iql"], "reward_scale": "returns"}
    spread = np.nanmax(returns_of(data)) - np.nanmin(returns_of(data))
    _, watch = trained(tmp_path, "iql", data, options, ENV_KWARGS)
    batches, _ = scripted(
        watch, ORACLES["iql"](watch.weights), {**data, "rewards": data["rewards"] * np.float32(1000 / spread)}, options
    )
    for (_, ours), (_, theirs) in zip(watch.batches, batches, strict=True):
        torch.testing.assert_close(ours["rewards"], theirs["rewards"], rtol=1e-5, atol=1e-3)


def test_cloning_the_best_episodes_alone_draws_from_nothing_else(tmp_path):
    data = recorded(40)
    result, watch = trained(tmp_path, "bc", data, {"best_fraction": 0.25}, ENV_KWARGS)
    best = np.sort(np.argsort(-returns_of(data), kind="stable")[:10])
    kept = {name: column[best] for name, column in data.items()}
    assert_run_as_scripted(watch, result, "bc", kept, {})


def test_the_scripted_data_has_every_kind_of_end():
    data = recorded(ROWS)
    assert 0 < data["dones"].sum() < ROWS and 0 < data["truncations"].sum() < ROWS
    assert data["obs"][:, 1].max() < LIMIT and not (data["dones"] * data["truncations"]).any()
