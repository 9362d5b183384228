"""The value-based family with a memory against plain loops over time: what is stored, learned, and left alone."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from memory_toys import Cue, Ragged
from oracles.memory import one_step, plain_layer
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.fqf import FQF
from rl_training.algorithms.iqn import IQN
from rl_training.algorithms.qr_dqn import QRDQN
from rl_training.algorithms.recurrent import RECURRENT, SequenceValues, transitions
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models import MLPFQFNetwork, MLPIQNetwork, MLPQNetwork, MLPQRQNetwork
from rl_training.models.memory import MemorySize
from rl_training.models.normalizer import ObservationNormalizer
from rl_training.runtime.engine import Engine
from rl_training.runtime.run import Run
from rl_training.runtime.schedules import Schedules
from rl_training.runtime.workflows import resume_training
from toys import Pictures, Signs, StopAt, same_end

KINDS, FAMILY = ("lstm", "gru"), ("dqn", "qr_dqn", "iqn", "fqf")
OPTIONS = {
    "buffer_capacity": 200, "batch_size": 8, "learning_starts": 30, "hidden_sizes": [7], "recurrent_size": 5,
    "sequence_length": 4, "burn_in": 3,
}  # fmt: skip
BURN_IN, LEARNED, SEQUENCES, GAMMA = 3, 6, 5, 0.75


def random_batch(states: int, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    """Sequences in which episodes start in the burn-in, at its end, at the first learned step, and one after another."""
    generator, length = torch.Generator().manual_seed(3), BURN_IN + LEARNED + 1
    starts = torch.zeros(length, SEQUENCES, dtype=dtype)
    for t, b in [(0, 0), (3, 0), (1, 1), (6, 1), (2, 2), (3, 3), (4, 3), (9, 3), (5, 4), (7, 4)]:
        starts[t, b] = 1
    dones = torch.zeros_like(starts)
    dones[8, 3] = dones[6, 4] = 1  # and the other episodes were truncated
    initial = torch.randn(SEQUENCES, states, generator=generator, dtype=dtype).tanh()
    return {
        "obs": torch.randn(length, SEQUENCES, 3, generator=generator, dtype=dtype),
        "actions": torch.randint(4, (length, SEQUENCES), generator=generator),
        "rewards": torch.randn(length, SEQUENCES, generator=generator, dtype=dtype) * (1 - starts),
        "dones": dones, "episode_starts": starts, "initial_state": initial * (1 - starts[0])[:, None],
        "mask": torch.ones_like(starts),
    }  # fmt: skip


def network(cls: Any, kind: str, **options: Any) -> Any:
    torch.manual_seed(2)
    made = cls(obs_dim=3, action_dim=4, hidden_sizes=(8, 7), memory=MemorySize(kind, 5), **options).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made


class Plain(torch.nn.Module):
    """The features of a network with a memory, by torch's own layer, one observation after the other."""

    def __init__(self, made: Any) -> None:
        super().__init__()
        trunk = made.body[0] if hasattr(made, "body") else made.encoder
        self.encoder = trunk.encoder
        self.layer, self.size = plain_layer(trunk.state_dict(), "memories.0.layer.")

    def features(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """(T', B, R) of the steps after the burn-in, from states that have no gradient."""
        columns = []
        for b in range(SEQUENCES):
            state, outputs = batch["initial_state"][b], []
            for t, obs in enumerate(batch["obs"][:, b]):
                if batch["episode_starts"][t, b]:
                    state = torch.zeros_like(state)
                state = one_step(self.layer, self.size, self.encoder(obs[None])[0], state)
                if t < BURN_IN:
                    state = state.detach()
                else:
                    outputs.append(state[: self.size])
            columns.append(torch.stack(outputs))
        return torch.stack(columns, 1)


def learned_steps(batch: dict[str, torch.Tensor]) -> list[tuple[int, int]]:
    """(t, b) of the transitions from t to t + 1, counted from the end of the burn-in, sequence by sequence."""
    starts = batch["episode_starts"][BURN_IN:]
    return [(t, b) for b in range(SEQUENCES) for t in range(LEARNED) if not starts[t + 1, b]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("double", [False, True])
def test_an_update_of_dqn_is_that_of_a_plain_loop_over_time(kind, double):
    """In float64; burn-in by the online and by the target network, whose weights differ."""
    online, rate = network(MLPQNetwork, kind), 2**-7
    learner = RECURRENT[DQN](
        q_network=online, burn_in=BURN_IN, learning_rate=rate, gamma=GAMMA, target_update_interval=100,
        double_q=double, max_grad_norm=0.5,
    )  # fmt: skip
    with torch.no_grad():
        for parameter in learner.target_network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    ours, theirs = Plain(online), Plain(learner.target_network)
    ours.encoder, head = copy.deepcopy(online.body[0].encoder), copy.deepcopy(online.body[1])
    parameters = [*ours.encoder.parameters(), *ours.layer.parameters(), *head.parameters()]
    adam = torch.optim.Adam(parameters, lr=rate)
    batch = random_batch(online.body[0].state_size)
    for _ in range(3):
        features = ours.features(batch)
        with torch.no_grad():
            target_q = learner.target_network.body[1](theirs.features(batch))
            choosing = head(features) if double else target_q
        losses = []
        for t, b in learned_steps(batch):
            best = target_q[t + 1, b, choosing[t + 1, b].argmax()]
            now, after = BURN_IN + t, BURN_IN + t + 1
            target = batch["rewards"][after, b] + GAMMA * (1 - batch["dones"][after, b]) * best
            q = head(features[t, b])[batch["actions"][now, b]]
            losses.append(torch.nn.functional.smooth_l1_loss(q, target))
        loss = torch.stack(losses).mean()
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 0.5)
        adam.step()
        metrics = learner.update(batch, global_step=0).metrics
        assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-6)
    assert 20 < len(losses) < LEARNED * SEQUENCES
    again = [*online.body[0].encoder.parameters(), *Plain(online).layer.parameters(), *online.body[1].parameters()]
    for one, other in zip(again, parameters):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("learner", "made", "options"),
    [
        (QRDQN, MLPQRQNetwork, {"num_quantiles": 5}),
        (IQN, MLPIQNetwork, {"num_quantiles": 5}),
        (FQF, MLPFQFNetwork, {"num_quantiles": 5}),
    ],
)
def test_the_others_learn_from_features_of_sequences_as_they_do_from_observations(kind, learner, made, options):
    """The same learner without a memory, which is given the features that a plain loop over time makes."""
    more = {} if learner is not FQF else {"fraction_learning_rate": 0.01}
    how = {**options, **more, "learning_rate": 0.01, "gamma": GAMMA, "target_update_interval": 100, "double_q": False}
    online = network(made, kind, **options)
    ours = RECURRENT[learner](q_network=online, burn_in=BURN_IN, **how)
    with torch.no_grad():
        for parameter in ours.target_network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    batch = random_batch(2 * 5 if kind == "lstm" else 5)
    with torch.no_grad():
        features, following = (Plain(part).features(batch) for part in (online, ours.target_network))
    theirs = learner(q_network=without_trunk(online), **how)
    theirs.target_network.load_state_dict(without_trunk(ours.target_network).state_dict())
    steps = learned_steps(batch)
    rows = [(BURN_IN + t, b) for t, b in steps]
    plain = {
        "obs": torch.stack([features[t, b] for t, b in steps]),
        "next_obs": torch.stack([following[t + 1, b] for t, b in steps]),
        "actions": torch.stack([batch["actions"][t, b] for t, b in rows]),
        "rewards": torch.stack([batch["rewards"][t + 1, b] for t, b in rows]),
        "dones": torch.stack([batch["dones"][t + 1, b] for t, b in rows]),
    }
    torch.manual_seed(5)
    expected = dict(theirs.update(plain, global_step=0).metrics)
    torch.manual_seed(5)
    given = dict(ours.update(batch, global_step=0).metrics)
    assert given == pytest.approx(expected, rel=1e-6) and len(given) >= 4


