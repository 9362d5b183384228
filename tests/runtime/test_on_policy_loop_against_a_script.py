"""Whole on-policy runs on environments whose every reward, end, cut and reset is known, against a plain loop."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch

from oracles.comparing import assert_same_metrics
from oracles.gail import GAIL as GAILOracle
from oracles.gail import Discriminator
from oracles.on_policy_run import PlainGAIL, PlainPPG, PlainRun
from oracles.policies import ActorCritic
from oracles.ppg import PPG as PPGOracle
from oracles.ppo import PPO as PPOOracle
from rl_training import Callback
from rl_training.algorithms.base import UpdateResult
from rl_training.data.dataset_files import write_npz
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.factory import EnvFactory
from rl_training.envs.replay import episode_seed
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models import MLPActorCritic, MLPGAILDiscriminator
from rl_training.runtime import gail_trainer, ppg_trainer
from rl_training.runtime.evaluation import evaluate
from rl_training.runtime.loops.on_policy import OnPolicyLoop
from rl_training.runtime.options import Task
from rl_training.runtime.run import Run
from rl_training.runtime.workflows import resume_training
from toys import Pictures, StopAt, assert_same

SEED, STEPS, ENVS = 3, 4, 3
CUT, END = "truncated", "terminated"
# Lengths of episodes and how they finish. Rollouts have four steps: a first step is cut and the next one too, a last step
# terminates, a first step terminates, a last step is cut; a cut in the middle; one environment goes on throughout.
SCRIPT = (
    [(1, CUT), (1, CUT), (2, END), (1, END), (3, CUT), (2, END), (9, CUT)],
    [(6, CUT), (2, END), (1, CUT), (1, END), (2, CUT), (3, CUT), (9, END)],
    [(99, CUT)],
)
TOLERANCE = {"rtol": 1e-3, "atol": 1e-3}  # float32 over some twenty updates by Adam, which move weights by 0.01 each
SPACES = {
    "discrete": gym.spaces.Discrete(3),
    "multi_discrete": gym.spaces.MultiDiscrete([2, 3]),
    "multi_binary": gym.spaces.MultiBinary(3),
    "box": gym.spaces.Box(-2, 2, (2,), np.float32),
}


class Scripted(gym.Env):
    """Observes the episode and its step, and what the actions have added up to; ends as the script has it."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def __init__(self, kind: str = "discrete") -> None:
        self.action_space = SPACES[kind]
        self._episodes = {
            episode_seed(SEED, i, k): (i, k, *end) for i, ends in enumerate(SCRIPT) for k, end in enumerate(ends)
        }

    def _obs(self) -> np.ndarray:
        return np.array([3 * self.episode - 2 * self.index, self.t, self.drift], np.float32)

    def reset(self, *, seed=None, options=None):
        self.index, self.episode, self.length, self.how = self._episodes.get(seed, (5, 5, 4, END))
        self.t, self.drift = 0, 0.0
        return self._obs(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        pushed = float(np.sum(action))
        self.t, self.drift = self.t + 1, 0.5 * self.drift + pushed
        over = self.t == self.length
        reward = 2.0 + pushed * (1 - self.index) + 0.5 * self.t
        return self._obs(), reward, over and self.how == END, over and self.how == CUT, {}


STORED = ["obs", "actions", "logprobs", "values", "rewards", "terminated", "truncated", "advantages", "returns"]


class Record(Callback):
    """What a run collected and learned, rollout by rollout, and the weights that it began with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rollouts, self.initial, self.updates, self.explained, self.collected = [], None, [], [], []
        self.metrics: dict = {}
        made, learn = OnPolicyLoop.__init__, OnPolicyLoop.learn

        def record_weights(loop, run, agent, *args, **kwargs):
            if self.initial is None:
                self.initial, self.torch_state = copy.deepcopy(agent.state_dict()), torch.get_rng_state()
            made(loop, run, agent, *args, **kwargs)

        def record_rollout(loop):
            self.rollouts.append({name: getattr(loop._rollout, name).copy() for name in STORED})
            self.explained.append(loop._run.reporter.metrics()["explained_variance"])
            learn(loop)

        monkeypatch.setattr(OnPolicyLoop, "__init__", record_weights)
        monkeypatch.setattr(OnPolicyLoop, "learn", record_rollout)

    def on_collect_end(self, trainer, result):
        self.collected.append((trainer.global_step, result.num_env_steps, result.num_episodes))

    def on_train_end(self, trainer, result):
        self.metrics = result.metrics

    def on_update_end(self, trainer, result):
        self.updates.append(dict(result.metrics))


OPTIONS = {
    "num_steps": STEPS, "minibatch_size": 5, "update_epochs": 2, "hidden_sizes": [8], "gamma": 0.9, "gae_lambda": 0.8,
    "learning_rate": 0.01, "clip_coef": 0.2, "ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": 0.5,
    "normalize_observations": False, "normalize_rewards": False, "initial_log_std": 0.0,
}  # fmt: skip
AUXILIARY = {
    "aux_frequency": 2, "aux_epochs": 2, "aux_minibatch_size": 9, "aux_learning_rate": 0.005, "aux_value_coef": 0.5,
    "behavior_clone_coef": 2.0, "value_clone_coef": 0.75, "architecture": "dual",
}  # fmt: skip
PPO_NAMES = (
    "learning_rate", "clip_coef", "ent_coef", "vf_coef", "max_grad_norm", "clip_values", "normalize_advantages",
)  # fmt: skip
PPG_NAMES = (*PPO_NAMES, "aux_learning_rate", "aux_value_coef", "behavior_clone_coef", "value_clone_coef")


@pytest.fixture
def run(tiny, monkeypatch):
    """``run(algo, kind, rollouts, stop_at=..., **options)``: trains on the script; the record, and the options."""

    def train(algo: str, kind: str = "discrete", *, rollouts: int = 3, stop_at: tuple[int, ...] = (), **options):
        options, record = {**OPTIONS, **options}, Record(monkeypatch)
        total, rows = rollouts * STEPS * ENVS, STEPS * ENVS
        # an evaluation after each rollout may change nothing
        options["eval_interval"] = rows
        config = tiny(algo, seed=SEED, num_envs=ENVS, total_timesteps=total, log_interval=rows, **options)
        made = {"callbacks": [record, StopAt(*stop_at)], "env": lambda: Scripted(kind)}
        result = get_algorithm_spec(algo).train(config, **made)
        for _ in stop_at:
            assert result.metrics["global_step"] < total
            result = resume_training(result.run_dir, **made)
        assert len(record.rollouts) == rollouts
        return record, {**config.algo_kwargs, **options}, load_checkpoint(result.checkpoint_path)

    return train


def plain(cls, oracle, kind: str, record: Record, options: dict, **more):
    """The plain loop on the same script, with the learner's first weights."""
    to_env = {
        "discrete": int, "multi_discrete": lambda a: a, "multi_binary": lambda a: a.astype(np.int8),
        "box": lambda a: np.clip(2 * a, -2, 2).astype(np.float32),  # the agent's [-1, 1] is the box's [-2, 2]
    }[kind]  # fmt: skip
    total = len(record.rollouts) * STEPS * ENVS
    seeds = {"seed": SEED, "total": total, "reset_seed": lambda i, episode: episode_seed(SEED, i, episode)}
    return cls(oracle, [Scripted(kind) for _ in range(ENVS)], options, to_env=to_env, **seeds, **more)


def policy_of(record: Record, kind: str, **options) -> ActorCritic:
    state = {name: value.double() for name, value in record.initial["model"].items()}
    return ActorCritic(state, kind, (2, 3) if kind == "multi_discrete" else (), **options)


def picked(options: dict, names) -> dict:
    return {name: options[name] for name in names if name in options}


def assert_same_run(reference: PlainRun, record: Record, checkpoint, before: list[dict] | None = None) -> None:
    """Rollout by rollout what was stored, update by update what was reported, and at the end the weights and statistics."""
    updates = iter(record.updates)

    def same_updates(results):
        for expected in results:
            assert_same_metrics(next(updates), expected, tolerance=1e-3)

    same_updates(before or [])
    for number, ours in enumerate(record.rollouts):
        expected = reference.rollout(ours["actions"])
        for name, column in ours.items():
            np.testing.assert_allclose(column, expected[name], **TOLERANCE, err_msg=f"{name} of rollout {number}")
        same_updates(getattr(reference, "results", []))
        residual = expected["returns"] - expected["values"]
        assert record.explained[number] == pytest.approx(1 - residual.var() / expected["returns"].var(), abs=1e-3)
        same_updates(reference.learn(expected))
    assert next(updates, None) is None, "more updates than the script has"
    rows, rollouts, policy = STEPS * ENVS, len(record.rollouts), [u for u in record.updates if "policy_loss" in u]
    episodes = np.cumsum([(ours["terminated"] + ours["truncated"]).sum() for ours in record.rollouts]).tolist()
    assert record.collected == [((k + 1) * rows, rows, episodes[k]) for k in range(rollouts)]
    counts = {"gradient_steps": len(record.updates), "update_count": len(policy), "epoch": rollouts}
    counts["global_step"] = reference.step
    assert {name: record.metrics[name] for name in counts} == counts
    assert record.metrics["explained_variance"] == record.explained[-1]
    for name, value in reference.learner.network.state_dict().items():
        np.testing.assert_allclose(checkpoint.algorithm_state["model"][name], value, **TOLERANCE, err_msg=name)
    if reference.options["normalize_observations"]:
        saved = checkpoint.algorithm_state["normalizer"]
        assert saved["count"] == len(reference.statistics.seen)
        np.testing.assert_allclose(saved["exact_mean"], reference.statistics.mean)
        np.testing.assert_allclose((saved["square"] / saved["count"] + 1e-8).sqrt(), reference.statistics.deviation)


BOTH = {"normalize_observations": True, "normalize_rewards": True}
LINEAR = {"type": "linear", "start": 1.0, "end": 0.0}
SCHEDULES = {
    "learning_rate_schedule": {"type": "cosine", "start": 1.0, "end": 0.1},
    "clip_coef_schedule": {"type": "linear", "start": 0.3, "end": 0.05},
    "ent_coef_schedule": {"type": "linear", "start": 0.1, "end": 0.0},
}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize_observations": True},
        {"normalize_rewards": True},
        BOTH,
        {**BOTH, "clip_values": True, "normalize_advantages": False, "max_grad_norm": None},
        {**BOTH, "gamma": 0.5, "gae_lambda": 0.3, "vf_coef": 1.0, "ent_coef": 0.1},
        {"gamma": 1.0, "gae_lambda": 1.0},
        {"target_kl": 1e-4, "update_epochs": 5, "learning_rate": 0.03},
        SCHEDULES,
        {"learning_rate_schedule": LINEAR, "warmup_steps": 20},
    ],
    ids=str,
)
def test_ppo_collects_and_learns_what_the_script_says(run, options):
    record, options, checkpoint = run("ppo", **options)
    oracle = PPOOracle(policy_of(record, "discrete"), **picked(options, PPO_NAMES))
    assert_same_run(plain(PlainRun, oracle, "discrete", record, options), record, checkpoint)


