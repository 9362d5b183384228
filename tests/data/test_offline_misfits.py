"""Data of another environment, in other units, or not what it seems: right, or refused in one line."""

import json
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.artifacts.collection import export_replay
from rl_training.cli import main
from rl_training.data import TransitionDataset, load_transition_dataset
from rl_training.data.agent_units import in_agent_units
from rl_training.data.dataset_files import read_npz, write_npz
from rl_training.envs.factory import EnvFactory
from rl_training.envs.spaces import Spaces
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.cql_trainer import _build_offline_dataset
from toys import Counter, Pictures

REFERENCES = {"random_return": -1200.0, "expert_return": -200.0}


def columns(n=150, **changes):
    """One cut episode of Pendulum's observations and torques."""
    rng = np.random.default_rng(0)
    obs = rng.uniform(-1, 1, (n + 1, 3)).astype(np.float32)
    data = {
        "obs": obs[:-1],
        "actions": rng.uniform(-2, 2, (n, 1)).astype(np.float32),
        "rewards": rng.uniform(-1, 0, n).astype(np.float32),
        "next_obs": obs[1:],
        "terminations": np.zeros(n, bool),
        "truncations": np.arange(n) == n - 1,
    }
    return {name: value for name, value in {**data, **changes}.items() if value is not None}


def file_of(folder, env_id, name="a.npz", **facts):
    path = folder / name
    write_npz(path, TransitionDataset.from_dict({**columns(), "meta": {"env_id": env_id, **REFERENCES, **facts}}))
    return str(path)


def from_file(path, **more):
    return {"dataset_kind": "npz", "dataset_path": path, **more}


# ---- the environment that the data names


@pytest.mark.parametrize("algo", ["bc", "td3_bc", "iql", "cql", "mopo", "rlpd", "gail"])
def test_data_that_names_another_environment_is_refused(algo, tiny, tmp_path):
    prefix = "expert_" if algo == "gail" else ""
    given = {prefix + name: value for name, value in from_file(file_of(tmp_path, "Acrobot-v1")).items()}
    message = rf"a\.npz was recorded in Acrobot-v1, not in Pendulum-v1; {prefix}dataset_env_mismatch: allow"
    with pytest.raises(ValueError, match=message):
        get_algorithm_spec(algo).train(tiny(algo, env_id="Pendulum-v1", **given))


def test_if_allowed_it_is_learned_from_but_not_scored_by(tiny, tmp_path):
    given = from_file(file_of(tmp_path, "Acrobot-v1"), dataset_env_mismatch="allow")
    with pytest.warns(UserWarning, match=r"recorded in Acrobot-v1, the run's environment is Pendulum-v1, another env"):
        metrics = get_algorithm_spec("bc").train(tiny("bc", **given, total_timesteps=5)).metrics
    assert metrics["update_count"] == 5 and "eval_score" not in metrics


def test_another_version_is_warned_of_and_not_scored_by(tiny, tmp_path):
    given = from_file(file_of(tmp_path, "Pendulum-v0"))
    with pytest.warns(UserWarning, match=r"recorded in Pendulum-v0, the run's environment is Pendulum-v1, another ver"):
        metrics = get_algorithm_spec("bc").train(tiny("bc", **given, total_timesteps=5)).metrics
    assert "eval_score" not in metrics


def test_its_own_environment_needs_no_word_and_scores(tiny, tmp_path):
    given = from_file(
        file_of(tmp_path, "some_module:Pendulum-v1")
    )  # the module that registers it is no part of the name
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        metrics = get_algorithm_spec("bc").train(tiny("bc", **given, total_timesteps=5)).metrics
    assert metrics["eval_score"] == pytest.approx((metrics["eval_return_mean"] + 1200) / 10)


def test_parts_of_a_mix_are_checked_like_single_sources(tiny, tmp_path):
    own = from_file(file_of(tmp_path, "Pendulum-v1", "own.npz"))
    other = from_file(file_of(tmp_path, "Acrobot-v1", "other.npz"))
    with pytest.raises(ValueError, match=r"other\.npz was recorded in Acrobot-v1"):
        _build_offline_dataset(tiny("cql", dataset_mix=[own, other]))
    one, all_ = {"dataset_mix": [own, {**other, "dataset_env_mismatch": "allow"}]}, {"dataset_mix": [own, other]}
    for given in (one, {**all_, "dataset_env_mismatch": "allow"}):
        with pytest.warns(UserWarning, match="another environment"):
            data = _build_offline_dataset(tiny("cql", **given))
        assert len(data) == 300 and "random_return" not in data.meta and "expert_return" not in data.meta


