"""Configs with something wrong: good ones whose names, types, ranges, nesting or text were changed."""

from __future__ import annotations

import copy
import json
import math
import random
import string
from collections.abc import Iterator
from typing import Any

from toys import SMOKE

__all__ = ["good_config", "mutant"]

NUMBERS: list[Any] = [
    0, -1, 1, 2, 3, 7, -0.0, 0.5, 1.5, 1e-9, 1e9, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**40, -(10**40), 1e308, 5e-324,
    math.nan, math.inf, -math.inf,
]  # fmt: skip
WORDS: list[Any] = [
    "", " ", "x", "null", "yes", "1", "1e3", "auto", "linear", "cosine", "../..", "/", "\x7f", "ü", "🙂" * 40, "a" * 5000, "$HOME", "{}",
    "%s%n", "CartPole-v1", "CartPole-v999", "NoSuchEnv", "ALE/Nothing-v5", "a:b:c", "no_such_module:Env-v0", ":", "-v0", "cpu:1", "cuda:99",
]  # fmt: skip
NESTED: list[Any] = [
    [],
    {},
    [[]],
    [1],
    [-1],
    ["a"],
    {"a": 1},
    {"type": "linear"},
    {"type": 3},
    [None],
    [0.5, 1],
    list(range(100)),
]
OTHERS: list[Any] = [None, True, False]
# text that a YAML parser has a say in: tags, aliases, merges, dates, octals, duplicates, tabs, other documents
SNIPPETS = [
    "!!python/object/apply:os.system [true]", "!!binary aGVsbG8=", "!!set {a, b}", "!!timestamp 2001-01-01", "2001-01-01", "0o17", "0x1F", "1_000",
    "12:30:45", "~", "&a [*a]", "*nowhere", "&a 1", "<<: {seed: 1}", "? [a, b]\n: c", "'", '"\\x"', "{", "[1, 2", "- a\n- b", "|\n  text", "%TAG ! x",
    "---\nseed: 2", "...", "\ta: 1", "a: b: c", "\ufeff", "!!float x", "!!int 1.5", "!!map [1]", "!canary_in_a_file.Canary {}", "@", "`",
]  # fmt: skip
DEPTH = 3  # changes of one config, at the most


def good_config(rng: random.Random) -> dict[str, Any]:
    """A small config of any algorithm, with some fields that the smallest leave out."""
    algo = rng.choice(sorted(SMOKE))
    env_id, options = SMOKE[algo]
    config: dict[str, Any] = {
        "algo": algo,
        "env_id": env_id,
        "seed": 1,
        "total_timesteps": 40,
        "eval_episodes": 1,
        "threads": 1,
    }
    config |= {"output_dir": "runs", "progress": "off", "compile": False}
    extras: dict[str, Any] = {
        "num_envs": 1, "log_interval": 10, "checkpoint_interval": 20, "tags": ["a"], "device": "cpu", "loggers": ["csv"],
        "env_kwargs": {"max_episode_steps": 20, "wrappers": {"reward": {"scale": 0.1}}},
    }  # fmt: skip
    config |= {name: extras[name] for name in rng.sample(sorted(extras), rng.randint(0, 3))}
    controls: dict[str, Any] = {
        "learning_rate": 1e-3, "gamma": 0.9, "max_updates": 5, "warmup_steps": 3, "learning_rate_schedule": {"type": "linear", "start": 1.0, "end": 0.1},
        "early_stopping": {"patience": 2}, "eval_interval": 20,
    }  # fmt: skip
    chosen = {name: controls[name] for name in rng.sample(sorted(controls), rng.randint(0, 2))}
    return copy.deepcopy({**config, "algo_kwargs": {**options, **chosen}})


def mutant(seed: int) -> tuple[str, str]:
    """What was changed, and the text of the config's file."""
    rng = random.Random(seed)
    config = good_config(rng)
    if rng.random() < 0.15:
        return _mutate_text(json.dumps(config, indent=1), rng)
    words = [_mutate(config, rng) for _ in range(rng.randint(1, DEPTH))]
    return f"{config.get('algo')}: {'; '.join(words)}", json.dumps(config)