def test_a_run_that_is_stopped_early_by_the_divergence_makes_fewer_updates(run):
    record, _, _ = run("ppo", target_kl=1e-4, update_epochs=5, learning_rate=0.03)
    assert len(record.updates) < 3 * 5 * 3 and len(record.updates) % 3 == 0


@pytest.mark.parametrize("kind", ["multi_discrete", "multi_binary", "box"])
def test_ppo_on_every_kind_of_actions(run, kind):
    record, options, checkpoint = run("ppo", kind, rollouts=2, **BOTH, initial_log_std=0.5)
    oracle = PPOOracle(policy_of(record, kind), **picked(options, PPO_NAMES))
    assert_same_run(plain(PlainRun, oracle, kind, record, options), record, checkpoint)
    if kind == "box":  # the environment's actions were clipped, the stored ones not
        assert np.abs(record.rollouts[0]["actions"]).max() > 1
        assert record.initial["model"]["log_std"].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("stop_at", [(12,), (24,), (12, 24)], ids=str)
def test_a_resumed_run_goes_on_as_the_script_does(run, stop_at):
    record, options, checkpoint = run("ppo", **{**BOTH, **SCHEDULES}, stop_at=stop_at)
    oracle = PPOOracle(policy_of(record, "discrete"), **picked(options, PPO_NAMES))
    assert_same_run(plain(PlainRun, oracle, "discrete", record, options), record, checkpoint)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"architecture": "detach", **BOTH},
        {"aux_buffer_rollouts": 2, "aux_frequency": 3, "learning_rate_schedule": LINEAR},
        {"normalize_advantages": False},
        {**BOTH, "stop_at": (12, 36)},
    ],
    ids=str,
)
def test_ppg_keeps_rollouts_and_learns_from_them_in_its_auxiliary_phase(run, monkeypatch, options):
    monkeypatch.setattr(ppg_trainer, "TEACHER_CHUNK", 7)  # rows that the teacher labels at once
    record, options, checkpoint = run("ppg", rollouts=4, **{**AUXILIARY, **options})
    policy = policy_of(record, "discrete", detached=options["architecture"] == "detach")
    oracle = PPGOracle(policy, **{**picked(options, PPG_NAMES), "normalize_advantages": False})
    assert_same_run(plain(PlainPPG, oracle, "discrete", record, options), record, checkpoint)
    assert_same_metrics(record.metrics, [u for u in record.updates if "auxiliary_loss" in u][-1], tolerance=0)
    phases = 4 // options["aux_frequency"]
    assert sum("auxiliary_loss" in update for update in record.updates) == phases * 2 * 3  # passes, minibatches


