"""The evidence campaign: a queue of training runs (benchmarks/campaign.yaml), worked through in the background.

    python benchmarks/campaign.py start FOLDER [--workers 1]    begin, or go on after any interruption
    python benchmarks/campaign.py status FOLDER                 what is done, running and left, with measured hours
    python benchmarks/campaign.py pause FOLDER                  hold the workers still, e.g. to measure speed; `continue` lets them go on
    python benchmarks/campaign.py stop FOLDER                   let each worker save its run and end
    python benchmarks/campaign.py collect FOLDER                copy the records to benchmarks/results/campaign

FOLDER lies outside the work tree. It holds a checkout of the commit that the campaign began with and a virtual environment of its
own, so that work on the tree cannot disturb it, every run, and the records, which name that commit. Runs resume exactly. A row may
name a group of tests/third_party/requirements: its runs are made in that group's environment, as third_party.py makes it. A row may
name a dataset of datasets.py (`data`): one worker makes it first, in the checkout's data folder, where its runs read it; the others go on
with rows that do not need it. Where a dataset is made of the agents of another row, its rows wait until those are finished.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
EXTRAS = "box2d,mujoco,atari,offline"
FIELDS = {"name", "preset", "algo", "env_id", "seeds", "hours", "set", "asked", "figure", "group", "data"}
SAME = (
    "algo",
    "env_id",
    "total_timesteps",
    "num_envs",
    "algo_kwargs",
    "env_kwargs",
)  # what makes two runs of a seed one
PATIENCE = 60.0  # seconds between looks at the queue, while other workers make what the rest of it needs


class Job(NamedTuple):
    """One run of a row."""

    row: dict[str, Any]
    seed: int

    @property
    def folder(self) -> Path:
        return Path("runs", self.row["name"].replace("/", "_"), str(self.seed))


def queue(path: Path) -> list[Job]:
    """Every run, in order: all seeds of a row before the next row."""
    from ruamel.yaml import YAML

    rows = YAML(typ="safe").load(path.read_text())["rows"]
    for row in rows:
        unknown = set(row) - FIELDS
        if unknown or ("preset" in row) == ("algo" in row):
            raise SystemExit(f"{row.get('name')}: {sorted(unknown) or 'give a preset, or algo and env_id'}")
        if "data" in row and "group" in row:
            raise SystemExit(f"{row['name']}: datasets are made in the campaign's own environment, without a group")
    return [Job(row, seed) for row in rows for seed in row["seeds"]]


# ---- what runs in the campaign's own checkout


def work(folder: Path) -> None:
    """Train what is left, run by run, until nothing is or a signal comes."""
    while True:
        found = set()
        for job in queue(folder / "queue.yaml"):
            found.add(outcome := attempt(folder, job))
            if outcome == "made":
                break
        else:
            if not {"held", "waits"} <= found:
                return
            time.sleep(PATIENCE)  # what another worker is at makes something possible


def attempt(folder: Path, job: Job) -> str:
    """Make a job's run (``made``), unless it is ``finished``, another worker is at it (``held``), or its data ``waits``."""
    from filelock import FileLock, Timeout

    from learning import train_one

    place = folder / job.folder
    place.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(place / ".worker").acquire(timeout=0):
            if finished(folder, job):
                return "finished"
            if lacking(folder, job.row):
                return "waits"
            become(folder, job.row.get("group"))
            if not ready_data(folder, job.row):
                return "waits"
            print(f"{time.strftime('%F %T')} {job.row['name']} seed {job.seed}", flush=True)
            result = train_one(config_of(job), place)  # raises if a signal stopped the run
            result = with_data(result, data_facts(folder, job.row))
            (place / "result.json").write_text(json.dumps(result, indent=1) + "\n")
            write_record(folder, job.row)
            return "made"
    except Timeout:
        return "held"


def finished(folder: Path, job: Job) -> dict[str, Any] | None:
    """A job's result; None while there is none, or only one from a file that differs from the one that lies here."""
    path, facts = folder / job.folder / "result.json", data_facts(folder, job.row)
    result: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    if result and facts and result["data"]["sha256"] != facts["sha256"]:
        return None
    return result


# ---- what rows learn from


def data_facts(folder: Path, row: dict[str, Any]) -> dict[str, Any] | None:
    """What is noted of a row's dataset; None if it needs none, or has not been made."""
    if "data" not in row:
        return None
    from datasets import known_facts

    return known_facts(folder / "checkout" / "data", row["data"])


