"""From a file to a batch by hand: rows, units, ends, rewards and returns, each computed once more in plain Python."""

import json

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.base.state import Rng
from rl_training.data.agent_units import in_agent_units
from rl_training.data.dataset_files import load_transition_dataset, write_hdf5, write_npz
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.prior_data import PriorData, build_dataset, rewards_learned_from
from rl_training.envs.factory import EnvFactory
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from toys import Counter, ImageEnv

LOW, HIGH = np.array([-2.0, 0.0]), np.array([4.0, 0.5])
# episodes: (rewards, end)
EPISODES = [
    ([1.0, -2.0, 3.0], "terminal"),
    ([4.0, 0.5], "timeout"),
    ([7.0], "terminal"),
    ([0.25, 0.25, 0.5, 8.0], "timeout"),
]


def box_env():
    return Counter(limit=4, actions=gym.spaces.Box(LOW, HIGH, dtype=np.float64))


def rows():
    """Every step of the episodes: obs, next_obs, an action in the environment's units, reward, terminal, timeout."""
    listed = []
    for number, (rewards, end) in enumerate(EPISODES):
        for t, reward in enumerate(rewards):
            last = t == len(rewards) - 1
            share = (0.1 * number + 0.2 * t) % 1.0
            action = (LOW + share * (HIGH - LOW)).tolist()
            listed.append(
                (
                    [10.0 * number + t],
                    [10.0 * number + t + 1],
                    action,
                    reward,
                    last and end == "terminal",
                    last and end == "timeout",
                )
            )
    return listed


def d4rl(path, *, leave_out=(), order=None):
    """A file as D4RL has it: float32 columns, boolean flags, and further columns that nobody reads."""
    h5py = pytest.importorskip("h5py")
    obs, next_obs, actions, rewards, terminals, timeouts = (np.array(column) for column in zip(*rows()))
    columns = {
        "observations": obs.astype(np.float32), "next_observations": next_obs.astype(np.float32),
        "actions": actions.astype(np.float32), "rewards": rewards.astype(np.float32), "terminals": terminals, "timeouts": timeouts,
    }  # fmt: skip
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            if name not in leave_out:
                file[name] = column
        file["infos/qpos"] = np.zeros((len(obs), 2))
        file["metadata/algorithm"] = np.bytes_("SAC")
    return path


def test_a_d4rl_file_is_its_rows(tmp_path):
    data = load_transition_dataset("hdf5", dataset_path=d4rl(tmp_path / "a.hdf5"))
    for i, (obs, next_obs, action, reward, terminal, timeout) in enumerate(rows()):
        assert data.obs[i].tolist() == obs and data.next_obs[i].tolist() == next_obs
        assert data.actions[i].tolist() == pytest.approx(action) and data.rewards[i].item() == reward
        assert (bool(data.dones[i]), bool(data.truncations[i])) == (terminal, timeout)
    assert data.returns().tolist() == [2.0, 4.5, 7.0, 9.0] == data.finished_returns().tolist()


def test_without_next_observations_the_last_row_of_a_timeout_is_left_out_and_its_reward_still_counts(tmp_path):
    data = load_transition_dataset("hdf5", dataset_path=d4rl(tmp_path / "a.hdf5", leave_out=("next_observations",)))
    kept = [row for row in rows() if not row[5]]
    assert data.rewards.tolist() == [row[3] for row in kept] and data.dones.tolist() == [float(row[4]) for row in kept]
    for i, (_, next_obs, _, _, terminal, _) in enumerate(kept):
        assert terminal or data.next_obs[i].tolist() == next_obs
    assert data.finished_returns().tolist() == [2.0, 4.5, 7.0, 9.0]  # with the rewards of the rows left out
    assert [rows.stop - rows.start for rows in data.episodes()] == [3, 1, 1, 3]


@pytest.mark.parametrize("units", ["environment", "unit"])
def test_actions_go_into_minus_one_one_by_the_bounds_of_each_dimension_and_back(tmp_path, units):
    spaces = Spaces.of(box_env())
    data = load_transition_dataset("hdf5", dataset_path=d4rl(tmp_path / "a.hdf5"))
    shares = (np.array([row[2] for row in rows()]) - LOW) / (HIGH - LOW)
    if units == "unit":
        data.actions = torch.from_numpy((2 * shares - 1).astype(np.float32))
    scaled = in_agent_units(data, spaces, "it", units=units)
    np.testing.assert_allclose(scaled.actions, 2 * shares - 1, atol=1e-6)
    back = spaces.to_env(scaled.actions.numpy())
    np.testing.assert_allclose(back, [row[2] for row in rows()], atol=1e-6)
    assert back.dtype == np.float64 and scaled.actions.dtype == torch.float32


def test_what_lies_a_rounding_beyond_the_bounds_is_clipped_and_more_is_refused(tmp_path):
    data = load_transition_dataset("hdf5", dataset_path=d4rl(tmp_path / "a.hdf5"))
    spaces = Spaces.of(box_env())
    data.actions[0] = torch.tensor([4.0 + 2e-3, 0.5])
    assert in_agent_units(data, spaces, "it").actions[0].tolist() == [1.0, 1.0]
    data.actions[0] = torch.tensor([4.0 + 6e-3, 0.5])
    with pytest.raises(ValueError, match="up to 1 times as far out"):
        in_agent_units(data, spaces, "it")