def test_an_allowed_expert_of_another_environment_gives_no_score(tiny, tmp_path):
    given = {"expert_dataset_kind": "npz", "expert_dataset_path": file_of(tmp_path, "Acrobot-v1")}
    config = tiny("gail", env_id="Pendulum-v1", **given, expert_dataset_env_mismatch="allow", total_timesteps=32)
    with pytest.warns(UserWarning, match="another environment"):
        assert "eval_score" not in get_algorithm_spec("gail").train(config).metrics


def test_an_environment_object_is_known_by_its_specification(tiny, tmp_path):
    given = from_file(file_of(tmp_path, "Acrobot-v1"))
    train = get_algorithm_spec("bc").train
    with pytest.raises(ValueError, match="was recorded in Acrobot-v1, not in Pendulum-v1"):
        train(tiny("bc", env_id="Custom", **given), env=lambda: gym.make("Pendulum-v1"))


def test_an_environment_without_a_name_cannot_be_compared_and_a_warning_is_given(tiny, tmp_path):
    t = np.arange(8, dtype=np.float32)
    data = {"obs": t[:, None], "actions": np.ones(8, int), "rewards": np.ones(8), "next_obs": t[:, None] + 1}
    data |= {"terminations": t == 7, "truncations": np.zeros(8), "meta": {"env_id": "Elsewhere-v3"}}
    write_npz(tmp_path / "a.npz", TransitionDataset.from_dict(data))
    config = tiny("bc", **from_file(str(tmp_path / "a.npz")), total_timesteps=2)
    with pytest.warns(UserWarning, match=r"recorded in Elsewhere-v3; whether that is the run's .* cannot be seen"):
        get_algorithm_spec("bc").train(config, env=lambda: Counter(limit=8))


def test_other_options_of_the_same_environment_are_named(tiny, tmp_path):
    path = file_of(tmp_path, "Pendulum-v1", env_kwargs={"g": 5.0, "max_episode_steps": 100})
    with pytest.warns(UserWarning, match=r"of other options: g=5\.0 \(the run: None\)"):
        _build_offline_dataset(tiny("cql", **from_file(path)))


def test_dataset_info_compares_with_an_environment(tmp_path, capsys):
    path = file_of(tmp_path, "Acrobot-v1")
    for env, expected in (("Pendulum-v1", "recorded in Acrobot-v1"), ("Acrobot-v1", r"observations have shape (3,)")):
        assert main(["dataset", "info", path, "--env", env, "--json"]) == 0
        assert any(expected in text for text in json.loads(capsys.readouterr().out)["concerns"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset_env_mismatch": "yes"}, "dataset_env_mismatch: should be 'refuse' or 'allow', got 'yes'"),
        ({"dataset_env_mismatch": "allow"}, "dataset_env_mismatch does nothing for random data"),
        ({"dataset_episode_steps": 5}, "dataset_episode_steps does nothing for random data"),
        ({"dataset_kind": "minari", "dataset_id": "a", "dataset_episode_steps": 5}, "does nothing for minari data"),
        (
            {"dataset_mix": [{}], "dataset_episode_steps": 5},
            "dataset_episode_steps belongs to the parts of dataset_mix",
        ),
    ],
)
def test_options_that_would_do_nothing_are_refused(tiny, options, message):
    with pytest.raises(ValueError, match=message):
        get_algorithm_spec("bc").options(tiny("bc", **options))


# ---- units and shapes


def test_actions_that_look_scaled_are_refused_until_their_units_are_set(tiny, tmp_path):
    scaled = columns(actions=np.random.default_rng(0).uniform(-1, 1, (150, 1)).clip(-0.99, 1))
    np.savez(tmp_path / "a.npz", **scaled)
    given = from_file(str(tmp_path / "a.npz"))
    with pytest.raises(ValueError, match=r"every action lies within \[-1, 1\] .*dataset_action_units to unit"):
        _build_offline_dataset(tiny("cql", **given))
    read = {units: _build_offline_dataset(tiny("cql", **given, dataset_action_units=units)) for units in ("unit", "environment")}  # fmt: skip
    np.testing.assert_allclose(read["unit"].actions, scaled["actions"], rtol=1e-6)
    np.testing.assert_allclose(read["environment"].actions, scaled["actions"] / 2, rtol=1e-6)


