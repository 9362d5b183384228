"""Hostile run folders and sweep folders: odd contents, links that lead outside, and files that are no regular files."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzzing.configs import NUMBERS, SNIPPETS, WORDS
from fuzzing.damage import damaged
from fuzzing.trials import CANARY

__all__ = ["SECRET", "Yard", "mutate_run", "mutate_sweep"]

SECRET = "the secret that lies outside"  # may not come into a report
FILES = ("metrics.jsonl", "config.yaml", "metadata.json", "error.txt", "videos/step_10.mp4", ".lock", "events.csv")
FOLDERS = ("checkpoints", "tensorboard", "videos")
NAMES = (
    "<img src=x onerror=alert(1)>",
    "a\nb",
    "-o",
    "%s",
    "ü" * 60,
    "…",
    "'; --",
    "a" * 200,
    "CON",
    b"\xff\xfe".decode("utf-8", "surrogateescape"),
)
Rng = random.Random


class Yard:
    """A folder with good runs and one more that a mutation spoils, and what lies outside of it and may not change.

    runs/good_0, runs/good_1, runs/hostile: run directories; outside/: a secret file, a folder and a copy of the good run.
    """

    def __init__(self, folder: Path, good: Path) -> None:
        self.runs, self.outside = folder / "runs", folder / "outside"
        shutil.copytree(good, self.outside / "run")
        for name in ("good_0", "good_1", "hostile"):
            shutil.copytree(good, self.runs / name)
        self.secret = self.outside / "secret.txt"
        self.secret.write_text(SECRET)
        self.hostile = self.runs / "hostile"
        self._before = self._content()

    def _content(self) -> dict[str, bytes]:
        files = (path for path in sorted(self.outside.rglob("*")) if path.is_file())
        return {str(path.relative_to(self.outside)): path.read_bytes() for path in files}

    def changed(self) -> list[str]:
        """The files outside that are new, gone or different."""
        now = self._content()
        return sorted(name for name in {*now, *self._before} if now.get(name) != self._before.get(name))


def mutate_run(yard: Yard, seed: int) -> str:
    """Spoil the hostile run in one to three ways; says how."""
    rng = random.Random(seed)
    words = []
    for _ in range(rng.randint(1, 3)):
        words.append(rng.choice(WAYS)(yard, rng))
        if yard.hostile.is_symlink():  # what else would be spoiled lies outside
            break
    return "; ".join(words)


def mutate_sweep(folder: Path, seed: int) -> str:
    """Spoil the files by which a sweep knows its runs; says how."""
    rng = random.Random(seed)
    files = sorted(
        path
        for path in (folder, *folder.glob("jobs"), *folder.glob("*__*"))
        for path in path.iterdir()
        if path.is_file()
    )
    path = rng.choice([folder / "sweep.json", *files])
    kind = rng.choice(["json", "json", "damage", "special", "text"])
    if kind == "special" or not path.is_file():
        return _special(path, rng, folder)
    if kind == "json" and path.suffix == ".json":
        return _spoil_json(path, rng)
    data = path.read_bytes() or b"x"
    words, data = (
        next(damaged(data, rng.randrange(1 << 32)))
        if kind == "damage"
        else ("text", _text(rng).encode("utf-8", "replace"))
    )
    path.write_bytes(data)
    return f"{path.name}: {words}"


# ---- one thing wrong: each takes the yard and a random stream, and says what it did


def _wrong_value(yard: Yard, rng: Rng) -> str:
    """A field of metadata.json or config.yaml of another type or range."""
    return _spoil_json(yard.hostile / rng.choice(["metadata.json", "config.yaml"]), rng)


def _wrong_rows(yard: Yard, rng: Rng) -> str:
    """Rows of metrics.jsonl that no run writes."""
    rows: list[Any] = [
        {"step": value, "time": 1.0, "eval_return_mean": rng.choice([1.0, None, "x", [], 1e400])}
        for value in [*NUMBERS[:16], *WORDS[:5], None, [], {}]
    ]
    rows += [{"step": 1, "time": value, "episode_return": value} for value in NUMBERS]
    rows += [None, 3, "x", [], {}, {"step": 1}, {"time": 2}, {"step": 5, "eval_return_mean": 10**400}]
    chosen = [json.dumps(row) for row in rng.sample(rows, 5)]
    extra = [
        '{"step": 3',
        "[" * 100_000,
        '{"step": ' + "9" * 9000 + "}",
        "x" * (1 << 20),
        "\x00" * 50,
        '{"step": 1e999}',
    ]
    data = "\n".join([*chosen, rng.choice(extra)]) + rng.choice(["\n", ""])
    _clear(yard.hostile / "metrics.jsonl")
    (yard.hostile / "metrics.jsonl").write_bytes(data.encode() + rng.choice([b"", b"\xff\xfe"]))
    return "odd rows"


def _damage(yard: Yard, rng: Rng) -> str:
    files = sorted(
        path for path in yard.hostile.rglob("*") if path.is_file() and not path.is_symlink() and path.stat().st_size
    )
    if not files:
        return "nothing left to damage"
    path = rng.choice(files)
    words, data = next(damaged(path.read_bytes(), rng.randrange(1 << 32)))
    path.write_bytes(data)
    return f"{path.name}: {words}"


def _other_text(yard: Yard, rng: Rng) -> str:
    path = yard.hostile / rng.choice(["metadata.json", "config.yaml", "error.txt", "metrics.jsonl"])
    _clear(path)
    path.write_bytes(_text(rng).encode("utf-8", "replace"))
    return f"{path.name}: other text"


def _no_regular_file(yard: Yard, rng: Rng) -> str:
    names = [*FILES, *(str(path.relative_to(yard.hostile)) for path in yard.hostile.glob("checkpoints/step_*"))]
    return _special(yard.hostile / rng.choice(names), rng, yard.outside)


def _no_folder(yard: Yard, rng: Rng) -> str:
    path = yard.hostile / rng.choice(FOLDERS)
    kind = rng.choice(["link", "file", "gone", "loop", "fifo"])
    _clear(path)
    if kind == "link":
        path.symlink_to(yard.outside / "run" / path.name if path.name != "videos" else yard.outside)
    elif kind == "file":
        path.write_text("x")
    elif kind == "loop":
        path.symlink_to(yard.runs)
    elif kind == "fifo":
        os.mkfifo(path)
    return f"{path.name}: {kind}"


def _other_name(yard: Yard, rng: Rng) -> str:
    name = rng.choice(NAMES)
    if not (yard.runs / name).exists():
        yard.hostile = yard.hostile.rename(yard.runs / name)
    return f"named {name!r:.40}"


def _linked_run(yard: Yard, rng: Rng) -> str:
    _clear(yard.hostile)
    yard.hostile.symlink_to(rng.choice([yard.runs, yard.runs / "good_0", yard.outside / "nowhere"]))
    return "the run is a link"


def _odd_checkpoint(yard: Yard, rng: Rng) -> str:
    name = rng.choice(
        [
            "step_x.ckpt",
            "step_.ckpt",
            "step_99999999999999999999.ckpt",
            "step_9999999999.ckpt",
            ".step.partial",
            "best.ckpt",
        ]
    )
    path = yard.hostile / "checkpoints" / name
    if not path.parent.is_dir() or path.parent.is_symlink():
        return "no checkpoints to add to"
    return _special(path, rng, yard.outside)


def _odd_cache(yard: Yard, rng: Rng) -> str:
    """The file in which the report keeps curves, beside the runs."""
    path = yard.runs / ".rl-training-curves.json"
    if rng.random() < 0.5:
        return _special(path, rng, yard.outside)
    runs = {
        "hostile": {
            "stamp": [0, 0, 0, 0],
            "config": rng.choice(WORDS),
            "metrics": rng.choice([None, {}, {"evaluations": 3}]),
        }
    }
    path.write_text(
        json.dumps(rng.choice([{"format": 1, "runs": runs}, {"format": 1, "runs": []}, [], {"format": "1"}, None]))
    )
    return "odd cache"


def _named_code(yard: Yard, rng: Rng) -> str:
    """The run's config names a module in place of the environment."""
    path = yard.hostile / "config.yaml"
    config = _json(path)
    if not isinstance(config, dict):
        return "no config to change"
    config[rng.choice(["env_id", "algo", "device"])] = rng.choice([f"{CANARY}:Canary-v0", CANARY, f"{CANARY}.Canary"])
    path.write_text(json.dumps(config))
    return "the config names a module"


