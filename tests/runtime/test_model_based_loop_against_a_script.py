"""What the loops of PETS, MBPO, MOPO and Dreamer do, and when, on an environment whose every step is known: against plain loops."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.algorithms.dynamics import ModelFit
from rl_training.algorithms.terminations import TerminationClassifier
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime import mbpo_trainer, mopo_trainer, pets_trainer
from rl_training.runtime.driver import Driver
from rl_training.runtime.loops import model_based
from rl_training.runtime.run import Run
from rl_training.runtime.workflows import resume_training
from toys import StopAt

LOW, HIGH = -1.0, 3.0  # of actions


class Script(gym.Env):
    """Observes (number of the episode, t). Episodes have 3, 4 or 5 steps, and terminate if their number is even, else they are truncated."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Box(LOW, HIGH, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number, self.t = int(self.np_random.integers(1000)), 0
        return np.array([self.number, 0], np.float32), {}

    def step(self, action):
        reward = float(paid(self.number, self.t, action[0]))
        self.t += 1
        over = self.t == length(self.number)
        end = self.number % 2 == 0
        return np.array([self.number, self.t], np.float32), reward, over and end, over and not end, {}


class Choices(Script):
    """The same with two choices, which count as -1 and 1."""

    action_space = gym.spaces.Discrete(2)

    def step(self, action):
        return super().step(np.array([2.0 * action - 1]))


def length(number):
    return 3 + number % 3


def paid(number, t, action):
    return number / 100 + t + action / 10


gym.register("ModelScript-v0", Script, max_episode_steps=50)
gym.register("ModelScriptChoices-v0", Choices, max_episode_steps=50)