def test_what_this_package_recorded_is_in_the_environments_units():
    timid = columns(actions=np.full((150, 1), 0.99), meta={"behaviour": {"algo": "sac"}})
    data = in_agent_units(
        TransitionDataset.from_dict(timid), EnvFactory("Pendulum-v1", {}).spaces(), "it", units="auto"
    )
    assert data.actions.unique().tolist() == pytest.approx([0.495])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": np.zeros((150, 2))}, "rewards must be one number per transition, got float64 of shape"),
        ({"rewards": np.zeros(149)}, "every column must have the same length"),
        ({"obs": np.zeros((150, 1)), "next_obs": np.zeros((150, 1))}, r"observations have shape \(1,\), the environ"),
        ({"next_obs": np.zeros((150, 1))}, "obs and next_obs have rows of different shape"),
        ({"actions": [[0.0], [0.0, 1.0]]}, "actions holds rows of different length"),
        ({"actions": np.array(["left"] * 150)}, "actions must be numbers"),
        ({"obs": np.float32(3)}, "obs must be numbers with a row for each transition"),
        ({"actions": np.full((150, 1), np.nan)}, r"actions holds numbers that are not finite, in 150 rows, .* row 0"),
        (
            {"obs": np.where(np.arange(150)[:, None] == 7, np.nan, np.zeros((150, 3)))},
            "obs holds .* in 1 rows, .* row 7",
        ),
        ({"rewards": np.full(150, 1e300)}, "rewards holds numbers that are not finite"),
        ({"terminations": np.full(150, np.nan)}, "terminations must be 0 or 1, got nan"),
        ({"terminations": np.full(150, 0.5)}, r"terminations must be 0 or 1, got 0\.5"),
        ({"truncations": np.full(150, -1)}, "truncations must be 0 or 1, got -1"),
        ({"actions": np.full((150, 1), 2**64 - 1, np.uint64)}, "actions holds whole numbers that are too large"),
        ({"actions": np.full((150, 1), 4.0)}, r"up to 2 times as far out .* in the environment's own units"),
        ({name: value[:0] for name, value in columns().items()}, "it is empty"),
    ],
)
def test_what_cannot_be_right_is_refused_in_one_line(changes, message):
    spaces = EnvFactory("Pendulum-v1", {}).spaces()
    with pytest.raises(ValueError, match=message) as caught:
        in_agent_units(TransitionDataset.from_dict(columns(**changes), where="it"), spaces, "it")
    assert "\n" not in str(caught.value)


def test_choices_of_another_width_are_refused():
    spaces = EnvFactory("CartPole-v1", {}).spaces()
    given = columns(obs=np.zeros((150, 4), np.float32), next_obs=np.zeros((150, 4), np.float32))
    data = TransitionDataset.from_dict({**given, "actions": np.zeros((150, 2), np.int64)})
    with pytest.raises(ValueError, match=r"^it: actions have shape \(2,\), the environment's \(\)$"):
        in_agent_units(data, spaces, "it")


def test_rewards_that_nothing_reads_may_be_anything_and_observations_may_not():
    spaces, bad = EnvFactory("Pendulum-v1", {}).spaces(), np.full(150, np.nan, np.float32)
    read = in_agent_units(TransitionDataset.from_dict(columns(rewards=bad)), spaces, "it", check_rewards=False)
    assert np.isnan(read.rewards).all()
    for name in ("obs", "next_obs", "actions"):
        wrong = columns()[name].copy()
        wrong[7] = np.nan
        with pytest.raises(
            ValueError, match=f"{name} holds numbers that are not finite, in 1 rows, the first of them row 7"
        ):
            in_agent_units(TransitionDataset.from_dict(columns(**{name: wrong})), spaces, "it", check_rewards=False)


@pytest.mark.parametrize(
    "changes",
    [
        {"rewards": columns()["rewards"][:, None], "terminations": np.zeros((150, 1))},
        {"obs": columns()["obs"].astype(np.float64), "next_obs": columns()["next_obs"].astype(">f8")},
        {"terminations": np.zeros(150, np.float64), "truncations": columns()["truncations"].astype(np.float64)},
        {"terminations": np.zeros(150, np.uint8), "truncations": columns()["truncations"].astype(np.uint16)},
        {"actions": columns()["actions"][:, 0], "rewards": columns()["rewards"].astype(np.longdouble)},
        {"obs": torch.from_numpy(columns()["obs"]), "rewards": columns()["rewards"].tolist()},
        {"actions": torch.from_numpy(columns()["actions"]).requires_grad_()},
    ],
)
def test_other_types_and_spellings_of_the_same_numbers_are_the_same_data(changes):
    spaces = EnvFactory("Pendulum-v1", {}).spaces()
    read = [in_agent_units(TransitionDataset.from_dict(c), spaces, "it") for c in (columns(), columns(**changes))]
    assert read[0].fingerprint() == read[1].fingerprint()


