"""Where episodes end in files of every layout, and that nothing crosses those ends."""

import json

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.cli import main
from rl_training.data import TransitionDataset, episodes, load_transition_dataset, mix_transition_datasets
from rl_training.data.agent_units import in_agent_units
from rl_training.data.environment_match import time_limits
from rl_training.data.episodes import find_gaps
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.cql_trainer import _build_offline_dataset
from toys import Counter

pytestmark = pytest.mark.filterwarnings("ignore:.*(time limit|next_obs is the next row)")
LIMIT = 10
# length and end of each episode; the last one goes on beyond the file
EPISODES = ((10, "cut"), (4, "over"), (10, "cut"), (10, "cut"), (7, "over"), (10, "over"), (3, ""))
NO_TIES = tuple(part for part in EPISODES if part != (10, "over"))  # in which nothing terminates just at the limit


def recorded(episodes=EPISODES, width=3):
    """Episodes side by side. The first entry of every observation is the number of its episode over 16, the rest is noise."""
    rng = np.random.default_rng(0)
    parts = {name: [] for name in ("obs", "next_obs", "actions", "rewards", "terminations", "truncations")}
    for number, (length, end) in enumerate(episodes):
        obs = rng.uniform(-1, 1, (length + 1, width)).astype(np.float32)
        obs[:, 0] = number / 16
        last = np.arange(length) == length - 1
        parts["obs"].append(obs[:-1])
        parts["next_obs"].append(obs[1:])
        parts["actions"].append(rng.uniform(-2, 2, (length, 1)).astype(np.float32))
        parts["rewards"].append(np.full(length, -1 - number, np.float32))
        parts["terminations"].append(last & (end == "over"))
        parts["truncations"].append(last & (end == "cut"))
    return {name: np.concatenate(rows) for name, rows in parts.items()}


def without(columns, *names, **more):
    return {**{name: column for name, column in columns.items() if name not in names}, **more}


def numbers_of_episodes(columns, episodes=EPISODES):
    return np.repeat(np.arange(len(episodes)), [length for length, _ in episodes])


def crosses(data):
    """Rows that would bootstrap from an observation of another episode."""
    return int(((data.obs[:, 0] != data.next_obs[:, 0]) & (data.dones == 0)).sum())


def lengths(data):
    return [rows.stop - rows.start for rows in data.episodes()]


@pytest.mark.parametrize("rows", range(1, 10))
def test_every_row_but_the_last_is_compared_with_the_next_one(rows, monkeypatch):
    monkeypatch.setattr(episodes, "BLOCK", 3)  # rows at once
    obs = np.arange(rows, dtype=np.float32)[:, None]
    for found in (find_gaps(obs, obs + 1), find_gaps(0 * obs, 0 * obs)):
        assert not found.any()
    for wrong in range(rows):
        after = obs + 1 + 0.5 * (np.arange(rows) == wrong)[:, None]
        assert np.flatnonzero(find_gaps(obs, after.astype(np.float32))).tolist() == [wrong][: wrong < rows - 1]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_near_zero_may_be_off_by_the_rounding_of_the_largest_in_its_column(sign):
    obs = sign * np.array([[1000.0], [0.0], [500.0]], np.float32)
    for off, gaps in ((5e-4, [False] * 3), (2e-3, [True, False, False])):
        after = np.roll(obs, -1, 0) + np.array([[off], [0], [0]])
        assert find_gaps(obs, after.astype(np.float32)).tolist() == gaps


# ---- every layout shows the same episodes


