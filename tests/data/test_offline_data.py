"""Files of transitions: read safely, ends kept apart, nothing crosses an episode, mixes and transforms by hand numbers."""

import io
import json
import os
import pickle
import zipfile
from dataclasses import replace
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.data import TransitionDataset, load_transition_dataset, mix_transition_datasets
from rl_training.data.agent_units import in_agent_units
from rl_training.data.dataset_files import read_minari, read_npz, write_hdf5, write_minari, write_npz
from rl_training.data.errors import DatasetError
from rl_training.data.recorder import collect_random
from rl_training.envs.checks import EnvironmentFailure
from rl_training.envs.factory import EnvFactory
from rl_training.envs.spaces import Spaces
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.cql_trainer import _build_offline_dataset, _infer_env_spaces
from toys import Counter


def columns(n=6, **changes):
    """Two episodes of three steps: the first terminates, the second is cut."""
    obs = np.arange(n, dtype=np.float32)[:, None] * np.ones(3, np.float32)
    data = {
        "obs": obs,
        "actions": np.full((n, 1), 0.5, np.float32),
        "rewards": np.arange(n, dtype=np.float32),
        "next_obs": obs + 1,
        "terminations": np.array([0, 0, 1, 0, 0, 0], bool)[:n],
        "truncations": np.array([0, 0, 0, 0, 0, 1], bool)[:n],
    }
    return {name: value for name, value in {**data, **changes}.items() if value is not None}


def pendulum():
    return Spaces.of(gym.make("Pendulum-v1"))


def test_terminations_and_truncations_stay_apart():
    data = TransitionDataset.from_dict(columns())
    assert data.dones.tolist() == [0, 0, 1, 0, 0, 0] and data.truncations.tolist() == [0, 0, 0, 0, 0, 1]
    assert data.returns().tolist() == [3, 12] and data.episode_returns.tolist() == [3] * 3 + [12] * 3


def test_dones_beside_truncations_may_mean_the_end_of_an_episode():
    data = TransitionDataset.from_dict(columns(terminations=None, dones=np.array([0, 0, 1, 0, 0, 1])))
    assert data.dones.tolist() == [0, 0, 1, 0, 0, 0]
    alone = TransitionDataset.from_dict(
        columns(terminations=None, truncations=None, dones=np.array([0, 0, 1, 0, 0, 1]))
    )
    assert alone.dones.tolist() == [0, 0, 1, 0, 0, 1]


def test_d4rls_spellings_are_read():
    ours = columns()
    theirs = {
        "obs": "observations",
        "next_obs": "next_observations",
        "terminations": "terminals",
        "truncations": "timeouts",
    }
    read = TransitionDataset.from_dict({theirs.get(name, name): value for name, value in ours.items()})
    assert read.fingerprint() == TransitionDataset.from_dict(ours).fingerprint()


def test_without_successors_the_next_row_is_one_and_a_cut_row_is_left_out():
    data = TransitionDataset.from_dict(columns(next_obs=None))
    assert data.obs[:, 0].tolist() == [0, 1, 2, 3, 4]  # the successor of row 5 is not in the data
    assert data.next_obs[[0, 1, 3, 4], 0].tolist() == [1, 2, 4, 5]
    assert data.dones.tolist() == [0, 0, 1, 0, 0] and data.truncations.tolist() == [0, 0, 0, 0, 1]
    assert len(data.episodes()) == 2


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match=r"lacks actions, terminations \(or dones\); it has next_obs, obs, rewards"):
        TransitionDataset.from_dict(columns(actions=None, terminations=None, truncations=None))
    with pytest.raises(ValueError, match="same length"):
        TransitionDataset.from_dict(columns(rewards=np.zeros(5)))
    with pytest.raises(ValueError, match="one number per transition"):
        TransitionDataset.from_dict(columns(rewards=np.zeros((6, 2))))


def test_sampling_from_nothing_is_refused():
    empty = TransitionDataset(**{k: np.zeros((0, *s)) for k, s in {"obs": (2,), "actions": (1,), "rewards": (), "next_obs": (2,), "dones": ()}.items()})  # fmt: skip
    with pytest.raises(ValueError, match="empty"):
        empty.sample(2)