def test_flags_that_say_going_on_instead_of_ending_are_a_concern():
    resets = {"next_obs": np.zeros((150, 3)), "terminations": np.ones(150), "truncations": np.zeros(150)}
    data = TransitionDataset.from_dict(columns(**resets))
    assert any("150 of 150 rows terminate: are the flags those of going on?" in text for text in data.concerns())


def test_empty_files_are_named(tmp_path):
    np.savez(tmp_path / "a.npz")
    with pytest.raises(ValueError, match=r"a\.npz lacks obs, actions, rewards, terminations .* it has nothing"):
        read_npz(tmp_path / "a.npz")
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file.create_group("data/demo_0")["obs"] = np.zeros(3)
    with pytest.raises(ValueError, match=r"a\.hdf5 holds groups \(data, \.\.\.\), not D4RL's columns"):
        load_transition_dataset("hdf5", dataset_path=tmp_path / "a.hdf5")


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (gym.spaces.Discrete(3, start=5), [5, 6, 7, 5]),
        (gym.spaces.MultiDiscrete([3, 2]), [[0, 1], [2, 0], [1, 1], [0, 0]]),
        (gym.spaces.MultiDiscrete([3, 2], start=[1, 0]), [[1, 1], [2, 0], [1, 1], [2, 0]]),
        (gym.spaces.MultiBinary(2), [[0, 1], [1, 1], [1, 0], [0, 0]]),
    ],
)
def test_choices_come_back_as_the_environment_numbers_them(space, actions):
    spaces = Spaces.of(Counter(actions=space))
    t = np.arange(4, dtype=np.float32)[:, None]
    given = {
        "obs": t,
        "next_obs": t + 1,
        "rewards": np.ones(4),
        "terminations": t[:, 0] == 3,
        "truncations": np.zeros(4),
    }
    for dtype in (np.int64, np.uint8, np.float32):
        data = in_agent_units(TransitionDataset.from_dict({**given, "actions": np.array(actions, dtype)}), spaces, "it")
        assert np.asarray(spaces.to_env(data.actions.numpy())).tolist() == actions
    with pytest.raises(ValueError, match="actions lie beyond those of the environment"):
        in_agent_units(TransitionDataset.from_dict({**given, "actions": np.array(actions) + 3}), spaces, "it")


def test_pictures_must_be_pictures():
    spaces = Spaces.of(Pictures())
    rng = np.random.default_rng(0)
    given = {"actions": np.zeros(4, int), "rewards": np.ones(4), "terminations": np.arange(4) == 3}
    pictures = rng.integers(0, 256, (5, 1, 36, 36))
    whole = {"obs": pictures[:-1], "next_obs": pictures[1:], **given}
    data = in_agent_units(TransitionDataset.from_dict(whole), spaces, "it")
    assert data.obs.dtype == torch.uint8 and np.array_equal(data.obs.numpy(), pictures[:-1])
    for wrong, message in (
        (pictures / 255, "whole numbers from 0 to 255, got float32 from 0 to 1"),
        (pictures + 200, "from 0 to 255, got int64 from"),
        (pictures - 128, "from 0 to 255, got int64 from -128"),
    ):
        data = TransitionDataset.from_dict({**whole, "obs": wrong[:-1], "next_obs": wrong[1:]})
        with pytest.raises(ValueError, match=message):
            in_agent_units(data, spaces, "it")


def test_a_step_that_terminates_at_the_limit_is_exported_as_a_termination(tiny):
    class Both(Counter):
        def step(self, action):
            obs, reward, *_ = super().step(action)
            return obs, reward, self.t >= self.limit, self.t >= self.limit, {}

    gym.register("Both-v0", lambda: Both(limit=5))
    try:
        run = get_algorithm_spec("dqn").train(tiny("dqn", env_id="Both-v0", total_timesteps=23, learning_starts=20))
        data = export_replay(run.run_dir)
    finally:
        del gym.registry["Both-v0"]
    assert data.dones.nonzero().flatten().tolist() == [4, 9, 14, 19]
