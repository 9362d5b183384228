"""PPO with a memory against plain loops over time: what it stores, what it bootstraps from, and what it learns."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from memory_toys import Cue, Ragged
from oracles.memory import PlainActorCritic
from rl_training import PPO, Callback
from rl_training.algorithms import base
from rl_training.algorithms.recurrent import RecurrentPPO
from rl_training.data.sequence_rollout import SequenceRollout
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models import MLPActorCritic
from rl_training.models.memory import MemorySize, Sequences
from rl_training.runtime.run import Run
from rl_training.runtime.workflows import resume_training
from toys import Pictures, Signs, StopAt, same_end

KINDS = ("lstm", "gru")
STEPS, ENVS, GAMMA, LAMBDA = 8, 3, 0.9, 0.7
OPTIONS = {
    "num_steps": STEPS, "minibatch_size": 7, "update_epochs": 2, "hidden_sizes": [7], "recurrent_size": 5,
    "sequence_length": 3, "gamma": GAMMA, "gae_lambda": LAMBDA, "learning_rate": 0.01,
}  # fmt: skip
SPACES = {"discrete": gym.spaces.Discrete(3), "box": gym.spaces.Box(-2, 2, (2,), np.float32)}


def loop_of(kind: str, actions: str = "discrete", **options: Any) -> Any:
    """A loop that has not begun, with a policy that is not uniform."""
    spec, given = get_algorithm_spec("ppo"), {**OPTIONS, "recurrent": kind, **options}
    config = TrainConfig(algo="ppo", env_id="own", seed=3, num_envs=ENVS, device="cpu", algo_kwargs=given)
    factory = EnvFactory(lambda: Ragged(SPACES[actions]), {"max_episode_steps": 4})
    cfg, plan = spec.options(config), spec.blueprint(config, factory, None, "cpu")
    run = Run(config, cfg, factory, plan.spaces, device=plan.device, callbacks=[])
    torch.manual_seed(0)
    agent = spec.build(cfg, plan)
    with torch.no_grad():
        for parameter in agent.model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return spec.loop_for(cfg, run.spaces)(run, agent, cfg)


def collected(loop: Any) -> tuple[SequenceRollout, np.ndarray]:
    """A rollout, and the true next observation of every step."""
    following, stored = [], loop.on_row_stored

    def watch(t, step):
        following.append(step.next_obs.copy())
        stored(t, step)

    loop.on_row_stored = watch
    loop.collect()
    loop.on_row_stored = stored
    return loop._rollout, np.stack(following)


def ended(rollout: Any) -> np.ndarray:
    return np.maximum(rollout.terminated, rollout.truncated) > 0


@pytest.mark.filterwarnings("ignore:.*has no time limit")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("actions", list(SPACES))
@pytest.mark.parametrize("normalize", [False, True])
def test_rollouts_hold_what_a_plain_loop_over_time_gives(kind, actions, normalize):
    loop = loop_of(kind, actions, normalize_observations=normalize)
    agent, plain = loop.agent, PlainActorCritic(loop.agent.model)
    carry, cuts, starts = torch.zeros(ENVS, agent.initial_carry(1).shape[1]), 0, 0
    for _ in range(2):
        rollout, following = collected(loop)
        last_obs, scaled = loop.collector.obs.copy(), agent.normalizer.host if normalize else lambda x: x
        loop.finish_rollout()
        bootstraps = np.zeros((STEPS, ENVS), np.float32)
        with torch.no_grad():
            for e in range(ENVS):
                for t in range(STEPS):
                    np.testing.assert_allclose(rollout.carry[t, e], carry[e].numpy(), atol=2e-6)
                    outputs, value, carry[e] = plain.step(torch.from_numpy(rollout.obs[t, e]), carry[e])
                    np.testing.assert_allclose(rollout.values[t, e], value, atol=2e-6)
                    taken = torch.from_numpy(rollout.actions[t, e : e + 1])
                    outputs = outputs if plain.log_std is None else torch.cat([outputs, plain.log_std])
                    logprob = agent.model.head.evaluate(outputs[None], taken)[0]
                    np.testing.assert_allclose(rollout.logprobs[t, e], logprob[0], atol=1e-5)
                    if rollout.truncated[t, e] and not normalize:  # else: scaled by statistics of that step
                        last = plain.step(torch.from_numpy(following[t, e]), carry[e])[1]
                        np.testing.assert_allclose(rollout.final_values[t, e], last, atol=2e-6)
                    if ended(rollout)[t, e]:
                        carry[e], starts = 0.0, starts + 1
                    cuts += int(rollout.truncated[t, e])
                bootstraps[-1, e] = plain.step(torch.from_numpy(scaled(last_obs)[e]), carry[e])[1]
        bootstraps[:-1] = rollout.values[1:]
        bootstraps = np.where(rollout.truncated > 0, rollout.final_values, bootstraps * (1 - rollout.terminated))
        advantages, following_advantage = np.zeros((STEPS, ENVS)), np.zeros(ENVS)
        for t in reversed(range(STEPS)):
            error = rollout.rewards[t] + GAMMA * bootstraps[t] - rollout.values[t]
            following_advantage = error + GAMMA * LAMBDA * following_advantage * (1 - ended(rollout)[t])
            advantages[t] = following_advantage
        np.testing.assert_allclose(rollout.advantages, advantages, atol=1e-5)
    assert cuts > 3 and starts > cuts
    np.testing.assert_allclose(loop.carry.value, carry.numpy(), atol=2e-6)
    loop.close()


@pytest.mark.filterwarnings("ignore:.*has no time limit")
@pytest.mark.parametrize("size", [3, 7, 9, 100])
def test_minibatches_are_whole_sequences_cut_at_pieces_and_at_episodes(size):
    loop = loop_of("gru")
    rollout, _ = collected(loop)
    loop.finish_rollout()
    rollout.obs[..., 0] = np.arange(STEPS)[:, None]  # where each row is from
    rollout.obs[..., 1] = np.arange(ENVS)
    seen, batches = [], list(rollout.iter_minibatches(size))
    for batch in batches:
        assert int(batch["lengths"].sum()) == len(batch["obs"]) and len(batch["lengths"]) == len(batch["carry"])
        rows = torch.split(batch["obs"], batch["lengths"].tolist())
        for own, carry in zip(rows, batch["carry"]):
            times, envs = own[:, 0].long().tolist(), own[:, 1].long().tolist()
            assert times == list(range(times[0], times[0] + len(times))) and len(set(envs)) == 1
            begins = times[0] % 3 == 0 or ended(rollout)[times[0] - 1, envs[0]]
            assert begins and times[-1] < times[0] // 3 * 3 + 3 and not ended(rollout)[times[:-1], envs[:-1]].any()
            np.testing.assert_array_equal(carry, rollout.carry[times[0], envs[0]])
            assert times[0] == 0 or not ended(rollout)[times[0] - 1, envs[0]] or not carry.any()
            seen += list(zip(times, envs))
        place = batch["obs"][:, 0].long() * ENVS + batch["obs"][:, 1].long()
        np.testing.assert_array_equal(batch["advantages"], rollout.advantages.reshape(-1)[place])
    assert sorted(seen) == [(t, e) for t in range(STEPS) for e in range(ENVS)]
    assert len(batches) == -(-9 // max(1, size // 3))  # nine pieces: of 3, 3 and 2 steps
    assert loop.expected_updates(STEPS * ENVS * 5) == 5 * 2 * -(-9 // 2)
    loop.close()


@pytest.mark.filterwarnings("ignore:.*has no time limit")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("actions", list(SPACES))
def test_an_update_is_that_of_a_plain_loop_over_time_with_torchs_own_layers(kind, actions):
    """In float64. Advantages are normalised over all rows of a minibatch, none of which is padding."""
    loop = loop_of(kind, actions)
    rollout, _ = collected(loop)
    loop.finish_rollout()
    rollout.logprobs += np.random.default_rng(0).normal(0, 0.3, rollout.logprobs.shape).astype("f4")
    options = {"learning_rate": 2**-7, "clip_coef": 0.25, "ent_coef": 2**-5, "vf_coef": 0.75}
    policy = loop.agent.model.double()
    plain, learner = PlainActorCritic(policy), RecurrentPPO(policy=policy, **options)
    parameters = [*plain.parameters()]
    if plain.log_std is not None:
        plain.log_std = plain.log_std.clone().requires_grad_()
        parameters.append(plain.log_std)
    adam = torch.optim.Adam(parameters, lr=options["learning_rate"], eps=1e-5)
    for batch in rollout.iter_minibatches(12):
        batch = {name: x.double() if x.is_floating_point() else x for name, x in batch.items()}
        rows, row = [], 0
        for length, carry in zip(batch["lengths"].tolist(), batch["carry"]):
            for _ in range(length):
                outputs, value, carry = plain.step(batch["obs"][row], carry)
                rows.append((outputs if plain.log_std is None else torch.cat([outputs, plain.log_std]), value))
                row += 1
        outputs, values = map(torch.stack, zip(*rows))
        logprobs, entropy = policy.head.evaluate(outputs, batch["actions"])
        ratio = (logprobs - batch["logprobs"]).exp()
        advantages = batch["advantages"]
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.75, 1.25) * advantages).mean()
        loss = -surrogate + 0.75 * 0.5 * (values - batch["returns"]).square().mean() - 2**-5 * entropy.mean()
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 0.5)
        adam.step()
        metrics = learner.update(batch, global_step=0).metrics
        assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-6)
    again = PlainActorCritic(policy)
    for (name, ours), theirs in zip(again.named_parameters(), plain.parameters()):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-8, msg=name)
    if plain.log_std is not None:
        torch.testing.assert_close(policy.log_std, plain.log_std, rtol=0, atol=1e-8)
    loop.close()


@pytest.mark.filterwarnings("ignore:.*has no time limit")
def test_the_gradient_goes_back_to_the_first_step_of_a_sequence_but_not_across_an_episode():
    loop = loop_of("lstm", sequence_length=STEPS)
    rollout, _ = collected(loop)
    loop.finish_rollout()
    [batch] = rollout.iter_minibatches(1_000, shuffle=False)
    assert len(batch["lengths"]) > ENVS and int(batch["lengths"].max()) > 1
    edges = np.cumsum([0, *batch["lengths"].tolist()])
    for first, end in itertools.pairwise(edges):
        obs = batch["obs"].clone().requires_grad_()
        given: Any = Sequences(obs, batch["carry"], batch["lengths"])
        loop.agent.model.evaluate_actions(given, batch["actions"]).values[end - 1].backward()
        reached = obs.grad.abs().sum(1) > 0
        assert reached.tolist() == [first <= row < end for row in range(len(obs))]
    loop.close()


@pytest.mark.filterwarnings("ignore:.*has no time limit")
def test_an_episode_whose_environment_was_lost_ends_with_the_value_of_its_own_state():
    loop = loop_of("gru")
    loop._run.trainer.request_stop("a test")
    while not (loop.carry.value.any(1).all() and loop._rollout.position > 1):
        collected(loop)
    t, state, obs = loop._rollout.position - 1, loop.carry.value.copy(), loop.collector.obs.copy()
    loop.cut(np.array([0.0, 1.0, 0.0]), obs)
    assert loop._rollout.truncated[t].tolist() == [0, 1, 0] and loop._rollout.partial
    expected = PlainActorCritic(loop.agent.model).step(torch.from_numpy(obs[1]), torch.from_numpy(state[1]))[1].item()
    assert loop._rollout.final_values[t, 1] == pytest.approx(expected, abs=2e-6)
    np.testing.assert_array_equal(loop.carry.value, state * np.array([[1.0], [0.0], [1.0]]))
    loop.close()


def test_values_are_asked_for_without_drawing_an_action(monkeypatch):
    loop, drawn = loop_of("gru"), np.random.default_rng(0)
    monkeypatch.setattr(base, "_shared", drawn)
    before = drawn.bit_generator.state
    loop.agent.values(loop.collector.obs)
    assert drawn.bit_generator.state == before
    loop.agent.act(loop.collector.obs)
    assert drawn.bit_generator.state != before
    loop.close()


@pytest.mark.filterwarnings("ignore:.*has no time limit")
@pytest.mark.parametrize(("kind", "env"), [("lstm", Pictures), ("gru", Signs)], ids=["images", "parts"])
def test_images_and_parts_pass_their_encoder_and_then_the_memory_one_for_actor_and_critic(tiny, kind, env):
    options = {"recurrent": kind, "recurrent_size": 6, "sequence_length": 4, "num_envs": 2, "hidden_sizes": [8]}
    result = get_algorithm_spec("ppo").train(tiny("ppo", env_id="own", **options), env=env)
    state = load_checkpoint(result.checkpoint_path).algorithm_state["model"]
    assert state["trunk.memories.0.layer.weight_ih_l0"].shape == ((4 if kind == "lstm" else 3) * 6, 8)
    assert "trunk.memories.1.layer.weight_ih_l0" not in state and result.metrics["gradient_steps"] > 0
    agent = PPO.load(result.checkpoint_path, env=env).agent
    rows = np.random.default_rng(0).integers(0, 200, (5, *EnvFactory(env, {}).spaces().obs_shape)).astype(np.uint8)
    first = agent.act(rows, deterministic=True)
    again = agent.act(rows, carry=first.carry, deterministic=True)
    assert first.carry.shape == (5, 12 if kind == "lstm" else 6) and not np.allclose(first.carry, again.carry)


class StopAtEpisode(Callback):
    """Stops a run in the middle of a rollout: where an episode ends."""

    def __init__(self, number: int) -> None:
        self.left = number

    def on_episode_end(self, trainer, episode):
        self.left -= 1
        if self.left == 0:
            trainer.request_stop("a test")


@pytest.mark.parametrize(("kind", "num_envs"), [("gru", 1), ("lstm", 3)])
@pytest.mark.parametrize("stop", [StopAt(100), StopAtEpisode(4)], ids=["between passes", "within a rollout"])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(tiny, kind, num_envs, stop):
    options = {"num_envs": num_envs, "total_timesteps": 300, "recurrent": kind, "sequence_length": 5}
    config = tiny("ppo", **options, normalize_observations=True, normalize_rewards=True)
    spec = get_algorithm_spec("ppo")
    straight = load_checkpoint(spec.train(config, run_suffix="straight").checkpoint_path)
    assert straight.buffer_state["carry"]["value"].shape[0] == num_envs
    stopped = spec.train(config, run_suffix="stopped", callbacks=[copy.deepcopy(stop)])
    saved = load_checkpoint(stopped.checkpoint_path).buffer_state
    assert ("rollout" in saved) == isinstance(stop, StopAtEpisode)
    assert saved["carry"]["value"].any() or num_envs == 1  # whose episode has just ended
    same_end(straight, load_checkpoint(resume_training(stopped.run_dir).checkpoint_path))


def test_a_run_that_starts_from_an_agent_has_its_memory_or_none_where_it_has_none(tiny):
    spec = get_algorithm_spec("ppo")
    for memory in ({"recurrent": "gru", "recurrent_size": 5}, {}):
        first = spec.train(tiny("ppo", total_timesteps=32, **memory), run_suffix=f"first {len(memory)}")
        config = tiny("ppo", total_timesteps=32, learning_rate=1e-30, max_grad_norm=1e-30).replace(
            init_from=str(first.run_dir)
        )
        second = spec.train(config, run_suffix=f"second {len(memory)}")
        assert load_checkpoint(second.checkpoint_path).config["algo_kwargs"].get("recurrent") == memory.get("recurrent")
        ours, theirs = (load_checkpoint(one.checkpoint_path).algorithm_state["model"] for one in (second, first))
        assert ours.keys() == theirs.keys() and any("memories" in name for name in ours) == bool(memory)
        assert all(torch.allclose(ours[name], theirs[name], atol=1e-6) for name in ours)


def trained(tiny, **options):
    env = {"env_id": "own", "total_timesteps": 5_000, "num_envs": 8, "normalize_observations": False}
    sizes = {"num_steps": 32, "minibatch_size": 64, "update_epochs": 4, "hidden_sizes": [16], "gamma": 0.9}
    config = tiny("ppo", **{**env, **sizes, "eval_interval": 0, "eval_episodes": 40, "learning_rate": 1e-2, **options})
    return get_algorithm_spec("ppo").train(config, env=Cue).metrics["eval_return_mean"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:.*has no time limit")
def test_a_cue_is_remembered_with_a_memory_and_only_with_one(tiny, kind):
    assert trained(tiny, recurrent=kind, recurrent_size=8, sequence_length=16) == 1.0
    if kind == "lstm":
        assert trained(tiny) < 0.8


def test_what_has_no_memory_refuses_one_in_a_line(tiny):
    for algo in ("ppg", "gail"):
        with pytest.raises(ValueError, match=f"unknown option of {algo}; did you mean 'recurrent' of ppo"):
            get_algorithm_spec(algo).train(tiny(algo, recurrent="lstm"))
    with pytest.raises(ValueError, match="recurrent_size does nothing without recurrent"):
        get_algorithm_spec("ppo").train(tiny("ppo", recurrent_size=8))
    with pytest.raises(ValueError, match="recurrent: is for the algorithm's own network, and network= gives another"):
        get_algorithm_spec("ppo").train(tiny("ppo", recurrent="lstm"), network=MLPActorCritic)
    with pytest.raises(ValueError, match="MLPActorCritic has no memory"):
        RecurrentPPO(
            policy=MLPActorCritic(obs_dim=2, action_dim=2), learning_rate=1, clip_coef=1, ent_coef=0, vf_coef=1
        )


def test_updates_stay_eager_and_the_run_says_why(tiny, capsys):
    config = tiny("ppo", recurrent="gru", sequence_length=8, total_timesteps=64).replace(compile=True, progress="lines")
    get_algorithm_spec("ppo").train(config)
    assert "updates run eagerly, on 1 thread: a graph would be unrolled over time" in capsys.readouterr().err


def test_a_learner_is_copied_with_its_memory():
    policy = MLPActorCritic(obs_dim=3, action_dim=2, hidden_sizes=(6,), memory=MemorySize("lstm", 4))
    learner = RecurrentPPO(policy=policy, learning_rate=0.1, clip_coef=0.2, ent_coef=0.0, vf_coef=0.5)
    other, obs = copy.deepcopy(learner), np.ones((2, 3), np.float32)
    with torch.no_grad():
        other.model.trunk.memories[0].layer.weight_ih_l0.mul_(3)
    assert not np.allclose(learner.act(obs).carry, other.act(obs).carry)
    assert other._forward.in_numpy and learner._forward.in_numpy
