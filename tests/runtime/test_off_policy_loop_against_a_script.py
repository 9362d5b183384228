"""Whole runs of SAC and RLPD, beside the same runs written down as one plain loop over a reference in plain torch."""

import dataclasses

import numpy as np
import pytest
import torch

from oracles.comparing import assert_same_metrics, assert_same_parameters
from oracles.rlpd import RLPD
from oracles.sac import SAC
from rl_training.algorithms.base import Learner
from rl_training.algorithms.sac import SAC as Agent
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.runtime.sac_trainer import build
from scripted_runs import ENV_KWARGS, OffPolicyScript, Scripted, Watch, assert_same_batches, recorded, write_npz
from toys import StopAt, tiny_config

SEED, TOTAL = 3, 30
WHOLE_RUN = 1e-3  # of float32 roundings that have gone through tens of updates, actions and environments
GIVEN = {
    "hidden_sizes": [8, 8], "learning_rate": 0.01, "gamma": 0.9, "tau": 0.1, "batch_size": 4, "buffer_capacity": 100,
    "learning_starts": 9, "initial_random_steps": 7, "gradient_updates_per_step": 1, "eval_interval": 0,
}  # fmt: skip
STEPS = ("learning_rate", "gamma", "tau")


def config(folder, algo, num_envs, options, env_kwargs):
    run = {"seed": SEED, "num_envs": num_envs, "total_timesteps": TOTAL}
    given = tiny_config(algo, folder, **run, checkpoint_interval=TOTAL, log_interval=TOTAL)
    return given.replace(env_kwargs=env_kwargs, algo_kwargs=options)


def assert_run_as_scripted(watch, result, script):
    """Batches and when they came, what is stored, what was reported last, and all networks."""
    agent, oracle = watch.loop.agent, script.oracle
    assert_same_batches(watch.batches, script.batches)
    assert watch.loop.first_update_step() == script.batches[0][0]
    counts = {"global_step": script.step, "update_count": len(script.batches), "epoch": script.epochs}
    assert {name: result.metrics[name] for name in counts} == counts
    returns, lengths = zip(*(episode for env in script.envs for episode in env.ended))
    assert result.metrics["episodes"] == len(returns)
    assert result.metrics["episode_return"] == pytest.approx(np.mean(returns), rel=1e-4)
    assert result.metrics["episode_length"] == pytest.approx(np.mean(lengths))
    stored = watch.loop.replay.columns()
    first = script.stored % script.capacity if script.stored > script.capacity else 0
    rows = [*script.replay[first:], *script.replay[:first]]  # oldest first
    for name, column in stored.items():
        np.testing.assert_allclose(column, np.stack([row[name] for row in rows]), rtol=1e-4, atol=1e-4, err_msg=name)
    last = {name: torch.as_tensor(value).detach() for name, value in script.metrics.items()}
    assert_same_metrics(result.metrics, last, tolerance=WHOLE_RUN)
    assert_same_parameters(agent.model, oracle.weights, tolerance=WHOLE_RUN)
    assert_same_parameters(agent.target_model, oracle.target, tolerance=WHOLE_RUN)


def trained(watch, given, stop=None):
    """A run, or one that stops in the middle and goes on from its checkpoint."""
    if stop is None:
        return watch.spec.train(given, callbacks=[watch], env=Scripted)
    first = watch.spec.train(given, callbacks=[watch, StopAt(stop)], env=Scripted)
    assert 0 < first.metrics["global_step"] < TOTAL
    state = load_checkpoint(first.checkpoint_path)
    return watch.spec.train(given, callbacks=[watch], env=Scripted, checkpoint_state=state, run_dir=first.run_dir)


def of_sac(watch):
    torch.set_rng_state(watch.random)
    return SAC(watch.weights, alpha="auto", target_entropy=-2.0, **{name: GIVEN[name] for name in STEPS})


CASES = [
    (1, {}),
    (3, {"train_frequency": 2, "gradient_updates_per_step": 2}),
    (2, {"train_frequency": 5, "learning_starts": 0, "initial_random_steps": 0}),
    (2, {"learning_rate_schedule": "linear", "warmup_steps": 12, "buffer_capacity": 7}),
    (2, {"normalize_observations": True, "learning_rate_schedule": "cosine"}),
    (1, {"max_updates": 5, "gradient_updates_per_step": 2}),
    (2, {"max_epochs": 3}),
]


@pytest.mark.parametrize(("num_envs", "options"), CASES, ids=str)
def test_sac_is_the_scripted_run(tmp_path, num_envs, options):
    """Truncated episodes store their true last observation and are no end; random actions come first; updates are due
    by steps of all environments together."""
    options, watch = {**GIVEN, **options}, Watch("sac")
    result = trained(watch, config(tmp_path, "sac", num_envs, options, ENV_KWARGS))
    script = OffPolicyScript(of_sac(watch), seed=SEED, num_envs=num_envs, total=TOTAL, options=options).run()
    assert_run_as_scripted(watch, result, script)
    if script.step == TOTAL:
        stored = watch.loop.replay.columns()
        assert stored["truncations"].any() and stored["dones"].any()
        rounds = 2 * options["gradient_updates_per_step"]  # a rough number, for which two rounds are no matter
        assert watch.loop.expected_updates(TOTAL) == pytest.approx(len(script.batches), abs=rounds)