def steps_with(actions):
    """A cut episode with these actions, one a row."""
    t = np.arange(len(actions), dtype=np.float32)[:, None]
    ends = {"terminations": np.zeros(len(t)), "truncations": t[:, 0] == len(t) - 1}
    return TransitionDataset.from_dict({"obs": t, "next_obs": t + 1, "rewards": t[:, 0], "actions": actions, **ends})


@pytest.mark.parametrize("units", ["environment", "unit"])
@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_actions_beyond_either_bound_are_refused_in_the_words_of_their_units(side, units):
    spaces = Spaces.of(Counter(actions=gym.spaces.Box(-2.0, 2.0, (1,))))
    reach = 2.0 if units == "environment" else 1.0
    words = (
        "in the environment's own units" if units == "environment" else r"scaled to \[-1, 1\], as dataset_action_units"
    )
    with pytest.raises(ValueError, match=rf"up to 1.5 times as far out .*{words}"):
        in_agent_units(steps_with(np.full((3, 1), 1.5 * side * reach)), spaces, "it", units=units)


def test_flags_of_an_action_are_0_or_1_however_many_there_are():
    spaces = Spaces.of(Counter(actions=gym.spaces.MultiBinary(3)))
    assert in_agent_units(steps_with(np.array([[1, 0, 1]] * 3)), spaces, "it").actions.tolist() == [[1, 0, 1]] * 3
    with pytest.raises(ValueError, match="beyond those of the environment"):
        in_agent_units(steps_with(np.array([[2, 0, 1]] * 3)), spaces, "it")


@pytest.mark.parametrize(
    ("low", "high", "extremes", "rows", "doubtful"),
    [
        (-2.0, 2.0, (-0.99, 0.5), 100, True),  # at the edge of [-1, 1] on one side alone
        (-2.0, 2.0, (-0.5, 1.0005), 100, True),  # a rounding beyond it
        (-2.0, 2.0, (-0.9, 0.9), 100, False),  # not at the edge
        (-2.0, 2.0, (-1.2, 0.99), 100, False),  # beyond it
        (-2.0, 2.0, (-0.99, 0.99), 99, False),  # too few to tell
        (-2.0, 1.0, (-0.99, 0.99), 100, False),  # the bounds are no wider on both sides
        (-1.0, 2.0, (-0.99, 0.99), 100, False),
        (-np.inf, np.inf, (-0.99, 0.99), 100, False),  # no bounds to be scaled by
    ],
)
def test_actions_look_scaled_only_at_the_edge_of_minus_one_one_within_wider_bounds(low, high, extremes, rows, doubtful):
    spaces = Spaces.of(Counter(actions=gym.spaces.Box(low, high, (1,))))
    data = steps_with(np.linspace(*extremes, rows)[:, None])
    if doubtful:
        with pytest.raises(ValueError, match="set dataset_action_units"):
            in_agent_units(data, spaces, "it", units="auto")
    else:
        in_agent_units(data, spaces, "it", units="auto")
    data.meta["minari_id"] = "a/b-v0"  # which records what the environment took
    in_agent_units(data, spaces, "it", units="auto")


def test_one_dimension_with_wider_bounds_is_enough_to_doubt():
    spaces = Spaces.of(Counter(actions=gym.spaces.Box(np.array([-1.0, -2.0]), np.array([1.0, 2.0]), dtype=np.float64)))
    with pytest.raises(ValueError, match="set dataset_action_units"):
        in_agent_units(steps_with(np.linspace([-1, -1], [1, 1], 100)), spaces, "it", units="auto")


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_a_run_learns_from_the_rows_with_wrapped_scaled_shifted_and_clipped_rewards(tmp_path, kind):
    """Rewards: doubled and clipped to 6 by the wrapper, then halved, plus one, then within [0.9, 3.5]."""
    path = tmp_path / f"a.{kind}"
    data = load_transition_dataset("hdf5", dataset_path=d4rl(tmp_path / "raw.hdf5"))
    {"npz": write_npz, "hdf5": write_hdf5}[kind](path, data)
    factory = EnvFactory(box_env, {"wrappers": {"reward": {"scale": 2.0, "clip": 6.0}}, "max_episode_steps": 9})
    options = {"dataset_kind": kind, "dataset_path": str(path), "reward_scale": 0.5, "reward_shift": 1.0}
    options |= {"reward_clip_min": 0.9, "reward_clip_max": 3.5}
    config = TrainConfig(algo="iql", env_id="own", algo_kwargs=options)
    cfg = get_algorithm_spec("iql").options(config)
    built = build_dataset(cfg, factory, factory.spaces())
    expected = [min(max(0.5 * min(max(2 * row[3], -6), 6) + 1, 0.9), 3.5) for row in rows()]
    assert built.rewards.tolist() == pytest.approx(expected)
    online = rewards_learned_from(cfg, factory, built)(np.array([row[3] for row in rows()], np.float32))
    assert online.tolist() == pytest.approx(expected)
    prior = PriorData(built, factory.spaces(), torch.device("cpu"), Rng(0, "a test"))
    batch = {name: column.clone() for name, column in prior.sample(200).items()}
    seen = set()
    for i in range(200):
        number = [row[0] for row in rows()].index(batch["obs"][i].tolist())
        _, next_obs, action, _, terminal, _ = rows()[number]
        assert batch["next_obs"][i].tolist() == next_obs and bool(batch["dones"][i]) is terminal
        assert batch["rewards"][i].item() == pytest.approx(expected[number])
        assert batch["actions"][i].tolist() == pytest.approx(
            ((np.array(action) - LOW) / (HIGH - LOW) * 2 - 1).tolist(), abs=1e-6
        )
        seen.add(number)
    assert seen == set(range(len(rows())))  # every row is drawn