IMITATION = {
    "expert_dataset_kind": "npz", "discriminator_updates": 2, "discriminator_batch_size": 7, "discriminator_learning_rate": 0.01,
    "discriminator_hidden_sizes": [9], "normalize_discriminator": True, "absorbing": False, "reward_type": "softplus",
    "label_smoothing": 0.0, "normalize_rewards": False, "bc_updates": 0, "gradient_penalty": 0.0,
}  # fmt: skip
MANY = {"discriminator_batch_size": 64}  # rows that tell shares of absorbing states apart
GAIL_NAMES = (*PPO_NAMES, "discriminator_learning_rate", "reward_type", "label_smoothing", "gradient_penalty")


def expert(folder, kind: str) -> tuple[str, dict[str, np.ndarray]]:
    """Three episodes of an expert, of four, five and six steps, of which the second was cut."""
    rng, lengths = np.random.default_rng(0), (4, 5, 6)
    t = np.concatenate([np.arange(n) for n in lengths]).astype(np.float32)
    obs = np.stack([t, 3 + 0 * t, rng.standard_normal(len(t))], 1).astype(np.float32)
    actions = rng.integers(3, size=len(t)) if kind == "discrete" else rng.uniform(-1, 1, (len(t), 2)).astype(np.float32)
    ends = np.cumsum(lengths) - 1
    terminated, truncated = np.isin(np.arange(len(t)), ends[[0, 2]]), np.isin(np.arange(len(t)), ends[[1]])
    columns = {"obs": obs, "actions": actions if kind == "discrete" else 2 * actions, "rewards": np.ones(len(t))}
    columns |= {"next_obs": np.roll(obs, -1, 0), "terminations": terminated, "truncations": truncated}
    columns["next_obs"][ends] += 1
    write_npz(folder / "expert.npz", TransitionDataset.from_dict(columns))
    return str(folder / "expert.npz"), {"obs": obs.astype(np.float64), "actions": actions, "terminated_lengths": [4, 6]}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("discrete", {}),
        ("box", {"normalize_observations": True}),
        ("discrete", {"normalize_rewards": True, "normalize_observations": True, "bc_updates": 3, "stop_at": (12,)}),
        ("box", {"bc_updates": 3, "stop_at": (12,)}),
        ("discrete", {"absorbing": True, "normalize_rewards": True, "stop_at": (12,)}),
        ("discrete", {"absorbing": True, "env_kwargs": {"max_episode_steps": 20}, "reward_type": "logit", **MANY}),
        ("discrete", {"reward_type": "logsigmoid", "normalize_discriminator": False, "label_smoothing": 0.1}),
        ("discrete", {"learning_rate_schedule": LINEAR, "discriminator_updates": 3, "gradient_penalty": 0.5}),
    ],
    ids=str,
)
def test_gail_learns_from_the_rewards_of_its_discriminator(run, tmp_path, monkeypatch, kind, options):
    monkeypatch.setattr(gail_trainer, "CHUNK", 5)  # rows that are rewarded at once
    path, data = expert(tmp_path, kind)
    record, options, checkpoint = run("gail", kind, **{**IMITATION, **options, "expert_dataset_path": path})
    # the environment's rewards are never scaled, nor used; the discriminator's are, by one deviation for a whole rollout
    options = {**options, "scale_learned_rewards": options["normalize_rewards"], "normalize_rewards": False}
    discriminator = Discriminator(
        {name: value.double() for name, value in record.initial["discriminator"].items()},
        3 if kind == "discrete" else None, normalize=options["normalize_discriminator"], absorbing=options["absorbing"],
    )  # fmt: skip
    oracle = GAILOracle(policy_of(record, kind), discriminator, **picked(options, GAIL_NAMES))
    limit = options.get("env_kwargs", {}).get("max_episode_steps")
    torch.set_rng_state(record.torch_state)
    reference = plain(PlainGAIL, oracle, kind, record, options, expert=data, limit=limit, box=kind == "box")
    assert_same_run(reference, record, checkpoint, reference.warm_start() if options["bc_updates"] else None)
    assert record.metrics["imitation_reward"] == pytest.approx(reference.imitation_reward, abs=1e-3)
    assert_same_metrics(record.metrics, reference.results[-1], tolerance=1e-3)  # of the last discriminator update
    for name, value in discriminator.state_dict().items():
        saved = checkpoint.algorithm_state["discriminator"][name]
        np.testing.assert_allclose(saved, value, rtol=1e-3, atol=1e-3, err_msg=name)