def makers(row: dict[str, Any]) -> str | None:
    """The row whose agents a row's dataset is made of, if there is one."""
    if "data" not in row:
        return None
    from datasets import DEMOS

    return DEMOS.get(row["data"])


def lacking(folder: Path, row: dict[str, Any]) -> str | None:
    """Why a row's dataset can not be made now; None if it can, or is there, or none is needed."""
    if "data" not in row or data_facts(folder, row):
        return None
    name, source = row["data"], makers(row)
    failed = folder / f"data_{name}.failed"
    if failed.exists():
        return f"{name} cannot be made: {failed.read_text()}"
    theirs = [job for job in queue(folder / "queue.yaml") if job.row["name"] == source]
    if source is not None and not (theirs and all(finished(folder, job) for job in theirs)):
        return f"{name} needs the agents of {source}"
    return None


def ready_data(folder: Path, row: dict[str, Any]) -> bool:
    """Make a row's dataset, unless it is there; False if another worker is making it, or if it can not be made."""
    if "data" not in row or data_facts(folder, row):
        return True
    from filelock import FileLock, Timeout

    from datasets import CannotBeMade, make_dataset

    name = row["data"]
    with contextlib.suppress(Timeout), FileLock(folder / f".data_{name}").acquire(timeout=0):
        print(f"{time.strftime('%F %T')} {name}", flush=True)
        try:  # raises another error if a signal stopped the making, which goes on with what lies in ``keep``
            make_dataset(name, folder / "checkout" / "data", keep=folder / "runs" / f"data_{name}", campaign=folder)
        except CannotBeMade as error:
            (folder / f"data_{name}.failed").write_text(str(error))
            print(f"{name} cannot be made: {error}", flush=True)
    return data_facts(folder, row) is not None


OF_DATA = (
    "name", "sha256", "transitions", "episodes", "return_mean", "score_mean", "random_return", "expert_return",
    "references",
)  # fmt: skip


def with_data(result: dict[str, Any], facts: dict[str, Any] | None) -> dict[str, Any]:
    """A result, with its normalised score (0: random, 100: the expert, of the file) and what it learned from."""
    if facts is None:
        return result
    low, high = facts["random_return"], facts["expert_return"]
    score = 100 * (result["return_mean"] - low) / (high - low)
    return {**result, "score": score, "data": {name: facts[name] for name in OF_DATA}}


def become(folder: Path, group: str | None) -> None:
    """Go on in a group's environment (None: the campaign's own), unless this is it already.

    It is the same process still, with its id, its niceness and its session, so that signals reach it as before. It has let go of
    its locks, and looks through the queue again.
    """
    import third_party

    here = Path(sys.prefix)
    now = here.name if here.parent == third_party.VENVS else None
    if now == group:
        return
    python: Path | None = folder / "venv" / "bin" / "python"
    if now is None and group is not None:  # a group's environment can only be made from the campaign's own
        python = ready(folder, group)
        if python is None:
            raise RuntimeError(f"{group}: its packages cannot be installed")
    sys.stdout.flush()
    os.execv(str(python), [str(python), str(Path(__file__).resolve()), "work", str(folder)])


def ready(folder: Path, group: str) -> Path | None:
    """The Python of a group, whose packages one worker installs."""
    from filelock import FileLock

    from third_party import TESTS, installed

    with FileLock(folder / f".{group}"):
        return installed(group, TESTS / "requirements" / f"{group}.txt")


def come_last() -> None:
    """Leave the processors to whatever else the machine does.

    Linux divides time between sessions first, each with a niceness of its own, and only then between a session's processes.
    """
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("19")


def config_of(job: Job) -> Any:
    from rl_training.experiment.config import TrainConfig
    from rl_training.experiment.yaml_config import apply_overrides, read_config

    changes = {**job.row.get("set", {}), "seed": job.seed, "threads": 1}
    if "preset" in job.row:
        return read_config(f"configs/{job.row['preset']}.yaml", changes)
    return TrainConfig(**apply_overrides({"algo": job.row["algo"], "env_id": job.row["env_id"]}, changes))


