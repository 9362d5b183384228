"""Spaces as a checkpoint holds them, for those who ask an agent without its environment."""

import json
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from rl_training.base.saved import StateError
from rl_training.envs.spaces import Spaces

OBSERVED = {
    "vector": Box(-1, 1, (3,), np.float32),
    "channels last": Box(0, 255, (48, 40, 3), np.uint8),
    "channels first": Box(0, 255, (1, 48, 40), np.uint8),
}
DONE = {
    "discrete": Discrete(3, start=-2),
    "multi-discrete": MultiDiscrete([2, 3], start=[1, -2]),
    "multi-binary": MultiBinary(4),
    "box": Box(-2, 5, (2, 3), np.float64),
    "unbounded": Box(-np.inf, np.inf, (2,), np.float32),
    "odd bounds": Box(np.array([-1, 0, 3], np.float32), np.array([1, np.inf, 9], np.float32)),
}


@pytest.mark.parametrize("done", DONE)
@pytest.mark.parametrize("observed", OBSERVED)
def test_spaces_come_back_from_plain_values_as_they_were(observed, done):
    env = SimpleNamespace(observation_space=OBSERVED[observed], action_space=DONE[done])
    spaces = Spaces.of(env)
    again = Spaces.of_facts(json.loads(json.dumps(spaces.facts())))
    for name in spaces.__dataclass_fields__:
        before, after = getattr(spaces, name), getattr(again, name)
        assert type(before) is type(after) and np.array_equal(before, after), name
        assert getattr(before, "dtype", None) == getattr(after, "dtype", None), name
    assert isinstance(env.action_space, gym.Space) and again.describe() == spaces.describe()


@pytest.mark.parametrize(
    ("done", "change"),
    [
        ("discrete", {"obs_shape": [3, 4]}),
        ("discrete", {"obs_shape": []}),
        ("discrete", {"choices": []}),
        ("multi-discrete", {"choices": []}),
        ("multi-binary", {"choices": []}),
        ("box", {"choices": [3]}),
    ],
)
def test_shapes_and_choices_that_do_not_belong_together_are_refused(done, change):
    facts = Spaces.of(SimpleNamespace(observation_space=OBSERVED["vector"], action_space=DONE[done])).facts()
    assert Spaces.of_facts(facts).action_kind
    with pytest.raises(StateError, match=r"^its shapes do not belong together$"):
        Spaces.of_facts({**facts, **change})


@pytest.mark.parametrize(
    "change",
    [{"low": [-2.0] * 5}, {"high": [5.0] * 7}, {"env_shape": [2, 2]}, {"env_dtype": "int64"}, {"env_dtype": "O"}],
)
def test_bounds_that_do_not_belong_together_are_refused(change):
    facts = Spaces.of(SimpleNamespace(observation_space=OBSERVED["vector"], action_space=DONE["box"])).facts()
    assert Spaces.of_facts(facts).action_dim == 6
    with pytest.raises(StateError, match=r"^its bounds do not belong together$"):
        Spaces.of_facts({**facts, **change})
