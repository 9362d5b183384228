"""Requests that come together are answered together: one pass through the network for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from rl_training.serving.messages import Question, Refusal

__all__ = ["Batcher"]

MOST_WAITING = 4_096  # observations, beyond which requests are refused
ActOnRows = Callable[[np.ndarray, Any, bool], tuple[list[Any], Any]]  # (rows, carry, deterministic) -> (actions, carry)
Chosen = tuple[list[Any], Any]  # a question's actions, and its carry


class Batcher:
    """Gathers questions while the last batch is computed, for ``wait_seconds`` more if that is set, and up to
    ``max_batch`` observations.

    ``threaded``: a batch is computed in a thread of its own, and the event loop goes on; without, the event loop
    computes it, which is quicker for batches that take less than it takes to hand them over.
    """

    def __init__(self, act: ActOnRows, *, max_batch: int, wait_seconds: float = 0.0, threaded: bool = False) -> None:
        self._act, self._max_batch, self._wait = act, max_batch, wait_seconds
        self._pool = ThreadPoolExecutor(1, "agent") if threaded else None
        self._waiting: list[tuple[Question, asyncio.Future[Chosen]]] = []
        self._rows = 0  # of those that wait
        self._next: asyncio.Handle | None = None  # the next batch, when it is due
        self._busy = False

    def ask(self, question: Question) -> asyncio.Future[Chosen]:
        """The answer, when its batch has been computed."""
        if self._rows and self._rows + len(question.rows) > MOST_WAITING:
            raise Refusal(503, "too many requests wait already; ask again later")
        future: asyncio.Future[Chosen] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, future))
        self._rows += len(question.rows)
        self._schedule()
        return future

    def _schedule(self) -> None:
        """Have the next batch computed: at once if it is full or nothing is waited for, else in a while."""
        if self._busy or not self._waiting:
            return
        loop = asyncio.get_running_loop()
        if self._rows >= self._max_batch or not self._wait:
            if isinstance(self._next, asyncio.TimerHandle):
                self._next.cancel()
                self._next = None
            if self._next is None:
                self._next = loop.call_soon(self._start)
        elif self._next is None:
            self._next = loop.call_later(self._wait, self._start)

    def _start(self) -> None:
        self._next = None
        batch = self._taken()
        if self._pool is None:
            try:
                answers = self._computed(batch)
            except Exception as error:
                _fail(batch, error)
            else:
                _deliver(batch, answers)
            self._schedule()
            return
        self._busy = True
        made = asyncio.get_running_loop().run_in_executor(self._pool, self._computed, batch)
        made.add_done_callback(lambda done: self._finished(batch, done))

    def _finished(self, batch: list[tuple[Question, asyncio.Future[Chosen]]], done: asyncio.Future[Any]) -> None:
        self._busy = False
        error = done.exception()
        if error is not None:
            _fail(batch, error)
        else:
            _deliver(batch, done.result())
        self._schedule()

    def _taken(self) -> list[tuple[Question, asyncio.Future[Chosen]]]:
        """The oldest questions of one kind (with or without noise), as many as a batch takes."""
        kind, rows = self._waiting[0][0].deterministic, 0
        batch, rest = [], []
        for item in self._waiting:
            if item[0].deterministic == kind and rows + len(item[0].rows) <= self._max_batch:
                batch.append(item)
                rows += len(item[0].rows)
            else:
                rest.append(item)
        self._waiting, self._rows = rest, self._rows - rows
        return batch

    def _computed(self, batch: list[tuple[Question, asyncio.Future[Chosen]]]) -> list[Chosen]:
        questions = [question for question, _ in batch]
        rows = _joined([question.rows for question in questions])
        carry = None if questions[0].carry is None else _joined([question.carry for question in questions])
        actions, following = self._act(rows, carry, questions[0].deterministic)
        answers, start = [], 0
        for question in questions:
            end = start + len(question.rows)
            answers.append((actions[start:end], None if following is None or carry is None else following[start:end]))
            start = end
        return answers


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _deliver(batch: list[tuple[Question, asyncio.Future[Chosen]]], answers: list[Chosen]) -> None:
    for (_, future), answer in zip(batch, answers):
        if not future.done():
            future.set_result(answer)


def _fail(batch: list[tuple[Question, asyncio.Future[Chosen]]], error: BaseException) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)