# ---- what surrounds the rollouts


@pytest.mark.parametrize(
    ("budget", "updates"), [({"max_updates": 4}, 4), ({"max_updates": 7}, 7), ({"max_epochs": 1}, 6)], ids=str
)
def test_no_update_follows_a_spent_budget(tiny, monkeypatch, budget, updates):
    """Six updates a rollout: two passes over three minibatches. A budget may end within a pass."""
    record = Record(monkeypatch)
    config = tiny("ppo", num_envs=ENVS, total_timesteps=36, **{**OPTIONS, **budget})
    result = get_algorithm_spec("ppo").train(config, env=Scripted, callbacks=[record])
    assert len(record.updates) == result.metrics["update_count"] == updates


def test_options_that_are_not_set_have_the_values_of_the_recipes():
    """Those of the papers and their strongest implementations; what a task decides has tests of its own."""
    common = {
        "gamma": 0.99, "gae_lambda": 0.95, "target_kl": None, "learning_rate": 3e-4, "clip_coef": 0.2, "ent_coef": 0.0,
        "vf_coef": 0.5, "max_grad_norm": 0.5, "clip_values": False, "normalize_advantages": True, "hidden_sizes": (64, 64),
        "num_steps": 128, "update_epochs": 4, "minibatch_size": 256, "initial_log_std": 0.0, "normalize_observations": False,
    }  # fmt: skip
    phasic = {
        "aux_learning_rate": 3e-4, "aux_frequency": 16, "aux_epochs": 6, "aux_minibatch_size": 512, "aux_value_coef": 1.0,
        "behavior_clone_coef": 1.0, "value_clone_coef": 1.0, "aux_buffer_rollouts": None, "architecture": "detach",
    }  # fmt: skip
    imitating = {
        "discriminator_learning_rate": 3e-4, "discriminator_updates": 4, "discriminator_batch_size": 256,
        "discriminator_hidden_sizes": (64, 64), "normalize_discriminator": True, "reward_type": "softplus",
        "absorbing": False, "label_smoothing": 0.0, "gradient_penalty": 0.0, "bc_updates": 0, "normalize_rewards": True,
        "features_dim": None, "head_hidden_sizes": (), "discriminator_features_dim": 256,
        "discriminator_head_hidden_sizes": None, "expert_dataset_kind": "random", "expert_dataset_size": 2_000,
        "expert_dataset_seed": 0, "expert_episodes": None,
    }  # fmt: skip
    for algo, own in {"ppo": {"normalize_rewards": False}, "ppg": phasic, "gail": imitating}.items():
        options = get_algorithm_spec(algo).config()
        assert {name: getattr(options, name) for name in {**common, **own}} == {**common, **own}
        images = {"num_steps": 128, "update_epochs": 4, "minibatch_size": 256, "normalize_observations": False}
        chosen = options.for_task(Task("", EnvFactory(Pictures, {}).spaces(), 8, 1_000))
        assert {name: chosen[name] for name in images} == images