def without_trunk(made: Any) -> Any:
    """A copy of a network that takes the features in place of observations."""
    other = copy.deepcopy(made)
    if hasattr(other, "body"):
        other.body[0] = torch.nn.Identity()
    else:
        other.encoder = torch.nn.Identity()
    return other


@pytest.mark.parametrize("burn_in", [0, BURN_IN])
def test_transitions_are_the_neighbours_of_an_episode_and_sequences_begin_where_it_does(burn_in):
    batch = random_batch(4)
    batch["obs"][..., 0] = torch.arange(len(batch["obs"]))[:, None]
    batch["obs"][..., 1] = torch.arange(SEQUENCES)
    made = transitions(batch, burn_in, batch["obs"])
    expected = [
        (t, b)
        for b in range(SEQUENCES)
        for t in range(burn_in, BURN_IN + LEARNED)
        if not batch["episode_starts"][t + 1, b]
    ]
    for name, shift in (("obs", 0), ("next_obs", 1)):
        rows = made[name].rows[made[name].pick][:, :2].long().tolist()
        assert [tuple(row) for row in rows] == [(t + shift, b) for t, b in expected]
    for name, shift in (("actions", 0), ("rewards", 1), ("dones", 1)):
        assert made[name].tolist() == [batch[name][t + shift, b].item() for t, b in expected]
    edges = np.cumsum([0, *made["obs"].lengths.tolist()])
    for first, end, source in zip(edges, edges[1:], made["obs"].warmup.first.tolist()):
        t, b = made["obs"].rows[first, :2].long().tolist()
        assert source == (-1 if batch["episode_starts"][t, b] else b) and (source == -1 or t == burn_in)
        assert not batch["episode_starts"][t + 1 : t + end - first, b].any()


