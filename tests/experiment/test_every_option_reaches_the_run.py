"""Every option of every algorithm changes what a run does: none is dropped on its way from the config to the learner.

A run of some twenty steps is made with each option at one value and at another; everything it holds at its end (weights,
optimizers, buffers, counters) is compared. A run that is refused is compared by the words of the refusal.
"""

from __future__ import annotations

import hashlib
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from goal_toys import BitFlips, Point
from rl_training import Callback
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec
from rl_training.runtime.engine import Engine
from rl_training.runtime.run import Run
from rl_training.runtime.schedules import Schedules
from toys import Counter

STEPS = 24  # environment steps, and 10 updates of offline learners
CONTROLS = ("eval_interval", "early_stopping")  # the driver's, whose loop is not needed here: see the last test

REPLAY = {"buffer_capacity": 100, "batch_size": 4, "learning_starts": 8}
VALUES = {**REPLAY, "hidden_sizes": [6], "target_update_interval": 2, "exploration_fraction": 1.0}
OFFLINE = {"dataset_size": 30, "batch_size": 4, "hidden_sizes": [6]}
ROLLOUT = {"num_steps": 8, "minibatch_size": 4, "update_epochs": 2, "hidden_sizes": [6]}
MODEL: dict[str, Any] = {
    **{"hidden_sizes": [6], "model_hidden_sizes": [6], "num_ensembles": 3, "num_elites": 2, "model_batch_size": 8},
    **{"model_updates": 8, "rollout_batch_size": 5},
}
BASE: dict[str, dict[str, Any]] = {
    "ppo": ROLLOUT,
    "ppg": {**ROLLOUT, "aux_frequency": 2, "aux_epochs": 2, "aux_minibatch_size": 8},
    "gail": {
        **ROLLOUT, "expert_dataset_size": 30, "discriminator_updates": 2, "discriminator_batch_size": 6,
        "discriminator_hidden_sizes": [6],
    },
    "dqn": VALUES,
    "qr_dqn": {**VALUES, "num_quantiles": 4},
    "iqn": {**VALUES, "num_quantiles": 4, "action_samples": 4, "embedding_dim": 4},
    "fqf": {**VALUES, "num_quantiles": 4, "embedding_dim": 4},
    "sac": {**REPLAY, "hidden_sizes": [6], "initial_random_steps": 4},
    "rlpd": {
        **OFFLINE, **REPLAY, "initial_random_steps": 4, "gradient_updates_per_step": 2, "num_critics": 3,
    },
    "bc": OFFLINE,
    "td3_bc": OFFLINE,
    "iql": OFFLINE,
    "cql": {**OFFLINE, "num_cql_samples": 2, "target_update_interval": 2},
    "mopo": {**OFFLINE, **MODEL, "rollout_refresh_interval": 3, "rollout_horizon": 2, "rollouts_retained": 2},
    "mbpo": {
        **REPLAY, **MODEL, "initial_random_steps": 8, "gradient_updates_per_step": 2, "model_train_frequency": 8,
    },
    "pets": {
        **REPLAY, "initial_random_steps": 8, "train_frequency": 8, "model_hidden_sizes": [6], "num_ensembles": 2,
        "model_updates_per_step": 1.0, "planning_horizon": 3, "planning_candidates": 6, "planning_topk": 2,
        "planning_iterations": 2, "planning_particles": 2,
    },
    "dreamer": {
        **REPLAY, "batch_size": 2, "sequence_length": 4, "train_frequency": 8, "size": "nano", "imagination_horizon": 2,
    },
}  # fmt: skip
ON_POLICY, VALUE_BASED = ("ppo", "ppg", "gail"), ("dqn", "qr_dqn", "iqn", "fqf")
CHOICES = (*ON_POLICY, *VALUE_BASED, "dreamer")  # learn CartPole here, the others Pendulum

