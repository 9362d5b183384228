"""Where a zoo is read from: a local folder, or one on a web server. Neither is believed: every read has a limit."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.base.errors import raised, reason
from rl_training.base.files import open_regular, real_folder

if TYPE_CHECKING:
    from urllib.request import OpenerDirector

__all__ = ["LocalZoo", "WebZoo", "ZooError", "ZooSource", "zoo_source"]

CHUNK = 1 << 16
TIMEOUT = 20.0  # seconds in which a server says something
PATIENCE, SLOWEST = 60.0, 16_384  # seconds for any file, and bytes of it a second beyond those
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://").match


class ZooError(ValueError):
    """Raised for a zoo that is not there, does not hold what it says, or lacks what was asked for."""


class LocalZoo:
    """A folder: regular files in it alone, through no link."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __str__(self) -> str:
        return str(self.folder)

    def pieces(self, file: str, most: int) -> Iterator[bytes]:
        """The content of a file of at most so many bytes, piece by piece."""
        path = self.folder
        *folders, name = file.split("/")
        for part in folders:
            path /= part
            if not real_folder(path):
                raise FileNotFoundError(2, "No such file or directory", str(self.folder / file))
        with open_regular(path / name) as opened:
            yield from _limited(lambda: opened.read(CHUNK), most, f"{self.folder / file}")


class WebZoo:
    """A folder on a web server, read by http or https and by nothing else."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def __str__(self) -> str:
        return self._url

    def pieces(self, file: str, most: int) -> Iterator[bytes]:
        """As of a local folder; a server that is silent or far too slow is given up."""
        from http.client import HTTPException
        from urllib.error import HTTPError
        from urllib.request import Request

        url = f"{self._url}/{file}"
        try:
            until = time.monotonic() + PATIENCE + most / SLOWEST
            request = Request(url, headers={"User-Agent": "rl_training"})
            with _opener().open(request, timeout=TIMEOUT) as response:
                if (response.length or 0) > most:
                    raise ZooError(f"{url} has {response.length:,} bytes, more than the {most:,} that it may have")
                yield from _limited(lambda: _read_before(until, response), most, url)
        except HTTPError as error:
            error.close()
            if error.code in (404, 410):
                raise FileNotFoundError(f"there is no {url}") from None
            if 300 <= error.code < 400:
                raise ZooError(f"{url} redirects to where it may not, or without end ({reason(error)})") from None
            raise ConnectionError(f"{url}: the server answers {reason(error)}") from None
        except ZooError:
            raise
        except (OSError, HTTPException, ValueError) as error:
            raise ConnectionError(f"cannot read {url}: {raised(error)}") from None


ZooSource = LocalZoo | WebZoo


def zoo_source(text: str) -> ZooSource:
    """The source that a folder's path or URL stands for."""
    scheme = SCHEME(text)
    if scheme is None:
        folder = Path(text)
        if not folder.is_dir():
            raise ZooError(f"no zoo at {text}: there is no such folder")
        return LocalZoo(folder)
    from urllib.parse import urlsplit

    if scheme[1].lower() not in ("http", "https"):
        raise ZooError(f"a zoo is a folder or an http(s) URL of one, not of the scheme {scheme[1]!r}")
    try:
        parts = urlsplit(text)
        plain = bool(parts.hostname) and parts.port != 0 and "@" not in parts.netloc
    except ValueError:
        plain = False
    if not plain or parts.query or parts.fragment or not text.isascii() or not text.isprintable() or " " in text:
        raise ZooError("the URL of a zoo is that of a folder: http(s)://HOST[:PORT]/PATH, and nothing else in it")
    return WebZoo(text)


def _limited(read: Callable[[], bytes], most: int, name: str) -> Iterator[bytes]:
    """What ``read`` gives until it gives nothing, if that is not more than so many bytes."""
    left = most
    while piece := read():
        left -= len(piece)
        if left < 0:
            raise ZooError(f"{name} has more than the {most:,} bytes that it may have")
        yield piece


def _read_before(until: float, response: Any) -> bytes:
    if time.monotonic() > until:
        raise TimeoutError("the server is too slow")
    piece: bytes = response.read1(CHUNK)  # what has come, without waiting for more of it
    return piece


def _opener() -> OpenerDirector:
    """What opens URLs: no files, no other protocols, and no redirect from one scheme to another."""
    from urllib import request

    class SameScheme(request.HTTPRedirectHandler):
        def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
            if newurl.partition(":")[0].lower() != req.type:
                raise ZooError(f"{req.full_url} redirects to another scheme, to {newurl[:200]}")
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler, request.HTTPHandler, request.HTTPSHandler, SameScheme,
        request.HTTPDefaultErrorHandler, request.HTTPErrorProcessor,
    ):  # fmt: skip
        opener.add_handler(handler())
    return opener
