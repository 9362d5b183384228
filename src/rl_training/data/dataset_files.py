"""Reading and writing files of transitions: npz, hdf5 in D4RL's layout, Minari. Reading one never runs code."""

from __future__ import annotations

import io
import json
import os
import warnings
import zipfile
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.base.errors import reason
from rl_training.base.files import regular_file, write_durably
from rl_training.base.trust import require_trusted
from rl_training.data.boundaries import TimeLimit
from rl_training.data.dataset_headers import damaged_unless_read, read_hdf5_columns, read_npz_columns
from rl_training.data.errors import DatasetError
from rl_training.data.offline_dataset import REFERENCES, TransitionDataset

__all__ = [
    "load_transition_dataset",
    "read_hdf5",
    "read_minari",
    "read_npz",
    "write_hdf5",
    "write_minari",
    "write_npz",
]

COLUMNS = ("obs", "actions", "rewards", "next_obs", "terminations", "truncations")
MINARI_REFERENCES = {"random_return": "ref_min_score", "expert_return": "ref_max_score"}  # our names and Minari's


def load_transition_dataset(
    kind: str,
    *,
    dataset_path: str | Path | None = None,
    dataset_id: str | None = None,
    download: bool = False,
    time_limit: TimeLimit = None,
) -> TransitionDataset:
    """Read ``npz`` and ``hdf5`` by path, ``minari`` by the id of a local dataset, fetched only with ``download``.

    ``time_limit`` is the number of steps after which episodes were truncated, for files that do not mark it.
    """
    if kind in ("pt", "pth", "torch", "pkl", "pickle"):
        raise DatasetError(f"{kind} files can run code when they are read: unsafe for untrusted datasets; use npz")
    readers = {"npz": read_npz, "hdf5": read_hdf5}
    if kind in readers:
        if dataset_path is None:
            raise DatasetError(f"{kind} data needs dataset_path")
        return readers[kind](Path(dataset_path), time_limit=time_limit)
    if kind == "minari":
        if dataset_id is None:
            raise DatasetError("minari data needs dataset_id")
        return read_minari(dataset_id, download=download)
    raise DatasetError(f"unknown kind of dataset {kind!r}; known: npz, hdf5, minari")


def read_npz(path: Path, *, time_limit: TimeLimit = None) -> TransitionDataset:
    """Columns by name, and a ``meta`` of JSON if there is one."""
    _require_file(path)
    columns: dict[str, Any] = read_npz_columns(path)
    return _dataset({**columns, "meta": _meta(columns.pop("meta", None), path)}, path, time_limit)


def write_npz(path: Path, dataset: TransitionDataset, *, compress: bool = True) -> None:
    """The columns by name, and the dataset's ``meta`` as JSON. Equal content gives equal files."""
    arrays = {**_arrays(dataset), "meta": np.array(json.dumps(dataset.meta, sort_keys=True))}
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array, allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy")  # carries no time of its own
            entry.compress_type = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
            archive.writestr(entry, member.getvalue(), compresslevel=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, [memory.getbuffer()])


def read_hdf5(path: Path, *, time_limit: TimeLimit = None) -> TransitionDataset:
    """D4RL's layout: observations, actions, rewards, terminals, timeouts and, in most files, next_observations."""
    _require_file(path)
    h5py = _require_package("h5py")
    columns, groups, text = read_hdf5_columns(path, h5py)
    meta = _meta(text, path)
    if groups and not columns:
        raise DatasetError(f"{path} holds groups ({', '.join(groups[:3])}, ...), not D4RL's columns of transitions")
    return _dataset({**columns, "meta": meta}, path, time_limit)


