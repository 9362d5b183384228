"""Asynchronous collection: updates are made while the environments take the next step, one step late and reproducibly."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from gymnasium.spaces import Box

from rl_training import Callback
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.sac import SAC
from rl_training.base.options import ConfigError
from rl_training.data import ReplayBuffer
from rl_training.envs.collector import Collector
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec
from rl_training.runtime.workflows import resume_training
from toys import Counter, StopAt, same_end

pytestmark = pytest.mark.filterwarnings("ignore:.*(no time limit|nothing will be learned)")
OFF_POLICY = ("dqn", "qr_dqn", "iqn", "fqf", "sac", "rlpd")


def train(config, **given):
    return get_algorithm_spec(config.algo).train(config, **given)


@pytest.mark.parametrize("algo", [name for name in ALGORITHMS if name not in OFF_POLICY])
def test_it_is_refused_where_every_step_is_waited_for(tiny, algo):
    with pytest.raises(ConfigError, match=f"async_collection: {algo} waits for every step"):
        train(tiny(algo, async_collection=True))


class Order(Callback):
    """Notes the order of what happens: actions are sent, updates made, steps received."""

    def __init__(self, monkeypatch):
        self.events = []
        for name in ("send", "receive"):
            monkeypatch.setattr(Collector, name, self.noted(name, getattr(Collector, name)))

    def noted(self, name, method):
        def call(collector, *args):
            self.events.append(name)
            return method(collector, *args)

        return call

    def on_update_end(self, trainer, result):
        self.events.append(f"update at {trainer.global_step}")


def test_updates_are_made_between_sending_and_receiving(tiny, monkeypatch):
    order = Order(monkeypatch)
    short = {"total_timesteps": 5, "learning_starts": 3, "batch_size": 2, "train_frequency": 1, "eval_interval": 0}
    result = train(tiny("dqn", async_collection=True, **short), env=lambda: Counter(limit=2), callbacks=[order])
    first, later = ["send", "receive"] * 3, ["send", "update at 3", "receive", "send", "update at 4", "receive"]
    assert order.events == [*first, *later]
    assert result.metrics["gradient_steps"] == 2  # those of the last step would come with the next one


class Chosen(Counter):
    """Keeps the actions that it is given."""

    taken: list

    def __init__(self):
        super().__init__(limit=99, actions=Box(-1, 1, (1,), np.float32))

    def step(self, action):
        self.taken.append(round(10 * float(action[0])))
        return super().step(action)


class Counting(SAC):
    """Acts by the number of its updates: a tenth for each."""

    count = 0

    def act(self, obs, **given):
        return np.full((len(obs), 1), self.count / 10, np.float32), {}, None

    def update(self, batch, *, global_step):
        self.count += 1
        return super().update(batch, global_step=global_step)


def test_actions_are_those_of_the_agent_before_the_updates_of_the_last_step(tiny):
    spec, taken = get_algorithm_spec("sac"), {}
    spec = replace(spec, build=partial(spec.build, learner=Counting))
    for late in (False, True):
        Chosen.taken = taken[late] = []
        short = {"total_timesteps": 9, "learning_starts": 1, "batch_size": 1, "initial_random_steps": 0}
        spec.train(tiny("sac", async_collection=late, eval_interval=0, **short), env=Chosen)
    assert taken[False][:9] == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert taken[True][:9] == [0, 0, 1, 2, 3, 4, 5, 6, 7]


def test_what_was_sent_is_stored_even_if_the_agent_uses_the_array_again(tiny, monkeypatch):
    returned, sent, act, update = [], [], DQN.act, DQN.update

    def acting(self, *given, **options):
        result = act(self, *given, **options)
        returned.append(result.actions)
        sent.append(result.actions.tolist())
        return result

    def updating(self, *given, **options):
        returned[-1][:] = 1 - returned[-1]
        return update(self, *given, **options)

    monkeypatch.setattr(DQN, "act", acting)
    monkeypatch.setattr(DQN, "update", updating)
    short = {"total_timesteps": 40, "num_envs": 2, "learning_starts": 4, "batch_size": 2, "train_frequency": 2}
    result = train(tiny("dqn", async_collection=True, eval_interval=0, **short))
    buffer = ReplayBuffer(42, (4,), (), action_dtype=np.int64)
    buffer.load_state_dict(load_checkpoint(result.checkpoint_path).buffer_state["replay"])
    assert buffer.columns()["actions"].tolist() == np.concatenate(sent[:20]).tolist()


@pytest.mark.parametrize(
    ("algo", "options"),
    [("sac", {"num_envs": 3}), ("dqn", {"prioritized": True, "n_step": 3, "num_envs": 2}), ("rlpd", {})],
)
def test_it_is_the_same_in_workers_and_when_it_is_stopped_and_resumed(tiny, algo, options):
    config = tiny(algo, async_collection=True, **options)
    here = train(config, run_suffix="here")
    backend = {"execution_backend": "process", "env_workers": 2} if hasattr(os, "fork") else {}
    stopped = train(config.replace(**backend), run_suffix="there", callbacks=[StopAt(61)])
    assert stopped.metrics["global_step"] < 128
    resumed = resume_training(stopped.run_dir)
    same_end(load_checkpoint(here.checkpoint_path), load_checkpoint(resumed.checkpoint_path))


def test_it_is_not_what_the_run_without_it_is(tiny):
    ends = [load_checkpoint(train(tiny("sac", async_collection=late)).checkpoint_path) for late in (False, True)]
    with pytest.raises(AssertionError):
        same_end(*ends)


def test_a_run_cannot_change_to_it(tiny):
    stopped = train(tiny("dqn"), callbacks=[StopAt(60)])
    with pytest.raises(ConfigError, match="async_collection: cannot change while a run goes on"):
        resume_training(stopped.run_dir, set={"async_collection": True})


def test_a_run_that_would_make_no_update_is_warned_of(tiny):
    with pytest.warns(UserWarning, match="first update comes at step 21"):
        train(tiny("dqn", total_timesteps=20, learning_starts=20, async_collection=True))