def loop_of(algo: str, kind: str, num_envs: int = 3, **options: Any) -> Any:
    spec, given = get_algorithm_spec(algo), {**OPTIONS, "recurrent": kind, **options}
    config = TrainConfig(
        algo=algo, env_id="own", seed=3, num_envs=num_envs, total_timesteps=120, device="cpu", algo_kwargs=given
    )
    factory = EnvFactory(Ragged, {"max_episode_steps": 4})
    cfg, plan = spec.options(config), spec.blueprint(config, factory, None, "cpu")
    run = Run(config, cfg, factory, plan.spaces, device=plan.device, callbacks=[])
    torch.manual_seed(0)
    loop = spec.loop_for(cfg, run.spaces)(run, spec.build(cfg, plan), cfg)
    run.schedules, run.engine = Schedules(loop.agent, cfg, 120), Engine(False, 1, "")
    return loop


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_of_replay_has_the_state_that_its_observation_was_met_with(kind):
    """Also the last observation of an episode, at which nobody acts."""
    loop = loop_of("dqn", kind)
    for _ in range(20):
        loop.step()
    lost, obs = np.array([1.0, 0.0, 0.0]), loop.collector.obs.copy()
    loop.cut(lost, obs)
    plain, last = Plain(loop.agent.q_network), 0
    with torch.no_grad():
        for e in range(3):
            columns = {name: torch.from_numpy(column[e]) for name, column in loop.replay._columns.items()}
            for row in range(loop.replay.written[e]):
                if columns["episode_starts"][row]:
                    state = torch.zeros_like(columns["states"][0])
                np.testing.assert_allclose(columns["states"][row], state, atol=2e-6)
                state = one_step(plain.layer, plain.size, plain.encoder(columns["obs"][row][None])[0], state)
                last += int(columns["last"][row] and state.any())
    assert last > 10
    drawn = loop.replay.sample(50)
    assert drawn["initial_state"].shape == (50, loop.carry.value.shape[1]) and drawn["initial_state"].any()
    assert not drawn["initial_state"][drawn["episode_starts"][0] > 0].any()
    loop.close()


def test_updates_begin_when_there_are_sequences_and_draw_about_as_many_steps_as_a_batch_has():
    loop = loop_of("dqn", "gru", learning_starts=1)
    drawn, sample = [], loop.replay.sample
    loop.replay.sample = lambda n: drawn.append((loop._run.step, n)) or sample(n)
    for _ in zip(range(12), loop):
        pass
    assert drawn[0] == (24, 2) and loop.replay.sequence_length == 3 + 4 + 1
    loop.close()