def write_record(folder: Path, row: dict[str, Any]) -> None:
    """The row's record from the runs that are done; a row that lacks seeds says so."""
    from filelock import FileLock

    from learning import EPISODES, facts_of_the_machine, record

    jobs = [Job(row, seed) for seed in row["seeds"]]
    with FileLock(folder / ".records"):
        runs = [run for job in jobs if (run := finished(folder, job))]
        learned: dict[str, Any] = {}
        if "data" in row:  # of all runs the same
            learned = {"data": runs[0]["data"], "updates": runs[0]["gradient_steps"]}
            runs = [{**run, "data": run["data"]["sha256"]} for run in runs]
        facts = {"threshold": row.get("asked"), "at_most": None, "episodes": EPISODES, "seeds_asked": row["seeds"]}
        judged = {"judged": "evaluation of the last checkpoint", "figure": row.get("figure", "return_mean")}
        machine = facts_of_the_machine()
        if group := row.get("group"):
            machine["group"], machine["versions"] = group, machine["versions"] | versions_of(group)
        record(folder / "records", row["name"], config_of(jobs[0]), runs, **facts, **judged, **learned, **machine)
        (folder / "status.md").write_text(status(folder))


def versions_of(group: str) -> dict[str, str]:
    """The installed versions of a group's packages."""
    from third_party import TESTS

    lines = (TESTS / "requirements" / f"{group}.txt").read_text().splitlines()
    names = [line.partition("==")[0] for line in lines if "==" in line and not line.startswith("#")]
    return {name: metadata.version(name) for name in names}


# ---- what people call


def start(folder: Path, workers: int) -> None:
    folder = folder.resolve()  # the workers are started in the checkout
    folder.mkdir(parents=True, exist_ok=True)
    checkout, python = folder / "checkout", folder / "venv" / "bin" / "python"
    if not checkout.exists():
        subprocess.run(["git", "clone", "--quiet", str(HERE.parent), str(checkout)], check=True)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        pins = ["--constraint", str(checkout / "constraints.txt")]
        subprocess.run([str(python), "-m", "pip", "install", "-qq", *pins, "-e", f"{checkout}[{EXTRAS}]"], check=True)
    refuse_unknown_fields(checkout, HERE / "campaign.yaml")
    shutil.copy(HERE / "campaign.yaml", folder / "queue.yaml")  # rows may be added while it runs
    for note in folder.glob("data_*.failed"):  # tried again
        note.unlink()
    recall(folder, HERE / "results" / "campaign")
    going = len(list(alive(folder)))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    for _ in range(going, workers):
        with open(folder / "log.txt", "a") as log:
            command = [str(python), str(checkout / "benchmarks" / "campaign.py"), "work", str(folder)]
            process = subprocess.Popen(
                command,
                cwd=checkout, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment,
                start_new_session=True,
            )  # fmt: skip
        (folder / f"worker-{process.pid}.pid").write_text(str(process.pid))
    print(f"{max(workers, going)} at work; python benchmarks/campaign.py status {folder}")


def refuse_unknown_fields(checkout: Path, rows: Path) -> None:
    """Refuse rows with fields that the checkout's commit does not know: workers that are under way would end at the sight of them."""
    program = checkout / "benchmarks" / "campaign.py"
    known = program.read_text() if program.exists() else None
    used = {field for job in queue(rows) for field in job.row}
    if known is not None and (unknown := sorted(field for field in used if f'"{field}"' not in known)):
        raise SystemExit(
            f"{checkout} is of a commit that does not know the fields {', '.join(unknown)} of {rows.name}: stop the workers, "
            f"bring it up to date (git -C {checkout} pull), and start again"
        )


def recall(folder: Path, records: Path) -> None:
    """Take over the runs of records that were collected before, by another folder, so that they are not made again.

    Those whose agents a dataset is still to be made of are made again: a record holds no agents.
    """
    left = [job for job in queue(folder / "queue.yaml") if not (folder / job.folder / "result.json").exists()]
    found = [(job, recorded(job, records)) for job in left]
    needed = {makers(job.row) for job, run in found if run is None}
    for job, run in found:
        if run is not None and job.row["name"] not in needed:
            (folder / job.folder).mkdir(parents=True, exist_ok=True)
            (folder / job.folder / "result.json").write_text(json.dumps(run, indent=1) + "\n")


def recorded(job: Job, records: Path) -> dict[str, Any] | None:
    """A job's run in the collected records, if its options and its data are those of the queue."""
    path, name = records / f"{job.row['name'].replace('/', '_')}.json", job.row.get("data")
    if not path.exists():
        return None
    record, config = json.loads(path.read_text()), config_of(job).plain()
    run: dict[str, Any] | None = next((run for run in record["runs"] if run["seed"] == job.seed), None)
    data = record.get("data", {})
    same = all(record["config"][field] == config[field] for field in SAME) and data.get("name") == name
    if name is not None and (newest := records.parent / "datasets" / f"{name}.json").exists():
        same = same and json.loads(newest.read_text())["sha256"] == data.get("sha256")
    if run is None or not same:
        return None
    return {**run, "data": data} if data else run