WAYS: list[Callable[[Yard, Rng], str]] = [
    _wrong_value, _wrong_value, _wrong_value, _wrong_rows, _wrong_rows, _damage, _other_text, _no_regular_file, _no_regular_file, _no_regular_file,
    _no_folder, _other_name, _linked_run, _odd_checkpoint, _odd_cache, _named_code,
]  # fmt: skip


# ---- what they share


def _special(path: Path, rng: Rng, outside: Path) -> str:
    """In place of a file: nothing, a folder, a fifo, or a link to a file outside, to a device, to nowhere or to itself."""
    if not os.path.lexists(path.parent):
        path.parent.mkdir(parents=True)
    if path.parent.is_symlink() or not path.parent.is_dir():
        return f"{path.name}: its folder is none"
    _clear(path)
    kind = rng.choice(["gone", "folder", "fifo", "outside", "outside", "zero", "tty", "nowhere", "itself"])
    targets = {
        "outside": outside / "secret.txt",
        "zero": Path("/dev/zero"),
        "tty": Path("/dev/tty"),
        "nowhere": outside / "new",
        "itself": path,
    }
    if kind == "folder":
        (path / "inner").mkdir(parents=True)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind in targets:
        path.symlink_to(targets[kind])
    return f"{path.name}: {kind}"


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _json(path: Path) -> Any:
    """The JSON (or the flat YAML that this package writes) of a regular file; None where it is none."""
    from ruamel.yaml import YAML

    if not path.is_file() or path.is_symlink():
        return None
    try:
        return YAML(typ="safe").load(path.read_text())
    except Exception:
        return None


def _spoil_json(path: Path, rng: Rng) -> str:
    """Another value, or none, at any place of a file of JSON."""
    tree = _json(path)
    if not isinstance(tree, dict) or not tree:
        return f"{path.name}: nothing to change"
    node: Any = tree
    key = rng.choice(sorted(node, key=str))
    while isinstance(node[key], dict) and node[key] and rng.random() < 0.7:
        node = node[key]
        key = rng.choice(sorted(node, key=str))
    if rng.random() < 0.2:
        del node[key]
        words = f"{key} gone"
    else:
        node[key] = rng.choice([*NUMBERS, *WORDS, None, True, [], {}, [[]], {"a": 1}])
        words = f"{key} = {node[key]!r:.40}"
    path.write_text(json.dumps(tree))
    return f"{path.name}: {words}"


def _text(rng: Rng) -> str:
    """Text that is no JSON object."""
    bomb = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 1}]" for i in range(8))
    texts = [
        "",
        "null",
        "[]",
        "3",
        '"x"',
        "{",
        "[" * 50_000,
        "\x00" * 100,
        "x" * 100_000,
        f"{bomb}\nalgo: ppo\nenv_id: CartPole-v1",
        "{}",
    ]
    return rng.choice([*texts, *SNIPPETS])
