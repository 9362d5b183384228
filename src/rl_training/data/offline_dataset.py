"""Fixed sets of transitions: what offline learning starts from."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.base.errors import reason
from rl_training.data.boundaries import DatasetError, TimeLimit, find_boundaries, find_gaps, in_order

SPELLINGS = {  # ours: others that are read too
    "obs": ("observations",),
    "next_obs": ("next_observations",),
    "terminations": ("terminals", "terminated"),
    "truncations": ("timeouts", "truncated"),
    "episode_ids": ("episode_id",),
}
FLAGS = ("terminations", "truncations", "dones")
REQUIRED = ("obs", "actions", "rewards", "next_obs", "dones")

REFERENCES = ("random_return", "expert_return")  # facts of a dataset between which returns are scored


@dataclass
class TransitionDataset:
    """Transitions side by side, as tensors: actions in the environment's units, ``dones`` where an episode terminated.

    ``truncations`` marks where one was cut. ``episode_returns`` holds, for each row, the whole return of its episode;
    ``meta`` is what the file says about itself.
    """

    obs: Any
    actions: Any
    rewards: Any
    next_obs: Any
    dones: Any
    next_actions: Any = None
    returns_to_go: Any = None
    truncations: Any = None
    episode_returns: Any = None
    meta: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("rewards", "dones", "truncations", "returns_to_go", "episode_returns"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, _tensor(value).to(torch.float32))
        for name in ("obs", "actions", "next_obs", "next_actions"):
            value = getattr(self, name)
            if value is not None:
                tensor = _tensor(value)
                setattr(self, name, tensor.float() if tensor.dtype == torch.float64 else tensor)
        lengths = {name: len(column) for name, column in self.columns().items()}
        if len(set(lengths.values())) > 1:
            raise DatasetError(f"every column must have the same length, got {lengths}")
        if self.obs.shape != self.next_obs.shape:
            raise DatasetError(
                f"obs and next_obs differ in shape: {tuple(self.obs.shape)}, {tuple(self.next_obs.shape)}"
            )
        for name in ("rewards", "dones", "truncations"):
            column = getattr(self, name)
            if column is not None and column.ndim != 1:
                raise DatasetError(f"{name} must be one number per transition, got shape {tuple(column.shape)}")

    def __len__(self) -> int:
        return len(self.rewards)

    def columns(self) -> dict[str, torch.Tensor]:
        """The columns that are there, by name."""
        names = (*REQUIRED, "next_actions", "returns_to_go", "truncations", "episode_returns")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @classmethod
    def from_dict(
        cls, data: Mapping[str, Any], *, where: str = "the data", time_limit: TimeLimit = None
    ) -> TransitionDataset:
        """From columns in time order: ours (``terminations``, ``truncations``) or D4RL's.

        Terminations and truncations, or ``episode_ids``, say where episodes end. ``dones`` alone means terminated, but cut where an
        episode has lasted ``time_limit`` steps; beside truncations it may mean the end of an episode, and a cut is no termination.
        Without truncations, a row that is not followed by its ``next_obs`` was cut, and without those either, one at the time limit.
        Without ``next_obs``, the next row is the successor; the last row of a cut episode has none and is left out.
        """
        columns = {name: _column(value, name, where) for name, value in data.items() if name != "meta"}
        for ours, others in SPELLINGS.items():
            for other in others:
                if other in columns:
                    columns.setdefault(ours, columns.pop(other))
        missing = [name for name in ("obs", "actions", "rewards") if name not in columns]
        missing += [] if "terminations" in columns or "dones" in columns else ["terminations (or dones)"]
        if missing:
            raise DatasetError(f"{where} lacks {', '.join(missing)}; it has {', '.join(sorted(columns)) or 'nothing'}")
        known = (*REQUIRED, "next_actions", "returns_to_go", "terminations", "truncations", "episode_ids")
        columns = {name: _checked(columns[name], name, where) for name in known if name in columns}
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise DatasetError(f"{where}: every column must have the same length, got {lengths}")
        if "next_obs" in columns and columns["obs"].shape != columns["next_obs"].shape:
            shapes = f"{columns['obs'].shape[1:]} and {columns['next_obs'].shape[1:]}"
            raise DatasetError(f"{where}: obs and next_obs have rows of different shape, {shapes}")
        meta = data.get("meta", {})
        meta = dict(meta) if isinstance(meta, Mapping) else {}
        ends = find_boundaries(columns, where, time_limit, meta)
        for note in ends.notes:
            warnings.warn(note, stacklevel=2)
        if ends.assumed_steps is not None:
            meta["assumed_episode_steps"] = ends.assumed_steps
        kept = {name: columns[name] for name in (*REQUIRED[:4], "next_actions", "returns_to_go") if name in columns}
        kept |= {"dones": ends.over, "truncations": ends.cut}
        if ends.successors:
            dataset = cls(**kept, meta=meta)
            dataset.episode_returns = torch.from_numpy(_per_row(kept["rewards"], dataset._ends(), ends.over | ends.cut))
            return dataset
        meta["final_observations"] = False  # those after a termination were made up
        kept["episode_returns"] = _per_row(kept["rewards"], ends.over | ends.cut, ends.over | ends.cut)
        return cls(**_with_successors(kept), meta=meta)

    def sample(
        self, n: int, device: str | torch.device = "cpu", *, rng: np.random.Generator | None = None
    ) -> dict[str, torch.Tensor]:
        """``n`` transitions drawn with replacement."""
        if len(self) == 0:
            raise DatasetError("cannot sample from an empty dataset")
        draw = np.random.default_rng() if rng is None else rng
        index = torch.from_numpy(draw.integers(len(self), size=n))
        return {name: column[index].to(device) for name, column in self.columns().items()}

    def take(self, index: Any) -> TransitionDataset:
        """Some of the rows, in the given order."""
        rows = torch.as_tensor(index)
        taken: dict[str, Any] = {name: column[rows] for name, column in self.columns().items()}
        return replace(self, **taken)

    def _marks(self) -> np.ndarray:
        """(N,) booleans: rows at which an episode terminated or was cut."""
        over = (self.dones > 0).numpy()
        return over if self.truncations is None else over | (self.truncations > 0).numpy()

    def _ends(self) -> np.ndarray:
        """(N,) booleans: those rows, and any that the next row does not follow. Without time order every row is one."""
        marks, gaps = self._marks(), find_gaps(self.obs.numpy(), self.next_obs.numpy())
        return marks | gaps if in_order(gaps, marks) else np.ones(len(marks), bool)

    @property
    def in_order(self) -> bool:
        """Whether rows lie in time order, so that there are episodes in them. A mix is shuffled."""
        return in_order(find_gaps(self.obs.numpy(), self.next_obs.numpy()), self._marks())

    def episodes(self) -> list[slice]:
        """Where each episode lies. The last one may be unfinished, and any other that the next row does not follow."""
        return _slices(self._ends())

    def returns(self) -> np.ndarray:
        """The undiscounted sum of each episode's rewards, as far as the data goes."""
        rewards = self.rewards.double().numpy()
        return np.array([rewards[rows].sum() for rows in self.episodes()])

    def finished_returns(self) -> np.ndarray:
        """The whole returns of those episodes that the data shows to their end, also where their last row was left out."""
        if self.episode_returns is None:
            return np.zeros(0)
        first = torch.tensor([rows.start for rows in self.episodes()], dtype=torch.long)
        returns = self.episode_returns[first].double().numpy()
        return returns[~np.isnan(returns)]

    def with_reward_transform(
        self,
        scale: float = 1.0,
        shift: float = 0.0,
        clip_min: float | None = None,
        clip_max: float | None = None,
    ) -> TransitionDataset:
        """Rewards times ``scale`` plus ``shift``, then clipped."""
        return replace(self, rewards=transform_rewards(self.rewards, scale, shift, clip_min, clip_max))

    def with_discounted_returns_to_go(self, gamma: float) -> TransitionDataset:
        """With the discounted sum of rewards from each row to the end of its episode, as far as the data goes."""
        if not self.in_order:
            raise DatasetError("the rows lie in no order: what follows them is not known (take returns before mixing)")
        rewards = self.rewards.double().numpy()
        result = np.zeros(len(self))
        for rows in self.episodes():
            total = 0.0
            for i in range(rows.stop - 1, rows.start - 1, -1):
                total = result[i] = rewards[i] + gamma * total
        return replace(self, returns_to_go=torch.from_numpy(result).float())

    def best(self, fraction: float) -> TransitionDataset:
        """The rows of the best episodes, ``fraction`` of all rows; of the episode on the edge, a part. Unfinished ones come last."""
        count = max(1, round(fraction * len(self)))
        if self.episode_returns is None:
            raise DatasetError("the returns of its episodes are not known")
        if len(self) and bool(self.episode_returns.isnan().all()):
            raise DatasetError("no episode is shown to its end in time order: which are best is not known")
        order = np.argsort(-self.episode_returns.numpy(), kind="stable")
        return self.take(np.sort(order[:count]))

    def fingerprint(self) -> str:
        """A digest of the content, by which a resumed run knows its data again."""
        sha = hashlib.sha256()
        for name, column in self.columns().items():
            array = np.ascontiguousarray(column.numpy())
            sha.update(f"{name}|{array.dtype}|{array.shape}|".encode())
            sha.update(array.reshape(-1).view(np.uint8).data)
        return sha.hexdigest()

    def concerns(self) -> list[str]:
        """What would break training, in words; nothing if all is well."""
        found = []
        for name, column in self.columns().items():
            if name == "episode_returns":
                continue
            bad = int(
                (~torch.isfinite(column.float())).flatten(1).any(1).sum()
                if column.ndim > 1
                else (~torch.isfinite(column.float())).sum()
            )
            if bad:
                found.append(f"{name} is not finite in {bad:,} rows")
        if len(self) == 0:
            return [*found, "it is empty"]
        over, ended = (self.dones > 0).numpy(), self._marks()
        both = int((over & (self.truncations > 0).numpy()).sum()) if self.truncations is not None else 0
        if both:
            found.append(f"{both:,} rows are both terminated and truncated: they do not bootstrap")
        if not ended.any():
            found.append("no episode ends: returns are unknown")
        if len(self) > 1 and over.mean() > 0.5:
            found.append(f"{int(over.sum()):,} of {len(self):,} rows terminate: are the flags those of going on?")
        gaps = find_gaps(self.obs.numpy(), self.next_obs.numpy()) & ~ended
        if gaps.any():
            found.append(
                f"{int(gaps.sum()):,} rows are not followed by their successor although no episode ended there"
            )
        if not in_order(gaps, ended):
            found.append("rows lie in no order: episodes and their returns are unknown")
        if bool((self.rewards == self.rewards[0]).all()):
            found.append(f"every reward is {float(self.rewards[0]):g}")
        return found