@pytest.fixture
def loop_of(tiny):
    """``loop_of(algo, **options)``: a loop on the script that has not begun."""
    made = []

    def make(algo: str, env=Scripted, **options):
        config, spec = tiny(algo, num_envs=ENVS, **{**OPTIONS, **options}), get_algorithm_spec(algo)
        factory, own = EnvFactory(env, config.env_kwargs), spec.options(config)
        plan = spec.blueprint(config, factory, None, "cpu")
        run = Run(config, own, factory, plan.spaces, device=plan.device, callbacks=[])
        made.append(spec.loop(run, spec.build(own, plan), own))
        return made[-1]

    yield make
    for loop in made:
        loop.close()


def test_the_number_of_updates_is_foreseen(loop_of):
    """Rollouts of twelve rows in minibatches of five; phases of two rollouts in minibatches of nine."""
    assert loop_of("ppo").expected_updates(36) == 3 * 2 * 3
    assert loop_of("ppo").expected_updates(37) == 4 * 2 * 3  # a rollout is always finished
    assert loop_of("ppg", **AUXILIARY).expected_updates(5 * 12) == 5 * 2 * 3 + 2 * 2 * 3
    kept = {**AUXILIARY, "aux_buffer_rollouts": 1}
    assert loop_of("ppg", **kept).expected_updates(5 * 12) == 5 * 2 * 3 + 2 * 2 * 2


