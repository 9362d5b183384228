"""Metrics of an update: scalar tensors that are read as floats, and copied to the host only when they are read."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence

import torch

from rl_training.base.devices import to_host

__all__ = ["Metrics", "both", "measured", "separate"]


class Metrics(Mapping[str, float]):
    """Scalar tensors by name, which become floats, all at once, when the first of them is read."""

    def __init__(self, names: Sequence[str], tensors: Sequence[torch.Tensor] | torch.Tensor) -> None:
        """``tensors``: one scalar per name, or all of them in one tensor."""
        self._names, self._tensors = names, tensors
        self._values: dict[str, float] | None = None

    def _read(self) -> dict[str, float]:
        if self._values is None:
            tensors = self._tensors
            if not isinstance(tensors, torch.Tensor):
                tensors = torch.stack([tensor.detach().float() for tensor in tensors])
            self._values = dict(zip(self._names, to_host(tensors)[0].tolist()))
        return self._values

    def __getitem__(self, name: str) -> float:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return repr(self._read())


def both(first: Mapping[str, float], second: Mapping[str, float]) -> Mapping[str, float]:
    """The metrics of two parts of an update, still unread."""
    return ChainMap(first, second)  # type: ignore[arg-type]


def separate(results: dict[str, torch.Tensor]) -> tuple[list[str], list[torch.Tensor], dict[str, torch.Tensor]]:
    """Names and tensors of the scalars among an update's results, and the other results."""
    names = [name for name, tensor in results.items() if tensor.ndim == 0]
    rest = {name: tensor for name, tensor in results.items() if tensor.ndim > 0}
    return names, [results[name] for name in names], rest


def measured(results: dict[str, torch.Tensor]) -> tuple[Metrics, dict[str, torch.Tensor]]:
    """The scalars among an update's results as metrics, and the other results."""
    names, scalars, rest = separate(results)
    return Metrics(names, scalars), rest
