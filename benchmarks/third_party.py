"""Environments of other packages: installs each group into a virtual environment of its own, and tries everything with them.

    python benchmarks/third_party.py [--only robots] [--no-record]      or: make test-envs

A group is a file in tests/third_party/requirements, with versions that work together. Its environment, .venv-envs/GROUP, sees
what the Python that runs this has installed (torch among it) wherever the group brings no version of its own. Results go to
benchmarks/results/third_party/environments.json, and make docs writes them into docs/environments.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests" / "third_party"
VENVS = ROOT / ".venv-envs"
RECORD = ROOT / "benchmarks" / "results" / "third_party" / "environments.json"


def main() -> int:
    groups = {path.stem: path for path in sorted((TESTS / "requirements").glob("*.txt"))}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted(groups), default=sorted(groups), metavar="GROUP")
    parser.add_argument("--no-record", action="store_true", help="print only")
    args = parser.parse_args()
    failed, rows = [], []
    with tempfile.TemporaryDirectory() as folder:
        for group in args.only:
            python = installed(group, groups[group])
            if python is None or not tried(group, python, Path(folder)):
                failed.append(group)
        rows = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    if not args.no_record:
        record(rows, args.only)
    print(f"{len(rows)} runs; {f'failed: {failed}' if failed else 'every group passed'}")
    return 1 if failed else 0


def installed(group: str, requirements: Path) -> Path | None:
    """The Python of a group's environment, made or brought up to date; None where its packages cannot be installed."""
    venv = VENVS / group
    python, stamp = venv / "bin" / "python", venv / ".installed"
    if stamp.exists() and stamp.read_text() == requirements.read_text():
        return python
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    purelib = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    )
    shared = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"  # after what the group brings itself
    (Path(purelib.stdout.strip()) / "shared.pth").write_text(shared)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(requirements)]
    if subprocess.run(pip).returncode:
        print(f"{group}: its packages cannot be installed")
        return None
    stamp.write_text(requirements.read_text())
    return python


def tried(group: str, python: Path, folder: Path) -> bool:
    """Run a group's tests, which leave a record each in the folder."""
    words = [python, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", str(TESTS), "-k", f"{group} or own"]
    env = {**os.environ, "THIRD_PARTY_RECORD": str(folder), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    print(f"== {group}", flush=True)
    return subprocess.run(words, cwd=ROOT, env=env).returncode == 0


def record(rows: list[dict], groups: list[str]) -> None:
    """Write the rows of these groups in place of older ones, and where they come from."""
    from rl_training.experiment.runs import provenance

    kept = json.loads(RECORD.read_text())["rows"] if RECORD.exists() else []
    facts = provenance()
    facts.pop("command")
    everything = sorted(
        [*(row for row in kept if row["venv"] not in groups), *rows],
        key=lambda row: (row["package"].lower(), row["env_id"], row["algo"]),
    )
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps({**facts, "rows": everything}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
