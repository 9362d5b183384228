"""Text of an exception, for messages that quote it, and text that a terminal can show."""

from __future__ import annotations

__all__ = ["printable", "raised", "reason"]


def printable(text: str) -> str:
    """The text with control characters and other invisible ones written out, which a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


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