def test_samples_come_from_the_data():
    batch = TransitionDataset.from_dict(columns()).sample(50, device="cpu")
    assert batch["obs"].shape == (50, 3) and torch.equal(batch["obs"] + 1, batch["next_obs"])


def test_rewards_are_scaled_shifted_then_clipped():
    data = TransitionDataset.from_dict(columns()).with_reward_transform(
        scale=2.0, shift=-1.0, clip_min=0.0, clip_max=5.0
    )
    assert data.rewards.tolist() == [0, 1, 3, 5, 5, 5]


def test_returns_to_go_stop_at_the_end_of_an_episode():
    data = TransitionDataset.from_dict(columns()).with_discounted_returns_to_go(gamma=0.5)
    assert data.returns_to_go.tolist() == [0 + 0.5 * (1 + 0.5 * 2), 2, 2, 3 + 0.5 * (4 + 0.5 * 5), 6.5, 5]


def test_the_best_share_is_that_of_the_best_episodes():
    data = TransitionDataset.from_dict(columns())
    assert data.best(0.5).rewards.tolist() == [3, 4, 5]
    assert data.best(0.5).best(1.0).rewards.tolist() == [3, 4, 5]


def test_an_episode_without_its_end_has_no_return_and_comes_last():
    data = TransitionDataset.from_dict(columns(truncations=np.zeros(6)))  # the second episode goes on
    assert data.episode_returns[:3].tolist() == [3] * 3 and data.episode_returns[3:].isnan().all()
    assert data.best(0.5).rewards.tolist() == [0, 1, 2]


def test_a_mix_has_its_shares_and_repeats_with_its_seed():
    low, high = TransitionDataset.from_dict(columns()), TransitionDataset.from_dict(columns(rewards=np.full(6, 9.0)))
    mixed = mix_transition_datasets([low, high], [1, 3], 8, seed=4)
    assert len(mixed) == 8 and int((mixed.rewards == 9).sum()) == 6
    assert set(mixed.rewards[mixed.rewards < 9].tolist()) <= {0, 1, 2, 3, 4, 5}
    assert mixed.fingerprint() == mix_transition_datasets([low, high], [1, 3], 8, seed=4).fingerprint()
    assert mixed.fingerprint() != mix_transition_datasets([low, high], [1, 3], 8, seed=5).fingerprint()
    with pytest.raises(ValueError, match="as many weights as datasets"):
        mix_transition_datasets([low, high], [1], 8, seed=0)


def test_concerns_are_put_into_words():
    assert TransitionDataset.from_dict(columns()).concerns() == []
    found = TransitionDataset.from_dict(
        columns(terminations=np.zeros(6), rewards=np.array([1, np.nan, 1, 1, 1, 1]))
    ).concerns()
    assert any("rewards is not finite in 1 rows" in text for text in found)
    broken = columns()
    broken["next_obs"] = broken["next_obs"].copy()
    broken["next_obs"][0] = 77
    assert any(
        "1 rows are not followed by their successor" in text for text in TransitionDataset.from_dict(broken).concerns()
    )


# ---- files


def test_an_npz_comes_back_with_its_facts_and_equal_content_is_an_equal_file(tmp_path):
    data = TransitionDataset.from_dict({**columns(), "meta": {"env_id": "Toy-v0", "random_return": -3.5}})
    write_npz(tmp_path / "a.npz", data)
    write_npz(tmp_path / "b.npz", data)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    back = load_transition_dataset("npz", dataset_path=tmp_path / "a.npz")
    assert back.fingerprint() == data.fingerprint() and back.meta == data.meta


def test_a_plain_npz_of_somebody_elses_is_read(tmp_path):
    np.savez(tmp_path / "a.npz", **columns())
    assert len(read_npz(tmp_path / "a.npz")) == 6


def test_hdf5_in_d4rls_layout(tmp_path):
    h5py = pytest.importorskip("h5py")
    data = TransitionDataset.from_dict({**columns(), "meta": {"env_id": "Toy-v0"}})
    write_hdf5(tmp_path / "a.hdf5", data)
    with h5py.File(tmp_path / "a.hdf5") as file:
        assert set(file) == {"observations", "actions", "rewards", "next_observations", "terminals", "timeouts"}
    back = load_transition_dataset("hdf5", dataset_path=tmp_path / "a.hdf5")
    assert back.fingerprint() == data.fingerprint() and back.meta == data.meta
    (tmp_path / "b.hdf5").write_bytes(b"no such thing")
    with pytest.raises(ValueError, match=r"b\.hdf5 is damaged or not an hdf5 file"):
        load_transition_dataset("hdf5", dataset_path=tmp_path / "b.hdf5")


