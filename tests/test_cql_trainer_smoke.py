"""What CQL's trainer adds: SAC's learner for boxes, DQN's for choices, pictures included."""

import pytest

from rl_training.algorithms.cql import CQL, DiscreteCQL
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.callbacks import Callback
from toys import Pictures


class Keep(Callback):
    def on_train_start(self, trainer):
        self.agent = trainer.algorithm


def test_boxes_and_choices(tiny):
    keep, spec = Keep(), get_algorithm_spec("cql")
    metrics = spec.train(tiny("cql"), callbacks=[keep]).metrics
    assert type(keep.agent) is CQL and metrics["cql_penalty"] == pytest.approx(5 * 2 * metrics["cql_gap"], rel=1e-4)
    metrics = spec.train(tiny("cql", env_id="CartPole-v1"), callbacks=[keep]).metrics
    assert type(keep.agent) is DiscreteCQL and metrics["cql_penalty"] > 0


def test_pictures_with_choices(tiny):
    config = tiny("cql", total_timesteps=3, hidden_sizes=[16], dataset_size=30, batch_size=4)
    assert get_algorithm_spec("cql").train(config, env=Pictures).metrics["gradient_steps"] == 3


def test_a_tuned_weight(tiny):
    metrics = get_algorithm_spec("cql").train(tiny("cql", lagrange=1.0)).metrics
    assert metrics["cql_weight"] != 5.0