FILE = {"dataset_kind": "npz", "dataset_path": "whole.npz", "dataset_size": None}
EXPERT = {"expert_dataset_kind": "npz", "expert_dataset_path": "whole.npz", "expert_dataset_size": None}
OF_FILES: dict[str, tuple[dict[str, Any], Any]] = {  # options: what they are given beside, and another value
    "dataset_kind": ({"dataset_size": 60}, "npz"),
    "dataset_path": (FILE, "other.npz"),
    "dataset_id": ({"dataset_kind": "minari", "dataset_id": "a/b-v0"}, "c/d-v0"),
    "dataset_download": ({"dataset_kind": "minari", "dataset_id": "a/b-v0"}, True),
    "dataset_env_mismatch": ({**FILE, "dataset_path": "elsewhere.npz"}, "allow"),
    "dataset_episode_steps": ({**FILE, "dataset_path": "unmarked.npz", "dataset_episode_steps": 5}, 6),
    "dataset_action_units": ({**FILE, "dataset_action_units": "environment"}, "unit"),
}
MIX = {"dataset_mix": [{"dataset_size": 20, "dataset_seed": 3}, {"dataset_size": 20, "weight": 2.0}]}
BESIDE: dict[str, dict[str, Any]] = {  # what an option is tried with, where it does nothing alone
    "priority_alpha": {"prioritized": True},
    "priority_beta": {"prioritized": True},
    "dataset_mix_size": MIX,
    "dataset_mix_seed": MIX,
    "model_patience": {
        "model_updates": 60,
        "model_patience_updates": 0,
        "model_patience": 1,
        "model_learning_rate": 0.5,
    },
    "model_patience_updates": {
        "model_updates": 60,
        "model_patience_updates": 0,
        "model_patience": 1,
        "model_learning_rate": 0.5,
    },
    "num_elites": {"num_elites": 1},
    "aux_buffer_rollouts": {"aux_buffer_rollouts": 2},
    "noise_clip": {"policy_noise": 1.0},
    "lagrange": {"cql_alpha": 1.0},
    "largest_weight": {"inverse_temperature": 50.0},
    "action_embed_dim": {"action_embed_dim": 4},
    "backup_entropy": {"alpha": 0.5},
    "clip_coef_schedule": {"learning_rate": 0.1},
    "clip_coef": {"learning_rate": 0.1},
    "clip_values": {"learning_rate": 0.1},
    "target_kl": {"learning_rate": 0.1},
    "kappa": {"kappa": 1e-3},
    "weight_decay": {"optimizer": "adamw"},
    "optimizer_decay": {"optimizer": "rmsprop"},
    "exploration_fraction": {"exploration_fraction": 0.3},
    "synthetic_batch_ratio": {"synthetic_batch_ratio": 0.5},
    "expert_episodes": {"expert_episodes": 2},
    "hindsight": {"hindsight": "future"},
    "hindsight_ratio": {"hindsight": "future"},
    "recurrent_size": {"recurrent": "gru"},
    "sequence_length": {"recurrent": "gru", "sequence_length": 3},
    "burn_in": {"recurrent": "gru", "burn_in": 1, "sequence_length": 2},
    "double": {"learning_rate": 0.1, "target_update_interval": 100, "gradient_updates_per_step": 3, "gamma": 1.0},
}
CHANGED: dict[str, Any] = {  # another value, where it is no number to be made larger and no flag to be turned
    "learning_rate_schedule": "linear",
    "clip_coef_schedule": {"type": "linear", "end": 0.01},
    "ent_coef_schedule": {"type": "linear", "start": 0.5},
    "entropy_coef_schedule": {"type": "linear", "start": 0.5},
    "actor_rate_schedule": "linear",
    "epsilon_schedule": {"type": "linear", "start": 0.5, "end": 0.5},
    "max_updates": 1,
    "max_epochs": 1,
    "warmup_steps": 10,
    "hidden_sizes": [7],
    "model_hidden_sizes": [7],
    "discriminator_hidden_sizes": [7],
    "dataset_mix": MIX["dataset_mix"],
    "dataset_mix_size": 30,
    "reward_scale": "returns",
    "reward_clip_min": -2.0,
    "reward_clip_max": -3.0,
    "loss": "likelihood",
    "best_fraction": 0.5,
    "buffer_capacity": 12,
    "gamma": 0.5,
    "gae_lambda": 0.5,
    "priority_alpha": 0.1,
    "priority_beta": 0.9,
    "max_grad_norm": 1e-4,
    "target_kl": 1e-6,
    "reward_type": "logit",
    "label_smoothing": 0.2,
    "alpha": 0.3,
    "target_entropy": 3.0,
    "tau": 0.5,
    "planner": "icem",
    "propagation": "ts1",
    "model_holdout_ratio": 0.4,
    "rollout_schedule": [0, 10, 1, 3],
    "rollout_refresh_interval": 4,
    "synthetic_buffer_capacity": 7,
    "synthetic_batch_ratio": 0.9,
    "fraction_scaling": "none",
    "penalty": "ensemble_std",
    "lagrange": 1.0,
    "architecture": "dual",
    "aux_buffer_rollouts": 1,
    "largest_weight": 1.5,
    "expectile": 0.9,
    "size": "tiny",
    "features_dim": 9,
    "action_embed_dim": 5,
    "imagination_batch_size": 3,
    "optimizer": "laprop",
    "offline_batch_ratio": 0.25,
    "target_subset": 1,
    "exploration_fraction": 0.9,
    "planning_alpha": 0.6,
    "initial_log_std": -1.0,
    "head_hidden_sizes": [3],
    "discriminator_head_hidden_sizes": [3],
    "model_patience": 9,
    "model_patience_updates": 40,
    "expert_episodes": 1,
    "kappa": 10.0,
    "adam_epsilon": 0.1,
    "activation": "silu",
    "initialisation": "xavier",
    "weight_decay": 0.5,
    "optimizer_betas": [0.5, 0.9],
    "optimizer_decay": 0.5,
    "optimizer_epsilon": 0.1,
    "policy_noise": 1.0,
    "noise_clip": 0.01,
    "hindsight": "final",
    "hindsight_ratio": 0.3,
    "recurrent": "lstm",
}
IMAGES = {
    "features_dim",
    "head_hidden_sizes",
    "discriminator_features_dim",
    "discriminator_head_hidden_sizes",
}  # GAIL's
SHORT = ("bc", "td3_bc", "iql", "cql", "mopo")