def test_an_episode_that_is_lost_on_resume_leaves_nothing_to_the_next_one(loop_of):
    lost, obs = np.array([0.0, 1.0, 0.0], np.float32), np.zeros((ENVS, 3), np.float32)
    loop = loop_of("ppo", normalize_rewards=True)
    loop.collect()
    before = loop.reward_scaler.returns.copy()
    loop.cut(lost, obs)
    assert before[1] != 0 and loop.reward_scaler.returns.tolist() == [before[0], 0, before[2]]

    loop = loop_of("gail", normalize_rewards=True, absorbing=True)
    loop.collect()
    loop.reward_rollout(*loop.flat_rollout())
    lengths, before = list(loop.lengths), loop.learned_scale.returns.copy()
    loop.cut(lost, obs)
    assert lengths[1] == 4 and loop.lengths == [lengths[0], 0, lengths[2]]
    assert before[1] != 0 and loop.learned_scale.returns.tolist() == [before[0], 0, before[2]]
    for algo in ("ppo", "gail"):
        loop_of(algo, normalize_rewards=False).cut(lost, obs)  # nothing is carried, and nothing fails


@pytest.mark.parametrize(("moved", "passes"), [(0.25, 2), (0.2500001, 1)])
def test_passes_end_when_the_policy_has_moved_by_more_than_the_target(loop_of, monkeypatch, moved, passes):
    loop, made = loop_of("ppo", target_kl=0.25), []
    loop.collect()
    loop.finish_rollout()
    update = lambda agent, batch: made.append(batch) or UpdateResult({"approx_kl": moved}, 1)  # noqa: E731
    monkeypatch.setattr(loop._run, "update", update)
    loop.learn()
    assert len(made) == 3 * passes


