"""The commit of the working directory, found without running anything that its repository may have set up.

Git obeys a repository's own config, which can name programs: a file-system monitor, filters, hooks, transports. So the
commit is read from the files, and git compares them with it by a config of our own: it gets the repository's objects
and index, and an empty folder in place of everything else.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from rl_training.base.files import read_regular, regular_file

__all__ = ["git_commit"]

SECONDS = 10.0  # for the comparison of all files
MOST_LINKS = 5  # from one reference to the next
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}").fullmatch
REFERENCE = re.compile(r"refs/(?!.*\.\.)[^\s\\:*?\[~^]+").fullmatch


class Repository(NamedTuple):
    """Where a repository lies: its files, its own folder, and the one that its worktrees share."""

    top: Path
    git: Path
    common: Path


def git_commit() -> dict[str, Any] | None:
    """The commit of the working directory, and whether files differ from it (None: unknown).

    None outside a repository.
    """
    try:
        found = _repository(Path.cwd())
        commit = _head(found) if found is not None else None
        if found is None or commit is None:
            return None
        return {"commit": commit, "modified": _modified(found, commit)}
    except (OSError, ValueError):
        return None


def _repository(start: Path) -> Repository | None:
    for folder in (start, *start.parents):
        git = folder / ".git"
        if git.is_dir():
            return Repository(folder, git, git)
        if git.exists():  # a file in a worktree or a submodule: it names the folder
            git = folder / _line(git).removeprefix("gitdir:").strip()
            common = git / "commondir"
            return Repository(folder, git, git / _line(common) if regular_file(common) else git)
    return None


def _line(path: Path) -> str:
    return read_regular(path, 4096).decode(errors="replace").strip()


def _head(repository: Repository) -> str | None:
    """Follow HEAD to a commit, by files of references or the packed ones."""
    text = _line(repository.git / "HEAD")
    for _ in range(MOST_LINKS):
        if COMMIT(text):
            return text
        name = text.removeprefix("ref:").strip()
        if not text.startswith("ref:") or REFERENCE(name) is None:
            return None
        loose = [folder / name for folder in (repository.git, repository.common)]
        there = next((path for path in loose if regular_file(path)), None)
        text = _line(there) if there is not None else _packed(repository.common / "packed-refs", name)
    return None


def _packed(path: Path, name: str) -> str:
    lines = read_regular(path).decode(errors="replace").splitlines() if regular_file(path) else []
    return next((line.split()[0] for line in lines if line.endswith(f" {name}") and line[0] not in "#^"), "")


def _modified(repository: Repository, commit: str) -> bool | None:
    """Whether a tracked file differs from the commit; None where git is missing or cannot tell."""
    index = repository.git / "index"
    if shutil.which("git") is None or not regular_file(index):
        return None
    with tempfile.TemporaryDirectory(prefix="rl-training-git-") as folder:
        own = Path(folder)
        for name in ("refs", "objects"):
            (own / name).mkdir()
        (own / "HEAD").write_text(f"{commit}\n")
        version, kind = (1, "[extensions]\nobjectFormat = sha256\n") if len(commit) == 64 else (0, "")
        (own / "config").write_text(f"[core]\nrepositoryFormatVersion = {version}\nbare = false\n{kind}")
        places = {"GIT_DIR": own, "GIT_WORK_TREE": repository.top, "GIT_INDEX_FILE": index}
        places |= {"GIT_OBJECT_DIRECTORY": repository.common / "objects"}
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        clean |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_ALLOW_PROTOCOL": "none", "GIT_TERMINAL_PROMPT": "0"}
        words = ["git", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={own / 'hooks'}", "status", "--porcelain"]
        try:
            done = subprocess.run(
                [*words, "--untracked-files=no", "--ignore-submodules=all"],
                capture_output=True, stdin=subprocess.DEVNULL, timeout=SECONDS, check=True, cwd=repository.top,
                env={**clean, **{name: str(path.absolute()) for name, path in places.items()}},
            )  # fmt: skip
        except (subprocess.SubprocessError, OSError):
            return None
    return bool(done.stdout.strip())
