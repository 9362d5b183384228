"""Text of an exception, for messages that quote it, and text that a terminal can show."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

__all__ = ["enough_memory", "printable", "raised", "reason"]

# numpy's and torch's words for an allocation that failed, where they raise something other than a MemoryError
NO_MEMORY = re.compile(r"can't allocate memory|array is too big|out of memory")


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


@contextlib.contextmanager
def enough_memory(what: str) -> Iterator[None]:
    """Turn an allocation that fails, in numpy or in torch, into one line that names what was being made."""
    try:
        yield
    except (MemoryError, RuntimeError, ValueError) as error:
        if not isinstance(error, MemoryError) and not NO_MEMORY.search(str(error)):
            raise
        raise ValueError(f"{what}: there is not enough memory ({reason(error)})") from None