@pytest.mark.parametrize("given", ["marks", "no truncations", "dones too", "dones beside truncations", "episode_ids"])
def test_with_successors_every_layout_is_the_same_data(given):
    columns = recorded()
    ends = columns["terminations"] | columns["truncations"]
    layouts = {
        "marks": columns,
        "no truncations": without(columns, "truncations"),
        "dones too": without(columns, "truncations", dones=ends),
        "dones beside truncations": without(columns, "terminations", dones=ends),
        "episode_ids": without(columns, "truncations", episode_id=numbers_of_episodes(columns)),
    }
    data = TransitionDataset.from_dict(layouts[given])
    assert lengths(data) == [length for length, _ in EPISODES] and crosses(data) == 0
    assert torch.equal(data.dones, torch.tensor(columns["terminations"]).float())
    last = given == "episode_ids"  # an episode that simply stops was cut, as in Minari
    assert data.truncations.tolist() == [*columns["truncations"][:-1].astype(float), float(last)]
    assert data.returns().tolist() == [length * (-1 - number) for number, (length, _) in enumerate(EPISODES)]
    assert data.episode_returns.isnan().sum() == (0 if last else 3)


@pytest.mark.parametrize("given", ["marks", "the time limit", "episode_ids", "shifted next_obs"])
def test_without_successors_every_layout_leaves_out_the_rows_that_have_none(given):
    columns = without(recorded(), "next_obs")
    shifted = np.concatenate([columns["obs"][1:], columns["obs"][:1]])
    layouts = {
        "marks": columns,
        "the time limit": without(columns, "truncations"),
        "episode_ids": without(columns, "truncations", episode_ids=numbers_of_episodes(columns)),
        "shifted next_obs": {**columns, "next_obs": shifted},
    }
    data = TransitionDataset.from_dict(layouts[given], time_limit=LIMIT)
    assert crosses(data) == 0 and lengths(data) == [9, 4, 9, 9, 7, 10, 2]
    assert int(data.dones.sum()) == 3 and data.meta["final_observations"] is False
    whole = data.finished_returns().tolist()  # with the rewards of the rows that were left out
    assert whole[:6] == [-10, -8, -30, -40, -35, -60] and len(whole) == (7 if given == "episode_ids" else 6)


def test_shifted_successors_without_marks_are_cut_at_the_limit_too():
    columns = without(recorded(((10, "cut"),) * 5), "truncations")
    columns["next_obs"] = np.concatenate([columns["obs"][1:], columns["obs"][-1:]])
    with pytest.warns(UserWarning, match="next_obs is the next row's observation even where an episode ends"):
        data = TransitionDataset.from_dict(columns, time_limit=LIMIT)
    assert lengths(data) == [9] * 5 and crosses(data) == 0


def test_an_assumption_leads_to_a_warning():
    columns = without(recorded(), "next_obs", "truncations")
    with pytest.warns(UserWarning, match=r"3 episodes were truncated after 10 steps, the time limit, and their last"):
        data = TransitionDataset.from_dict(columns, where="a.npz", time_limit=LIMIT)
    assert data.meta["assumed_episode_steps"] == 10


def test_truncations_of_zeros_are_believed_and_doubted_aloud_beyond_the_time_limit(recwarn):
    columns = without(recorded(), "next_obs")
    columns["truncations"] = np.zeros_like(columns["truncations"])
    with pytest.warns(UserWarning, match=r"a.npz: no row is marked as truncated, and an episode goes on for 27 steps, "
                      r"beyond the time limit of 10"):  # fmt: skip
        data = TransitionDataset.from_dict(columns, where="a.npz", time_limit=LIMIT)
    assert lengths(data) == [14, 27, 10, 2]
    recwarn.clear()
    for given in ({"time_limit": None}, {"time_limit": 27}):
        TransitionDataset.from_dict(columns, **given)
    TransitionDataset.from_dict(
        {**columns, "next_obs": recorded()["next_obs"]}, time_limit=LIMIT
    )  # which show the cuts
    assert not [w for w in recwarn if "no row is marked" in str(w.message)]


def test_where_nothing_shows_the_cuts_the_data_is_refused_in_one_line():
    columns = without(recorded(), "next_obs", "truncations")
    with pytest.raises(ValueError, match=r"^a\.npz has neither truncations .* give dataset_episode_steps") as caught:
        TransitionDataset.from_dict(columns, where="a.npz")
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="neither truncations"):
        TransitionDataset.from_dict(without(columns, "terminations", dones=columns["terminations"]))
    uncut = TransitionDataset.from_dict({**columns, "truncations": np.zeros(len(columns["rewards"]))})
    assert lengths(uncut) == [14, 27, 10, 2]  # as the file has it


