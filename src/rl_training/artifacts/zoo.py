"""A zoo: a folder of trained agents, each a slim checkpoint and a card, and an index (``zoo.json``) of them.

What is read of a zoo is untrusted. The index is checked value by value, its paths stay within the folder, and a file
takes its place only with the size and the sha256 that the index gives.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rl_training.artifacts.zoo_source import LocalZoo, ZooError, ZooSource
from rl_training.base.errors import printable
from rl_training.base.files import lock_folder, open_regular, real_folder, regular_file, write_together

__all__ = ["Fetched", "ZooAgent", "checked_name", "fetch_agent", "put_agent", "read_zoo", "zoo_agent"]

INDEX, FORMAT = "zoo.json", 1
SUFFIX, CARD = ".ckpt", ".md"
MOST_INDEX, MOST_CARD, MOST_CHECKPOINT = 1 << 22, 1 << 20, 1 << 32  # bytes
MOST_AGENTS = 10_000
LONGEST = 200  # characters of a name or a path
PATH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*(/[A-Za-z0-9][A-Za-z0-9._+-]*)*").fullmatch  # no .., nothing absolute
SHA = re.compile(r"[0-9a-f]{64}").fullmatch


@dataclass(frozen=True, kw_only=True)
class ZooAgent:
    """An agent of a zoo, as its index describes it."""

    name: str
    file: str
    sha256: str
    bytes: int
    card: str
    card_sha256: str
    card_bytes: int
    algo: str
    env_id: str
    steps: int
    seed: int
    return_mean: float
    return_std: float
    episodes: int
    commit: str | None = None
    versions: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)  # whatever else its card says, by name

    def entry(self) -> dict[str, Any]:
        """The agent as the index has it, under its name."""
        return {name: value for name, value in asdict(self).items() if name != "name"}


class Fetched(NamedTuple):
    """An agent's files, and whether they had to be fetched."""

    agent: ZooAgent
    path: Path
    card: Path
    new: bool


# ---- reading


def read_zoo(source: ZooSource) -> dict[str, ZooAgent]:
    """The agents of a zoo by name."""
    try:
        text = b"".join(source.pieces(INDEX, MOST_INDEX))
    except FileNotFoundError:
        raise ZooError(f"{source} is no zoo: it has no {INDEX}") from None
    where = f"{source}/{INDEX}"
    try:
        content = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise ZooError(f"{where} is not JSON") from None
    if not isinstance(content, dict) or not isinstance(content.get("agents"), dict):
        raise ZooError(f"{where} holds no agents")
    number = content.get("format")
    if type(number) is not int or number != FORMAT:
        raise ZooError(f"{where} has format {_shown(number)}; this version reads format {FORMAT}")
    if len(content["agents"]) > MOST_AGENTS:
        raise ZooError(f"{where} has {len(content['agents']):,} agents, more than {MOST_AGENTS:,}")
    return {name: _agent(where, name, entry) for name, entry in sorted(content["agents"].items())}


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def _agent(where: str, name: str, entry: Any) -> ZooAgent:
    def require(fine: bool, item: str, expected: str) -> None:
        if not fine:
            got = _shown(entry.get(item, ...)) if isinstance(entry, dict) else _shown(entry)
            raise ZooError(f"{where}: {item} of {_shown(name)} should be {expected}, got {got}")

    require(_is_path(name), "the name", "letters, digits and ._+-, in folders by /")
    require(isinstance(entry, dict), "the entry", "an object")
    for item, ending in (("file", SUFFIX), ("card", CARD)):
        value = entry.get(item)
        require(_is_path(value) and value.endswith(ending), item, f"a relative path that ends in {ending}")
    for item in ("sha256", "card_sha256"):
        require(isinstance(entry.get(item), str) and bool(SHA(entry[item])), item, "64 hexadecimal digits")
    counts = {"bytes": (1, MOST_CHECKPOINT), "card_bytes": (0, MOST_CARD), "steps": (0, 2**63), "seed": (0, 2**63)}
    for item, (least, most) in {**counts, "episodes": (1, 2**31)}.items():
        value = entry.get(item)
        require(type(value) is int and least <= value <= most, item, f"a whole number from {least} to {most}")
    for item in ("algo", "env_id"):
        value = entry.get(item)
        require(isinstance(value, str) and 0 < len(value) <= LONGEST, item, f"text of 1 to {LONGEST} characters")
    for item in ("return_mean", "return_std"):
        value = entry.get(item)
        require(type(value) in (int, float) and abs(value) < 1e100, item, "a number")
    commit = entry.get("commit")
    require(commit is None or (isinstance(commit, str) and len(commit) <= LONGEST), "commit", "text or null")
    for item in ("versions", "facts"):
        require(isinstance(entry.get(item, {}), dict), item, "an object")
    known = {item: entry[item] for item in ZooAgent.__dataclass_fields__ if item in entry and item != "name"}
    return ZooAgent(name=name, **known)


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST and bool(PATH(value))


