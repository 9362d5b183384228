"""What a checkpoint notes beside the state of a run, so that a resumed run's log goes on as an uninterrupted one's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rl_training.experiment.checkpointing import CheckpointError

__all__ = ["Notes"]

Numbers = dict[str, float]


@dataclass
class Notes:
    """No part of the state: nothing that is learned depends on them."""

    attended: int = 0  # the step up to which everything that was due has been evaluated and logged
    evaluated: int = -1  # the step of the last evaluation
    update_metrics: Numbers = field(default_factory=dict)  # of the last update
    loop_metrics: Numbers = field(default_factory=dict)  # the loop's own, shown until they are replaced
    schedules: Numbers = field(default_factory=dict)  # the values in force
    logged: Numbers = field(default_factory=dict)  # of callbacks, for the next line

    def saved(self) -> dict[str, Any]:
        """The notes as a part of a checkpoint's metadata."""
        return {"notes": asdict(self)}

    @classmethod
    def of(cls, metadata: Mapping[str, Any], step: int) -> Notes:
        """The notes of a checkpoint at ``step``; one that was saved before there were any has nothing left to do."""
        saved = metadata.get("notes")
        if saved is None:
            return cls(attended=step)
        if not isinstance(saved, dict):
            raise CheckpointError("the checkpoint's notes are no mapping")
        for name, low in (("attended", 0), ("evaluated", -1)):
            value = saved.get(name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= step:
                raise CheckpointError(f"the checkpoint's note {name!r} is no step up to {step}: {value!r:.40}")
        saved = {"logged": {}, **saved}  # older ones have none
        for name in ("update_metrics", "loop_metrics", "schedules", "logged"):
            value = saved.get(name)
            if not isinstance(value, dict) or not all(type(number) in (int, float) for number in value.values()):
                raise CheckpointError(f"the checkpoint's note {name!r} holds what is not a number")
        return cls(**{name: saved[name] for name in cls.__dataclass_fields__})