def transform_rewards(rewards: Any, scale: float, shift: float, clip_min: float | None, clip_max: float | None) -> Any:
    """Arrays or tensors: times ``scale`` plus ``shift``, then clipped."""
    rewards = rewards * scale + shift
    return rewards if clip_min is None and clip_max is None else rewards.clip(clip_min, clip_max)


def load_transition_dataset(
    kind: str,
    *,
    dataset_path: str | Path | None = None,
    dataset_id: str | None = None,
    download: bool = False,
    time_limit: TimeLimit = None,
) -> TransitionDataset:
    """``npz`` and ``hdf5`` by path, ``minari`` by the id of a local dataset, fetched only if ``download``.

    ``time_limit`` is after how many steps episodes were cut, for files that do not mark it.
    """
    from rl_training.data import dataset_files as files

    if kind in ("pt", "pth", "torch", "pkl", "pickle"):
        raise DatasetError(f"{kind} files can run code when they are read: unsafe for untrusted datasets; use npz")
    readers = {"npz": files.read_npz, "hdf5": files.read_hdf5}
    if kind in readers:
        if dataset_path is None:
            raise DatasetError(f"{kind} data needs dataset_path")
        return readers[kind](Path(dataset_path), time_limit=time_limit)
    if kind == "minari":
        if dataset_id is None:
            raise DatasetError("minari data needs dataset_id")
        return files.read_minari(dataset_id, download=download)
    raise DatasetError(f"unknown kind of dataset {kind!r}; known: npz, hdf5, minari")


