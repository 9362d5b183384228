"""Every learner on a device that is not a CPU: how far its results are from the CPU's, and what crosses to it and back.

    python benchmarks/device.py                  on the pretend device of the tests; recorded in benchmarks/results/device
    python benchmarks/device.py --device cuda    on a real one, whose random numbers are its own: every case must run

The cases are those of tests/other_device.py, each group in a process of its own; docs/gpu.md shows the record.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "device" / "pretend.json"
PRETEND = "pretend"


def cases(group: str, device: str) -> list[dict]:
    """The records of a group; those after a case that failed are missing, and its error is printed."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, str(ROOT / "tests" / "other_device.py"), group, folder, "", device]
        done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> int:
    sys.path.insert(0, str(ROOT / "tests"))
    from other_device import GROUPS
    from rl_training.experiment.runs import provenance

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default=PRETEND, help="pretend, cpu, cuda or cuda:N")
    parser.add_argument("--group", choices=tuple(GROUPS), help="only these cases, printed and not recorded")
    args = parser.parse_args()
    facts = {name: fact for name, fact in provenance().items() if name != "command"}
    groups = [args.group] if args.group else list(GROUPS)
    rows = []
    for group in groups:
        for record in cases(group, args.device):
            rows.append(record)
            print(
                record["case"], {name: record[name] for name in ("off", "act", "update") if name in record}, flush=True
            )
    expected = sum(len(GROUPS[group]) for group in groups)
    print(f"{len(rows)} of {expected} cases ran on {args.device}")
    if args.device == PRETEND and args.group is None and len(rows) == expected:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps({**facts, "cases": rows}, indent=1) + "\n")
    return 0 if len(rows) == expected else 1


if __name__ == "__main__":
    sys.exit(main())
