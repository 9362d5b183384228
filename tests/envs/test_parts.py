"""Observations of several parts: which part is seen how, what a row holds, and what is refused."""

import json
import sys
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, Sequence, Text, Tuple
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.base.options import ConfigError
from rl_training.base.parts import Part, PartError, Parts
from rl_training.base.saved import StateError
from rl_training.envs.checks import EnvironmentFailure
from rl_training.envs.collector import Collector
from rl_training.envs.factory import EnvFactory
from rl_training.envs.spaces import Spaces, channels_last
from toys import Counter, Sampled, Signs


def made(space, **parts):
    """The environment as the agent meets it, and its spaces."""
    env = EnvFactory(lambda: Sampled(space), {"wrappers": {"parts": parts}} if parts else {}).make(training=True)
    return env, Spaces.of(env)


BYTES = Box(0, 255, (7, 9, 3), np.uint8)
LEAVES = st.one_of(
    st.sampled_from([(), (1,), (3,), (2, 3)]).map(lambda shape: Box(-5, 5, shape, np.float32)),
    st.sampled_from([np.float64, np.int32]).map(lambda dtype: Box(-5, 5, (2,), dtype)),
    st.tuples(st.integers(1, 4), st.integers(-2, 2)).map(lambda n: Discrete(n[0], start=n[1])),
    st.sampled_from([MultiBinary(3), MultiBinary((2, 2)), MultiDiscrete([2, 3], start=[1, -1])]),
    st.sampled_from([BYTES, Box(0, 255, (3, 7, 9), np.uint8), Box(0, 255, (6, 5), np.uint8)]),
    st.sampled_from([Box(0, 1, (7, 5, 2), np.float32), Box(0, 1, (6, 6, 4), np.bool_), Box(-2, 2, (24, 25))]),
)
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(Dict),
        st.lists(inner, min_size=1, max_size=3).map(Tuple),
    ),
    max_leaves=6,
)


def leaves_of(space, value):
    """Every space that is no Dict or Tuple with its value, in the order of the space."""
    if isinstance(space, Dict):
        return [leaf for key in space.spaces for leaf in leaves_of(space[key], value[key])]
    if isinstance(space, Tuple):
        return [leaf for inner, one in zip(space.spaces, value) for leaf in leaves_of(inner, one)]
    return [(space, value)]


def numbers_of(space, value):
    """A leaf as networks see it: images with their channels first, all else as Gymnasium flattens it."""
    if isinstance(space, Box) and (len(space.shape) == 3 or space.shape in ((6, 5), (24, 25))):
        array = value[None] if value.ndim == 2 else value if value.shape == (3, 7, 9) else value.transpose(2, 0, 1)
        return array * np.uint8(255) if array.dtype == np.bool_ else array
    return gym.spaces.flatten(space, value).astype(np.float32)


@settings(max_examples=60, derandomize=True)
@given(st.dictionaries(st.sampled_from("xyz"), NESTED, min_size=1).map(Dict), st.integers(0, 99))
def test_a_row_holds_every_part_of_any_nested_observation(space, seed):
    env, spaces = made(space)
    space.seed(seed)
    observation, parts = space.sample(), spaces.parts
    row = parts.pack(observation)
    expected = [numbers_of(*leaf) for leaf in leaves_of(space, observation)]
    images = [x for x in expected if x.ndim == 3]
    in_order = [x for x in expected if x.ndim == 1]
    in_order += [x for x in images if x.dtype != np.uint8] + [x for x in images if x.dtype == np.uint8]
    assert [part.shape for part in parts.all] == [x.shape for x in in_order]
    for x, (start, stop) in zip(in_order, parts.spans):
        own = row[start:stop] if x.dtype == row.dtype else row[start:stop].view(np.float32)
        assert np.array_equal(own.reshape(x.shape), x)
    assert parts.dtype == (np.uint8 if any(x.dtype == np.uint8 for x in in_order) else np.float32)
    assert parts.spans[-1][1] <= parts.width < parts.spans[-1][1] + 4

    back = parts.unpack(row[None])  # as the environment gave them
    again = {part.name: column[0] for part, column in zip(parts.all, back)}
    for part in parts.all:
        value = observation
        for key in part.path:
            value = value[key]
        assert np.array_equal(again[part.name], np.asarray(value, np.float32).astype(again[part.name].dtype)), part.name

    read, single = parts.read(observation)
    assert single and np.array_equal(read[0], row)
    both, single = parts.read([observation, observation])
    assert not single and np.array_equal(both, np.stack([row, row]))
    env.close()


