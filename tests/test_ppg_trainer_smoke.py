"""PPG's trainer: rollouts are kept, and the auxiliary phase learns from them together."""

import numpy as np
import pytest
import torch

from rl_training import Callback
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.ppg_trainer import AuxiliaryBuffer, PPGLoop
from toys import Pictures


class Watch(Callback):
    """Counts the two kinds of updates."""

    def __init__(self):
        self.seen = []

    def on_update_end(self, trainer, result):
        self.seen.append("auxiliary" if "auxiliary_loss" in result.metrics else "policy")


def test_a_phase_follows_every_so_many_rollouts(tiny):
    watch = Watch()
    config = tiny("ppg", total_timesteps=4 * 32, aux_frequency=2, aux_epochs=3, aux_minibatch_size=32)
    metrics = get_algorithm_spec("ppg").train(config, callbacks=[watch]).metrics
    assert watch.seen == 2 * (["policy"] * 2 * 2 * 2 + ["auxiliary"] * 3 * 2)  # rollouts x epochs x minibatches
    assert metrics["policy_gradient_steps"] == 16 and metrics["auxiliary_gradient_steps"] == 12
    assert metrics["gradient_steps"] == 28 and metrics["update_count"] == 16
    assert metrics["remembered_rollouts"] == 0 and metrics["aux_value_loss"] >= 0


def test_the_targets_of_collection_time_are_kept_until_the_phase(tiny, monkeypatch):
    given = []
    finish = PPGLoop.finish_rollout

    def spy(self):
        finish(self)
        given.append((self._rollout.obs.copy(), self._rollout.returns.copy()))

    def phase(self):
        rows = len(self.remembered)
        assert rows == 2 * 32 * 2
        np.testing.assert_array_equal(self.remembered.obs[:rows], np.concatenate([o.reshape(64, -1) for o, _ in given]))
        np.testing.assert_array_equal(self.remembered.returns[:rows], np.concatenate([r.reshape(-1) for _, r in given]))

    monkeypatch.setattr(PPGLoop, "finish_rollout", spy)
    monkeypatch.setattr(PPGLoop, "auxiliary_phase", phase)
    get_algorithm_spec("ppg").train(tiny("ppg", total_timesteps=128, num_envs=2, aux_frequency=2))
    assert len(given) == 2


def test_the_teacher_is_the_policy_at_the_end_of_the_policy_phase(tiny, monkeypatch):
    teachers = []
    from rl_training.algorithms.ppg import PPG

    update = PPG.auxiliary_update

    def spy(self, batch, **kwargs):
        if not teachers:  # nothing has moved yet: the student is the teacher
            torch.testing.assert_close(batch["teacher_logits"], self.teacher_logits(batch["obs"]))
        teachers.append(batch["teacher_logits"])
        return update(self, batch, **kwargs)

    monkeypatch.setattr(PPG, "auxiliary_update", spy)
    config = tiny("ppg", total_timesteps=64, aux_frequency=2, aux_epochs=2, aux_minibatch_size=64)
    get_algorithm_spec("ppg").train(config)
    first, second = (rows.sort(0).values for rows in teachers)  # each pass has its own order
    torch.testing.assert_close(first, second)


def test_the_rate_that_is_reported_is_the_policys(tiny):
    config = tiny("ppg", learning_rate=1e-3, aux_learning_rate=7e-5, learning_rate_schedule="constant")
    assert get_algorithm_spec("ppg").train(config).metrics["learning_rate"] == pytest.approx(1e-3)


def test_more_rollouts_than_a_phase_has_are_refused(tiny):
    with pytest.raises(ValueError, match="aux_buffer_rollouts cannot exceed aux_frequency"):
        get_algorithm_spec("ppg").options(tiny("ppg", aux_frequency=2, aux_buffer_rollouts=3))


def test_aux_buffer_rollouts_keeps_only_the_last_rollouts():
    memory = AuxiliaryBuffer(2, 3, (1,), np.float32)
    for k in range(5):
        memory.add(np.full((3, 1, 1), k, np.float32), np.full((3, 1), k, np.float32))
    assert len(memory) == 6 and set(memory.returns.tolist()) == {3.0, 4.0}
    again = AuxiliaryBuffer(2, 3, (1,), np.float32)
    again.load_state_dict(memory.state_dict())
    assert again.count == 5 and np.array_equal(again.returns, memory.returns)


def test_advantages_are_normalised_over_the_rollout(tiny, monkeypatch):
    def check(self):
        flat = self._rollout.advantages
        assert flat.mean() == pytest.approx(0, abs=1e-5) and flat.std() == pytest.approx(1, abs=1e-4)

    monkeypatch.setattr(PPGLoop, "learn", check)
    get_algorithm_spec("ppg").train(tiny("ppg", total_timesteps=32, aux_epochs=0))


@pytest.mark.parametrize("architecture", ["detach", "dual"])
def test_pictures(tiny, architecture):
    config = tiny("ppg", total_timesteps=64, aux_frequency=1, aux_epochs=1, architecture=architecture)
    assert get_algorithm_spec("ppg").train(config, env=Pictures).metrics["auxiliary_gradient_steps"] > 0
