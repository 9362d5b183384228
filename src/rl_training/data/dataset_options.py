"""Options of a dataset: its source or sources, and what is done to its rewards."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from rl_training.base.options import Options, opt

__all__ = ["FOR_FILES", "DatasetKind", "DatasetOptions", "Mismatch", "MixedSource", "SourceOptions", "Units"]

DatasetKind = Literal["random", "npz", "minari", "hdf5"]
Mismatch = Literal["refuse", "allow"]
Units = Literal["auto", "environment", "unit"]
FOR_FILES = ("dataset_env_mismatch", "dataset_episode_steps", "dataset_action_units")


class SourceOptions(Options):
    """One source of transitions."""

    TITLE = "a dataset"
    dataset_kind: DatasetKind = opt("random", "random (collected on the spot), npz, hdf5 (D4RL's layout) or minari")
    dataset_path: str | None = opt(None, "the file, for npz and hdf5")
    dataset_id: str | None = opt(None, "the dataset's name, for minari")
    dataset_download: bool = opt(False, "let Minari fetch the dataset if it is not there")
    dataset_size: int = opt(10_000, "transitions to collect, for random", ge=1)
    dataset_seed: int = opt(0, "seed of the collection, for random", ge=0)
    dataset_env_mismatch: Mismatch = opt(
        "refuse", "data that names another environment: refuse, or allow (its reference returns are then not used)"
    )
    dataset_episode_steps: int | None = opt(
        None, "for files that mark no time-outs: steps after which episodes were truncated; null: the time limit", ge=1
    )
    dataset_action_units: Units = opt(
        "auto",
        "boxes: environment (its own units), unit (the file scales them to [-1, 1]), or auto: refuse what looks so",
    )

    @model_validator(mode="after")
    def _complete(self) -> Any:
        kind = self.dataset_kind
        needed = {"npz": "dataset_path", "hdf5": "dataset_path", "minari": "dataset_id"}.get(kind)
        for name in ("dataset_path", "dataset_id"):
            if name == needed and getattr(self, name) is None:
                raise ValueError(f"{kind} data needs {name}")
            if name != needed and getattr(self, name) is not None:
                raise ValueError(f"{name} does nothing for {kind} data")
        if self.dataset_download and kind != "minari":
            raise ValueError(f"dataset_download does nothing for {kind} data")
        for name in FOR_FILES:
            idle = kind == "random" or (kind == "minari" and name == "dataset_episode_steps")
            if idle and getattr(self, name) != SourceOptions.model_fields[name].default and not self._has_parts():
                raise ValueError(f"{name} does nothing for {kind} data")
        return self

    def _has_parts(self) -> bool:
        """Whether these options describe a mix, whose sources have kinds of their own."""
        return False


class MixedSource(SourceOptions):
    """One source of a mix, with its share."""

    weight: float = opt(1.0, "its share of the mix, relative to the others'", gt=0)


class DatasetOptions(SourceOptions):
    """The data that an offline run learns from."""

    dataset_mix: list[MixedSource] | None = opt(
        None, "several sources instead of one: a list of {dataset_kind, dataset_path, ..., weight}"
    )
    dataset_mix_size: int | None = opt(None, "transitions drawn from the mix; null: as many as its sources hold", ge=1)
    dataset_mix_seed: int = opt(0, "seed of that draw", ge=0)
    reward_scale: float | Literal["returns"] = opt(
        1.0, "rewards are multiplied by this; returns: by 1000 over the range of the data's returns"
    )
    reward_shift: float = opt(0.0, "and this is added")
    reward_clip_min: float | None = opt(None, "and what is smaller is raised to this")
    reward_clip_max: float | None = opt(None, "and what is larger is lowered to this")

    def _has_parts(self) -> bool:
        return self.dataset_mix is not None

    @model_validator(mode="after")
    def _one_or_many(self) -> Any:
        if self.dataset_mix is not None:
            if not self.dataset_mix:
                raise ValueError("dataset_mix needs at least one source")
            if "dataset_kind" in self.model_fields_set or self.dataset_path or self.dataset_id:
                raise ValueError("give one source (dataset_kind and its path or id) or dataset_mix, not both")
            for name in ("dataset_episode_steps", "dataset_action_units"):
                if name in self.model_fields_set:
                    raise ValueError(f"{name} belongs to the parts of dataset_mix, which may differ in it")
        elif any(
            getattr(self, name) is not None and name in self.model_fields_set for name in DatasetOptions.idle(self)
        ):
            raise ValueError("dataset_mix_size and dataset_mix_seed do nothing without dataset_mix")
        return self

    def idle(self) -> set[str]:
        """Options that do nothing beside the others."""
        return {"dataset_mix_size", "dataset_mix_seed"} if self.dataset_mix is None else {"dataset_kind"}