@settings(max_examples=40, derandomize=True)
@given(st.dictionaries(st.sampled_from("xyz"), NESTED, min_size=1).map(Dict))
def test_parts_come_back_from_the_plain_values_of_a_file(space):
    spaces = made(space)[1]
    again = Spaces.of_facts(json.loads(json.dumps(spaces.facts())))
    assert again.parts == spaces.parts and again.describe() == spaces.describe() and again.matches(spaces)
    assert again.obs_dtype == spaces.obs_dtype and again.parts.spans == spaces.parts.spans


def test_vectors_alone_are_the_row_that_gymnasium_makes_of_them():
    space = Dict({"b": Discrete(3), "a": Tuple([Box(-1, 1, (2, 2), np.float64), MultiDiscrete([2, 3])])})
    env, spaces = made(space)
    flat = gym.wrappers.FlattenObservation(Sampled(space))
    assert spaces.obs_kind == "vector" and spaces.obs_shape == (12,)
    for _ in range(3):
        (mine, _), (theirs, _) = env.reset(seed=0), flat.reset(seed=0)
        assert np.array_equal(mine, theirs.astype(np.float32))
    assert np.array_equal(env.observation_space.low, flat.observation_space.low)


def calls_of_a_step(env):
    """How many functions, of Python and of C, a step calls."""
    env.reset(seed=0)
    counted = []
    sys.setprofile(lambda frame, event, arg: counted.append(event) if event in ("call", "c_call") else None)
    try:
        env.step(0)
    finally:
        sys.setprofile(None)
    return len(counted)


def test_vectors_in_a_dict_cost_no_more_than_their_flattening():
    class Fixed(Counter):
        observation_space = Dict({name: Box(-1, 1, (3,)) for name in "abcd"})
        seen = {name: np.zeros(3, np.float32) for name in "abcd"}

        def _obs(self):
            return self.seen

    rows = EnvFactory(Fixed, {}).make(training=True)
    assert calls_of_a_step(rows) < 0.25 * calls_of_a_step(gym.wrappers.FlattenObservation(Fixed()))


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16, np.int64, list, tuple, "part of an array"])
def test_a_row_of_vectors_is_the_same_however_their_numbers_are_given(kind):
    parts = made(Dict({"b": Box(-9, 9, (2,)), "a": Box(-9, 9, (3,), np.float64), "c": Box(-9, 9, (1,))}))[1].parts
    numbers = {"a": [1, 2, 3], "b": [4, 5], "c": [6]}
    if kind == "part of an array":
        given = {name: np.repeat(np.array(one, np.float32), 2)[::2] for name, one in numbers.items()}
    elif isinstance(kind(), np.generic):
        given = {name: np.array(one, kind) for name, one in numbers.items()}
    else:
        given = {name: kind(one) for name, one in numbers.items()}
    row = parts.pack(given)
    assert row.dtype == np.float32 and row.tolist() == [1, 2, 3, 4, 5, 6]
    assert parts.pack({**given, "a": np.zeros(3, np.float32)}) is not row  # a row of its own, every time


def test_vectors_that_are_not_what_their_space_says_are_named_as_ever():
    parts = made(Dict({"a": Box(-9, 9, (3,)), "b": Box(-9, 9, (2,))}))[1].parts
    right = {"a": np.zeros(3, np.float32), "b": np.zeros(2, np.float32)}
    with pytest.raises(PartError, match=r"part 'a' of the observation has shape \(1,\), its space says \(3,\)"):
        parts.pack({**right, "a": np.zeros(1, np.float32)})  # which numpy would spread over three
    with pytest.raises(PartError, match="the observation has no part 'b'"):
        parts.pack({"a": right["a"]})
    with pytest.raises(PartError, match="has type complex64, its space says numbers"):
        parts.pack({**right, "b": np.zeros(2, np.complex64)})
    with pytest.raises(PartError, match="the observation has no part 'a'"):
        parts.pack(None)


def test_an_observation_that_is_a_vector_or_an_image_is_not_touched():
    for space in (Box(-1, 1, (3,)), Box(0, 255, (84, 84, 3), np.uint8), Box(0, 255, (1, 32, 32), np.uint8)):
        env, spaces = made(space)
        assert type(env) is Sampled and spaces.parts is None


