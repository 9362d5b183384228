"""The OpenAPI description of predictions: the agent's own observation and action, with their shapes and bounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_training.base.parts import Part
from rl_training.envs.spaces import MASK, Spaces
from rl_training.serving.served import ServedAgent

__all__ = ["action_schema", "add_predict", "observation_schema"]

Schema = dict[str, Any]


def observation_schema(spaces: Spaces) -> Schema:
    """One observation; of several parts, an object or an array as the environment's Dict or Tuple."""
    if spaces.bare is not None:
        own, mask = observation_schema(spaces.bare), _nested({"type": "boolean"}, (sum(spaces.choices),))
        parts = own["properties"] if own["type"] == "object" else {"observation": own}
        return _object({**parts, MASK: mask}, [*parts, MASK])
    if spaces.parts is not None:
        return _nest([(part.path, _part_schema(part)) for part in spaces.parts.all])
    number = {"type": "integer", "minimum": 0, "maximum": 255} if spaces.image else {"type": "number"}
    return _nested(number, spaces.given_shape)


def action_schema(spaces: Spaces) -> Schema:
    """One action, in the environment's units."""
    kind = spaces.action_kind
    if spaces.form is not None:
        return _nest([(part.path, _nested({"type": "number"}, part.shape)) for part in spaces.form.parts])
    if kind == "discrete":
        return {"type": "integer", "minimum": spaces.start, "maximum": spaces.start + spaces.num_actions - 1}
    if kind == "multi_binary":
        return _nested({"type": "integer", "minimum": 0, "maximum": 1}, spaces.action_shape)
    if kind == "multi_discrete":
        bounds = zip(np.asarray(spaces.start).tolist(), spaces.choices)
        items = [{"type": "integer", "minimum": low, "maximum": low + n - 1} for low, n in bounds]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    number: Schema = {"type": "number"}
    for name, limits in (("minimum", spaces.low), ("maximum", spaces.high)):
        if limits.size and np.isfinite(limits).all() and (limits == limits.flat[0]).all():
            number[name] = float(limits.flat[0])
    ranges = ", ".join(f"[{low:g}, {high:g}]" for low, high in zip(spaces.low, spaces.high))
    return {**_nested(number, spaces.env_shape), "description": f"bounds of each number: {ranges}"}


def _nest(parts: list[tuple[tuple[str | int, ...], Schema]]) -> Schema:
    """Parts by what is left of their keys."""
    first = parts[0]
    if not first[0]:
        return first[1]
    inner: dict[str | int, list[tuple[tuple[str | int, ...], Schema]]] = {}
    for (key, *rest), part in parts:
        inner.setdefault(key, []).append((tuple(rest), part))
    schemas = {key: _nest(below) for key, below in inner.items()}
    if all(isinstance(key, int) for key in schemas):
        most = max(key for key in schemas if isinstance(key, int)) + 1
        return {"type": "array", "prefixItems": [schemas.get(i, {}) for i in range(most)], "minItems": most}
    return _object({str(key): schema for key, schema in schemas.items()}, [str(key) for key in schemas])


def _part_schema(part: Part) -> Schema:
    if part.source == "discrete":
        return {"type": "integer", "minimum": part.first[0], "maximum": part.first[0] + part.choices[0] - 1}
    if part.boolean:
        return _nested({"type": "boolean"}, part.given)
    whole = {"type": "integer", "minimum": 0, "maximum": 255}
    number = whole if part.dtype == "uint8" else {"type": "integer" if part.source != "box" else "number"}
    return _nested(number, part.given)


def _nested(number: Schema, shape: tuple[int, ...]) -> Schema:
    for size in reversed(shape):
        number = {"type": "array", "items": number, "minItems": size, "maxItems": size}
    return number


def add_predict(schema: Schema, served: ServedAgent, max_batch: int) -> Schema:
    """The server's schema with the path that gives actions."""
    obs, action = observation_schema(served.spaces), action_schema(served.spaces)
    flag = {"type": "boolean"}
    request: Schema = {
        "obs": {**_one_or_many(obs, max_batch), "description": "one observation, or a batch of them"},
        "deterministic": {**flag, "default": True, "description": "the best action, or one that is drawn"},
        "episode_start": {
            **_one_or_many(flag, max_batch),
            "description": "where an episode starts, the state is reset",
        },
    }
    answer: Schema = {"action": _one_or_many(action, max_batch)}
    if served.state_shape is not None:
        text = "what to send with the next observation of the same episode; leave it out at an episode's start"
        request["state"] = answer["state"] = {"type": "string", "format": "byte", "description": text}
    error = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
    problems = {
        "400": "not JSON",
        "408": "a body that did not arrive in time",
        "413": "too large a body",
        "422": "no observation of this agent, or no state of it",
        "503": "too many requests wait",
    }
    operation = {
        "summary": "The agent's action for an observation",
        "operationId": "predict",
        "requestBody": {"required": True, "content": _json(_object(request, ["obs"], additionalProperties=False))},
        "responses": {
            "200": {"description": "the action", "content": _json(_object(answer, list(answer)))},
            **{code: {"description": text, "content": _json(error)} for code, text in problems.items()},
        },
    }
    return {**schema, "paths": {**schema["paths"], "/predict": {"post": operation}}}


def _one_or_many(schema: Schema, most: int) -> Schema:
    return {"anyOf": [schema, {"type": "array", "items": schema, "minItems": 1, "maxItems": most}]}


def _object(properties: Schema, required: list[str], **more: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": required, **more}


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}
