"""The error that everything about datasets raises."""

from __future__ import annotations

__all__ = ["DatasetError"]


class DatasetError(ValueError):
    """Data that cannot be learned from, and what is wrong with it."""