@pytest.mark.parametrize(
    ("shape", "last"),
    [
        ((84, 84, 3), True), ((3, 84, 84), False), ((7, 7, 3), True), ((3, 7, 7), False), ((10, 10, 6), True),
        ((6, 10, 10), False), ((10, 10, 10), True), ((84, 84, 27), True), ((27, 84, 84), False), ((1, 32, 32), False),
        ((210, 160, 3), True), ((3, 210, 160), False), ((210, 160, 12), True), ((12, 210, 160), False),
        ((5, 5, 5), True), ((84, 84, 84), False), ((160, 120, 30), None), ((6, 9, 12), None), ((40, 48, 16), True),
    ],
)  # fmt: skip
def test_where_the_channels_of_an_image_are(shape, last):
    assert channels_last(shape) is last


def test_an_unclear_image_is_refused_until_an_option_says_where_its_channels_are():
    space = Box(0, 255, (160, 120, 30), np.uint8)
    with pytest.raises(
        ValueError, match=r"\(160, 120, 30\): it is not clear which axis.*parts.channels: first or last"
    ):
        made(space)
    for channels, shape in (("first", (160, 120, 30)), ("last", (30, 160, 120))):
        env, spaces = made(space, channels=channels)
        assert spaces.obs_kind == "image" and spaces.obs_shape == shape
        observation = env.reset(seed=0)[0]
        assert observation.shape == spaces.given_shape
        assert np.array_equal(spaces.encode(observation), observation)
    values = env.unwrapped._obs()  # of t = 0, as at the reset
    assert np.array_equal(observation, values.transpose(2, 0, 1))
    assert made(Box(0, 255, (84, 84, 3), np.uint8), channels="first")[1].obs_shape == (3, 84, 84)  # there is no doubt


@pytest.mark.parametrize(
    ("space", "kind", "shape"),
    [
        (Box(0, 255, (20, 30), np.uint8), "image", (1, 20, 30)),
        (Box(0, 1, (10, 10, 4), np.bool_), "image", (4, 10, 10)),
        (Box(0, 1, (10, 10, 4), np.float32), "mixed", (400,)),
        (Box(0, 1, (28, 28), np.float64), "mixed", (784,)),
        (Box(0, 1, (8, 8), np.float32), "vector", (64,)),
        (Box(0, 3, (8, 8), np.uint8), "vector", (64,)),
        (Dict({"image": BYTES}), "image", (3, 7, 9)),
        (Dict({"image": BYTES, "n": Discrete(2)}), "mixed", (8 + 3 * 7 * 9 + 3,)),
    ],
)
def test_what_a_space_is_seen_as(space, kind, shape):
    collector = Collector(EnvFactory(lambda: Sampled(space), {}), 2, seed=0)
    assert (collector.spaces.obs_kind, collector.spaces.obs_shape) == (kind, shape)
    assert collector.step(np.zeros(2, np.int64)).next_obs.shape == (2, *shape)


def test_truth_values_become_black_and_white():
    collector = Collector(EnvFactory(lambda: Sampled(Box(0, 1, (10, 10, 4), np.bool_)), {}), 1, seed=0)
    expected = Sampled(Box(0, 1, (10, 10, 4), np.bool_))._obs().transpose(2, 0, 1)
    assert np.array_equal(collector.obs[0], 255 * expected.astype(np.uint8)) and set(np.unique(collector.obs)) == {
        0,
        255,
    }


@pytest.mark.parametrize(
    ("image", "options", "divisor"),
    [
        (Box(0, 255, (7, 7, 3), np.uint8), {}, 255),
        (Box(0, 255, (7, 7, 3), np.uint8), {"image_range": 10.0}, 10),
        (Box(0, 255, (7, 7, 3), np.float32), {}, 255),
        (Box(-2, 1, (7, 7, 3), np.float32), {}, 2),
        (Box(0, 0.5, (7, 7, 3), np.float32), {}, 1),
        (Box(-np.inf, np.inf, (7, 7, 3), np.float32), {}, 1),
    ],
)
def test_what_images_are_divided_by(image, options, divisor):
    spaces = made(Dict({"image": image, "n": Discrete(2)}), **options)[1]
    assert spaces.parts.images[0].divisor == divisor


MINIGRID = Dict({"direction": Discrete(4), "image": Box(0, 255, (7, 7, 3), np.uint8), "mission": Text(20)})