def test_a_signal_ends_learning_after_a_pass_and_leaves_nothing_after_the_last(loop_of, monkeypatch):
    loop = loop_of("ppo")
    monkeypatch.setattr(type(loop._run.stopping), "urgent", True)
    loop.collect()
    loop.finish_rollout()
    left = []
    for _ in range(2):
        loop.learn()
        left.append((loop._passes, loop.mid_step))
    assert left == [(1, True), (0, False)]


@pytest.mark.parametrize("algo", ["ppo", "ppg", "gail"])
def test_a_rollout_that_was_under_way_is_cut_where_an_environment_was_lost(loop_of, monkeypatch, algo):
    loop, lost = loop_of(algo), np.array([0.0, 1.0, 0.0], np.float32)
    monkeypatch.setattr(loop._run, "pausing", lambda: True)
    loop.collect()
    rollout, obs = loop._rollout, np.random.default_rng(0).normal(size=(ENVS, 3)).astype(np.float32)
    before, values = rollout.final_values[0].copy(), loop.agent.values(obs)
    assert rollout.position == 1 and rollout.truncated[0].tolist() == [1, 0, 0] and before[0] != 0
    loop.cut(lost, obs)
    assert rollout.truncated[0].tolist() == [1, 1, 0]
    np.testing.assert_allclose(rollout.final_values[0], [before[0], values[1], before[2]], rtol=1e-6)


def test_the_rewards_of_a_discriminator_are_scaled_and_never_clipped(loop_of):
    """After rewards of no more than a tenth, a discriminator that has become sure of itself pays what it pays."""
    loop, rng = loop_of("gail", normalize_rewards=True, reward_type="logit"), np.random.default_rng(0)
    for _ in range(2000):
        loop.learned_scale.observe(rng.uniform(-0.1, 0.1, ENVS), np.ones(ENVS))
    with torch.no_grad():
        loop.agent.discriminator.body[-1].weight.zero_()
        loop.agent.discriminator.body[-1].bias.fill_(2.0)
    loop.collect()
    loop.reward_rollout(*loop.flat_rollout())
    scale = loop.learned_scale
    np.testing.assert_allclose(loop._rollout.rewards, 2.0 / np.sqrt(scale.square / scale.count), rtol=1e-5)
    assert loop._rollout.rewards.min() > 10
    assert loop.reward_scaler is None  # the environment's rewards are not even looked at


def test_the_networks_have_the_widths_of_their_options(loop_of):
    loop = loop_of("gail", hidden_sizes=[7, 5], discriminator_hidden_sizes=[6, 4], absorbing=True)
    shapes = {name: tuple(value.shape) for name, value in loop.agent.state_dict()["model"].items()}
    assert shapes["trunk.0.weight"] == (2, 3, 7) and shapes["trunk.2.weight"] == (2, 7, 5)
    widths = [layer.weight.shape for layer in loop.agent.discriminator.body[::2]]
    assert widths == [(6, 3 + 3 + 1), (4, 6), (1, 4)]  # of observation, action and flag