def test_minari_by_id_local_only_unless_requested(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    data = collect_random(EnvFactory("Pendulum-v1", {}), 450, seed=3)
    write_minari("toy/random-v0", data, gym.make("Pendulum-v1"))
    back = load_transition_dataset("minari", dataset_id="toy/random-v0")
    assert torch.equal(back.obs, data.obs) and torch.equal(back.next_obs, data.next_obs)
    assert torch.equal(back.actions, data.actions) and back.meta["env_id"] == "Pendulum-v1"
    assert [rows.stop for rows in back.episodes()] == [200, 400, 450] and back.dones.sum() == 0
    with pytest.raises(ValueError, match=r"no local Minari dataset 'toy/other-v0' \(local ones: toy/random-v0\)"):
        load_transition_dataset("minari", dataset_id="toy/other-v0")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wrong", [-1, 0, 4])
@pytest.mark.parametrize("nested", [False, True])
def test_choices_of_minari_datasets_that_their_space_does_not_have_are_refused(monkeypatch, wrong, nested):
    space, seen = gym.spaces.Discrete(3, start=1), np.array([1, 3, wrong])
    if nested:
        space, seen = gym.spaces.Dict({"inner": gym.spaces.Tuple([space])}), {"inner": (seen,)}
    ends = {"terminations": np.array([0, 1]), "truncations": np.array([0, 0])}
    episode = SimpleNamespace(observations=seen, actions=np.zeros(2, np.int64), rewards=np.ones(2), **ends)
    facts = SimpleNamespace(metadata={})
    source = SimpleNamespace(
        observation_space=space, iterate_episodes=lambda: [episode], env_spec=None, storage=facts, action_space=None
    )
    monkeypatch.setattr("rl_training.data.dataset_files._minari_source", lambda *_: source)
    with pytest.raises(DatasetError, match=f"an observation holds {wrong}, its space says Discrete"):
        read_minari("a/b-v0")


def test_scores_of_others_minari_datasets_are_references(tmp_path, monkeypatch):
    """Minari keeps the returns of a random policy and of an expert under names of its own."""
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    data = collect_random(EnvFactory("Pendulum-v1", {}), 210, seed=3)
    data.meta |= {"random_return": -1300.0, "expert_return": -150.0}
    write_minari("toy/scored-v0", data, gym.make("Pendulum-v1"))
    storage = minari.load_dataset("toy/scored-v0").storage
    assert (storage.metadata["ref_min_score"], storage.metadata["ref_max_score"]) == (-1300.0, -150.0)
    storage.update_metadata({"meta": json.dumps({})})  # as one that we have not written
    meta = load_transition_dataset("minari", dataset_id="toy/scored-v0").meta
    assert (meta["random_return"], meta["expert_return"]) == (-1300.0, -150.0)


@pytest.mark.filterwarnings("ignore")
def test_an_episode_without_a_step_adds_nothing_to_a_minari_dataset(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    data = collect_random(EnvFactory("Pendulum-v1", {}), 210, seed=3)
    write_minari("toy/whole-v0", data, gym.make("Pendulum-v1"))
    whole = load_transition_dataset("minari", dataset_id="toy/whole-v0")
    kept = list(minari.load_dataset("toy/whole-v0").iterate_episodes())
    none = {name: getattr(kept[0], name)[:0] for name in ("actions", "rewards", "terminations", "truncations")}
    empty = replace(kept[0], observations=kept[0].observations[:1], **none)
    monkeypatch.setattr(minari.MinariDataset, "iterate_episodes", lambda self: iter([empty, kept[0], empty, *kept[1:]]))
    assert load_transition_dataset("minari", dataset_id="toy/whole-v0").fingerprint() == whole.fingerprint()
    monkeypatch.setattr(minari.MinariDataset, "iterate_episodes", lambda self: iter([empty]))
    with pytest.raises(ValueError, match="holds no episode"):
        load_transition_dataset("minari", dataset_id="toy/whole-v0")


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("exploded",))


def archive(path, **members):
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)