@pytest.mark.parametrize("odd", [Text(3), Sequence(Discrete(2)), Graph(Box(0, 1, (2,)), Discrete(2))])
def test_what_no_network_sees_is_refused_with_the_option_that_leaves_it_out(odd):
    with pytest.raises(
        ValueError, match=rf"part 'in.odd' of the observation is {type(odd).__name__}.*drop: \[in.odd\]"
    ):
        made(Dict({"in": Dict({"odd": odd, "n": Discrete(2)})}))
    with pytest.raises(ValueError, match=rf"the observation is {type(odd).__name__}, which no network here can see$"):
        made(odd)


def test_parts_are_dropped_and_kept_by_name():
    for options in ({"drop": ["mission"]}, {"keep": ["image", "direction"]}):
        spaces = made(MINIGRID, **options)[1]
        assert spaces.describe() == "mixed (direction (4,), image (3, 7, 7)) and Discrete(2)"
    assert made(MINIGRID, keep=["image"])[1].describe() == "image (3, 7, 7) and Discrete(2)"
    assert made(MINIGRID, keep=["direction"])[1].describe() == "vector (4,) and Discrete(2)"
    assert made(Dict({"a": Dict({"x": Discrete(2), "y": BYTES})}), drop=["a.y"])[1].obs_shape == (2,)
    assert made(Dict({"a": Dict({"x": Discrete(2)}), "b": Discrete(3)}), drop=["a"])[1].obs_shape == (3,)


def test_images_are_flattened_and_matrices_are_images_only_on_demand():
    assert made(MINIGRID, drop=["mission"], flatten=["image"])[1].describe() == "vector (151,) and Discrete(2)"
    assert made(Box(0, 1, (3, 4, 4)), flatten=["obs"])[1].describe() == "vector (48,) and Discrete(2)"
    assert made(Box(0, 255, (4, 84, 84, 3), np.uint8), flatten=["obs"])[1].obs_shape == (4 * 84 * 84 * 3,)
    assert made(Box(0, 1, (8, 8)), images=["obs"])[1].describe() == "mixed (obs (1, 8, 8)) and Discrete(2)"


@pytest.mark.parametrize(
    ("space", "options", "message"),
    [
        (MINIGRID, {"drop": ["mision"]}, r"parts.drop names 'mision'; the observation has direction, image, mission"),
        (MINIGRID, {"keep": ["mission"], "drop": ["mission"]}, "leaves nothing"),
        (Box(0, 255, (7, 7, 3), np.uint8), {"drop": ["image"]}, "one part, obs"),
        (Box(0, 1, (3, 4, 4)), {}, r"\(3, 4, 4\), and images have at least 5 x 5 pixels.*flatten: \[obs\]"),
        (Dict({"a": Box(0, 255, (4, 84, 84, 3), np.uint8)}), {}, r"part 'a'.*4 dimensions.*flatten: \[a\]"),
        (Discrete(2**25), {}, "too large"),
    ],
)
def test_what_cannot_be_seen_is_refused_in_one_line(space, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        made(space, **options)
    assert "\n" not in str(caught.value) and str(caught.value).startswith("custom: ")


def test_mistakes_in_the_option_are_named():
    with pytest.raises(ConfigError, match=r"wrappers\.parts\.drops: unknown option"):
        made(MINIGRID, drops=["mission"])
    with pytest.raises(ConfigError, match=r"wrappers\.parts\.channels"):
        made(MINIGRID, channels="middle")


def test_frames_are_stacked_where_images_are_all_there_is():
    moved = {"wrappers": {"frame_stack": 3}}
    collector = Collector(EnvFactory(lambda: Sampled(Box(0, 1, (10, 10, 4), np.bool_)), moved), 1, seed=0)
    assert collector.spaces.obs_shape == (12, 10, 10) and collector.spaces.frames == 3
    with pytest.raises(ValueError, match=r"frame_stack needs vectors or images of bytes alone, got sign .*eye"):
        EnvFactory(Signs, moved).make(training=True)


class Lying(Counter):
    """Its observation has one part that its space does not say."""

    observation_space = Dict({"x": Box(-1, 1, (2,)), "n": Discrete(3, start=1), "eye": BYTES})

    def __init__(self, **wrong):
        super().__init__()
        self.wrong = wrong

    def _obs(self):
        right = {"x": np.zeros(2, np.float32), "n": 1, "eye": np.zeros((7, 9, 3), np.uint8)}
        return {name: value for name, value in {**right, **self.wrong}.items() if value is not None}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"x": np.zeros(3, np.float32)}, r"part 'x' of the observation has shape \(3,\), its space says \(2,\)"),
        ({"x": np.float32(0)}, r"part 'x' of the observation has shape \(\), its space says \(2,\)"),
        ({"x": np.array(["a", "b"])}, "part 'x' of the observation has type <U1, its space says numbers"),
        ({"x": np.array([0, np.nan])}, "not finite"),
        ({"n": 0}, "part 'n' of the observation is 0, its space says a whole number from 1 to 3"),
        ({"n": 4}, "from 1 to 3"),
        ({"n": 1.5}, "from 1 to 3"),
        ({"n": None}, "the observation has no part 'n'"),
        ({"eye": np.zeros((7, 9, 3), np.float32)}, "part 'eye' of the observation has type float32.*uint8"),
        ({"eye": np.zeros((3, 7, 9), np.uint8)}, r"part 'eye' of the observation has shape \(3, 7, 9\)"),
    ],
)
def test_a_part_that_is_not_what_its_space_says_is_the_environments_failure(wrong, message):
    with pytest.raises(EnvironmentFailure, match=rf"environment 0 \(<?\w+>?\).*{message}.*on reset, step 0"):
        Collector(EnvFactory(lambda: Lying(**wrong), {}), 1, seed=0)