def assert_rows_of_the_script(data, num_envs, first=True):
    """Every row is a step of the script, and every environment's rows follow each other from the first to the last."""
    obs, next_obs = data["obs"], data["next_obs"]
    number, t = obs.T
    units = LOW + (data["actions"][:, 0] + 1) / 2 * (HIGH - LOW)
    over = t + 1 == length(number)
    np.testing.assert_array_equal(next_obs, obs + np.array([0, 1]))
    np.testing.assert_allclose(data["rewards"], paid(number, t, units), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(data["dones"], over & (number % 2 == 0))
    np.testing.assert_array_equal(data["truncations"], over & (number % 2 == 1))
    for env in range(num_envs):
        own = slice(env, None, num_envs)
        for before, after, ended in zip(next_obs[own], obs[own][1:], over[own]):
            assert (after[1] == 0) if ended else np.array_equal(before, after)


class Spies:
    """Notes what a run does, in order, with the environment step at which it does it."""

    def __init__(self, monkeypatch):
        self.events, self.loops, self.starts, self.batches = [], [], [], []
        self.patch = monkeypatch.setattr
        monkeypatch.setattr(TerminationClassifier, "UPDATES", 2)
        self.patch(Driver, "__init__", self.before(Driver.__init__, lambda _, run, loop, __: self.loops.append(loop)))

    def before(self, function, note):
        def noted(*args, **kwargs):
            note(*args, **kwargs)
            return function(*args, **kwargs)

        return noted

    def watch_fits(self, module, num_envs):
        def fit(run, fit, data):
            if not fit.active:
                assert_rows_of_the_script(data, num_envs)
            self.events.append((run.step, "goes on fitting" if fit.active else "fit", len(data["obs"])))

        def terminations(run, terminations, data):
            self.events.append((run.step, "terminations", len(data["obs"])))

        self.patch(module, "learn_terminations", self.before(module.learn_terminations, terminations))
        if hasattr(module, "run_fit"):
            self.patch(module, "run_fit", self.before(module.run_fit, fit))

    def watch_rollouts(self):
        def refreshed(imagination, source, horizon):
            self.events.append((imagination._run.step, "rollouts", horizon))

        def imagined(sample, act, starts, horizon, terminated):
            self.starts.append(starts.clone())

        self.patch(model_based.Imagination, "refresh", self.before(model_based.Imagination.refresh, refreshed))
        self.patch(model_based, "imagine", self.before(model_based.imagine, imagined))

    def watch_acting(self, learner):
        """Notes the steps at which a learner acts in training (evaluation names no step), and what is carried to it."""
        self.acted = {}
        act = learner.act

        def noted(agent, obs, *, carry=None, step=None, **rest):
            acting = act(agent, obs, carry=carry, step=step or 0, **rest)
            if step is not None:
                self.acted[step] = (obs.copy(), None if carry is None else carry.copy(), acting)
            return acting

        self.patch(learner, "act", noted)

    def watch_update_of_kind(self, learner, kind):
        def updated(agent, batch, *, global_step):
            self.events.append((global_step, kind))
            self.batches.append(batch)

        self.patch(learner, kind, self.before(getattr(learner, kind), updated))

    def watch_updates(self):
        def updated(run, agent, batch):
            self.events.append((run.step, "update"))
            self.batches.append({name: column.clone() for name, column in batch.items()})

        self.patch(Run, "update", self.before(Run.update, updated))


def every(interval, before, step):
    """How many multiples of an interval have come since the last step."""
    return step // interval - before // interval


def straight_or_resumed(config, stop):
    """A run, or a run that is stopped at a step and resumed; evaluated and saved no more than it must be."""
    quiet = {"eval_interval": 0, **config.algo_kwargs}
    config = config.replace(compile=False, checkpoint_interval=1_000, log_interval=1_000, loggers=(), algo_kwargs=quiet)
    spec = get_algorithm_spec(config.algo)
    if stop is None:
        return spec.train(config)
    first = spec.train(config, callbacks=[StopAt(stop)])
    assert first.metrics["global_step"] < config.total_timesteps
    return resume_training(first.run_dir)


# ---- MBPO

MBPO = {"learning_starts": 10, "initial_random_steps": 12, "batch_size": 8, "model_train_frequency": 16}
MBPO |= {"rollout_refresh_interval": 8, "train_frequency": 2, "gradient_updates_per_step": 3, "model_updates": 3}
MBPO |= {"rollout_schedule": [16, 32, 1, 3], "rollouts_retained": 2, "rollout_batch_size": 200}
MBPO |= {"synthetic_batch_ratio": 0.75}
TOTAL = 42


def mbpo_script(total, n, options):
    """Fits, what follows from them, and updates, by step."""
    events, step, fitted = [], 0, False
    while step < total:
        before, step = step, step + n
        if step < max(options["learning_starts"], options["batch_size"]):
            continue
        first, fitted = not fitted, True
        if first or every(options["model_train_frequency"], before, step):
            events += [(step, "fit", step), (step, "terminations", step)]
        if first or every(options["rollout_refresh_interval"] or options["model_train_frequency"], before, step):
            events.append((step, "rollouts", 1 if step < 24 else 2 if step < 32 else 3))
        events += [(step, "update")] * (3 * every(options["train_frequency"], before, step))
    return events


@pytest.mark.parametrize(
    ("n", "changes", "stop"),
    [(1, {}, None), (1, {}, 29), (3, {}, None), (2, {"rollout_refresh_interval": None, "train_frequency": 5}, None)],
)
def test_mbpo_fits_imagines_and_learns_when_the_script_does(tiny, monkeypatch, n, changes, stop):
    spies = Spies(monkeypatch)
    spies.watch_fits(mbpo_trainer, n)
    spies.watch_rollouts()
    spies.watch_updates()
    options = {**MBPO, **changes}
    config = tiny("mbpo", env_id="ModelScript-v0", total_timesteps=TOTAL, num_envs=n, **options)
    result = straight_or_resumed(config, stop)
    events = [event for event in spies.events if event[1] != "goes on fitting"]
    script = mbpo_script(TOTAL, n, options)
    assert events == script
    loop = spies.loops[-1]
    updates = [event for event in script if event[1] == "update"]
    assert loop.first_update_step() == updates[0][0] and result.metrics["update_count"] == len(updates)
    assert abs(loop.expected_updates(TOTAL) - len(updates)) <= 2 * options["gradient_updates_per_step"]
    data = loop.replay.columns()
    assert_rows_of_the_script(data, n)
    assert loop.imagination.buffer.capacity == 200 * 2 * 3  # two refreshes of the longest rollouts
    assert result.metrics["synthetic_buffer_size"] == sum(loop.imagination.counts[-2:]) > 200

    known = {row.tobytes() for row in data["obs"]}
    for starts in spies.starts:  # begun where an action was taken, not where an episode had ended
        assert {row.tobytes() for row in starts.numpy()} <= known and len(starts) == 200
    for batch in spies.batches:  # of eight transitions two are real, and none of those has another reward than it had
        number, t = batch["obs"].T
        units = LOW + (batch["actions"][:, 0] + 1) / 2 * (HIGH - LOW)
        steps = (batch["next_obs"] == batch["obs"] + torch.tensor([0, 1])).all(1)
        real = steps & torch.isclose(batch["rewards"], paid(number, t, units), rtol=1e-4, atol=1e-4)
        assert int(real.sum()) == 2 and len(real) == 8


# ---- PETS

PETS = {"learning_starts": 20, "initial_random_steps": 25, "train_frequency": 15, "batch_size": 8}


@pytest.mark.parametrize(
    ("changes", "stop"), [({"model_updates_per_step": 0.4}, None), ({"model_updates_per_step": 0.4}, 31), ({}, None)]
)
def test_pets_fits_and_plans_when_the_script_does(tiny, monkeypatch, changes, stop):
    """A fit takes 0.4 updates for each of fifteen steps, or five passes, but not less than (here) forty."""
    monkeypatch.setattr(pets_trainer, "LEAST_UPDATES", 40)
    spies, fits = Spies(monkeypatch), []
    spies.watch_fits(pets_trainer, 1)
    spies.watch_acting(pets_trainer.PETS)
    run_fit = ModelFit.run

    def noted(fit, data):
        if not fit.active:
            assert_rows_of_the_script(data, 1)
            assert fit._ratio == 0 and fit._batch_size == 8
            fits.append((len(data["obs"]), fit.most_updates))
        return run_fit(fit, data)

    monkeypatch.setattr(ModelFit, "run", noted)
    config = tiny(
        "pets", env_id="ModelScript-v0", total_timesteps=60, **{**PETS, "model_updates_per_step": None, **changes}
    )
    result = straight_or_resumed(config, stop)
    steps = [20, 30, 45, 60]
    updates = [6] * 4 if changes else [40, 40, 40, 5 * 8]
    assert fits == list(zip(steps, updates)) and result.metrics["gradient_steps"] == sum(updates)
    assert spies.events == [(step, "terminations", step) for step in steps]
    loop = spies.loops[-1]
    assert 0 <= sum(updates) - loop.expected_updates(60) <= updates[-1]
    assert loop.first_update_step() == 20
    assert [loop.updates_of_a_fit(rows) for rows in (64, 65, 1_000)] == ([6] * 3 if changes else [40, 45, 625])

    assert list(spies.acted) == list(range(25, 60))
    plan = np.zeros((1, 3, 1), np.float32)
    for obs, carry, acting in spies.acted.values():
        assert np.array_equal(carry, np.zeros_like(plan) if obs[0, 1] == 0 else plan)
        plan = acting.carry


# ---- MOPO


def test_mopo_fits_once_and_imagines_and_learns_when_the_script_does(tiny, monkeypatch):
    for stop in (None, 23):
        spies = Spies(monkeypatch)
        spies.watch_fits(mopo_trainer, 1)
        spies.watch_rollouts()
        spies.watch_updates()
        options = {"dataset_size": 31, "batch_size": 8, "model_updates": 3, "rollout_refresh_interval": 10}
        options |= {
            "rollout_horizon": 2,
            "rollout_batch_size": 50,
            "rollouts_retained": 2,
            "synthetic_batch_ratio": 0.5,
        }
        config = tiny("mopo", env_id="ModelScript-v0", total_timesteps=32, **options)
        result = straight_or_resumed(config, stop)
        script = [(0, "fit", 31), (0, "terminations", 31)]
        for step in range(32):
            script += [(step, "rollouts", 2)] * (step % 10 == 0) + [(step, "update")]
        assert [event for event in spies.events if event[1] != "goes on fitting"] == script
        known = {row.tobytes() for row in spies.loops[-1].data.columns()["obs"]}
        assert all({row.tobytes() for row in starts.numpy()} <= known for starts in spies.starts)
        assert len(spies.loops[-1].data) == 31 and result.metrics["real_batch_size"] == 4
        assert result.metrics["epoch"] == 32 * 8 // 31


# ---- Dreamer

DREAMER = {
    "learning_starts": 22,
    "initial_random_steps": 9,
    "sequence_length": 6,
    "batch_size": 3,
    "train_frequency": 4,
}


def stream_of(loop, env):
    """Everything that an environment's ring holds, in time order."""
    columns, count = loop.replay._columns, int(loop.replay.stored[env])
    return {name: column[env, :count] for name, column in columns.items()}


def assert_stream_of_the_script(rows, actions):
    """Rewards arrive with the observation after the action; an episode's last observation has a row without an action."""
    number, t = rows["obs"].T
    last = t == length(number)
    np.testing.assert_array_equal(rows["last"], last)
    np.testing.assert_array_equal(rows["episode_starts"], t == 0)
    np.testing.assert_array_equal(rows["dones"], last & (number % 2 == 0))
    np.testing.assert_array_equal(rows["actions"][last], 0 * rows["actions"][last])
    arrived = [0.0 if t[i] == 0 else paid(number[i], t[i] - 1, actions[i - 1]) for i in range(len(t))]
    np.testing.assert_allclose(rows["rewards"], arrived, rtol=1e-5, atol=1e-5)
    for i in range(1, len(t)):
        assert t[i] == 0 if last[i - 1] else np.array_equal(rows["obs"][i], rows["obs"][i - 1] + [0, 1])


@pytest.mark.parametrize(
    ("env_id", "n", "changes", "stop"),
    [
        ("ModelScript-v0", 1, {}, None),
        ("ModelScript-v0", 2, {"world_model_updates": 2, "normalize_observations": True}, 33),
        ("ModelScriptChoices-v0", 3, {"actor_critic_updates": 3, "train_frequency": 5, "learning_starts": 0}, None),
        ("ModelScriptChoices-v0", 1, {"world_model_updates": 0, "actor_critic_updates": 2}, None),
    ],
)
def test_dreamer_acts_stores_and_learns_when_the_script_does(tiny, monkeypatch, env_id, n, changes, stop):
    spies, learner = Spies(monkeypatch), get_algorithm_spec("dreamer").build.__globals__["Dreamer"]
    spies.watch_acting(learner)
    for kind in ("update", "update_world_model", "update_actor_critic"):
        spies.watch_update_of_kind(learner, kind)
    options = {**DREAMER, "world_model_updates": 1, "actor_critic_updates": 1, **changes}
    config = tiny("dreamer", env_id=env_id, total_timesteps=48, num_envs=n, **options)
    result = straight_or_resumed(config, stop)

    world, behaviour, events, step = options["world_model_updates"], options["actor_critic_updates"], [], 0
    both = min(world, behaviour)
    alone = ["update_world_model"] * (world - both) + ["update_actor_critic"] * (behaviour - both)
    while step < 48:
        before, step = step, step + n
        if step >= max(options["learning_starts"], 7 * n):
            rounds = every(options["train_frequency"], before, step)
            events += [(step, kind) for kind in (["update"] * both + alone) * rounds]
    assert spies.events == events and result.metrics["update_count"] == len(events)
    loop = spies.loops[-1]
    assert loop.first_update_step() == events[0][0]
    assert abs(loop.expected_updates(48) - len(events)) <= 2 * max(world, behaviour)

    windows = set()
    for env in range(n):
        rows = stream_of(loop, env)
        discrete = "Choices" in env_id
        units = 2.0 * rows["actions"] - 1 if discrete else LOW + (rows["actions"][:, 0] + 1) / 2 * (HIGH - LOW)
        assert_stream_of_the_script(rows, units)
        for i in range(len(rows["obs"]) - 5):
            windows.add(b"".join(rows[name][i : i + 6].tobytes() for name in sorted(NAMES)))
    for batch in spies.batches:
        assert batch["obs"].shape[:2] == (6, 3)
        for k in range(3):
            assert b"".join(batch[name][:, k].contiguous().numpy().tobytes() for name in sorted(NAMES)) in windows

    assert list(spies.acted) == [step for step in range(0, 48, n) if step >= 9]
    carried = np.zeros_like(next(iter(spies.acted.values()))[1])
    for obs, carry, acting in spies.acted.values():
        began = obs[:, 1] == 0
        assert not carry[began].any() and np.array_equal(carry[~began], carried[~began])
        carried = acting.carry
    normalizer = loop.agent.normalizer
    assert (normalizer is None) != ("normalize_observations" in changes)
    assert normalizer is None or float(normalizer.count) == 48


NAMES = ("obs", "actions", "rewards", "dones", "episode_starts")
