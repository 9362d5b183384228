"""Buffers of a network (statistics of batches, say) are no parameters: its target network gets them as they are."""

import pytest
import torch

from built_learners import built, transitions
from rl_training.models import MLPIQLModel, MLPSACModel, MLPTD3Model

MODELS = {"sac": MLPSACModel, "rlpd": MLPSACModel, "cql": MLPSACModel, "iql": MLPIQLModel, "td3_bc": MLPTD3Model}


@pytest.mark.parametrize("algo", MODELS)
def test_a_targets_buffers_are_those_of_its_network(algo):
    class Counting(MODELS[algo]):
        """Counts how often its critics have been asked while they learned."""

        def __init__(self, **sizes):
            super().__init__(**sizes)
            self.register_buffer("asked", torch.zeros(()))

        def q_values(self, obs, actions, members=None):
            if torch.is_grad_enabled():
                self.asked += 1
            return super().q_values(obs, actions, members)

    slices = {"gradient_updates_per_step": 2} if algo == "rlpd" else {}
    learner = built(algo, network=Counting, **slices)
    for number in (1, 2):  # TD3+BC's targets move with every second update
        learner.update(transitions(), global_step=number)
    assert learner.target_model.asked == learner.model.asked >= 2
