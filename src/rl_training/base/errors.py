"""Text of an exception, for messages that quote it."""

from __future__ import annotations

__all__ = ["raised", "reason"]


def reason(error: BaseException) -> str:
    """An exception's text in one line, with its type where the text says little (a KeyError) or is empty."""
    text, kind = " ".join(str(error).split()), type(error).__name__
    if not text:
        return kind
    return f"{kind}: {text}" if isinstance(error, LookupError) else text


def raised(error: BaseException) -> str:
    """An exception as ``Type: text``, in one line."""
    text, kind = " ".join(str(error).split()), type(error).__name__
    return f"{kind}: {text}" if text else kind
