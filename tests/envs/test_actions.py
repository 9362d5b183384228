"""Tuple and Dict actions, and whole numbers in a Box, as flat arrays."""

import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

from rl_training.base.options import ConfigError
from rl_training.base.saved import StateError
from rl_training.envs.actions import ActionForm, plain_action
from rl_training.envs.factory import EnvFactory
from rl_training.envs.spaces import Spaces
from toys import Counter

MIX = Dict(
    {
        "b": Tuple([Discrete(3, start=-1), Box(-2, 3, (2, 2), np.float64)]),
        "a": MultiBinary(2),
        "c": MultiDiscrete([2, 4], start=[5, 0]),
        "d": Box(0, 9, (1,), np.int8),
    }
)
FORMS = {  # space, and the kind of action that agents give
    "mix": (MIX, "joint"),
    "tuple of choices": (Tuple([Discrete(2), MultiBinary(3)]), "multi_discrete"),
    "dict of boxes": (Dict({"x": Box(-1, 1, (2,)), "y": Box(0, 5, (1,))}), "box"),
    "few whole numbers": (Box(-3, 2, (2,), np.int32), "multi_discrete"),
    "many whole numbers": (Box(-1000, 1000, (2, 2), np.int64), "box"),
    "a table of choices": (MultiDiscrete([[2, 3], [4, 5]]), "multi_discrete"),
    "a table of switches": (MultiBinary((2, 2)), "multi_discrete"),
}


def spaces_of(space, **env_kwargs):
    return EnvFactory(lambda: Counter(actions=space), env_kwargs).spaces()


@pytest.mark.parametrize("name", FORMS)
def test_every_flat_action_is_one_of_the_environments_and_comes_back(name):
    space, kind = FORMS[name]
    spaces = spaces_of(space)
    assert spaces.action_kind == kind
    rng, env = np.random.default_rng(0), EnvFactory(lambda: Counter(1000, actions=space), {}).make(training=True)
    env.reset()
    agents = spaces.random_actions(rng, 200)
    assert agents.shape == (200, *spaces.action_shape)
    flat = spaces.to_env(agents)
    for given, numbers in zip(spaces.as_given(flat), flat):
        assert space.contains(given), given
        env.step(numbers)  # asserts the same
        json.dumps(plain_action(given))
    back = spaces.from_env(flat) if kind != "joint" else (flat - spaces.center) / spaces.scale
    unit = 1e-3 if name == "many whole numbers" else 0  # in the agent's units; these are rounded
    np.testing.assert_allclose(back, agents, atol=1e-5 + unit / 2)
    assert not unit or np.array_equal(flat, np.rint(flat))
    beyond = spaces.to_env(agents * 7) if kind == "box" else flat
    assert all(space.contains(given) for given in spaces.as_given(beyond))


def test_where_each_number_of_a_mix_goes():
    spaces = spaces_of(MIX)  # Gymnasium sorts a Dict's keys unless it is given as it is: a, b, c, d
    assert [part.name for part in spaces.form.parts] == [
        ".".join(path) for path in (["a"], ["b", "0"], ["b", "1"], ["c"], ["d"])
    ]
    assert spaces.choices == (2, 2, 3, 0, 0, 0, 0, 2, 4, 10)
    [flat] = spaces.to_env(np.array([[1, 0, 2, -1, 1, 0, 9, 1, 3, 9]], np.float32))
    assert flat.tolist() == [1, 0, 1, -2, 3, 0.5, 3, 6, 3, 9]
    action = spaces.form.restored(flat)
    assert action["a"].tolist() == [1, 0] and action["b"][0] == 1 and action["b"][1].tolist() == [[-2, 3], [0.5, 3]]
    assert action["c"].tolist() == [6, 3] and action["d"].tolist() == [9] and action["d"].dtype == np.int8