def mix_transition_datasets(
    datasets: Sequence[TransitionDataset], weights: Sequence[float], total_size: int, seed: int
) -> TransitionDataset:
    """``total_size`` rows, of each dataset its share by weight, drawn without replacement as far as it goes, and shuffled."""
    if not datasets or len(datasets) != len(weights):
        raise DatasetError(f"a mix needs as many weights as datasets, got {len(weights)} and {len(datasets)}")
    if any(weight < 0 for weight in weights) or sum(weights) <= 0:
        raise DatasetError(f"weights must be at least 0, and one of them positive, got {list(weights)}")
    if any(len(dataset) == 0 and weight > 0 for dataset, weight in zip(datasets, weights)):
        raise DatasetError("cannot mix an empty dataset")
    rng = np.random.default_rng(seed)
    edges = np.round(np.cumsum([0.0, *weights]) / sum(weights) * total_size).astype(int)
    names = set.intersection(*({*dataset.columns()} for dataset in datasets))
    parts = []
    for dataset, count in zip(datasets, np.diff(edges)):
        if count:
            index = np.concatenate([rng.permutation(len(dataset)) for _ in range(-(-count // len(dataset)))])[:count]
            parts.append({name: column[torch.from_numpy(index)] for name, column in dataset.columns().items()})
    order = torch.from_numpy(rng.permutation(total_size))
    try:
        mixed = {name: torch.cat([part[name] for part in parts])[order] for name in names}
    except RuntimeError as error:
        raise DatasetError(f"these datasets do not fit together: {reason(error)}") from None
    return TransitionDataset(**mixed, meta=_common([dataset.meta for dataset in datasets]))


def _common(metas: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: value for key, value in metas[0].items() if all(meta.get(key) == value for meta in metas)}


def _host(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value


def _tensor(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(value))


def _column(value: Any, name: str, where: str) -> np.ndarray:
    try:
        return np.asarray(_host(value))
    except ValueError:
        raise DatasetError(f"{where}: {name} holds rows of different length") from None


def _checked(column: np.ndarray, name: str, where: str) -> np.ndarray:
    """Numbers of a type that torch has, a row for each transition; flags are 0 or 1."""
    if column.ndim == 0 or column.dtype.kind not in "buif":
        raise DatasetError(
            f"{where}: {name} must be numbers with a row for each transition, got {column.dtype} of shape {column.shape}"
        )
    if name == "episode_ids":
        return _numbers(column, name, where)
    if name in ("rewards", "returns_to_go", *FLAGS):
        column = _numbers(column, name, where)
        if name in FLAGS and not np.isin(column, (0, 1)).all():
            odd = column[~np.isin(column, (0, 1))][0]
            raise DatasetError(f"{where}: {name} must be 0 or 1, got {odd:g}")
        return _float32(column)
    if column.dtype.kind == "f":
        return _float32(column)
    if (
        column.dtype.kind == "u"
        and column.dtype.itemsize == 8
        and len(column)
        and column.max() > np.iinfo(np.int64).max
    ):
        raise DatasetError(f"{where}: {name} holds whole numbers that are too large")
    small = column.dtype.kind == "b" or column.dtype in (np.uint8, np.int8, np.int16, np.int32)
    return column.astype(column.dtype.newbyteorder("=") if small else np.int64, copy=False)


def _float32(column: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # what does not fit is infinite, and refused as such
        return column.astype(np.float32, copy=False)


def _numbers(column: np.ndarray, name: str, where: str) -> np.ndarray:
    """One number per row; (N, 1) is that too."""
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    if column.ndim != 1:
        raise DatasetError(
            f"{where}: {name} must be one number per transition, got {column.dtype} of shape {column.shape}"
        )
    return column


def _with_successors(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """``next_obs`` from the row below. Where an episode was cut, its last observation is not in the data: that row goes."""
    obs, over, cut = columns["obs"], columns["dones"], columns["truncations"]
    next_obs = np.concatenate([obs[1:], obs[-1:]])
    next_obs[over] = obs[over]  # never used: nothing bootstraps there
    lost = cut & ~over
    known = ~lost
    known[-1:] = over[-1:]
    # the row before one that is left out ends what is left of its episode
    before = np.zeros(len(obs), bool)
    before[:-1] = lost[1:] & known[:-1] & ~over[:-1]
    columns = {**columns, "next_obs": next_obs, "truncations": cut | before}
    return {name: column[known] for name, column in columns.items()}


def _slices(ends: np.ndarray) -> list[slice]:
    stops = (np.flatnonzero(ends) + 1).tolist()
    if not stops or stops[-1] != len(ends):
        stops.append(len(ends))
    return [slice(start, stop) for start, stop in zip([0, *stops], stops) if stop > start]


def _per_row(rewards: np.ndarray, ends: np.ndarray, shown: np.ndarray) -> np.ndarray:
    """The return of the episode that each row belongs to; NaN where its end is not ``shown``."""
    result = np.full(len(rewards), np.nan, np.float32)
    if len(ends) and ends.all() and not shown.all():  # rows in no order
        return result
    rewards = rewards.astype(np.float64)
    for rows in _slices(ends):
        if shown[rows.stop - 1]:
            result[rows] = rewards[rows].sum()
    return result
