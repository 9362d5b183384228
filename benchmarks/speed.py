"""Speed beside the peers: every unit of work, ours and theirs in turn, several rounds in one run; ratios of medians.

    python benchmarks/speed.py [--rounds 3] [--seconds 12] [--only dqn,sac]     peers come from benchmarks/peers.sh

Work per processor second with one thread is the figure to compare on a shared machine. The wall-clock unit gives both cores
to everyone at their best setting. Results go to benchmarks/results/speed/, a file per unit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "speed"
PEERS = Path(os.environ.get("PEERS", HERE / ".venvs"))
UNITS = {"ppo_cartpole": "PPO CartPole, 8 envs x 128, 4 epochs x 4 minibatches, 64x64",
         "ppo_cheetah8": "PPO HalfCheetah-v5, 8 envs, 2048 a rollout, 10 epochs, minibatch 64",
         "dqn_cartpole": "DQN CartPole, 1 env, 64x64, batch 128, an update each step",
         "qrdqn_cartpole": "QR-DQN CartPole, 50 quantiles, otherwise as DQN",
         "iqn_cartpole": "IQN CartPole, 8 fractions (32 for actions), otherwise as DQN",
         "fqf_cartpole": "FQF CartPole, 32 fractions, otherwise as DQN",
         "sac_cheetah": "SAC HalfCheetah-v5, 256x256, batch 256, an update each step",
         "rlpd_update": "RLPD updates, 10 critics of 2x256, batch 256, 20 a step",
         "cql_update": "CQL updates, 2x256, batch 256, 3 x 10 actions",
         "ensemble_update": "gradient steps of 7 members of 4x200, batch 256 each",
         "ensemble_rollout": "imagined steps of 10,500 rows, each by one random elite of 4x200",
         "pets_plan": "PETS plans, 400 candidates x 20 steps x 5 iterations x 20 particles, 5 members of 4x200",
         "ppg_cartpole": "PPG without its auxiliary phase beside PPO, CartPole, 8 envs x 128, 4 epochs x 4 minibatches",
         "gail_cartpole": "GAIL CartPole, as PPO, 4 discriminator updates of 256 + 256 rows a rollout",
         "mbpo_update": "MBPO's policy updates beside SAC's own, 256x256, batch 256",
         "dict_ppo": "PPO from a Dict of three vectors beside one box, 8 envs x 128, 4 epochs x 4 minibatches",
         "dict_sac": "SAC from a Dict of three vectors beside one box, 256x256, batch 256, an update each step",
         "dict_picture_ppo": "PPO from a Dict of a picture and numbers beside one picture with them, 8 envs x 32, 4 epochs x 4 minibatches",
         "ensemble_wall": "gradient steps of the ensemble, wall time, both cores, each at its best setting",
         "sac_wall": "SAC HalfCheetah-v5, wall time, both cores, each at its best setting"}  # fmt: skip
ASKED = {("ppo_cartpole", "sb3"): 3, ("ppo_cheetah8", "sbx"): 1.5, ("dqn_cartpole", "sb3"): 4, ("sac_cheetah", "sb3"): 1.5,
         ("sac_cheetah", "sbx"): 1.1, ("sac_wall", "sbx"): 1.1, ("qrdqn_cartpole", "sb3"): 4, ("qrdqn_cartpole", "tianshou"): 4,
         ("iqn_cartpole", "tianshou"): 3, ("fqf_cartpole", "axiomrl"): 4, ("fqf_cartpole", "tianshou"): 3,
         ("rlpd_update", "plain"): 1.5, ("cql_update", "d3rlpy"): 1, ("ensemble_update", "mbrl"): 1.1,
         ("ensemble_rollout", "mbrl"): 1.5, ("ensemble_rollout", "axiomrl"): 7, ("pets_plan", "mbrl"): 1.4,
         ("mbpo_update", "sac"): 0.9, ("dict_ppo", "flat"): 0.9, ("dict_sac", "flat"): 0.9, ("dict_picture_ppo", "painted"): 0.9,
         ("ppg_cartpole", "ppo"): 0.85, ("gail_cartpole", "imitation"): 2,
         ("gail_cartpole", "axiomrl"): 2}  # fmt: skip
WHO = {
    "rlpd_update": ("plain",),
    "cql_update": ("d3rlpy",),
    "qrdqn_cartpole": ("sb3", "tianshou"),
    "iqn_cartpole": ("tianshou",),
    "fqf_cartpole": ("axiomrl", "tianshou"),
    "ensemble_update": ("mbrl", "axiomrl"),
    "ensemble_wall": ("mbrl",),
    "ensemble_rollout": ("mbrl", "axiomrl"),
    "pets_plan": ("mbrl", "axiomrl"),
    "mbpo_update": ("sac",),
    "ppg_cartpole": ("ppo",),
    "gail_cartpole": ("imitation", "axiomrl"),
    **dict.fromkeys(("dict_ppo", "dict_sac"), ("flat", "flattened")),
    "dict_picture_ppo": ("painted",),
}
SCRIPTS = {name: [f"{name}_peer.py"] for name in ("tianshou", "axiomrl", "imitation")}
ONE_SCRIPT = {  # no environment: one script for everyone
    **dict.fromkeys(("rlpd_update", "cql_update"), "updates.py"),
    **dict.fromkeys(("dict_ppo", "dict_sac", "dict_picture_ppo"), "parts.py"),
    **dict.fromkeys(("ensemble_update", "ensemble_rollout", "pets_plan", "mbpo_update"), "models.py"),
}
WALL = {"sac_wall": "sac_cheetah", "ensemble_wall": "ensemble_update"}  # by the clock, with one thread and with two
# contenders that run in this environment
OWN = ("ours", "plain", "sac", "ppo", "local", "flat", "flattened", "painted")


def measure(who: str, unit: str, threads: int, seconds: float) -> dict | None:
    """One run of one contender in a process of its own."""
    if unit in ONE_SCRIPT:
        return measure_script(who, ONE_SCRIPT[unit], unit, threads, seconds)
    if who in ("ours", "ppo"):
        words = ["ours.py", unit if who == "ours" else "ppo_alone"]
    else:
        words = [*SCRIPTS.get(who, ["peer.py", who]), unit]
    return timed(who, words, unit, threads, seconds)


def measure_script(who: str, script: str, unit: str, threads: int, seconds: float) -> dict | None:
    """One run of a script that is everyone's."""
    return timed(who, [script, unit, who], unit, threads, seconds)