def write_hdf5(path: Path, dataset: TransitionDataset) -> None:
    """D4RL's layout and names, with the dataset's ``meta`` as JSON."""
    h5py = _require_package("h5py")
    theirs = {
        "obs": "observations",
        "next_obs": "next_observations",
        "terminations": "terminals",
        "truncations": "timeouts",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with h5py.File(partial, "w") as file:
        for name, array in _arrays(dataset).items():
            file[theirs.get(name, name)] = array
        file.attrs["meta"] = json.dumps(dataset.meta)
    os.replace(partial, path)


def read_minari(dataset_id: str, *, download: bool = False) -> TransitionDataset:
    """The episodes of a local Minari dataset, which is fetched only with ``download``."""
    source = _minari_source(dataset_id, download)
    with damaged_unless_read(dataset_id, "a Minari dataset"):
        columns = _minari_columns(source, dataset_id)
    return _dataset(columns, dataset_id)


def _minari_columns(source: Any, dataset_id: str) -> dict[str, Any]:
    """The columns of all episodes, and what Minari knows of them as ``meta``."""
    parts: dict[str, list[np.ndarray]] = {name: [] for name in COLUMNS}
    for episode in source.iterate_episodes():
        if len(episode.rewards) == 0:
            continue
        obs = _flatten(source.observation_space, episode.observations, len(episode.rewards) + 1)
        terminated, truncated = np.asarray(episode.terminations, bool), np.array(episode.truncations, bool)
        truncated[-1] |= not terminated[-1]  # an episode that simply stops was truncated
        parts["obs"].append(obs[:-1])
        parts["next_obs"].append(obs[1:])
        if not isinstance(episode.actions, np.ndarray):
            raise DatasetError(f"{dataset_id}: actions of {source.action_space} are not supported")
        parts["actions"].append(episode.actions)
        parts["rewards"].append(np.asarray(episode.rewards, np.float32))
        parts["terminations"].append(terminated)
        parts["truncations"].append(truncated)
    if not parts["rewards"]:
        raise DatasetError(f"the Minari dataset {dataset_id!r} holds no episode")
    spec = source.env_spec
    facts = source.storage.metadata
    meta = {
        "env_id": spec.id if spec is not None else None,
        "minari_id": dataset_id,
        **_meta(facts.get("meta"), dataset_id),
    }
    meta |= {
        ours: float(facts[theirs])
        for ours, theirs in MINARI_REFERENCES.items()
        if facts.get(theirs) is not None and meta.get(ours) is None
    }
    return {**{name: np.concatenate(rows) for name, rows in parts.items()}, "meta": meta}


def _minari_source(dataset_id: str, download: bool) -> Any:
    minari = _require_package("minari")
    local = minari.list_local_datasets()
    if dataset_id not in local:
        if not download:
            known = ", ".join(sorted(local)) or "none"
            raise DatasetError(
                f"no local Minari dataset {dataset_id!r} (local ones: {known}); "
                "it is fetched only with dataset_download"
            )
        try:
            minari.download_dataset(dataset_id)
        except Exception as error:
            raise DatasetError(f"Minari could not fetch {dataset_id!r}: {reason(error)}") from None
        local = minari.list_local_datasets()
    _check_entry_points(dataset_id, local.get(dataset_id, {}))
    return minari.load_dataset(dataset_id)


def _check_entry_points(dataset_id: str, facts: dict[str, Any]) -> None:
    """Refuse a dataset without its spaces, for which Minari makes the environment, unless that is trusted."""
    if all(isinstance(facts.get(name), str) for name in ("observation_space", "action_space")):
        return
    try:
        spec = json.loads(facts["env_spec"])
        parts = [spec, *spec["additional_wrappers"]]
        names = [part["entry_point"] for part in parts]
    except (KeyError, TypeError, ValueError):
        raise DatasetError(f"the Minari dataset {dataset_id!r} has neither its spaces nor its environment") from None
    for name in names:
        require_trusted(f"the Minari dataset {dataset_id!r}", str(name), spec.get("kwargs"))


def write_minari(dataset_id: str, dataset: TransitionDataset, env: Any) -> None:
    """A local Minari dataset of whole episodes; the environment gives it spaces and a specification."""
    if "parts" in dataset.meta:
        raise DatasetError("Minari takes no observations that mix images and vectors here: write npz or hdf5")
    minari = _require_package("minari")
    from minari.data_collector import EpisodeBuffer

    arrays, episodes = _arrays(dataset), []
    for number, rows in enumerate(dataset.episodes()):
        observations = np.concatenate([arrays["obs"][rows], arrays["next_obs"][rows][-1:]])
        columns = {name: list(arrays[name][rows]) for name in ("actions", "rewards", "terminations", "truncations")}
        columns["truncations"][-1] |= not columns["terminations"][-1]
        episodes.append(EpisodeBuffer(id=number, observations=list(observations), **columns))
    references = {theirs: dataset.meta.get(ours) for ours, theirs in MINARI_REFERENCES.items()}
    try:
        with warnings.catch_warnings():  # it asks for an author's address
            warnings.simplefilter("ignore")
            created = minari.create_dataset_from_buffers(
                dataset_id,
                buffer=episodes,
                env=env,
                eval_env=env,
                action_space=env.action_space,
                observation_space=env.observation_space,
                data_format="hdf5",
                algorithm_name=str(dataset.meta.get("behaviour", {}).get("algo")),
                **{name: value for name, value in references.items() if value is not None},
            )
    except (ValueError, AssertionError) as error:
        raise DatasetError(f"Minari refused {dataset_id!r}: {reason(error)}") from None
    created.storage.update_metadata({"meta": json.dumps(dataset.meta)})


def _arrays(dataset: TransitionDataset) -> dict[str, np.ndarray]:
    """The columns that files have, with both flags as booleans."""
    columns = {name: column.numpy() for name, column in dataset.columns().items()}
    terminated = columns["dones"] > 0
    truncated = columns["truncations"] > 0 if "truncations" in columns else np.zeros(len(terminated), bool)
    return {**{name: columns[name] for name in COLUMNS[:4]}, "terminations": terminated, "truncations": truncated}


def _dataset(columns: dict[str, Any], where: Any, time_limit: TimeLimit = None) -> TransitionDataset:
    try:
        return TransitionDataset.from_dict(columns, where=str(where), time_limit=time_limit)
    except (TypeError, IndexError, ValueError) as error:
        if isinstance(error, DatasetError):
            text = str(error)
            raise DatasetError(text if str(where) in text else f"{where}: {text}") from None
        raise DatasetError(f"{where} does not hold transitions ({reason(error)})") from None


def _require_file(path: Path) -> None:
    if path.is_dir():
        raise DatasetError(f"{path} is a directory, not a dataset")
    if not regular_file(path, follow=True):
        raise FileNotFoundError(f"no dataset at {path}")


def _meta(text: Any, where: Any) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        meta = json.loads(str(text))
    except (ValueError, RecursionError):
        raise DatasetError(f"{where}: its meta is not JSON") from None
    if not isinstance(meta, dict):
        return {}
    for name in REFERENCES:
        value = meta.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value)):
            raise DatasetError(f"{where}: {name} in its meta must be a finite number, got {str(value)[:40]}")
    return meta


