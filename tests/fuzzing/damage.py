"""Damage to a file's bytes: what a failing disk, a broken transfer or a careless editor leaves."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

__all__ = ["damaged"]


def damaged(good: bytes, seed: int, count: int | None = None) -> Iterator[tuple[str, bytes]]:
    """Yield copies of ``good`` with a few bytes flipped, cut off, cut out, doubled, zeroed or inserted."""
    rng = random.Random(seed)
    for number in itertools.count() if count is None else range(count):
        kind = rng.choice(["flip", "cut off", "cut out", "double", "zero", "insert"])
        start = rng.randrange(len(good)) if rng.random() < 0.5 else rng.randrange(min(len(good), 4096))
        length = rng.randint(1, max(1, min(64, len(good) - start)))
        piece = good[start : start + length]
        middle = {
            "flip": bytes(byte ^ (1 << rng.randrange(8)) for byte in piece[: rng.randint(1, 3)]),
            "cut out": b"",
            "double": piece * 2,
            "zero": bytes(len(piece)),
            "insert": rng.randbytes(length) + piece,
        }.get(kind, b"")
        kept = len(middle) if kind == "flip" else len(piece)
        yield (
            f"{number}: {kind} {len(piece)} at {start}",
            (good[:start] if kind == "cut off" else good[:start] + middle + good[start + kept :]),
        )