def test_episodes_shorter_than_the_limit_need_no_cut(recwarn):
    columns = without(recorded(((4, "over"), (7, "over"))), "next_obs", "truncations")
    data = TransitionDataset.from_dict(columns, time_limit=LIMIT)
    assert lengths(data) == [4, 7] and not recwarn.list and "assumed_episode_steps" not in data.meta


def test_an_episode_that_fills_the_file_to_its_last_row_is_whole():
    columns = recorded(((10, "cut"), (10, "cut")))
    by_gaps = TransitionDataset.from_dict(without(columns, "truncations"), time_limit=LIMIT)
    assert by_gaps.truncations.nonzero().flatten().tolist() == [9, 19] and by_gaps.episode_returns.isnan().sum() == 0
    by_limit = TransitionDataset.from_dict(without(columns, "truncations", "next_obs"), time_limit=LIMIT)
    assert lengths(by_limit) == [9, 9] and by_limit.finished_returns().tolist() == [-10, -20]


@pytest.mark.parametrize("successors", [True, False])
def test_dones_alone_at_the_time_limit_are_cuts(successors):
    columns = recorded(NO_TIES)
    ends = columns["terminations"] | columns["truncations"]
    gone = ("terminations", "truncations") if successors else ("terminations", "truncations", "next_obs")
    with pytest.warns(
        UserWarning, match="the 3 episodes that end after 10 steps, the time limit, are taken as truncated"
    ):
        data = TransitionDataset.from_dict(without(columns, *gone, dones=ends), time_limit=LIMIT)
    marked = TransitionDataset.from_dict(columns if successors else without(columns, "next_obs"))
    assert data.fingerprint() == marked.fingerprint() and crosses(data) == 0


def test_a_termination_at_the_limit_stays_one_where_the_file_says_so():
    columns = without(recorded(), "next_obs", "truncations")
    data = TransitionDataset.from_dict(columns, time_limit=LIMIT)
    assert int(data.dones.sum()) == 3 and 10 in lengths(data)


def test_marks_that_contradict_each_other_are_refused():
    columns = recorded()
    with pytest.raises(ValueError, match="dones contradicts terminations and truncations"):
        TransitionDataset.from_dict({**columns, "dones": np.roll(columns["terminations"], 1)})
    with pytest.raises(ValueError, match=r"the rows of episode 0 \(episode_ids\) do not lie together"):
        TransitionDataset.from_dict({**columns, "episode_ids": np.arange(len(columns["rewards"])) % 4})


# ---- what is computed from boundaries


def test_returns_to_go_and_the_best_share_stop_where_episodes_do():
    columns = without(recorded(), "next_obs", "truncations")
    columns["rewards"][-3:] = 0  # those of the unfinished episode, whose return nobody knows
    data = TransitionDataset.from_dict(columns, time_limit=LIMIT)
    togo = data.with_discounted_returns_to_go(gamma=1.0).returns_to_go
    assert togo[[0, 8, 9, 12]].tolist() == [-9, -1, -8, -2]
    assert data.best(4 / len(data)).rewards.tolist() == [-2] * 4


def test_an_unmarked_gap_ends_an_episode_whose_return_is_unknown():
    columns = recorded()
    columns["truncations"][9] = False  # a file that forgot one of its cuts
    data = TransitionDataset.from_dict(columns)
    assert lengths(data)[:2] == [10, 4] and data.episode_returns[:10].isnan().all()
    assert data.episode_returns[10:14].tolist() == [-8] * 4
    assert any("1 rows are not followed by their successor" in text for text in data.concerns())


