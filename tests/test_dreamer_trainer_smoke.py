"""What Dreamer's trainer adds: sequences, two kinds of updates, a carried state."""

import numpy as np
import pytest

from rl_training import Callback, Dreamer
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.workflows import resume_training
from toys import Counter, Pictures, StopAt, same_end

spec = get_algorithm_spec("dreamer")


class Watch(Callback):
    def __init__(self):
        self.seen = []

    def on_update_end(self, trainer, result):
        kinds = {"world": "dreamer_world_model_loss", "behaviour": "dreamer_actor_loss"}
        self.seen.append("+".join(kind for kind, name in kinds.items() if name in result.metrics))


def test_each_time_has_its_updates_of_either_kind(tiny):
    watch = Watch()
    config = tiny("dreamer", total_timesteps=48, train_frequency=16, world_model_updates=1, actor_critic_updates=2)
    spec.train(config, callbacks=[watch])
    assert watch.seen == ["world+behaviour", "behaviour"] * 2  # at 32 and 48; at 16 there is no sequence yet


@pytest.mark.parametrize("num_envs", [1, 2])
def test_small_pictures_are_learned_and_their_size_is_said(tiny, capsys, num_envs):
    config = tiny("dreamer", total_timesteps=64, progress="lines", num_envs=num_envs, optimizer="laprop")
    metrics = spec.train(config, env=Pictures).metrics
    assert np.isfinite(metrics["dreamer_world_model_loss"])
    assert "images of 36 x 36 are resized to 32 x 32" in capsys.readouterr().err


def test_boxes_have_a_bounded_normal_actor_and_runs_with_them_resume_exactly(tiny):
    config = tiny("dreamer", env_id="Pendulum-v1", imagination_batch_size=5, total_timesteps=96, eval_interval=0)
    straight = spec.train(config, run_suffix="straight")
    assert np.isfinite(straight.metrics["dreamer_actor_loss"])
    assert straight.metrics["dreamer_entropy"] <= 0.5 * np.log(
        2 * np.pi * np.e
    )  # of a deviation of one, the largest there is
    stopped = spec.train(config, run_suffix="stopped", callbacks=[StopAt(50)])
    same_end(
        load_checkpoint(straight.checkpoint_path), load_checkpoint(resume_training(stopped.run_dir).checkpoint_path)
    )


def test_the_state_is_carried_within_an_episode_and_begins_anew_with_the_next(tiny):
    agent = Dreamer(tiny("dreamer", total_timesteps=32), env=lambda: Counter(limit=5))
    agent.learn()
    first = agent.agent.act(np.zeros((1, 1), np.float32), deterministic=True)
    again = agent.agent.act(np.zeros((1, 1), np.float32), carry=first.carry, deterministic=True)
    anew = agent.agent.act(np.zeros((1, 1), np.float32), carry=agent.agent.initial_carry(1), deterministic=True)
    assert np.array_equal(first.carry, anew.carry) and not np.array_equal(first.carry, again.carry)


def test_a_buffer_too_small_for_a_sequence_is_refused(tiny):
    with pytest.raises(ValueError, match=r"buffer_capacity: a buffer of 10 rows .* cannot hold sequences of 8"):
        spec.train(tiny("dreamer", buffer_capacity=10, num_envs=2))


def test_velocities_can_be_hidden(tiny):
    config = tiny("dreamer", env_kwargs={"wrappers": {"keep": [0, 2]}}, total_timesteps=32)
    agent = Dreamer(config)
    agent.learn()
    assert agent.predict([0.1, 0.2]) in (0, 1)
    with pytest.raises(ValueError, match=r"keep names entries of 4, from 0, got \[4\]"):
        spec.train(tiny("dreamer", env_kwargs={"wrappers": {"keep": [4]}}))
