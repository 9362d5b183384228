"""One trial by hand: ``python -m fuzzing KIND SEED ...`` prints what came of each seed."""

import argparse
import tempfile
from pathlib import Path

from fuzzing.attempts import Attempts
from fuzzing.trials import trials

KINDS = ("checkpoint", "dataset", "config", "trained_config", "run_folder", "sweep_folder", "environment")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzzing", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("seeds", nargs="+", type=int)
    parser.add_argument("--seconds", type=float, default=60.0, help="longer is a hang")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        attempts = Attempts(Path(folder))
        if args.kind in ("checkpoint", "run_folder", "sweep_folder"):
            attempts.prepare()
        for seed, outcome in trials(getattr(attempts, args.kind), args.seeds, seconds=args.seconds, batch=1):
            print(f"{args.kind} {seed}: {outcome.kind}{'' if outcome.planned else ' (by a library)'}: {outcome.text}")


if __name__ == "__main__":
    main()
