"""Serving beside the field: ``rl-training serve`` and a plain FastAPI server of Stable-Baselines3's ``predict``, in turn.

    python benchmarks/serving.py [--rounds 5] [--seconds 8]     SB3's environment comes from benchmarks/peers.sh (PEERS)

The same JSON requests from the same client, 64 connections that each wait for their answer, networks of the same sizes, the same
uvicorn. Servers have one core to themselves and the client the other, where there are two. Besides requests a second and
milliseconds to the answer, the server's processor time per request counts, which other work on the machine disturbs least.
Results go to benchmarks/results/serving/, a file per unit, with the raw numbers of every round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "serving"
PEERS = Path(os.environ.get("PEERS", HERE / ".venvs"))
UNITS = {
    "ppo": ("PPO, 4 observations, 2 choices, 64x64", "CartPole-v1", 4, {"num_steps": 64, "minibatch_size": 64}),
    "sac": ("SAC, 17 observations, 6 actions, 256x256", "HalfCheetah-v5", 17, {"learning_starts": 50}),
}
CONTENDERS = ("ours", "sb3 async", "sb3 threads")
ASKED = 2.0  # times the requests a second, at no later 99th percentile
SIZES = {"ppo": [64, 64], "sac": [256, 256]}


def agent(unit: str, folder: Path) -> Path:
    """A run of ours, trained for as little as it takes to have a checkpoint."""
    from rl_training import TrainConfig
    from rl_training.experiment.registry import get_algorithm_spec

    _, env_id, _, options = UNITS[unit]
    config = TrainConfig(
        algo=unit, env_id=env_id, total_timesteps=128, output_dir=folder, eval_episodes=1, progress="off", loggers=(),
        algo_kwargs={**options, "hidden_sizes": SIZES[unit], "eval_interval": 0},
    )  # fmt: skip
    return get_algorithm_spec(unit).train(config, run_suffix=unit).run_dir


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def pinned(core: int) -> list[str]:
    return ["taskset", "-c", str(core)] if shutil.which("taskset") and (os.cpu_count() or 1) > 1 else []


@contextlib.contextmanager
def server(who: str, unit: str, run: Path) -> Iterator[tuple[int, int]]:
    """A server's port and process."""
    port = free_port()
    if who == "ours":
        words = [sys.executable, "-m", "rl_training", "serve", str(run), "--port", str(port)]
    else:
        python = str(PEERS / "sb3" / "bin" / "python")
        words = [python, str(HERE / "units" / "sb3_server.py"), unit, str(port), who.split()[1]]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen([*pinned(0), *words], env=env, stdout=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            if process.poll() is not None:
                raise SystemExit(f"{who}: the server did not start")
            time.sleep(0.1)
        yield port, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(who: str, unit: str, run: Path, requests: Path, seconds: float, connections: int) -> dict:
    """One round of one contender."""
    with server(who, unit, run) as (port, pid):
        before = processor_seconds(pid)
        words = [
            sys.executable,
            str(HERE / "units" / "load.py"),
            str(port),
            str(seconds),
            str(connections),
            str(requests),
        ]
        done = subprocess.run([*pinned(1), *words], capture_output=True, text=True, timeout=600)
        if done.returncode:
            raise SystemExit(f"{who}: {done.stderr.strip()[-300:]}")
        found = json.loads(done.stdout)
        found["cpu_us"] = 1e6 * (processor_seconds(pid) - before) / found["asked"]
    return {name: float(f"{found[name]:.4g}") for name in ("per_second", "p50", "p99", "cpu_us")}


def middle(rounds: list[dict]) -> dict[str, float]:
    return {name: float(f"{statistics.median(row[name] for row in rounds):.4g}") for name in rounds[0]}


def compare(unit: str, raw: dict[str, list[dict]]) -> dict:
    """Medians over the rounds, and ours against the better of theirs."""
    medians = {who: middle(rounds) for who, rounds in raw.items()}
    ours = medians["ours"]
    best = max((who for who in medians if who != "ours"), key=lambda who: medians[who]["per_second"])
    theirs = medians[best]
    paired = [a["per_second"] / b["per_second"] for a, b in zip(raw["ours"], raw[best])]
    return {
        "medians": medians,
        "against": best,
        "ratio": round(ours["per_second"] / theirs["per_second"], 2),
        "ratio_each_round": [round(ratio, 2) for ratio in paired],
        "cpu_ratio": round(theirs["cpu_us"] / ours["cpu_us"], 2),
        "p99_ours": ours["p99"],
        "p99_theirs": min(row["p99"] for who, row in medians.items() if who != "ours"),
        "asked": ASKED,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="times every contender runs")
    parser.add_argument("--seconds", type=float, default=8, help="of load, each time; the first fifth does not count")
    parser.add_argument("--connections", type=int, default=64, help="that each wait for their answer")
    parser.add_argument("--only", default=",".join(UNITS), help="comma-separated units")
    parser.add_argument("--no-record", action="store_true", help="print only")
    args = parser.parse_args()
    from rl_training.experiment.runs import provenance

    facts = provenance()
    facts.pop("command")
    packages = ("fastapi", "uvicorn", "uvloop", "httptools", "orjson")
    ours = [f"{name}=={metadata.version(name)}" for name in packages]
    listed = subprocess.run(
        [PEERS / "sb3" / "bin" / "python", "-m", "pip", "freeze"], capture_output=True, text=True
    ).stdout
    wanted = ("stable", "fastapi", "uvicorn", "uvloop", "httptools", "torch=", "numpy", "pydantic=")
    theirs = [line for line in listed.splitlines() if line.startswith(wanted)]
    for unit in args.only.split(","):
        what, _, size, _ = UNITS[unit]
        raw: dict[str, list[dict]] = {who: [] for who in CONTENDERS}
        with tempfile.TemporaryDirectory() as folder:
            run, requests = agent(unit, Path(folder)), Path(folder) / "requests"
            rows = np.random.default_rng(0).normal(size=(256, size)).astype(np.float32).tolist()
            requests.write_text("\n".join(json.dumps({"obs": row}) for row in rows))
            for number in range(args.rounds):
                for who in CONTENDERS:
                    raw[who].append(measure(who, unit, run, requests, args.seconds, args.connections))
                    print(f"{unit} round {number + 1} {who:12} {raw[who][-1]}", flush=True)
        found = compare(unit, raw)
        print(
            f"{what}: {found['ratio']:.2f} x {found['against']} in requests a second (asked {ASKED}), {found['cpu_ratio']:.2f} x in "
            f"processor time, 99th percentile {found['p99_ours']:.3g} ms against {found['p99_theirs']:.3g} ms",
            flush=True,
        )
        if not args.no_record:
            RESULTS.mkdir(parents=True, exist_ok=True)
            content = {"unit": unit, "what": what, **facts, "ours": ours, "theirs": theirs, "seconds": args.seconds}
            content |= {"connections": args.connections, **found, "raw": raw}
            (RESULTS / f"{unit}.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
