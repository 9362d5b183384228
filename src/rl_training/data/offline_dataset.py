"""Fixed sets of transitions: what offline learning starts from."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from rl_training.base.errors import reason
from rl_training.data.boundaries import TimeLimit, find_boundaries
from rl_training.data.dataset_columns import REQUIRED, add_successors, read_columns
from rl_training.data.episodes import episode_slices, find_gaps, in_time_order, returns_by_row
from rl_training.data.errors import DatasetError

__all__ = ["REFERENCES", "TransitionDataset", "mix_transition_datasets", "transform_rewards"]

REFERENCES = (
    "random_return",
    "expert_return",
)  # returns in ``meta`` that scores lie between


@dataclass
class TransitionDataset:
    """Transitions as columns of tensors: actions in the environment's units, ``dones`` where an episode terminated.

    ``truncations`` is 1 where one was truncated. ``episode_returns`` is, for each row, the whole return of its episode;
    ``meta`` describes the data: environment, behaviour policy, reference returns.
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

        Terminations and truncations, or ``episode_ids``, mark where episodes end. ``dones`` alone means terminated, but
        truncated where an episode has lasted ``time_limit`` steps; beside truncations it may mean any end of an
        episode. Without truncations, a row that is not followed by its ``next_obs`` was truncated, and without those
        too, one at the time limit. Without ``next_obs``, the next row is the successor; the last row of a truncated
        episode has none and is left out.
        """
        columns = read_columns(data, where)
        meta = data.get("meta", {})
        meta = dict(meta) if isinstance(meta, Mapping) else {}
        found = find_boundaries(columns, where, time_limit, meta)
        for note in found.notes:
            warnings.warn(note, stacklevel=2)
        if found.assumed_steps is not None:
            meta["assumed_episode_steps"] = found.assumed_steps
        kept = {name: columns[name] for name in (*REQUIRED[:4], "next_actions", "returns_to_go") if name in columns}
        kept |= {"dones": found.terminated, "truncations": found.truncated}
        if found.successors:
            dataset = cls(**kept, meta=meta)
            returns = returns_by_row(kept["rewards"], dataset._last_rows(), found.ended)
            dataset.episode_returns = torch.from_numpy(returns)
            return dataset
        meta["final_observations"] = False  # those after a termination are not the true ones
        kept["episode_returns"] = returns_by_row(kept["rewards"], found.ended, found.ended)
        return cls(**add_successors(kept), meta=meta)

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

    def _ended(self) -> np.ndarray:
        """(N,) booleans: rows at which an episode terminated or was truncated."""
        terminated: np.ndarray = (self.dones > 0).numpy()
        return terminated if self.truncations is None else terminated | (self.truncations > 0).numpy()

    def _gaps(self) -> np.ndarray:
        return find_gaps(self.obs.numpy(), self.next_obs.numpy())

    def _last_rows(self) -> np.ndarray:
        """(N,) booleans: those rows, and any that the next row does not follow. Without time order every row is one."""
        ended, gaps = self._ended(), self._gaps()
        return ended | gaps if in_time_order(gaps, ended) else np.ones(len(ended), bool)

    @property
    def in_order(self) -> bool:
        """Whether rows lie in time order, so that there are episodes in them. A mix is shuffled."""
        return in_time_order(self._gaps(), self._ended())

    def episodes(self) -> list[slice]:
        """The rows of each episode. The last one may be unfinished, and any other that the next row does not follow."""
        return episode_slices(self._last_rows())

    def returns(self) -> np.ndarray:
        """The undiscounted sum of each episode's rewards, as far as the data goes."""
        rewards = self.rewards.double().numpy()
        return np.array([rewards[rows].sum() for rows in self.episodes()])

    def finished_returns(self) -> np.ndarray:
        """The returns of those episodes whose end is in the data, also where their last row was left out."""
        if self.episode_returns is None:
            return np.zeros(0)
        first = torch.tensor([rows.start for rows in self.episodes()], dtype=torch.long)
        returns = self.episode_returns[first].double()
        finished: np.ndarray = returns[~returns.isnan()].numpy()
        return finished

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
            raise DatasetError(
                "the rows are not in time order: what follows them is not known (take returns before mixing)"
            )
        rewards = self.rewards.double().numpy()
        result = np.zeros(len(self))
        for rows in self.episodes():
            total = 0.0
            for i in range(rows.stop - 1, rows.start - 1, -1):
                total = result[i] = rewards[i] + gamma * total
        return replace(self, returns_to_go=torch.from_numpy(result).float())

    def best(self, fraction: float) -> TransitionDataset:
        """The rows of the episodes with the highest returns, ``fraction`` of all rows; unfinished ones come last."""
        count = max(1, round(fraction * len(self)))
        if self.episode_returns is None:
            raise DatasetError("the returns of its episodes are not known")
        if len(self) and bool(self.episode_returns.isnan().all()):
            raise DatasetError("no episode has its end in the data, in time order: which are best is not known")
        order = np.argsort(-self.episode_returns.numpy(), kind="stable")
        return self.take(np.sort(order[:count]))

    def fingerprint(self) -> str:
        """A digest of the content, with which a resumed run compares its data."""
        sha = hashlib.sha256()
        for name, column in self.columns().items():
            array = np.ascontiguousarray(column.numpy())
            sha.update(f"{name}|{array.dtype}|{array.shape}|".encode())
            sha.update(array.reshape(-1).view(np.uint8).data)
        return sha.hexdigest()

    def concerns(self) -> list[str]:
        """Sentences about what would break training; none if all is well."""
        found = []
        for name, column in self.columns().items():
            infinite = ~torch.isfinite(column.float()).unsqueeze(-1).flatten(1).all(1)
            if name != "episode_returns" and infinite.any():
                found.append(f"{name} is not finite in {int(infinite.sum()):,} rows")
        return [*found, *(self._doubtful_episodes() if len(self) else ["it is empty"])]

    def _doubtful_episodes(self) -> list[str]:
        found = []
        terminated, ended, gaps = (self.dones > 0).numpy(), self._ended(), self._gaps()
        gaps &= ~ended
        both = 0 if self.truncations is None else int((terminated & (self.truncations > 0).numpy()).sum())
        if both:
            found.append(f"{both:,} rows are both terminated and truncated: they do not bootstrap")
        if not ended.any():
            found.append("no episode ends: returns are unknown")
        if len(self) > 1 and terminated.mean() > 0.5:
            found.append(f"{int(terminated.sum()):,} of {len(self):,} rows terminate: are the flags those of going on?")
        if gaps.any():
            found.append(
                f"{int(gaps.sum()):,} rows are not followed by their successor although no episode ended there"
            )
        if not in_time_order(gaps, ended):
            found.append("rows are not in time order: episodes and their returns are unknown")
        if bool((self.rewards == self.rewards[0]).all()):
            found.append(f"every reward is {float(self.rewards[0]):g}")
        return found


def transform_rewards(rewards: Any, scale: float, shift: float, clip_min: float | None, clip_max: float | None) -> Any:
    """Arrays or tensors: times ``scale`` plus ``shift``, then clipped."""
    rewards = rewards * scale + shift
    return rewards if clip_min is None and clip_max is None else rewards.clip(clip_min, clip_max)


def mix_transition_datasets(
    datasets: Sequence[TransitionDataset], weights: Sequence[float], total_size: int, seed: int
) -> TransitionDataset:
    """A shuffled dataset of ``total_size`` rows, from each its share; rows repeat only if a dataset is too small."""
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
    """The facts on which all agree."""
    return {key: value for key, value in metas[0].items() if all(meta.get(key) == value for meta in metas)}


def _tensor(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(value))
