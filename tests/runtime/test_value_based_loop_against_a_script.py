"""The loop of the value-based family against a plain one: what is stored, drawn, learned and copied, and when.

Environments whose every reward, end, cut and reset is written down; the same random streams in both.
"""

import copy
import json
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

from oracles import dqn, fqf, iqn, q_networks, qr_dqn
from oracles.comparing import assert_same_parameters
from oracles.replay import Memory, windows
from rl_training.base.state import Rng
from rl_training.envs.replay import episode_seed
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models import MLPFQFNetwork, MLPIQNetwork, MLPQNetwork, MLPQRQNetwork
from rl_training.runtime.loops.off_policy import OffPolicyLoop
from rl_training.runtime.workflows import resume_training
from toys import StopAt

ACTIONS, SEED, TOTAL = 3, 3, 90
# rewards, and whether the episode ends (terminated) or is cut (truncated) after the last of them
EPISODES = [
    ([1.0, -2.0, 0.5], "end"),
    ([0.25, 0.25, 3.0, -1.0, 0.5, 2.0], "cut"),
    ([2.0], "end"),
    ([-1.5], "cut"),
    ([0.0, 1.0, 0.0, 1.0], "both"),
]


class Scripted(gym.Env):
    """Observes which script it plays, the step and the last action; pays by the script and a little for action 2."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Discrete(ACTIONS)

    def _obs(self):
        return np.array([self.script / 4, self.t / 3, self.action], np.float32)

    def reset(self, *, seed=None, options=None):
        self.script, self.t, self.action = seed % len(EPISODES), 0, -1
        return self._obs(), {}

    def step(self, action):
        rewards, how = EPISODES[self.script]
        reward = rewards[self.t] + 0.1 * (action == 2)
        self.t, self.action = self.t + 1, action
        over = self.t == len(rewards)
        return self._obs(), reward, over and how != "cut", over and how != "end", {}


class Pictured(Scripted):
    """The same as a picture: a bright square for each of the three numbers, on a floor."""

    observation_space = gym.spaces.Box(0, 255, (1, 36, 36), np.uint8)

    def _obs(self):
        picture = np.full((1, 36, 36), 20, np.uint8)
        for k, number in enumerate((self.script, self.t, self.action + 1)):
            picture[0, 12 * k : 12 * k + 12, : 6 * number] = 250 - 70 * k
        return picture


OPTIONS = {
    "hidden_sizes": [8, 6], "batch_size": 6, "buffer_capacity": 200, "learning_starts": 11, "train_frequency": 2,
    "target_update_interval": 5, "learning_rate": 0.01, "gamma": 0.8, "eval_interval": 0,
    "exploration_fraction": 0.6, "epsilon_schedule": {"type": "linear", "start": 0.9, "end": 0.1},
}  # fmt: skip
FAMILY = {
    "dqn": (dqn.DQN, MLPQNetwork, {}, {}),
    "qr_dqn": (qr_dqn.QRDQN, MLPQRQNetwork, {"num_quantiles": 4}, {"kappa": 0.5}),
    "iqn": (
        iqn.IQN, MLPIQNetwork, {"num_quantiles": 4, "embedding_dim": 5}, {"action_samples": 3, "stratified": False},
    ),
    "fqf": (
        fqf.FQF, MLPFQFNetwork, {"num_quantiles": 4, "embedding_dim": 5},
        {"fraction_learning_rate": 0.02, "entropy_coef": 0.01, "fraction_scaling": "range", "train_at_fractions": True},
    ),
}  # fmt: skip


class Normalizer:
    """(x - mean) / deviation of all observations so far, within ±10."""

    def __init__(self):
        self.seen = []

    def __call__(self, x):
        seen = np.concatenate(self.seen).astype(np.float64)
        return np.clip((x - seen.mean(0)) / np.sqrt(seen.var(0) + 1e-8), -10, 10).astype(np.float32)


def linear(start, end, progress):
    return start + (end - start) * min(1.0, progress)


class Plain:
    """The run as a script: every environment, row, draw and update in plain sight."""

    def __init__(self, algo, network, num_envs, changes, env=Scripted):
        self.env = env
        oracle, _, sizes, own = FAMILY[algo]
        self.o = {**OPTIONS, "initial_random_steps": 0, "gradient_updates_per_step": 1, "n_step": 1, **changes}
        o = self.o
        own = {**own, **{name: value for name, value in sizes.items() if name == "num_quantiles"}, "adam_epsilon": 1e-8}
        self.learner = oracle(
            network, **{name: o.get(name, value) for name, value in own.items()}, double_q=o.get("double", True),
            max_grad_norm=o.get("max_grad_norm", 10.0),
            **{name: o[name] for name in ("learning_rate", "gamma", "target_update_interval")},
        )  # fmt: skip
        self.algo, self.n, self.exploration = algo, num_envs, Rng(SEED, "exploration").generator
        alpha = o.get("priority_alpha", 0.6) if o.get("prioritized") else None
        self.memory = Memory(min(o["buffer_capacity"], TOTAL + num_envs), Rng(SEED, "replay").generator, alpha)
        self.normalizer = Normalizer() if o.get("normalize_observations") else None
        self.updates_at, self.reported = [], {}  # steps, and the newest value of what is scheduled

    def scaled(self, x):
        return x if self.normalizer is None else self.normalizer(x)

    def values(self, obs):
        """Q(s, ·) for acting; IQN's fractions and the noise of noisy layers are the exploration stream's."""
        network, o = self.learner.network, torch.from_numpy(self.scaled(obs))
        with torch.no_grad():
            if self.algo == "iqn":
                taus = self.exploration.random((len(obs), FAMILY["iqn"][3]["action_samples"]), "f4")
                return network.quantiles(network.encode(o), torch.from_numpy(taus)).mean(-1)
            if self.algo == "fqf":
                features = network.encode(o)
                mass, _, hats = self.learner.proposed(network, features)
                return (network.quantiles(features, hats) * mass[:, None]).sum(-1)
            draw = self.noise if self.o.get("noisy") else None
            weights = dict(network.named_parameters())
            return q_networks.q_values(weights, o, ACTIONS, dueling=self.o.get("dueling", False), noisy=draw).mean(-1)

    def noise(self, inputs, outputs):
        drawn = torch.from_numpy(self.exploration.standard_normal(inputs + outputs, np.float32))
        return drawn[:inputs], drawn[inputs:]

    def actions(self, obs, step):
        if step < self.o["initial_random_steps"]:
            return self.exploration.integers(ACTIONS, size=self.n)
        best = self.values(obs).argmax(1).numpy()
        if self.o.get("noisy"):
            return best
        schedule, part = self.o["epsilon_schedule"], int(TOTAL * self.o["exploration_fraction"])
        epsilon = linear(schedule["start"], schedule["end"], step / (part - 1))
        self.reported["epsilon"] = epsilon
        uniform = self.exploration.random(self.n)
        return np.array([self.exploration.integers(ACTIONS) if u < epsilon else a for u, a in zip(uniform, best)])

    def run(self, total=TOTAL):
        o, envs = self.o, [self.env() for _ in range(self.n)]
        begun = [0] * self.n
        obs = [env.reset(seed=episode_seed(SEED, i, 0))[0] for i, env in enumerate(envs)]
        history = [[] for _ in envs]  # every step of each environment
        stored, step = [0] * self.n, 0
        while step < total:
            if self.normalizer is not None:
                self.normalizer.seen.append(np.stack(obs))
            actions = self.actions(np.stack(obs), step)
            for i, env in enumerate(envs):
                next_obs, reward, terminated, truncated, _ = env.step(int(actions[i]))
                clip = o.get("reward_clip", np.inf)
                paid = min(max(np.float32(reward) * o.get("reward_scale", 1.0), -clip), clip)
                row = {"obs": obs[i], "actions": actions[i], "rewards": paid, "next_obs": next_obs}
                history[i].append({**row, "dones": terminated, "truncations": truncated and not terminated, "at": step})
                obs[i] = next_obs
                if terminated or truncated:
                    begun[i] += 1
                    obs[i] = env.reset(seed=episode_seed(SEED, i, begun[i]))[0]
            for i, steps in enumerate(history):
                rows = windows(steps, o["n_step"], o["gamma"])
                for row in rows[stored[i] :]:
                    self.memory.add(row if o["n_step"] > 1 else {k: v for k, v in row.items() if k != "discounts"})
                stored[i] = len(rows)
            step += self.n
            if step >= max(o["learning_starts"], o["batch_size"]) and self.memory.places:
                due = [k for k in range(step - self.n + 1, step + 1) if k % o["train_frequency"] == 0]
                for _ in due:
                    for _ in range(o["gradient_updates_per_step"]):
                        self.learn(step)
        return self

    def learn(self, step):
        o = self.o
        beta = linear(o.get("priority_beta", 0.4), 1.0, step / (TOTAL - 1))
        batch = self.memory.sample(o["batch_size"], beta)
        if self.normalizer is not None:
            batch |= {name: torch.from_numpy(self.scaled(batch[name].numpy())) for name in ("obs", "next_obs")}
        if o.get("learning_rate_schedule") == "linear":
            for optimizer in (self.learner.optimizer, getattr(self.learner, "fraction_optimizer", None)):
                if optimizer is not None:
                    group, scale = optimizer.param_groups[0], linear(1, 0, (step - self.n) / (TOTAL - 1))
                    group["lr"] = group.setdefault("initial_lr", group["lr"]) * scale
        self.metrics = self.learner.update(batch)
        self.updates_at.append(step)
        if self.memory.alpha is not None:
            self.reported["priority_beta"] = beta
            self.memory.learned(self.learner.td_errors)


CASES = {
    "defaults": ("dqn", 1, {}),
    "not double": ("dqn", 1, {"double": False}),
    "two environments": ("dqn", 2, {"train_frequency": 3, "gradient_updates_per_step": 2}),
    "five environments, an update for each": ("dqn", 5, {"train_frequency": 1, "learning_starts": 0}),
    "a small ring": ("dqn", 2, {"buffer_capacity": 17}),
    "three steps": ("dqn", 1, {"n_step": 3}),
    "four steps of two environments in a small ring": ("dqn", 2, {"n_step": 4, "buffer_capacity": 17}),
    "prioritized": ("dqn", 1, {"prioritized": True}),
    "prioritized, other exponents, a small ring": (
        "dqn", 2, {"prioritized": True, "priority_alpha": 0.9, "priority_beta": 0.2, "buffer_capacity": 17},
    ),
    "prioritized, three steps": ("dqn", 2, {"prioritized": True, "n_step": 3}),
    "dueling": ("dqn", 1, {"dueling": True}),
    "noisy": ("dqn", 1, {"noisy": True}),
    "random first": ("dqn", 2, {"initial_random_steps": 20, "learning_starts": 30}),
    "normalised observations": ("dqn", 2, {"normalize_observations": True}),
    "rewards scaled and clipped": ("dqn", 1, {"reward_scale": 0.5, "reward_clip": 0.7}),
    "a falling learning rate": ("dqn", 1, {"learning_rate_schedule": "linear"}),
    "tightly clipped gradients": ("dqn", 1, {"max_grad_norm": 0.05}),
    "no clipping": ("dqn", 1, {"max_grad_norm": None}),
    "another epsilon of Adam": ("dqn", 1, {"adam_epsilon": 0.1}),
    "qr_dqn": ("qr_dqn", 2, {"n_step": 2}),
    "iqn": ("iqn", 1, {"double": False}),
    "iqn, one fraction of each part": ("iqn", 1, {"stratified": True}),
    "fqf": ("fqf", 1, {"learning_rate_schedule": "linear"}),
    "fqf as published": ("fqf", 1, {"fraction_scaling": "none", "train_at_fractions": False, "entropy_coef": 0.0}),
}  # fmt: skip


def trained(tiny, algo, num_envs, changes, stops=(), env=Scripted):
    """The end of a run, the oracle's copy of its first network, and the state of torch's generator then."""
    changes = dict(changes)
    reward = {name[7:]: changes.pop(name) for name in ("reward_scale", "reward_clip") if name in changes}
    if changes.get("noisy"):
        changes |= {"epsilon_schedule": {"type": "constant", "start": 0.0}}
    _, kind, sizes, own = FAMILY[algo]
    first = []

    def network(**arguments):
        made = kind(**arguments)
        first.append((copy.deepcopy(made), torch.get_rng_state()))
        return made

    config = tiny(
        algo, total_timesteps=TOTAL, num_envs=num_envs, seed=SEED,
        env_kwargs={"wrappers": {"reward": reward}} if reward else {},
        algo_kwargs={**OPTIONS, **sizes, **own, **changes},
    )  # fmt: skip
    result = get_algorithm_spec(algo).train(config, env=env, network=network, callbacks=[StopAt(*stops[:1])])
    for number, _ in enumerate(stops, 1):
        later = [StopAt(*stops[number : number + 1])]
        result = resume_training(result.run_dir, env=env, network=network, callbacks=later)
    return result, *first[0]


def stored(state, n_step, prioritized):
    """The rows of a saved memory, by name, in the order of their places."""
    packed = state["packed"].numpy()
    widths = {"obs": 3, "actions": 1, "rewards": 1, "next_obs": 3, "dones": 1, "truncations": 1}
    widths |= {"weights": 1} if prioritized else {}
    widths |= {"discounts": 1} if n_step > 1 else {}
    assert packed.shape[1] == sum(widths.values())
    edges = np.cumsum([0, *widths.values()])
    return {name: packed[:, a:b] for name, a, b in zip(widths, edges, edges[1:])}


def assert_same_networks(state, plain):
    for name, theirs in (("q_network", plain.learner.network), ("target_network", plain.learner.target)):
        ours = copy.deepcopy(theirs)
        ours.load_state_dict(state.algorithm_state[name])
        assert_same_parameters(ours, theirs, tolerance=2e-4, name=name)


def assert_same_run(result, plain):
    state = load_checkpoint(result.checkpoint_path)
    saved, o = state.buffer_state["replay"], plain.o
    rows = stored(saved, o["n_step"], o.get("prioritized", False))
    assert saved["written"] == plain.memory.written and saved["size"] == len(plain.memory.places)
    for name in rows:
        if name != "weights":
            expected = np.stack([np.atleast_1d(row[name]) for row in plain.memory.places]).astype(np.float32)
            np.testing.assert_allclose(rows[name], expected, rtol=1e-6, atol=1e-6, err_msg=name)
    assert state.trainer_state["update_count"] == len(plain.updates_at) == state.algorithm_state["updates"]
    assert_same_networks(state, plain)
    if plain.memory.alpha is not None:
        known = plain.memory.priorities[: len(plain.memory.places)] ** plain.memory.alpha
        np.testing.assert_allclose(saved["weights"].numpy(), known, rtol=1e-3, atol=1e-5)
        assert saved["highest"] == pytest.approx(plain.memory.highest, rel=1e-3)
    lines = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    said = {name: value for line in lines for name, value in line.items()}
    for name, value in {**plain.metrics, **plain.reported}.items():
        assert said[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name


@pytest.mark.parametrize("case", CASES)
def test_a_run_is_its_script(tiny, case):
    algo, num_envs, changes = CASES[case]
    result, network, generator = trained(tiny, algo, num_envs, changes)
    torch.set_rng_state(generator)
    assert_same_run(result, Plain(algo, network, num_envs, changes).run())


@pytest.mark.parametrize("case", ["two environments", "four steps of two environments in a small ring", "noisy", "iqn"])
def test_a_run_that_was_stopped_twice_is_still_its_script(tiny, case):
    algo, num_envs, changes = CASES[case]
    result, network, generator = trained(tiny, algo, num_envs, changes, stops=(31, 64))
    torch.set_rng_state(generator)
    assert_same_run(result, Plain(algo, network, num_envs, changes).run())


def test_a_run_on_pictures_is_its_script(tiny):
    """Windows over several steps, priorities and a small ring, with every frame stored once."""
    changes = {"n_step": 3, "prioritized": True, "buffer_capacity": 23, "learning_starts": 30, "train_frequency": 6}
    result, network, _ = trained(tiny, "dqn", 2, changes, env=Pictured)
    plain = Plain("dqn", network, 2, changes, env=Pictured).run()
    assert_same_networks(load_checkpoint(result.checkpoint_path), plain)
    assert result.metrics["loss"] == pytest.approx(plain.metrics["loss"], rel=1e-3)


class Drifting(Scripted):
    """Plays a script that no seed brings back."""

    begun = 0

    def reset(self, *, seed=None, options=None):
        Drifting.begun += 1
        obs, info = super().reset(seed=1, options=options)
        return obs + np.float32(Drifting.begun), info

    def step(self, action):
        obs, *rest = super().step(action)
        return obs + np.float32(Drifting.begun), *rest


@pytest.mark.parametrize("n_step", [1, 3])
def test_an_episode_that_a_resumed_run_cannot_rebuild_is_cut_where_it_was_saved(tiny, n_step):
    """Step 34 is the fourth of an episode of six: the windows that are open then, or the last row, end there."""
    with pytest.warns(UserWarning, match="cannot be rebuilt"):
        result, *_ = trained(tiny, "dqn", 1, {"n_step": n_step, "train_frequency": 1}, stops=(34,), env=Drifting)
    rows = stored(load_checkpoint(result.checkpoint_path).buffer_state["replay"], n_step, False)
    t = 3 * (rows["next_obs"][:, 1] - rows["next_obs"][:, 0] + 0.25)  # of the observation that a row ends with
    lost = list(range(34 - max(1, n_step - 1), 34))
    cut = rows["truncations"][:, 0] == 1
    assert t[lost] == pytest.approx(4, abs=1e-4) and cut[lost].all() and not rows["dones"].any()
    assert t[np.setdiff1d(cut.nonzero()[0], lost)] == pytest.approx(6, abs=1e-4)
    assert (t[~cut] < 5.5).all() and np.allclose(t[34], 1 if n_step == 1 else 3, atol=1e-4)  # and a new episode began
    if n_step > 1:
        assert rows["discounts"][lost, 0] == pytest.approx([0.8**2, 0.8])


@pytest.mark.parametrize("num_envs", [1, 2, 5])
@pytest.mark.parametrize("every", [1, 2, 3, 7])
@pytest.mark.parametrize("starts", [1, 6, 11, 20])
def test_the_first_update_and_the_number_of_updates_are_known_beforehand(num_envs, every, starts):
    config, options = (
        SimpleNamespace(num_envs=num_envs, async_collection=False),
        {"train_frequency": every, "gradient_updates_per_step": 3},
    )
    loop = SimpleNamespace(_run=SimpleNamespace(config=config), _cfg=SimpleNamespace(**options), _starts=starts)
    steps = range(num_envs, 400 * num_envs, num_envs)
    due = [sum(k % every == 0 for k in range(step - num_envs + 1, step + 1)) for step in steps]
    made = {step: 3 * rounds for step, rounds in zip(steps, due) if step >= starts and rounds}
    assert OffPolicyLoop.first_update_step(loop) == min(made)
    total = sum(count for step, count in made.items() if step <= 210)
    assert OffPolicyLoop.expected_updates(loop, 210) == pytest.approx(total, abs=3 * num_envs)
    assert OffPolicyLoop.expected_updates(loop, starts - 1) == 0