def test_sac_stopped_in_the_middle_and_resumed_is_the_scripted_run(tmp_path):
    options = {**GIVEN, "normalize_observations": True, "learning_rate_schedule": "linear", "buffer_capacity": 9}
    watch = Watch("sac")
    result = trained(watch, config(tmp_path, "sac", 2, options, ENV_KWARGS), stop=17)
    script = OffPolicyScript(of_sac(watch), seed=SEED, num_envs=2, total=TOTAL, options=options).run()
    assert_run_as_scripted(watch, result, script)


def test_rewards_are_stored_as_they_are_learned_from_and_reported_as_they_came(tmp_path):
    watch, wrappers = Watch("sac"), {"wrappers": {"reward": {"scale": 2.0, "clip": 3.0}}}
    result = trained(watch, config(tmp_path, "sac", 1, GIVEN, {**ENV_KWARGS, **wrappers}))
    script = OffPolicyScript(
        of_sac(watch),
        seed=SEED,
        num_envs=1,
        total=TOTAL,
        options=GIVEN,
        reward=lambda reward: np.clip(2 * reward, -3, 3),
    )
    assert_run_as_scripted(watch, result, script.run())


class Remembering(Learner):
    """SAC that carries, for every environment, the number of steps that it has acted in the episode."""

    def initial_carry(self, n):
        return np.zeros((n, 1), np.float32)

    def _act(self, obs, carry, deterministic, rng):
        assert carry[:, 0].tolist() == obs[:, 1].tolist()  # the environment counts too
        return super()._act(obs, carry, deterministic, rng)._replace(carry=carry + 1)


def test_what_an_agent_carries_begins_anew_with_every_episode_and_is_resumed(tmp_path):
    remembering = type("RememberingSAC", (Remembering, Agent), {})
    watch, options = Watch("sac"), {**GIVEN, "initial_random_steps": 0}
    watch.spec = dataclasses.replace(watch.spec, build=lambda cfg, plan: build(cfg, plan, learner=remembering))
    result = trained(watch, config(tmp_path, "sac", 3, options, ENV_KWARGS), stop=13)
    script = OffPolicyScript(of_sac(watch), seed=SEED, num_envs=3, total=TOTAL, options=options).run()
    assert_run_as_scripted(watch, result, script)


RLPD_GIVEN = {**GIVEN, "num_critics": 3, "gradient_updates_per_step": 3, "offline_batch_ratio": 0.5}


@pytest.mark.parametrize(
    ("num_envs", "options", "stop"),
    [
        (1, {}, None),
        (2, {"offline_batch_ratio": 0.25, "offline_pretrain_updates": 4, "train_frequency": 3}, None),
        (2, {"offline_batch_ratio": 0.0}, None),
        (1, {"offline_batch_ratio": 1.0, "target_subset": 1}, None),
        (1, {"offline_pretrain_updates": 3, "frozen_actor_updates": 3}, None),
        (1, {"offline_pretrain_updates": 2, "frozen_actor_updates": 5}, 16),
        (1, {"normalize_observations": True, "learning_rate_schedule": "linear", "offline_pretrain_updates": 3}, 16),
        (1, {"reward_scale": 0.5, "reward_shift": -1.0, "reward_clip_min": -1.5, "reward_clip_max": 1.0}, None),
    ],
    ids=str,
)
def test_rlpd_is_the_scripted_run(tmp_path, num_envs, options, stop):
    """Every slice of a batch has its share of prior data, whose rewards are changed as the new ones are."""
    data, options = recorded(20), {**RLPD_GIVEN, **options}
    file = {"dataset_kind": "npz", "dataset_path": write_npz(tmp_path / "prior.npz", data)}
    watch = Watch("rlpd")
    wrapped = {**ENV_KWARGS, "wrappers": {"reward": {"scale": 2.0}}}
    result = trained(watch, config(tmp_path, "rlpd", num_envs, {**options, **file}, wrapped), stop)

    def reward(rewards):
        rewards = 2 * rewards * options.get("reward_scale", 1.0) + options.get("reward_shift", 0.0)
        return np.clip(rewards, options.get("reward_clip_min", -np.inf), options.get("reward_clip_max", np.inf))

    torch.set_rng_state(watch.random)
    oracle = RLPD(
        watch.weights, alpha="auto", target_entropy=-1.0, updates_per_batch=3, layer_norm=True,
        target_subset=options.get("target_subset", 2), **{name: GIVEN[name] for name in STEPS},
    )  # fmt: skip
    prior = {**data, "rewards": reward(data["rewards"])}
    run = {"seed": SEED, "num_envs": num_envs, "total": TOTAL, "options": options}
    assert_run_as_scripted(watch, result, OffPolicyScript(oracle, **run, prior=prior, reward=reward).run())
    assert result.metrics["pretrain_updates_done"] == options.get("offline_pretrain_updates", 0)
