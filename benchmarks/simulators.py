"""Slow simulators: eight environments in worker processes beside the same ones in one process, and in SB3's SubprocVecEnv.

    bash benchmarks/peers.sh sb3                                        once
    python benchmarks/simulators.py [--rounds 5] [--seconds 8] [--no-record]

Every contender steps in turn, several rounds in one run; environment steps per second of the clock, so the machine must be
quiet. Results go to benchmarks/results/speed/, a file per unit, and make docs writes them into the README.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics

from speed import PEERS, RESULTS, measure_script

UNITS = {
    "simulators_busy": "8 environments that compute 5 ms a step, wall time: worker processes beside one process and SubprocVecEnv",
    "simulators_waiting": "8 environments that wait 5 ms a step, wall time, 8 workers: likewise",
    "simulators_cartpole": "8 CartPoles, wall time: likewise; what sending costs where simulators are fast",
}
ASKED = {
    ("simulators_busy", "local"): 1.7,
    ("simulators_waiting", "local"): 5,
    **{(unit, "sb3"): 1.0 for unit in UNITS},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="times every contender runs")
    parser.add_argument("--seconds", type=float, default=8, help="measured after warm-up, each time")
    parser.add_argument("--no-record", action="store_true", help="print only")
    args = parser.parse_args()
    from rl_training.experiment.runs import provenance

    facts = provenance()
    facts.pop("command")
    everyone = ["ours", "local", *(["sb3"] if (PEERS / "sb3" / "bin" / "python").exists() else [])]
    print(f"contenders: {', '.join(everyone)}; {os.cpu_count()} processors, load {os.getloadavg()[0]:.2f}")
    for unit, what in UNITS.items():
        rates: dict[str, list[float]] = {}
        for _ in range(args.rounds):
            for who in everyone:
                result = measure_script(who, "simulators.py", unit, 1, args.seconds)
                if result is not None:
                    rates.setdefault(who, []).append(float(f"{result['per_second']:.4g}"))
                    print(f"{unit:20} {who:6} {result['per_second']:10.4g}", flush=True)
        medians = {who: statistics.median(values) for who, values in rates.items()}
        rows = [
            {"ours": medians["ours"], "peer": who, "theirs": rate, "ratio": round(medians["ours"] / rate, 2),
             "asked": ASKED.get((unit, who))}
            for who, rate in medians.items() if who != "ours"
        ]  # fmt: skip
        for row in rows:
            asked = f" (asked {row['asked']})" if row["asked"] else ""
            print(f"{what}: {row['ours']:.4g} against {row['peer']} {row['theirs']:.4g}: {row['ratio']:.2f} x{asked}")
        if not args.no_record:
            RESULTS.mkdir(parents=True, exist_ok=True)
            content = {"unit": unit, "what": what, **facts, "seconds": args.seconds, "rows": rows, "raw": rates}
            (RESULTS / f"{unit}.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
