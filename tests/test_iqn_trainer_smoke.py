"""What IQN's trainer adds."""

import numpy as np

from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec


def test_a_loaded_agent_values_actions_at_midpoints_and_explores_at_random_fractions(tiny):
    spec, config = get_algorithm_spec("iqn"), tiny("iqn")
    state = load_checkpoint(spec.train(config).checkpoint_path)
    agent = spec.load_fn(config, state, "cpu")
    obs = np.zeros((1, 4), np.float32)
    assert agent._values.midpoints.tolist() == np.float32([0.1, 0.3, 0.5, 0.7, 0.9]).tolist()
    fixed = [agent.act(obs, deterministic=True).actions[0] for _ in range(10)]
    assert len(set(fixed)) == 1