@pytest.mark.parametrize("name", FORMS)
def test_forms_come_back_from_a_file(name):
    spaces = spaces_of(FORMS[name][0])
    back = Spaces.of_facts(json.loads(json.dumps(spaces.facts())))
    assert back.form == spaces.form and back.matches(spaces) and back.action_kind == spaces.action_kind


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"path": [1.5]}, "is no part"),
        ({"dtype": "object"}, "is no part"),
        ({"dtype": "nonsense"}, "is no part"),
        ({"shape": [3]}, "is no part"),
        ({"low": [0.5, 0.0]}, "no whole numbers"),
        ({"high": [-5.0, 0.0]}, "leave nothing"),
        ({"chosen": 1}, "expected true or false"),
        ({"chosen": False}, "does not belong to its actions"),
    ],
)
def test_a_file_with_another_form_is_refused(change, problem):
    facts = spaces_of(FORMS["few whole numbers"][0]).facts()
    facts["form"][0].update(change)
    with pytest.raises(StateError, match=problem):
        Spaces.of_facts(facts)


def test_whole_numbers_are_choices_or_rounded_as_the_option_says():
    few, many = Box(0, 5, (2,), np.int32), Box(0, 1000, (1,), np.int32)
    assert spaces_of(few, integer_actions="rounded").action_kind == "box"
    assert spaces_of(many, integer_actions="choices").choices == (1001,)
    rounded = spaces_of(few, integer_actions="rounded")
    given = rounded.as_given(rounded.to_env(np.array([[-1.0, 0.05], [0.3, 5.0]], np.float32)))
    assert [action.tolist() for action in given] == [[0, 3], [3, 5]]
    with pytest.raises(ValueError, match=r"too many whole numbers to choose from: env_kwargs.integer_actions: rounded"):
        spaces_of(Box(0, 2**30, (1,), np.int32), integer_actions="choices")
    with pytest.raises(ConfigError, match="integer_actions: is for actions that are whole numbers in a Box"):
        spaces_of(Discrete(3), integer_actions="rounded")


def test_parts_that_no_algorithm_gives_are_one_line():
    with pytest.raises(ValueError, match=r"part 'say' of the actions is Text, which no algorithm here can give"):
        spaces_of(Dict({"say": Text(5), "go": Discrete(2)}))
    assert ActionForm.of(Discrete(3)) is None and ActionForm.of(Box(-1, 1, (2,))) is None


@pytest.mark.parametrize(
    ("space", "algo", "advice"),
    [
        (
            MultiDiscrete([3, 4]),
            "dqn",
            r"each of 12 combinations would need a value of its own: docs/actions.md has a wr",
        ),
        (MultiDiscrete([10, 10, 10]), "dqn", r"each of 1,000 combinations .* docs/actions.md has a wrapper"),
        (MultiDiscrete([11, 91]), "dqn", "each of 1,001 combinations would need a value of its own: ppo takes them"),
        (MultiBinary(3), "iqn", "each of 8 combinations would need a value of its own: docs/actions.md has a wrapper"),
        (MultiBinary(30), "dqn", r"each of 1,073,741,824 combinations would need a value of its own: ppo takes them"),
        (Box(0, 5, (2,), np.int32), "sac", r"env_kwargs.integer_actions: rounded makes numbers of them"),
        (Dict({"a": Box(0, 5, (2,), np.int32), "b": Box(0, 1, (2,))}), "sac", "integer_actions: rounded makes numbers"),
        (Dict({"a": Discrete(2), "b": Discrete(3)}), "sac", r"MultiDiscrete\[2, 3\] actions .*\)$"),
        (MIX, "sac", "ppo and ppg take them"),
        (MIX, "dqn", "ppo and ppg take them"),
    ],
)
def test_actions_that_an_algorithm_does_not_take_are_refused_with_a_reason(space, algo, advice):
    from rl_training.experiment.registry import get_algorithm_spec

    spec = get_algorithm_spec(algo)
    with pytest.raises(ValueError, match=advice) as refused:
        spaces_of(space).require(algo, "it", obs=spec.obs, actions=spec.actions)
    assert "\n" not in str(refused.value)


def test_a_wrapped_environment_says_what_it_takes():
    env = EnvFactory(lambda: Counter(actions=MIX), {}).make(training=True)
    assert isinstance(env.action_space, gym.spaces.Box) and env.action_space.shape == (10,)
    assert env.action_space.low.tolist() == [0, 0, -1, -2, -2, -2, -2, 5, 0, 0]