def with_small_options(text: str) -> str:
    """The text of a config; one that has lost its options gets the small ones back, to train for seconds, not hours."""
    try:
        config = json.loads(text)
    except ValueError:
        return text
    if isinstance(config, dict) and config.get("algo") in list(SMOKE) and not config.get("algo_kwargs"):
        return json.dumps({**config, "algo_kwargs": SMOKE[config["algo"]][1]})
    return text


def _mutate(config: dict[str, Any], rng: random.Random) -> str:
    """One change at any place of the config."""
    where = rng.choice([*_places(config), None])
    if where is None or not config:
        name = rng.choice(["sede", "algo_kwarg", "learning_rate", "__class__", "", "network", "callbacks", "env", "0"])
        holder = rng.choice([config, *(part for part in config.values() if isinstance(part, dict))])
        holder[name] = _rubbish(rng)
        return f"{name!r} added"
    holder, key = where
    change = rng.choice(
        ["rubbish", "rubbish", "rubbish", "number", "number", "drop", "rename", "wrap", "option", "option"]
    )
    if change == "rubbish":
        holder[key] = _rubbish(rng)
    elif change == "number":
        holder[key] = rng.choice(NUMBERS)
    elif change == "wrap":
        holder[key] = rng.choice([[holder[key]], {"a": holder[key]}, str(holder[key])])
    elif change == "option":
        return _set_option(config, rng)
    else:
        value = holder.pop(key)
        if change == "rename" and isinstance(holder, dict):
            holder[_misspelt(str(key), rng)] = value
        return f"{key} {'gone' if change == 'drop' else 'renamed'}"
    return f"{key} = {holder[key]!r:.60}"


def _set_option(config: dict[str, Any], rng: random.Random) -> str:
    """An option that the algorithm has, with a value of any kind."""
    from rl_training.experiment.config import TrainConfig
    from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec

    algo = config.get("algo")
    options = config.get("algo_kwargs")
    if not isinstance(algo, str) or algo not in ALGORITHMS or not isinstance(options, dict) or rng.random() < 0.3:
        options, names = config, sorted(TrainConfig.model_fields)
    else:
        names = sorted(get_algorithm_spec(algo).config.model_fields)
    name = rng.choice(names)
    options[name] = rng.choice(NUMBERS) if rng.random() < 0.6 else _rubbish(rng)
    return f"{name} = {options[name]!r:.60}"


def _mutate_text(text: str, rng: random.Random) -> tuple[str, str]:
    """The file's text with a piece of YAML in place of a line or of a value, or cut, or with other bytes in it."""
    lines = text.splitlines()
    at = rng.randrange(len(lines))
    kind = rng.choice(["value", "value", "line", "cut", "letter", "deep", "aliases"])
    if kind == "value":
        name, colon, _ = lines[at].partition(":")
        lines[at] = f"{name}{colon} {rng.choice(SNIPPETS)}"
    elif kind == "line":
        lines.insert(at, rng.choice(SNIPPETS))
    elif kind == "cut":
        return f"cut {at}", "\n".join(lines)[: rng.randrange(len(text))]
    elif kind == "letter":
        place = rng.randrange(len(text))
        return f"a letter at {place}", text[:place] + rng.choice(string.printable) + text[place + 1 :]
    elif kind == "deep":
        return "deep", "algo_kwargs: " + "[" * 3000 + "]" * 3000
    else:  # each list holds the one before it nine times
        doubled = "\n".join(
            f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 1}]" for i in range(rng.choice([3, 9]))
        )
        return "aliases", f"{doubled}\nalgo: ppo\nenv_id: CartPole-v1"
    return f"line {at}: {lines[at]!r:.60}", "\n".join(lines)


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every holder and key of a nested value."""
    items = list(node.items() if isinstance(node, dict) else enumerate(node))
    for key, value in items:
        yield node, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _rubbish(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(rng.choice([NUMBERS, WORDS, NESTED, OTHERS])))


def _misspelt(name: str, rng: random.Random) -> str:
    place = rng.randrange(len(name) + 1)
    return rng.choice(
        [name[:place] + name[place + 1 :], name.upper(), name + "s", name[:place] + "_" + name[place:], ""]
    )
