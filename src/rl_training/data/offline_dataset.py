"""Fixed sets of transitions: what offline learning starts from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.errors import reason

SPELLINGS = {  # ours: others that are read too
    "obs": ("observations",),
    "next_obs": ("next_observations",),
    "terminations": ("terminals", "terminated"),
    "truncations": ("timeouts", "truncated"),
}
REQUIRED = ("obs", "actions", "rewards", "next_obs", "dones")


class DatasetError(ValueError):
    """Data that cannot be learned from, and what is wrong with it."""


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
    def from_dict(cls, data: Mapping[str, Any], *, where: str = "the data") -> TransitionDataset:
        """From columns in the order they were lived: ours (``terminations``, ``truncations``) or D4RL's.

        ``dones`` alone means terminated; beside truncations it may mean the end of an episode, and a cut is no termination.
        Without ``next_obs``, the next row is the successor; the last row of a cut episode has none and is left out.
        """
        columns = {name: np.asarray(_host(value)) for name, value in data.items() if name != "meta"}
        for ours, others in SPELLINGS.items():
            for other in others:
                if other in columns:
                    columns.setdefault(ours, columns.pop(other))
        ends = "terminations" in columns or "dones" in columns
        missing = [name for name in ("obs", "actions", "rewards") if name not in columns]
        missing += [] if ends else ["terminations (or dones)"]
        if "next_obs" not in columns and not ends:
            missing.append("next_obs")
        if missing:
            raise DatasetError(f"{where} lacks {', '.join(missing)}; it has {', '.join(sorted(columns)) or 'nothing'}")
        size = len(columns["rewards"]) if columns["rewards"].ndim else 0
        for name in ("rewards", "terminations", "truncations", "dones"):
            if name in columns:
                columns[name] = _numbers(columns[name], name, where)
        cut = columns.get("truncations")
        cut = np.zeros(size, np.float32) if cut is None else (cut > 0).astype(np.float32)
        if "terminations" in columns:
            over = (columns["terminations"] > 0).astype(np.float32)
        else:
            over = (columns["dones"] > 0).astype(np.float32)
            if "truncations" in columns:
                over = over * (1 - cut) if over.shape == cut.shape else over
        columns |= {"dones": over, "truncations": cut}
        known = (*REQUIRED, "next_actions", "returns_to_go", "truncations")
        kept = {name: columns[name] for name in known if name in columns}
        meta = data.get("meta", {})
        meta = dict(meta) if isinstance(meta, Mapping) else {}
        if "next_obs" not in kept:
            kept = _with_successors(kept)
            meta["final_observations"] = False  # those after a termination were made up
        dataset = cls(**kept, meta=meta)
        dataset.episode_returns = torch.from_numpy(_per_row(dataset))
        return dataset

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

    def episodes(self) -> list[slice]:
        """Where each episode lies. The last one may be unfinished."""
        cut = self.truncations if self.truncations is not None else torch.zeros(len(self))
        stops = (torch.nonzero((self.dones > 0) | (cut > 0)).flatten() + 1).tolist()
        if not stops or stops[-1] != len(self):
            stops.append(len(self))
        return [slice(start, stop) for start, stop in zip([0, *stops], stops) if stop > start]

    def returns(self) -> np.ndarray:
        """The undiscounted return of each episode."""
        rewards = self.rewards.double().numpy()
        return np.array([rewards[rows].sum() for rows in self.episodes()])

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
        cut = self.truncations if self.truncations is not None else torch.zeros(len(self))
        ended = (self.dones > 0) | (cut > 0)
        both = int(((self.dones > 0) & (cut > 0)).sum())
        if both:
            found.append(f"{both:,} rows are both terminated and truncated: they do not bootstrap")
        if not bool(ended.any()):
            found.append("no episode ends: returns are unknown")
        jumps = (self.next_obs[:-1] != self.obs[1:]).reshape(len(self) - 1, -1).any(1) & ~ended[:-1]
        if bool(jumps.any()):
            found.append(
                f"{int(jumps.sum()):,} rows are not followed by their successor although no episode ended there"
            )
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
) -> TransitionDataset:
    """``npz`` and ``hdf5`` by path, ``minari`` by the id of a local dataset, fetched only if ``download``."""
    from rl_training.data import dataset_files as files

    if kind in ("pt", "pth", "torch", "pkl", "pickle"):
        raise DatasetError(f"{kind} files can run code when they are read: unsafe for untrusted datasets; use npz")
    readers = {"npz": files.read_npz, "hdf5": files.read_hdf5}
    if kind in readers:
        if dataset_path is None:
            raise DatasetError(f"{kind} data needs dataset_path")
        return readers[kind](Path(dataset_path))
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


def _numbers(column: np.ndarray, name: str, where: str) -> np.ndarray:
    """One number per row; (N, 1) is that too."""
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    if column.ndim != 1 or column.dtype.kind not in "buif":
        raise DatasetError(
            f"{where}: {name} must be one number per transition, got {column.dtype} of shape {column.shape}"
        )
    return column.astype(np.float32)


def _with_successors(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """``next_obs`` from the row below. Where an episode was cut, its last observation is not in the data: that row goes."""
    obs, over, cut = columns["obs"], columns["dones"] > 0, columns["truncations"] > 0
    next_obs = np.concatenate([obs[1:], obs[-1:]])
    next_obs[over] = obs[over]  # never used: nothing bootstraps there
    known = ~cut | over
    known[-1:] &= over[-1:]
    # the row before one that is left out ends what is left of its episode
    shortened = np.zeros(len(obs), np.float32)
    shortened[:-1] = (~known[1:]) & known[:-1] & ~over[:-1]
    columns["truncations"] = np.maximum(columns["truncations"], shortened)
    return {name: column[known] for name, column in {**columns, "next_obs": next_obs}.items()}


def _per_row(dataset: TransitionDataset) -> np.ndarray:
    """The return of the episode that each row belongs to; NaN where the data does not show its end."""
    result = np.zeros(len(dataset), np.float32)
    for rows, value in zip(dataset.episodes(), dataset.returns()):
        last = rows.stop - 1
        ended = dataset.dones[last] > 0 or (dataset.truncations is not None and dataset.truncations[last] > 0)
        result[rows] = value if ended else np.nan
    return result
