"""States of environments from files: checked before an environment takes an action or an emulator restores memory."""

import copy
import random
import signal

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.base.saved import StateError
from rl_training.envs.emulator import restore_emulator
from rl_training.envs.factory import EnvFactory
from rl_training.envs.replay import replayable, require_actions
from toys import Counter

SPACES = {
    "discrete": (gym.spaces.Discrete(3, start=2), [2, 4], [[1], [5], [2.0, 3.0], [[2, 3]]]),
    "box": (
        gym.spaces.Box(-2, 2, (1,), np.float32),
        np.array([[-2.0], [0.5]], np.float32),
        [np.array([[np.nan]], np.float32), np.array([[3.0]], np.float32), np.zeros((2, 1)), np.zeros((2, 3), np.float32)],
    ),
    "multi discrete": (gym.spaces.MultiDiscrete([2, 3]), [[1, 2]], [[[2, 0]], [[0, -1]], [0, 1]]),
    "multi binary": (gym.spaces.MultiBinary(2), [[0, 1]], [[[2, 0]], [[1]]]),
}  # fmt: skip


@pytest.mark.parametrize("kind", SPACES)
def test_what_is_not_an_action_of_the_environment_is_never_taken(kind):
    space, good, bad = SPACES[kind]
    require_actions(torch.as_tensor(good), space)
    for actions in (*(torch.as_tensor(one) for one in bad), None, 3, "up", [1]):
        with pytest.raises(StateError, match=r"^actions: "):
            require_actions(actions, space)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"episode": -1}, "episode: is -1"),
        ({"episode": 2**70}, "episode: is"),
        ({"actions": torch.tensor([9])}, "actions: holds what is not an action of the environment"),
        ({"before": None}, "has before, which nothing reads"),
    ],
)
def test_the_state_of_an_environment_is_an_episode_and_its_actions(change, message):
    slot = replayable(Counter(9), seed=0, index=0)
    slot.begin()
    with pytest.raises(StateError, match=message):
        slot.load_state_dict({"episode": 0, "actions": None, **change})


def test_an_episode_is_not_replayed_beyond_its_end():
    """A million actions in a file are not a million steps."""
    steps = []

    class Watched(Counter):
        def step(self, action):
            steps.append(action)
            return super().step(action)

    slot = replayable(Watched(3), seed=0, index=0)
    slot.begin()
    with pytest.raises(ValueError, match="its episode ended sooner"):
        slot.replay(torch.zeros(1_000_000, dtype=torch.int64))
    assert len(steps) == 3


# ---- the Atari emulator


@pytest.fixture(scope="module")
def game():
    """An Atari environment in its second game, its state, and what the next step shows."""
    pytest.importorskip("ale_py")
    slot = replayable(EnvFactory("ALE/Pong-v5", {"frameskip": 200}).make(training=True), seed=1, index=0)
    slot.begin()
    while slot.episode == 0:
        action = slot.episode
        _, _, terminated, truncated, _ = slot.step(action)
        slot.actions.append(action)
        if terminated or truncated:
            slot.begin()
    for action in (2, 3, 2):
        slot.step(action)
        slot.actions.append(action)
    state = copy.deepcopy(slot.state_dict())
    return slot, state, slot.step(0)[0]


def test_a_good_emulator_state_is_restored_exactly(game):
    slot, state, obs = game
    slot.load_state_dict(state)
    slot.replay(state["actions"])
    assert np.array_equal(slot.step(0)[0], obs)


def test_a_state_is_restored_where_nobody_hears_of_ended_processes(game):
    slot, state, _ = game
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        slot.load_state_dict(state)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_game_that_restores_its_own_flags_otherwise_still_resumes():
    pytest.importorskip("ale_py")
    env = EnvFactory("ALE/MiniatureGolf-v5", {}).make(training=True).unwrapped
    env.reset(seed=1)
    data = env.clone_state(include_rng=True).serialize()
    saved = {
        "emulator": torch.frombuffer(bytearray(data), dtype=torch.uint8),
        "np_random": env.np_random.bit_generator.state,
    }
    restore_emulator(env, saved)
    assert env.clone_state(include_rng=True).serialize() != data  # by the emulator's own doing


def test_damaged_emulator_states_are_refused_and_the_process_lives(game):
    """The emulator itself reads whatever it is given: a wrong count of bytes overwrites its memory."""
    slot, good, _ = game
    rng, data = random.Random(0), good["before"]["emulator"].numpy().tobytes()
    count = data.index(b"M6532") + 5  # how many bytes of RAM follow
    overrun = data[:count] + (2**20).to_bytes(4, "little") + data[count + 4 :]
    cut = data[: len(data) * 2 // 3]
    noise = [bytes(byte if rng.random() > 0.01 else rng.randrange(256) for byte in data) for _ in range(3)]
    longer = data + bytes(8)  # which the emulator reads without a complaint, and saves otherwise
    for bad in (overrun, cut, longer, b"", bytes(len(data)), b"\xff" * len(data), data * 3, *noise):
        state = copy.deepcopy(good)
        state["before"]["emulator"] = torch.frombuffer(bytearray(bad), dtype=torch.uint8) if bad else torch.zeros(0)
        with pytest.raises(StateError, match=r"^before\.emulator: "):
            slot.load_state_dict(state)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("before", {"emulator": torch.zeros(3)}),
        ("before", 7),
        ("before", {"emulator": torch.zeros(14_000, dtype=torch.uint8), "np_random": {"bit_generator": "MT19937"}}),
        ("earlier", [torch.tensor([99])]),
        ("earlier", None),
        ("earlier", [3]),
    ],
)
def test_parts_of_an_atari_state_of_another_kind_are_refused(game, place, value):
    slot, good, _ = game
    with pytest.raises(StateError):
        slot.load_state_dict({**good, place: value})