def timed(who: str, words: list[str], unit: str, threads: int, seconds: float) -> dict | None:
    """What a script of ``units/`` reports, run with one contender's interpreter."""
    words = [sys.executable if who in OWN else str(PEERS / who / "bin" / "python"), *words]
    pinned = {name: str(threads) for name in ("THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    env = {**os.environ, **pinned, "OPENBLAS_NUM_THREADS": "1", "SECONDS": str(seconds), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(words, cwd=HERE / "units", env=env, capture_output=True, text=True, timeout=600)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        print(f"{unit} {who}: failed: {done.stderr.strip().splitlines()[-1:]}", flush=True)
        return None
    return lines[-1]


def contenders(unit: str, installed: list[str]) -> list[tuple[str, str, int]]:
    """(label, who, threads) for one unit."""
    everyone = ["ours", *(who for who in WHO.get(unit, ("sb3", "sbx")) if who in installed)]
    if unit not in WALL:
        return [(who, who, 1) for who in everyone]
    return [(f"{who} {threads}T", who, threads) for who in everyone for threads in (1, 2)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="times every contender runs")
    parser.add_argument("--seconds", type=float, default=12, help="measured after warm-up, each time")
    parser.add_argument("--only", default="", help="comma-separated beginnings of unit names")
    parser.add_argument("--no-record", action="store_true", help="print only")
    args = parser.parse_args()
    from rl_training.experiment.runs import provenance

    facts = provenance()
    facts.pop("command")
    peers = ("sb3", "sbx", "tianshou", "axiomrl", "d3rlpy", "mbrl", "imitation")
    installed = [*OWN[1:], *(name for name in peers if (PEERS / name / "bin" / "python").exists())]
    print(f"peers: {', '.join(installed) or 'none installed; see benchmarks/peers.sh'}")
    units = [unit for unit in UNITS if not args.only or any(unit.startswith(part) for part in args.only.split(","))]
    for unit in units:
        key = "per_second" if unit in WALL else "per_cpu_second"
        rates: dict[str, list[float]] = {}
        for _ in range(args.rounds):
            for label, who, threads in contenders(unit, installed):
                result = measure(who, WALL.get(unit, unit), threads, args.seconds)
                if result is not None:
                    rates.setdefault(label, []).append(float(f"{result[key]:.4g}"))
                    print(f"{unit:14} {label:8} {result[key]:10.4g}", flush=True)
        rows = compare(unit, rates)
        for row in rows:
            asked = f" (asked {row['asked']})" if row["asked"] else ""
            print(
                f"{UNITS[unit]}: {row['ours']:.4g} against {row['peer']} {row['theirs']:.4g}: {row['ratio']:.2f} x{asked}",
                flush=True,
            )
        if not args.no_record:
            RESULTS.mkdir(parents=True, exist_ok=True)
            content = {"unit": unit, "what": UNITS[unit], **facts, "seconds": args.seconds, "rows": rows, "raw": rates}
            (RESULTS / f"{unit}.json").write_text(json.dumps(content, indent=1) + "\n")


def compare(unit: str, rates: dict[str, list[float]]) -> list[dict]:
    """Ours against each peer: medians over rounds, at the best setting where there are several."""
    best: dict[str, float] = {}
    for label, values in rates.items():
        who = label.split()[0]
        best[who] = max(best.get(who, 0.0), statistics.median(values))
    return [
        {
            "ours": best["ours"],
            "peer": peer,
            "theirs": rate,
            "ratio": round(best["ours"] / rate, 2),
            "asked": ASKED.get((unit, peer)),
        }
        for peer, rate in best.items()
        if peer != "ours"
    ]


if __name__ == "__main__":
    main()