class Flashes(Counter):
    """Pictures that differ from one another."""

    observation_space = gym.spaces.Box(0, 255, (1, 36, 36), np.uint8)

    def _obs(self):
        return np.full((1, 36, 36), 40 * self.t + 10, np.uint8)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Three episodes of six steps in Pendulum's shapes, once whole, once with other rewards, of another environment, unmarked."""
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    n, ends = 18, np.arange(18) % 6 == 5
    obs, after = rng.normal(size=(2, n, 3)).astype(np.float32)
    after[~ends] = obs[1:][~ends[:-1]]
    data = {"obs": obs, "actions": rng.uniform(-0.9, 0.9, (n, 1)), "rewards": rng.normal(size=n)}
    marks = {"next_obs": after, "terminations": np.zeros(n), "truncations": ends}
    np.savez(folder / "whole.npz", **data, **marks)
    np.savez(folder / "other.npz", **{**data, "rewards": np.arange(n), "actions": -data["actions"]}, **marks)
    np.savez(folder / "elsewhere.npz", **data, **marks, meta='{"env_id": "Acrobot-v1"}')
    np.savez(folder / "unmarked.npz", **data, terminations=np.zeros(n))
    return folder


@pytest.fixture(autouse=True)
def _where_the_files_are(files, monkeypatch, tmp_path):
    monkeypatch.chdir(files)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


def digest(value: Any, into: Any) -> None:
    """A hash of everything in a state."""
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            into.update(f"{key}:".encode())
            digest(value[key], into)
    elif isinstance(value, list | tuple):
        for part in value:
            digest(part, into)
    elif isinstance(value, torch.Tensor):
        into.update(f"{value.dtype}{tuple(value.shape)}".encode() + value.detach().contiguous().numpy().tobytes())
    else:
        into.update(repr(value).encode())


def what_happens(
    algo: str, env_id: str, env: Any, options: dict[str, Any], learner: dict[str, Any] | None = None
) -> str:
    """A digest of all that a short run with these options ends with, or the words in which it is refused.

    ``learner`` are options that the learner is built with, where they differ from those of its loop.
    """
    spec = get_algorithm_spec(algo)
    limit, total = ({} if env is not None else {"max_episode_steps": 6}), 10 if algo in SHORT else STEPS
    config = TrainConfig(
        algo=algo, env_id=env_id, seed=3, total_timesteps=total, device="cpu", env_kwargs=limit, algo_kwargs=options
    )
    factory = EnvFactory(env or env_id, config.env_kwargs)
    torch.manual_seed(0)
    try:
        cfg, plan = spec.options(config), spec.blueprint(config, factory, None, "cpu")
        run = Run(config, cfg, factory, plan.spaces, device=plan.device, callbacks=[])
        loop = spec.loop_for(cfg, run.spaces)(
            run, spec.build(cfg if learner is None else spec.config(**learner), plan), cfg
        )
    except ValueError as error:
        return str(error)
    run.schedules, run.engine = Schedules(loop.agent, cfg, total), Engine(False, 1, "")
    for _ in loop:
        if run.step >= total or run.trainer.should_stop:
            break
    loop.close()
    found = hashlib.sha256()
    digest([loop.state_dict(), run.totals(), run.counters], found)
    return found.hexdigest()


def another(name: str, value: Any) -> Any:
    """A value that an option does not have."""
    if name in CHANGED:
        return CHANGED[name]
    if isinstance(value, bool):
        return not value
    assert isinstance(value, int | float), f"{name} needs a value in CHANGED: {value!r} is no number"
    return value + 1 if isinstance(value, int) else 2 * value + 0.5


