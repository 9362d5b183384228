"""The web service of an agent as an ASGI application.

``/predict`` is answered here, without a framework between the server and the agent: routing and validation by one cost
several times what the agent takes. FastAPI answers everything else.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from rl_training import __version__
from rl_training.base.errors import printable, reason
from rl_training.base.hosts import of_this_machine
from rl_training.base.streams import say
from rl_training.serving.batching import Batcher
from rl_training.serving.messages import Messages, Refusal
from rl_training.serving.schema import add_predict
from rl_training.serving.served import ServedAgent

__all__ = ["Service"]

BODY_SECONDS = 10.0  # that a request's body may take to arrive
QUICK_SECONDS = 0.002  # a full batch that takes less is computed in the event loop

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Service:
    """Answers the requests to one agent.

    ``local``: only requests that call this machine by its own names are answered. ``threaded``: whether batches are
    computed in a thread of their own; None: if they take long.
    """

    def __init__(
        self,
        served: ServedAgent,
        *,
        max_batch: int = 64,
        wait_ms: float = 0.0,
        local: bool = True,
        threaded: bool | None = None,
    ) -> None:
        if threaded is None:
            threaded = served.seconds_of(max_batch) > QUICK_SECONDS
        self._messages, self._local = Messages(served, max_batch), local
        self._batcher = Batcher(served.act, max_batch=max_batch, wait_seconds=wait_ms / 1000, threaded=threaded)
        self._others = _others(served, max_batch)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        hosts, length = _read_headers(scope["headers"])
        if self._local and not of_this_machine(hosts):
            await _answer(send, 403, _error("ask for localhost or 127.0.0.1"))
        elif scope["path"] == "/predict":
            if scope["method"] == "POST":
                await self._predict(length, receive, send)
            else:
                await _answer(send, 405, _error("observations are sent by POST"))
        else:
            await self._others(scope, receive, send)

    async def _predict(self, length: bytes, receive: Receive, send: Send) -> None:
        try:
            question = self._messages.read(await self._body(length, receive))
            actions, carry = await self._batcher.ask(question)
            status, body = 200, self._messages.write(question, actions, carry)
        except Refusal as refusal:
            status, body = refusal.status, _error(refusal.text)
        except Exception as error:
            say(f"rl-training: error: the agent failed: {printable(reason(error))}", sys.stderr)
            status, body = 500, _error("the agent failed")
        await _answer(send, status, body)

    async def _body(self, length: bytes, receive: Receive) -> bytes:
        """A request's body, no longer than requests can be, and there within seconds."""
        most = self._messages.most_bytes
        if length.isdigit() and int(length[:20]) > most:
            raise Refusal(413, f"a request to this agent has at most {most:,} bytes")
        task, late = asyncio.current_task(), []

        def give_up() -> None:
            late.append(True)
            if task is not None:
                task.cancel()

        timer = asyncio.get_running_loop().call_later(BODY_SECONDS, give_up)
        try:
            body, more = b"", True
            while more:
                message = await receive()
                body, more = body + message.get("body", b""), message.get("more_body", False)
                if len(body) > most:
                    raise Refusal(413, f"a request to this agent has at most {most:,} bytes")
            return body
        except asyncio.CancelledError:
            if not late:
                raise
            raise Refusal(408, f"the body did not arrive within {BODY_SECONDS:g} seconds") from None
        finally:
            timer.cancel()


def _read_headers(headers: Iterable[tuple[bytes, bytes]]) -> tuple[list[str], bytes]:
    """The Host headers of a request, and what it says that its body's length is."""
    hosts, length = [], b""
    for name, value in headers:
        if name == b"host":
            hosts.append(value.decode("latin-1"))
        elif name == b"content-length":
            length = value
    return hosts, length


def _error(text: str) -> bytes:
    return orjson.dumps({"error": text})


async def _answer(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status in (408, 413):  # the rest of the body may still come
        headers.append((b"connection", b"close"))
    if status == 405:
        headers.append((b"allow", b"POST"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _others(served: ServedAgent, max_batch: int) -> FastAPI:
    """Everything but predictions: whether the server is well, and the schema."""
    title = f"{served.algo} on {printable(served.env_id)}"
    app = FastAPI(title=title, version=__version__, docs_url=None, redoc_url=None)

    @app.get("/health", summary="Whether the server is well, and whose actions it gives")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "algo": served.algo, "env_id": served.env_id, "step": served.step}

    @app.exception_handler(HTTPException)
    async def refuse(request: Any, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": f"{error.detail}"}, error.status_code, error.headers)

    made = app.openapi
    app.openapi = lambda: add_predict(made(), served, max_batch)  # type: ignore[method-assign]
    return app