def test_rows_in_no_order_have_no_episodes():
    columns = recorded()
    order = np.random.default_rng(1).permutation(len(columns["rewards"]))
    for names in ((), ("truncations",)):
        data = TransitionDataset.from_dict({k: v[order] for k, v in without(columns, *names).items()})
        assert not data.in_order and data.episode_returns.isnan().all() and crosses(data) == 0
        with pytest.raises(ValueError, match="not in time order"):
            data.with_discounted_returns_to_go(0.9)
        with pytest.raises(ValueError, match="which are best is not known"):
            data.best(0.5)
    whole = TransitionDataset.from_dict(columns)
    mixed = mix_transition_datasets([whole, whole], [1, 1], 80, seed=0)
    assert not mixed.in_order and mixed.best(0.1).episode_returns.max() == -8  # a mix remembers what it was made of


def test_successors_rounded_to_another_precision_are_no_gaps():
    columns = recorded()
    columns["next_obs"] = columns["next_obs"] * np.float32(1 + 1e-7)
    data = TransitionDataset.from_dict(without(columns, "truncations"))
    assert lengths(data) == [length for length, _ in EPISODES]


def test_a_world_in_which_nothing_changes_keeps_its_rows():
    ends = np.arange(12) % 4 == 3
    columns = {"obs": np.ones((12, 1)), "next_obs": np.ones((12, 1)), "actions": np.zeros(12), "rewards": np.ones(12)}
    data = TransitionDataset.from_dict({**columns, "terminations": np.zeros(12), "truncations": ends})
    assert len(data) == 12 and lengths(data) == [4, 4, 4]


# ---- files of every kind


def write(kind, folder, columns, monkeypatch, *, meta=None):
    """A file as somebody else would write it, without this package."""
    if kind == "npz":
        np.savez(folder / "a.npz", **columns, **({"meta": np.array(json.dumps(meta))} if meta else {}))
        return {"dataset_path": folder / "a.npz"}
    if kind == "hdf5":
        h5py = pytest.importorskip("h5py")
        theirs = {"obs": "observations", "next_obs": "next_observations", "terminations": "terminals"}
        theirs |= {"truncations": "timeouts"}
        with h5py.File(folder / "a.hdf5", "w") as file:
            for name, column in columns.items():
                file.create_dataset(
                    theirs.get(name, name), data=column.astype(np.dtype(column.dtype).newbyteorder(">"))
                )
            file.create_group("infos")["qpos"] = np.zeros(3)
            if meta:
                file.attrs["meta"] = json.dumps(meta)
        return {"dataset_path": folder / "a.hdf5"}
    minari = pytest.importorskip("minari")
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    episodes, numbers = [], np.cumsum([0, *(columns["terminations"] | columns["truncations"])])[:-1]
    for number in np.unique(numbers):
        part = {name: column[numbers == number] for name, column in columns.items()}
        obs = np.concatenate([part.pop("obs"), part.pop("next_obs")[-1:]])
        episodes.append(EpisodeBuffer(id=int(number), observations=list(obs), **{k: list(v) for k, v in part.items()}))
    env = gym.make("Pendulum-v1")
    minari.create_dataset_from_buffers(
        "toy/hand-v0", buffer=episodes, env=env, action_space=env.action_space, observation_space=env.observation_space
    )
    return {"dataset_id": "toy/hand-v0"}


@pytest.mark.filterwarnings("ignore")
def test_npz_hdf5_and_minari_of_the_same_episodes_are_the_same_data(tmp_path, monkeypatch):
    columns = recorded(EPISODES[:-1])
    read = [load_transition_dataset(k, **write(k, tmp_path, columns, monkeypatch)) for k in ("npz", "hdf5", "minari")]
    truth = TransitionDataset.from_dict(columns)
    assert [data.fingerprint() for data in read] == [truth.fingerprint()] * 3
    for data in read:
        assert lengths(data) == [10, 4, 10, 10, 7, 10]
        assert data.returns().tolist() == data.finished_returns().tolist() == [-10, -8, -30, -40, -35, -60]
    scaled = [in_agent_units(data, EnvFactory("Pendulum-v1", {}).spaces(), "it").fingerprint() for data in read]
    assert len(set(scaled)) == 1


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
@pytest.mark.filterwarnings("ignore")
def test_a_file_without_marks_is_cut_where_its_environment_cuts(kind, tmp_path, monkeypatch, tiny):
    """Sixty episodes of Pendulum-v1 in which twelve terminate; nothing says where the other 48 end."""
    episodes = [(20, "over") if number % 5 == 0 else (200, "cut") for number in range(60)]
    columns = without(recorded(episodes), "next_obs", "truncations")
    where = str(write(kind, tmp_path, columns, monkeypatch)["dataset_path"])
    data = _build_offline_dataset(tiny("cql", dataset_kind=kind, dataset_path=where))
    assert len(data.episodes()) == 60 and crosses(data) == 0 and len(data) == 12 * 20 + 48 * 199