def _shown(value: Any) -> str:
    if value is ...:
        return "nothing"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**40:
        return "a number of many digits"
    return printable(f"{value!r:.60}")


def zoo_agent(agents: Mapping[str, ZooAgent], name: str, source: ZooSource) -> ZooAgent:
    """The agent of a name; a wrong name is answered with the nearest ones."""
    if name in agents:
        return agents[name]
    lower = {known.lower(): known for known in agents}
    ends = [known for known in agents if known.lower().rpartition("/")[2] == name.lower()]
    close = [lower[one] for one in difflib.get_close_matches(name.lower(), lower, n=3)]
    near = list(dict.fromkeys([*ends, *close]))[:3]
    hint = f"did you mean {' or '.join(near)}?" if near else "rl-training zoo list shows what there is"
    raise ZooError(f"{source} has no agent {name!r}; {hint}")


def fetch_agent(source: ZooSource, agent: ZooAgent, output: Path, *, force: bool = False) -> Fetched:
    """Copy an agent's checkpoint and card to ``output`` and beside it.

    Files that are there already, with the right content, are left. Others are not overwritten without ``force``. Until
    both new ones are whole and right, nothing changes.
    """
    if output.suffix != SUFFIX:
        raise ZooError(f"{output} should end in {SUFFIX}")
    card = output.with_suffix(CARD)
    parts = {
        output: (agent.file, agent.bytes, agent.sha256),
        card: (agent.card, agent.card_bytes, agent.card_sha256),
    }
    missing = {}
    for path, (file, size, sha) in parts.items():
        there = regular_file(path)
        if there and _sha_of(path, size) == sha:
            continue
        if there and not force:
            raise ZooError(f"{path} is there already, with another content: name another file (-o), or say --force")
        missing[path] = _verified(source, file, size, sha)
    if missing:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_together(missing)
    return Fetched(agent, output, card, bool(missing))


def _verified(source: ZooSource, file: str, size: int, sha: str) -> Iterator[bytes]:
    """A file of a zoo, piece by piece; after the last one an error, if it is not the file that the index means."""
    found, digest = 0, hashlib.sha256()
    try:
        for piece in source.pieces(file, size):
            found += len(piece)
            digest.update(piece)
            yield piece
    except FileNotFoundError:
        raise ZooError(f"{source} has lost {file}, which its index names") from None
    if found != size:
        raise ZooError(f"{source}/{file} has {found:,} bytes, and its index says {size:,}: it is not whole")
    if digest.hexdigest() != sha:
        raise ZooError(f"{source}/{file} is not the file that its index means: its sha256 differs")


def _sha_of(path: Path, size: int) -> str | None:
    """The sha256 of a file, if it has this size."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        if path.stat().st_size != size:
            return None
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


# ---- writing


def checked_name(name: str) -> str:
    """A name that an agent may have."""
    if not _is_path(name):
        raise ZooError(f"the name {name!r:.60} should be letters, digits and ._+-, in folders by /, as ppo/CartPole-v1")
    return name


def put_agent(folder: Path, name: str, checkpoint: bytes, card: str, facts: Mapping[str, Any]) -> ZooAgent:
    """Put an agent's files and its entry into a zoo, in place of those of the same name.

    ``facts`` are the fields of its entry beside those about the files.
    """
    name, text = checked_name(name), card.encode()
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder, patience=30.0):
        agents = read_zoo(LocalZoo(folder)) if regular_file(folder / INDEX) else {}
        file, beside = f"{name}{SUFFIX}", f"{name}{CARD}"
        files = {"file": file, "sha256": _sha(checkpoint), "bytes": len(checkpoint)}
        files |= {"card": beside, "card_sha256": _sha(text), "card_bytes": len(text)}
        entry = {**facts, **files}
        if not all(math.isfinite(entry[item]) for item in ("return_mean", "return_std")):
            raise ZooError(f"{name} has no return that is a number")
        agent = _agent(str(folder), name, entry)
        index = {known: one.entry() for known, one in sorted({**agents, name: agent}.items())}
        content = json.dumps({"format": FORMAT, "agents": index}, indent=1) + "\n"
        place = folder
        for part in name.split("/")[:-1]:
            place /= part
            if not real_folder(place):
                place.mkdir()
        for path in (folder / file, folder / beside):
            regular_file(path)  # a link to elsewhere is refused
        write_together({folder / file: [checkpoint], folder / beside: [text], folder / INDEX: [content.encode()]})
    return agent


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