def test_networks_of_images_have_the_widths_of_their_options(loop_of):
    sizes = {
        "hidden_sizes": [5],
        "head_hidden_sizes": [6],
        "discriminator_features_dim": 7,
        "discriminator_hidden_sizes": [4],
    }
    agent = loop_of("gail", Pictures, **sizes).agent
    weights = {name: tuple(value.shape) for name, value in agent.model.state_dict().items()}
    assert weights["trunk.1.weight"][0] == 5 and weights["trunk.3.weight"] == (6, 5)
    assert weights["policy_head.weight"] == (2, 6) and weights["value_head.weight"] == (1, 6)
    assert [layer.weight.shape for layer in agent.discriminator.body[::2]] == [(4, 7 + 2), (1, 4)]

    agent = loop_of("gail", Pictures, **sizes, features_dim=8, discriminator_head_hidden_sizes=[3, 2]).agent
    assert agent.model.trunk[1].out_features == 8 and agent.model.trunk[3].in_features == 8
    assert [layer.weight.shape for layer in agent.discriminator.body[::2]] == [(3, 7 + 2), (2, 3), (1, 2)]


def test_a_network_of_ones_own_is_the_policy_and_never_the_discriminator(tiny):
    class Own(MLPActorCritic):
        pass

    spec, config = get_algorithm_spec("gail"), tiny("gail", **OPTIONS)
    plan = spec.blueprint(config, EnvFactory(Scripted, {}), Own, "cpu")
    agent = spec.build(spec.options(config), plan)
    assert type(agent.model) is Own and type(agent.discriminator) is MLPGAILDiscriminator


def test_an_evaluation_sees_normalised_observations_and_leaves_the_statistics_as_they_are(loop_of):
    loop, seen = loop_of("ppo", normalize_observations=True), []
    loop.collect()
    agent, act = loop.agent, loop.agent._act
    agent._act = lambda obs, *rest: (seen.append(obs.copy()), act(obs, *rest))[1]
    before = copy.deepcopy(agent.normalizer.state_dict())
    evaluate(agent, EnvFactory(Scripted, {}), episodes=1, seed=0)
    assert_same(agent.normalizer.state_dict(), before)
    assert agent.normalizer.training  # and training goes on observing
    first = (np.array([5.0, 0, 0]) - before["exact_mean"].numpy()) / (
        before["square"] / before["count"] + 1e-8
    ).sqrt().numpy()
    np.testing.assert_allclose(seen[0][0], first, rtol=1e-4)
    assert len(seen) == 4


def test_a_rollout_is_filled_and_used_in_turn():
    rollout = RolloutBuffer(2, 1, (1,))
    row = {"obs": 0, "actions": 0, "logprobs": 0, "rewards": 1, "values": 0, "terminated": 0, "truncated": 0}
    rollout.add(**row)
    with pytest.raises(ValueError, match="holds 1 of 2 steps"):
        rollout.compute_returns_and_advantages(np.zeros(1), 0.9, 0.9)
    rollout.add(**row)
    with pytest.raises(ValueError, match="already holds 2 steps"):
        rollout.add(**row)
    rollout.clear()
    rollout.add(**row)
    assert rollout.position == 1


def test_minibatches_that_are_not_shuffled_are_in_time_order():
    rollout = RolloutBuffer(3, 2, (1,))
    for t in range(3):
        rest = dict.fromkeys(("actions", "logprobs", "rewards", "values", "terminated", "truncated"), 0)
        rollout.add(obs=np.array([[10 * t], [10 * t + 1]]), **rest)
    rows = [minibatch["obs"][:, 0].tolist() for minibatch in rollout.iter_minibatches(4, shuffle=False)]
    assert rows == [[0, 1, 10, 11], [20, 21]]