def test_dataset_info_counts_them(tmp_path, capsys, monkeypatch):
    episodes = [(20, "over") if number % 5 == 0 else (200, "cut") for number in range(60)]
    columns = without(recorded(episodes), "next_obs", "truncations")
    path = str(write("npz", tmp_path, columns, monkeypatch)["dataset_path"])
    assert main(["dataset", "info", path]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and "--episode-steps or --env" in printed
    for words in (["--env", "Pendulum-v1"], ["--episode-steps", "200"]):
        assert main(["dataset", "info", path, *words, "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert (facts["episodes"], facts["terminations"], facts["truncations"], facts["unfinished"]) == (60, 12, 48, 0)
        assert facts["return_quantiles"][-1] == -20  # the first episode: twenty steps of -1
        assert any("48 episodes were truncated after 200 steps" in text for text in facts["concerns"])
    write("npz", tmp_path, columns, monkeypatch, meta={"env_id": "Pendulum-v1"})  # a file that says where it is from
    assert main(["dataset", "info", path]) == 0
    assert "transitions in 60 episodes of Pendulum-v1" in capsys.readouterr().out


def test_two_possible_time_limits_are_refused_until_one_is_chosen(tmp_path, monkeypatch, tiny):
    columns = without(recorded([(200, "cut")] * 3), "next_obs", "truncations")
    path = str(write("npz", tmp_path, columns, monkeypatch)["dataset_path"])
    given = {"dataset_kind": "npz", "dataset_path": path, "env_kwargs": {"max_episode_steps": 150}}
    with pytest.raises(ValueError, match=r"time limit is 150 or 200 .* choose the one .* dataset_episode_steps"):
        _build_offline_dataset(tiny("bc", **given))
    with pytest.warns(UserWarning, match="3 episodes were truncated after 200 steps"):
        data = _build_offline_dataset(tiny("bc", **given, dataset_episode_steps=200))
    assert lengths(data) == [199] * 3
    assert time_limits(EnvFactory("Pendulum-v1", {"training": {"max_episode_steps": 9}})) == {9, 200}


def test_two_time_limits_are_refused_where_an_episode_reaches_one_of_them():
    columns = without(recorded([(12, "over")] * 3), "next_obs", "truncations")
    with pytest.raises(ValueError, match="time limit is 5 or 20 "):
        TransitionDataset.from_dict(columns, time_limit=lambda: {5, 20})
    assert lengths(TransitionDataset.from_dict(columns, time_limit=lambda: {15, 20})) == [12] * 3


def test_an_environment_without_a_limit_leaves_it_unknown(tmp_path, tiny):
    t = np.tile(np.arange(5, dtype=np.float32), 4)
    np.savez(tmp_path / "a.npz", obs=t[:, None], actions=np.ones(20, int), rewards=np.ones(20), terminals=t == 4)
    given = {"expert_dataset_kind": "npz", "expert_dataset_path": str(tmp_path / "a.npz")}
    with pytest.raises(ValueError, match=r"no time limit is known.*give expert_dataset_episode_steps"):
        get_algorithm_spec("gail").train(tiny("gail", **given), env=lambda: Counter(limit=5, terminate=True))
    config = tiny("gail", **given, expert_dataset_episode_steps=30, total_timesteps=32)
    result = get_algorithm_spec("gail").train(config, env=lambda: Counter(limit=5, terminate=True))
    assert np.isfinite(result.metrics["loss"])
