"""What clients send and get: requests checked field by field, answers, and refusals of one line."""

from __future__ import annotations

import base64
import binascii
from typing import Any, NamedTuple

import numpy as np
import orjson

from rl_training.runtime.prediction import merged_state, read_observations
from rl_training.serving.served import ServedAgent

__all__ = ["Messages", "Question", "Refusal"]

FIELDS = ("obs", "deterministic", "state", "episode_start")
DIGITS, PIXEL_DIGITS = 32, 6  # characters that a number takes at the most, with what stands around it
ROOM = 2**16  # characters of a request beside its numbers


class Refusal(Exception):
    """A request that is not answered: an HTTP status, and one line."""

    def __init__(self, status: int, text: str) -> None:
        self.status, self.text = status, text
        super().__init__(text)


class Question(NamedTuple):
    """A request as the agent takes it: encoded observations (N, ...), their carry, and how they came."""

    rows: np.ndarray
    carry: Any
    deterministic: bool
    single: bool


class Messages:
    """Reads the requests to one agent and writes its answers.

    A state is text: the numbers of the agent's carry, 32 bits each, little-endian, in base64. The client keeps it
    between its observations, so the server keeps nothing.
    """

    def __init__(self, served: ServedAgent, max_batch: int) -> None:
        self._served, self._max_batch, self._shape = served, max_batch, served.state_shape
        spaces = served.spaces
        numbers = int(np.prod(spaces.obs_shape)) * (PIXEL_DIGITS if spaces.image else DIGITS)
        numbers += 0 if spaces.parts is None else sum(len(part.name) + DIGITS for part in spaces.parts.all)
        state = 0 if self._shape is None else 6 * int(np.prod(self._shape))
        self.most_bytes = ROOM + max_batch * (numbers + state)

    def read(self, body: bytes) -> Question:
        """A request's body as a question; raises ``Refusal`` for whatever else it is."""
        try:
            request = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise Refusal(400, f"the body is not JSON (which knows no NaN and no infinity): {error}") from None
        if not isinstance(request, dict) or "obs" not in request:
            raise Refusal(422, 'a request is an object with an observation: {"obs": ...}')
        if len(request) > 1:
            self._check_fields(request)
        try:
            rows, single = read_observations(self._served.spaces, request["obs"])
            if not 0 < len(rows) <= self._max_batch:
                raise Refusal(422, f"a request has 1 to {self._max_batch} observations, got {len(rows)}")
            state = self._decoded(request.get("state"), len(rows), single)
            carry = merged_state(self._served.agent, len(rows), single, state, request.get("episode_start"))
        except ValueError as error:
            raise Refusal(422, str(error)) from None
        return Question(rows, carry, request.get("deterministic", True), single)

    def _check_fields(self, request: dict[str, Any]) -> None:
        unknown = next((name for name in request if name not in FIELDS), None)
        if unknown is not None:
            raise Refusal(422, f"{unknown[:60]!r} is no field of a request; there are {', '.join(FIELDS)}")
        if not isinstance(request.get("deterministic", True), bool):
            raise Refusal(422, "deterministic is true or false")

    def _decoded(self, text: Any, count: int, single: bool) -> Any:
        """The state that a request gives back, as an array."""
        if text is None or self._shape is None:
            return text
        try:
            numbers = np.frombuffer(base64.b64decode(text, validate=True), "<f4")
            return numbers.reshape(self._shape if single else (count, *self._shape))
        except (TypeError, ValueError, binascii.Error):
            raise Refusal(422, "the state is not one that an earlier answer to as many observations gave") from None

    def write(self, question: Question, actions: list[Any], carry: Any) -> bytes:
        """The body of an answer: the action or actions, and the state to send with the next observation."""
        answer: dict[str, Any] = {"action": actions[0] if question.single else actions}
        if carry is not None:
            answer["state"] = base64.b64encode(np.ascontiguousarray(carry, "<f4").tobytes()).decode()
        return orjson.dumps(answer)