def test_nothing_in_a_file_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("objects.npz", **{**columns(), "actions": np.array([Bomb()] * 6, dtype=object)})
    with pytest.raises(ValueError, match=r"actions holds pickled objects, which could run code; it was not read"):
        read_npz(tmp_path / "objects.npz")
    (tmp_path / "whole.npz").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match=r"pickled|damaged"):
        read_npz(tmp_path / "whole.npz")
    assert not (tmp_path / "exploded").exists()
    for kind in ("pt", "pth", "torch"):
        with pytest.raises(ValueError, match="unsafe for untrusted datasets"):
            load_transition_dataset(kind, dataset_path="x.pt")


def test_damaged_files_are_named(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", **columns(n=6))
    whole = (tmp_path / "a.npz").read_bytes()
    for content in (b"", b"PK\x03\x04", whole[: len(whole) // 2], b"hello"):
        (tmp_path / "b.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"b\.npz"):
            read_npz(tmp_path / "b.npz")
    torn = bytearray(whole)
    torn[len(whole) // 3] ^= 0xFF
    (tmp_path / "b.npz").write_bytes(bytes(torn))
    with pytest.raises(ValueError, match=r"b\.npz"):
        read_npz(tmp_path / "b.npz")
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    archive(tmp_path / "c.npz", obs=buffer.getvalue())
    with pytest.raises(ValueError, match=r"c\.npz lacks actions, rewards"):
        read_npz(tmp_path / "c.npz")
    with pytest.raises(FileNotFoundError, match=r"no dataset at .*nowhere\.npz"):
        read_npz(tmp_path / "nowhere.npz")


# ---- against the environment


def test_actions_are_rescaled_to_the_agents_box():
    data = in_agent_units(TransitionDataset.from_dict(columns()), pendulum(), "a file")
    assert data.actions.flatten().tolist() == [0.25] * 6  # torques lie in [-2, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"obs": np.zeros((6, 4)), "next_obs": np.zeros((6, 4))},
            r"observations have shape \(4,\), the environment's \(3,\)",
        ),
        ({"actions": np.zeros((6, 2))}, r"actions have shape \(2,\), the environment's \(1,\)"),
        ({"actions": np.full((6, 1), 4.0)}, r"actions lie up to 2 times as far out"),
        ({"rewards": np.full(6, np.inf)}, r"rewards holds numbers that are not finite"),
    ],
)
def test_data_of_another_environment_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        in_agent_units(TransitionDataset.from_dict(columns(**changes)), pendulum(), "a file")


def test_choices_must_be_choices():
    spaces = Spaces.of(gym.make("CartPole-v1"))
    four = {"obs": np.zeros((6, 4)), "next_obs": np.zeros((6, 4))}
    assert (
        in_agent_units(TransitionDataset.from_dict(columns(**four, actions=np.ones(6))), spaces, "a").actions.dtype
        == torch.int64
    )
    with pytest.raises(ValueError, match="not whole numbers"):
        in_agent_units(TransitionDataset.from_dict(columns(**four, actions=np.full(6, 0.5))), spaces, "a")
    with pytest.raises(ValueError, match="beyond those of the environment"):
        in_agent_units(TransitionDataset.from_dict(columns(**four, actions=np.full(6, 2))), spaces, "a")


def test_a_random_dataset_is_the_same_for_the_same_seed_and_crosses_no_episode():
    factory = EnvFactory("CartPole-v1", {})
    data = collect_random(factory, 300, seed=5)
    assert data.fingerprint() == collect_random(factory, 300, seed=5).fingerprint()
    assert data.fingerprint() != collect_random(factory, 300, seed=6).fingerprint()
    assert data.concerns() == ["every reward is 1"] and data.dones.sum() > 5
    lengths = [rows.stop - rows.start for rows in data.episodes()]
    assert data.returns().tolist() == lengths


def test_random_data_of_an_environment_whose_rewards_are_not_finite_is_refused():
    class Sick(Counter):
        def step(self, action):
            obs, _, *rest = super().step(action)
            return obs, float("nan"), *rest

    with pytest.raises(EnvironmentFailure, match="reward nan"):
        collect_random(EnvFactory(Sick, {}), 10, seed=0)


def test_options_build_the_data(tiny, tmp_path):
    np.savez(tmp_path / "a.npz", **columns())
    config = tiny("cql", dataset_kind="npz", dataset_path=str(tmp_path / "a.npz"), reward_scale=0.5)
    assert _infer_env_spaces(config).obs_shape == (3,)
    data = _build_offline_dataset(config)
    assert data.rewards.tolist() == [0, 0.5, 1, 1.5, 2, 2.5] and float(data.actions.max()) == 0.25
    by_returns = _build_offline_dataset(config.replace(algo_kwargs={**config.algo_kwargs, "reward_scale": "returns"}))
    assert by_returns.rewards[1].item() == pytest.approx(1000 / 9)


def test_mixed_sources_as_options(tiny, tmp_path):
    np.savez(tmp_path / "a.npz", **columns())
    mix = [{"dataset_kind": "npz", "dataset_path": str(tmp_path / "a.npz"), "weight": 3}, {"dataset_size": 50}]
    data = _build_offline_dataset(tiny("bc", dataset_mix=mix, dataset_mix_size=40))
    assert len(data) == 40 and int((data.actions == 0.25).sum()) == 30


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset_kind": "npz"}, "npz data needs dataset_path"),
        ({"dataset_kind": "minari"}, "minari data needs dataset_id"),
        ({"dataset_path": "a.npz"}, "dataset_path does nothing for random data"),
        ({"dataset_kind": "cvs"}, r"dataset_kind: should be 'random', 'npz', 'minari' or 'hdf5', got 'cvs'"),
        ({"dataset_download": True}, "dataset_download does nothing for random data"),
        ({"dataset_mix": []}, "dataset_mix needs at least one source"),
        ({"dataset_mix_size": 3}, "dataset_mix_size and dataset_mix_seed do nothing without dataset_mix"),
        ({"dataset_mix_seed": 0}, "dataset_mix_size and dataset_mix_seed do nothing without dataset_mix"),
        ({"dataset_mix": [{"dataset_size": 9}], "dataset_kind": "random"}, "or dataset_mix, not both"),
        ({"dataset_mix": [{"dataset_kin": "npz"}]}, "did you mean 'dataset_kind'"),
    ],
)
def test_mistakes_in_the_options_are_named(tiny, options, message):
    with pytest.raises(ValueError, match=message):
        get_algorithm_spec("bc").options(tiny("bc", **options))