def _require_package(package: str) -> Any:
    from importlib import import_module

    try:
        return import_module(package)
    except ImportError:
        raise DatasetError(f"this kind of data needs {package}: pip install 'rl_training[offline]'") from None


def _flatten(space: Any, observations: Any, rows: int) -> np.ndarray:
    """Observations of one episode as rows; dictionaries and tuples are flattened as FlattenObservation does it."""
    import gymnasium as gym

    _require_choices(space, observations)
    if isinstance(observations, np.ndarray):
        if isinstance(space, gym.spaces.Box):
            return observations
        return np.stack([np.asarray(gym.spaces.flatten(space, single)) for single in observations])
    singles: list[Any]
    if isinstance(observations, dict):
        singles = [{key: value[i] for key, value in observations.items()} for i in range(rows)]
    else:
        singles = [tuple(value[i] for value in observations) for i in range(rows)]
    return np.stack([np.asarray(gym.spaces.flatten(space, single)) for single in singles])


def _require_choices(space: Any, observations: Any) -> None:
    """Refuse numbers that are none of the choices of their space: Gymnasium would flatten them to other choices."""
    import gymnasium as gym

    if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        parts = space.items() if isinstance(space, gym.spaces.Dict) else enumerate(space)
        for name, part in parts:
            _require_choices(part, observations[name])
    elif isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        chosen = np.asarray(observations)
        fits = (chosen >= space.start) & (chosen < space.start + getattr(space, "nvec", getattr(space, "n", 0)))
        if not fits.all():
            raise DatasetError(f"an observation holds {chosen[~fits].flat[0]}, its space says {space}")