def test_rewards_scaled_by_returns_span_a_thousand(tmp_path):
    """The returns of the episodes are 2, 4.5, 7 and 9: rewards are multiplied by 1000 / 7."""
    d4rl(tmp_path / "a.hdf5")
    options = {"dataset_kind": "hdf5", "dataset_path": str(tmp_path / "a.hdf5"), "reward_scale": "returns"}
    factory = EnvFactory(box_env, {"max_episode_steps": 9})
    cfg = get_algorithm_spec("cql").options(TrainConfig(algo="cql", env_id="own", algo_kwargs=options))
    built = build_dataset(cfg, factory, factory.spaces())
    assert built.rewards.tolist() == pytest.approx([row[3] * 1000 / 7 for row in rows()])
    assert np.ptp(built.returns()) == pytest.approx(1000)


def test_discounted_returns_to_go_are_those_of_a_loop(tmp_path):
    data = load_transition_dataset("hdf5", dataset_path=d4rl(tmp_path / "a.hdf5")).with_discounted_returns_to_go(0.9)
    expected = [
        sum(0.9**k * reward for k, reward in enumerate(rewards[t:]))
        for rewards, _ in EPISODES
        for t in range(len(rewards))
    ]
    assert data.returns_to_go.tolist() == pytest.approx(expected)


def test_the_best_episodes_by_their_returns(tmp_path):
    """Returns 2, 4.5, 7 and 9 of 3, 2, 1 and 4 rows: half of ten rows are the last episode's and the third's."""
    data = load_transition_dataset("hdf5", dataset_path=d4rl(tmp_path / "a.hdf5"))
    assert data.best(0.5).rewards.tolist() == [7.0, 0.25, 0.25, 0.5, 8.0]
    assert data.best(0.01).rewards.tolist() == [0.25]


def test_facts_and_columns_survive_a_file(tmp_path):
    facts = {"env_id": "Toy-v0", "random_return": 1.5, "nested": {"a": [1, 2]}}
    columns = zip(("obs", "next_obs", "actions", "rewards", "terminations", "truncations"), zip(*rows()))
    data = TransitionDataset.from_dict({**{name: np.array(column) for name, column in columns}, "meta": facts})
    for kind, write in (("npz", write_npz), ("hdf5", write_hdf5)):
        write(tmp_path / f"b.{kind}", data)
        back = load_transition_dataset(kind, dataset_path=tmp_path / f"b.{kind}")
        assert back.meta == json.loads(json.dumps(facts))
        for name, column in data.columns().items():
            assert torch.equal(getattr(back, name), column) and getattr(back, name).dtype == column.dtype, name


def test_images_in_either_order_of_axes_reach_the_network_channel_first():
    spaces = Spaces.of(ImageEnv((20, 24, 3)))
    pictures = np.random.default_rng(0).integers(0, 256, (5, 20, 24, 3)).astype(np.uint8)
    given = {"actions": np.zeros(4, int), "rewards": np.ones(4), "terminations": np.arange(4) == 3}
    for turn in (lambda x: x, lambda x: np.moveaxis(x, -1, 1)):
        data = TransitionDataset.from_dict({"obs": turn(pictures[:-1]), "next_obs": turn(pictures[1:]), **given})
        read = in_agent_units(data, spaces, "it")
        assert np.array_equal(read.obs, np.moveaxis(pictures[:-1], -1, 1))
        assert np.array_equal(read.next_obs, np.moveaxis(pictures[1:], -1, 1))


@pytest.mark.parametrize("name", ["rewards", "dones", "truncations"])
def test_columns_of_one_number_a_row_are_that_however_they_come(name):
    columns = {"obs": np.zeros((4, 1)), "next_obs": np.zeros((4, 1)), "actions": np.zeros(4)}
    columns |= {"rewards": np.zeros(4), "dones": np.zeros(4), "truncations": np.zeros(4)}
    with pytest.raises(ValueError, match=rf"{name} must be one number per transition, got shape \(4, 2\)"):
        TransitionDataset(**{**columns, name: np.zeros((4, 2))})