def test_data_that_changed_is_noticed_on_resume(tiny, tmp_path):
    from rl_training.runtime.workflows import resume_training

    np.savez(tmp_path / "a.npz", **columns())
    config = tiny("bc", dataset_kind="npz", dataset_path=str(tmp_path / "a.npz"), max_updates=20)
    stopped = get_algorithm_spec("bc").train(config)
    np.savez(tmp_path / "a.npz", **columns(rewards=np.ones(6)))
    with pytest.raises((ValueError, RuntimeError), match="the dataset has changed since the run began"):
        resume_training(stopped.run_dir)


def test_scores_lie_between_the_random_and_the_expert_return(tiny, tmp_path):
    from rl_training.runtime.workflows import evaluate_checkpoint

    data = TransitionDataset.from_dict({**columns(), "meta": {"random_return": -1200.0, "expert_return": -200.0}})
    write_npz(tmp_path / "a.npz", data)
    result = get_algorithm_spec("bc").train(tiny("bc", dataset_kind="npz", dataset_path=str(tmp_path / "a.npz")))
    again = evaluate_checkpoint(result.checkpoint_path)
    for metrics in (result.metrics, again):
        assert metrics["eval_score"] == pytest.approx((metrics["eval_return_mean"] + 1200) / 10)


def test_pictures_in_any_order_are_all_kept(tiny):
    from toys import Pictures

    mix = [{"dataset_size": 60}, {"dataset_size": 40, "dataset_seed": 1}]
    config = tiny("bc", total_timesteps=2, hidden_sizes=[8], batch_size=4, dataset_size=10_000, dataset_mix=mix)
    metrics = get_algorithm_spec("bc").train(config, env=Pictures).metrics
    assert metrics["dataset_size"] == 100