def test_observations_are_scaled_before_they_are_encoded():
    made = network(MLPQNetwork, "gru").float()
    normalizer = ObservationNormalizer((3,))
    normalizer.fit(np.random.default_rng(0).normal(3, 2, (50, 3)))
    batch = random_batch(5, torch.float32)
    scaled = {**batch, "obs": normalizer(batch["obs"])}
    losses = []
    for given, scale in ((batch, normalizer), (scaled, None)):
        learner = SequenceValues(
            q_network=copy.deepcopy(made),
            burn_in=2,
            normalizer=scale,
            learning_rate=0.1,
            gamma=0.9,
            target_update_interval=9,
        )
        losses.append(float(learner.update(given, global_step=0).metrics["loss"]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize(
    ("algo", "num_envs", "kind"),
    [("dqn", 1, "gru"), ("dqn", 3, "lstm"), ("qr_dqn", 3, "gru"), ("iqn", 3, "lstm"), ("fqf", 3, "gru")],
)
def test_a_run_that_was_stopped_ends_as_one_that_was_not(tiny, algo, kind, num_envs):
    options = {**OPTIONS, "num_envs": num_envs, "recurrent": kind, "normalize_observations": True}
    config, spec = tiny(algo, **options, total_timesteps=90), get_algorithm_spec(algo)
    straight = load_checkpoint(spec.train(config, run_suffix="straight").checkpoint_path)
    stopped = spec.train(config, run_suffix="stopped", callbacks=[StopAt(50)])
    assert load_checkpoint(stopped.checkpoint_path).buffer_state["carry"]["value"].shape[0] == num_envs
    same_end(straight, load_checkpoint(resume_training(stopped.run_dir).checkpoint_path))


@pytest.mark.filterwarnings("ignore:.*has no time limit")
@pytest.mark.parametrize(("algo", "env"), [("dqn", Pictures), ("fqf", Signs)], ids=["images", "parts"])
def test_images_and_parts_are_learned_from_too(tiny, algo, env):
    options = {**OPTIONS, "recurrent": "lstm", "hidden_sizes": [8], "total_timesteps": 40}
    result = get_algorithm_spec(algo).train(tiny(algo, env_id="own", **options), env=env)
    assert result.metrics["gradient_steps"] > 0 and np.isfinite(result.metrics["loss"])


def trained(tiny, algo, **options):
    sizes = {"hidden_sizes": [16], "batch_size": 64, "learning_rate": 5e-3, "gamma": 0.9, "learning_starts": 200}
    more = {"total_timesteps": 2_000, "eval_interval": 0, "eval_episodes": 40, "target_update_interval": 30}
    config = tiny(
        algo, env_id="own", num_envs=4, buffer_capacity=5_000, train_frequency=4, **{**sizes, **more, **options}
    )
    return get_algorithm_spec(algo).train(config, env=lambda: Cue(2)).metrics["eval_return_mean"]


@pytest.mark.filterwarnings("ignore:.*has no time limit")
def test_a_cue_is_remembered_with_a_memory_and_only_with_one(tiny):
    memory = {"recurrent": "lstm", "recurrent_size": 12, "sequence_length": 8, "burn_in": 3}
    assert trained(tiny, "dqn", **memory) == 1.0
    assert trained(tiny, "dqn") < 0.8


@pytest.mark.parametrize("algo", FAMILY)
@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"prioritized": True}, "leave prioritized out: priorities are of single transitions"),
        ({"n_step": 3}, "leave n_step out: sequences hold the reward of every step"),
        ({"noisy": True}, "leave noisy out: the noise would change from step to step"),
        ({"hindsight": "future"}, "leave hindsight out: the stored states were met with another goal"),
        ({"initial_random_steps": 10}, "leave initial_random_steps out: random steps would leave the state behind"),
        ({"recurrent": None, "burn_in": 4}, "burn_in does nothing without recurrent"),
        ({"sequence_length": 1}, "sequence_length: .* 2, got 1"),  # it might hold no transition
        ({"recurrent": "rnn"}, "recurrent: should be 'lstm' or 'gru'"),
    ],
)
def test_what_does_not_go_with_a_memory_is_refused_in_a_line(tiny, algo, given, why):
    with pytest.raises(ValueError, match=why) as refused:
        get_algorithm_spec(algo).train(tiny(algo, **{"recurrent": "gru", **given}))
    assert "\n" not in str(refused.value)


def test_networks_of_ones_own_and_too_small_buffers_are_refused(tiny):
    with pytest.raises(ValueError, match="recurrent: is for the algorithm's own network"):
        get_algorithm_spec("dqn").train(tiny("dqn", recurrent="gru"), network=MLPQNetwork)
    with pytest.raises(ValueError, match=r"buffer_capacity: .* cannot hold sequences of 25"):
        get_algorithm_spec("dqn").train(tiny("dqn", recurrent="gru", buffer_capacity=20))
    plain = MLPQNetwork(obs_dim=2, action_dim=2)
    with pytest.raises(ValueError, match="MLPQNetwork has no memory"):
        SequenceValues(q_network=plain, learning_rate=1.0, gamma=0.9, target_update_interval=1)


def test_acting_is_in_numpy_and_explores_as_without_a_memory():
    agent = loop_of("dqn", "lstm").agent
    assert agent._values._forward.in_numpy
    agent.set_control("epsilon", 1.0)
    obs, rng = np.zeros((64, 3), np.float32), np.random.default_rng(0)
    acting = agent.act(obs, rng=rng)
    assert set(acting.actions.tolist()) == {0, 1, 2} and acting.carry.shape == (64, 10)
    assert len(set(agent.act(obs, deterministic=True).actions.tolist())) == 1