def alive(folder: Path) -> Iterator[int]:
    """Process ids of the workers; notes of those that have ended are removed."""
    for note in folder.glob("worker-*.pid"):
        pid = int(note.read_text())
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            command = b""
        if b"campaign.py" in command:
            yield pid
        else:
            note.unlink(missing_ok=True)


def send(folder: Path, number: signal.Signals) -> None:
    for pid in alive(folder):
        os.kill(pid, number)


def status(folder: Path) -> str:
    """A table of the rows: seeds done, results so far, hours spent and hours estimated for what is left; and one of datasets."""
    lines = ["| row | seeds done | figure of each | hours spent | hours left |", "|---|---|---|---|---|"]
    spent_in_all = left_in_all = 0.0
    rows = {job.row["name"]: job.row for job in queue(folder / "queue.yaml")}
    for name, row in rows.items():
        jobs = [Job(row, seed) for seed in row["seeds"]]
        places = [folder / job.folder for job in jobs]
        done = [result for job in jobs if (result := finished(folder, job))]
        spent = sum(json.loads(p.read_text())[1] for place in places if (p := place / "spent.json").exists()) / 3600
        each = spent / len(done) if done else row["hours"] / len(places)
        left = each * (len(places) - len(done))
        figures = ", ".join(f"{run[row.get('figure', 'return_mean')]:.4g}" for run in done)
        running = sum((p / "spent.json").exists() or any(p.glob("*/config.yaml")) for p in places) - len(done)
        begun = f" (+{running} begun)" if running > 0 else ""
        why = lacking(folder, row) if len(done) < len(jobs) else None
        begun += f" ({why})" if why else ""
        lines.append(f"| {name} | {len(done)}/{len(places)}{begun} | {figures} | {spent:.2f} | {left:.2f} |")
        spent_in_all, left_in_all = spent_in_all + spent, left_in_all + left
    commit = subprocess.run(
        ["git", "-C", str(folder / "checkout"), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    head = f"Commit {commit}, {len(list(alive(folder)))} workers, {spent_in_all:.1f} core-hours spent, about {left_in_all:.1f} left.\n\n"
    return head + "\n".join(lines) + "\n" + status_of_data(folder, rows)


def status_of_data(folder: Path, rows: dict[str, dict[str, Any]]) -> str:
    """A table of the datasets that rows name: what they hold, or what keeps them from being made."""
    needing = {row["data"]: row for row in rows.values() if "data" in row}
    lines = ["", "| data | transitions | episodes | return, mean | normalised | sha256 |", "|---|---|---|---|---|---|"]
    for name, row in needing.items():
        if facts := data_facts(folder, row):
            score = "" if facts["score_mean"] is None else f"{facts['score_mean']:.1f}"
            held = f"{facts['transitions']:,} | {facts['episodes']} | {facts['return_mean']:.1f} | {score}"
            lines.append(f"| {name} | {held} | {facts['sha256'][:12]} |")
        else:
            begun = "begun" if (folder / "runs" / f"data_{name}").exists() else "not yet"
            lines.append(f"| {name} | {lacking(folder, row) or begun} | | | | |")
    return "\n".join(lines) + "\n" if needing else ""


def collect(folder: Path) -> None:
    """Copy the records; what is computed from their runs is what this checkout computes, which may be newer."""
    from learning import summarise

    target = HERE / "results" / "campaign"
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted((folder / "records").glob("*.json")):
        record = json.loads(path.read_text())
        record |= summarise([run[record.get("figure", "return_mean")] for run in record["runs"]])
        (target / path.name).write_text(json.dumps(record, indent=1) + "\n")
        print(target / path.name)
    for path in sorted((folder / "checkout" / "data").glob("*.json")):
        target = HERE / "results" / "datasets"
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
        print(target / path.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("start", "status", "pause", "continue", "stop", "collect", "work"))
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--workers", type=int, default=1, help="with start: how many runs at a time, on one thread each"
    )
    args = parser.parse_args()
    if args.command == "start":
        start(args.folder, args.workers)
    elif args.command == "work":
        come_last()
        work(args.folder)
    elif args.command == "collect":
        collect(args.folder)
    elif args.command == "status":
        print(status(args.folder), end="")
    else:
        kinds = {"pause": signal.SIGSTOP, "continue": signal.SIGCONT, "stop": signal.SIGTERM}
        send(args.folder, kinds[args.command])


if __name__ == "__main__":
    main()