def options_tried(algo: str, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The algorithm's options as they are, and with another value of one."""
    plain = name.removeprefix("expert_")
    fields = get_algorithm_spec(algo).config.model_fields
    own = {key: given for key, given in BESIDE.get(name, {}).items() if key in fields}  # others may share a name
    beside, value = OF_FILES.get(plain, (own, None))
    if plain in OF_FILES and plain != name:
        beside = {f"expert_{key}": given for key, given in beside.items()}
    before = {key: given for key, given in {**BASE[algo], **beside}.items() if given is not None}
    if value is None:
        value = another(name, before.get(name, fields[name].default))
    after = {**before, name: value}
    if plain == "dataset_kind":
        after[name.replace("kind", "path")] = "whole.npz"
    if plain == "dataset_mix":
        after.pop("dataset_size")
    return before, after


def task_of(algo: str, name: str) -> tuple[str, Any]:
    """An environment in which the option has a meaning: its id, and what makes it if it is not registered."""
    if algo == "gail" and name in IMAGES:
        return "Flashes", Flashes
    if name.startswith("hindsight"):
        return ("BitFlips", BitFlips) if algo in CHOICES else ("Point", Point)
    boxes = algo not in CHOICES or name == "initial_log_std" or name.startswith("expert_dataset")
    return "Pendulum-v1" if boxes and (algo, name) != ("cql", "target_update_interval") else "CartPole-v1", None


@pytest.mark.filterwarnings("ignore:.*(truncated after|another environment|no time limit)")
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_option_changes_the_run(algo):
    """Two runs with the same options end alike, and no option can be changed without the run ending otherwise."""
    known: dict[str, str] = {}
    idle = []
    for name in get_algorithm_spec(algo).config.model_fields:
        if name in CONTROLS:
            continue
        task, (before, after) = task_of(algo, name), options_tried(algo, name)
        key = repr((task, sorted(before.items())))
        if key not in known:
            known[key] = what_happens(algo, *task, before)
        if what_happens(algo, *task, after) == known[key]:
            idle.append(name)
    assert idle == []
    assert what_happens(algo, *task_of(algo, "gamma"), BASE[algo]) in known.values()


@pytest.mark.parametrize("name", ["cql_alpha", "learning_rate", "gamma", "normalize_observations", "hidden_sizes"])
def test_options_of_conservative_learning_reach_it_for_choices_too(name):
    before, after = options_tried("cql", name)
    assert what_happens("cql", "CartPole-v1", None, before) != what_happens("cql", "CartPole-v1", None, after)


@pytest.mark.parametrize("algo", VALUE_BASED)
def test_the_discount_reaches_the_learner_for_one_step_and_the_replay_for_several(algo):
    """Returns over several steps bring discounts of their own, which the learner takes in place of its own."""
    for n_step in (1, 3):
        before = {**BASE[algo], "n_step": n_step}
        after = {**before, "gamma": 0.5}
        usual, by_learner, by_replay = (
            what_happens(algo, "CartPole-v1", None, *given) for given in [(before,), (before, after), (after, before)]
        )
        assert (by_learner != usual, by_replay != usual) == (n_step == 1, n_step == 3)


@pytest.mark.parametrize("algo", ON_POLICY)
def test_the_discount_reaches_the_scale_of_rewards_too(algo):
    """Two rewards of one are a return of 1.625."""
    spec, options = get_algorithm_spec(algo), {**BASE[algo], "normalize_rewards": True, "gamma": 0.625}
    config = TrainConfig(algo=algo, env_id="CartPole-v1", device="cpu", algo_kwargs=options)
    factory = EnvFactory(config.env_id, {})
    cfg, plan = spec.options(config), spec.blueprint(config, factory, None, "cpu")
    loop = spec.loop_for(cfg, plan.spaces)(
        Run(config, cfg, factory, plan.spaces, device=plan.device, callbacks=[]), spec.build(cfg, plan), cfg
    )
    scaler = loop.learned_scale if algo == "gail" else loop.reward_scaler
    ended = np.zeros(1, np.float32)
    for _ in range(2):
        scaler.observe(np.ones(1, np.float32), ended)
    assert scaler.returns.tolist() == [1.625]
    loop.close()


def test_the_driver_evaluates_and_stops_as_the_options_say(tiny):
    """Evaluations at 20, 40 and the end of 60 steps; or stopped by the first, which reaches its target."""
    heard = []

    class Ear(Callback):
        def on_eval_end(self, trainer, metrics):
            heard.append(trainer.global_step)

    train = get_algorithm_spec("bc").train
    train(tiny("bc", total_timesteps=60, eval_interval=20, env_kwargs={"max_episode_steps": 3}), callbacks=[Ear()])
    assert heard == [20, 40, 60]
    heard.clear()
    stopping = {"patience": 5, "target_value": -1e6}
    config = tiny(
        "bc", total_timesteps=60, eval_interval=20, early_stopping=stopping, env_kwargs={"max_episode_steps": 3}
    )
    train(config, callbacks=[Ear()])
    assert heard == [20]