def test_batches_are_read_by_part_and_misfits_are_refused():
    parts = made(Lying.observation_space)[1].parts
    one = Lying()._obs()
    rows, single = parts.read({name: np.stack([value] * 3) for name, value in one.items()})
    assert not single and np.array_equal(rows, np.stack([parts.pack(one)] * 3))
    assert np.array_equal(parts.read({**one, "eye": one["eye"].tolist(), "x": [0, 0]})[0][0], parts.pack(one))
    for wrong, message in (
        ({"x": np.zeros((3, 2))}, "or all of them one more axis"),
        ({"eye": np.full((7, 9, 3), 256)}, "numbers from 0 to 255"),
        ({"x": [0.0, np.inf]}, "finite"),
        ({"x": [[0.0], [1.0, 2.0]]}, "part 'x'.*numbers alone"),
    ):
        with pytest.raises(PartError, match=message):
            parts.read({**one, **wrong})


def facts(**changes):
    right = {"name": "a", "path": ["a"], "kind": "image", "shape": [3, 7, 9], "dtype": "uint8", "source": "box"}
    right |= {"given": [7, 9, 3], "choices": [], "first": [], "channels_last": True, "boolean": False, "divisor": 255.0}
    return [{**right, **changes}]


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [3, 7]}, {"shape": [3, 9, 7]}, {"given": [3, 7, 9]}, {"kind": "sound"}, {"dtype": "int8"}, {"path": [0.5]},
        {"divisor": 0.0}, {"divisor": float("nan")}, {"shape": [3, 7, -9]}, {"name": 3}, {"channels_last": 1},
        {"source": "discrete"}, {"choices": [3]}, {"shape": [2**12, 2**12, 3]}, {"extra": 1}, {"boolean": True, "dtype": "float32"},
    ],
)  # fmt: skip
def test_a_file_with_other_parts_is_refused(changes):
    assert Parts.of_facts(facts()).width == 189
    with pytest.raises(StateError):
        Parts.of_facts(facts(**changes))


def test_parts_of_a_file_have_to_make_the_observations_of_its_shape():
    env = SimpleNamespace(
        observation_space=made(MINIGRID, drop=["mission"])[0].observation_space, action_space=Discrete(2)
    )
    good = Spaces.of(env).facts()
    assert Spaces.of_facts(good).mixed
    for wrong in ({"obs_shape": [99]}, {"parts": []}, {"parts": facts() * 2}, {"parts": "all"}):
        with pytest.raises(StateError):
            Spaces.of_facts({**good, **wrong})


def test_a_mask_is_a_part_behind_all_others_that_is_neither_a_vector_nor_an_image():
    mask = Part("mask", ("mask",), "mask", (3,), given=(3,))
    parts = Parts([mask, Part("x", ("x",), "vector", (2,), given=(2,))])
    assert [part.name for part in parts.all] == ["x", "mask"] and parts.vector_size == 2 and parts.images == ()
    assert parts.pack({"x": [1, 2], "mask": [0, 1, 1]}).tolist() == [1, 2, 0, 1, 1]
