"""What the package makes of mutated files, configs, folders and environments: a class of attempts, each a function of a seed."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fuzzing import checkpoints, configs, datasets, folders
from fuzzing.damage import damaged
from fuzzing.environments import Misbehaving
from fuzzing.trials import CANARY, Outcome, command, planned
from rl_training.base.options import ConfigError
from rl_training.envs.checks import EnvironmentFailure
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec
from rl_training.experiment.runs import newest_checkpoint
from rl_training.runtime.saving import TrainingFailure
from toys import tiny_config

__all__ = ["FILES_MAY", "RUNS_MAY", "Attempts"]

FILES_MAY = ("accepted", "refused")  # what may come of a file: success, or one line and exit code 2
RUNS_MAY = (*FILES_MAY, "failed")  # and of training: also one line and exit code 1
AGENTS = ("ppo", "dqn", "sac", "mbpo", "rlpd", "gail", "pets")  # whose checkpoints are mutated: every kind of state
SEEDS = 1 << 32


class Attempts:
    """Attempts by kind; what is mutated is trained once, in ``folder``, by whoever asks first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: dict[str, Path] = {}
        self._swept: Path | None = None
        for algo in ALGORITHMS:  # import once, before the forks
            get_algorithm_spec(algo)

    def good_run(self, algo: str) -> Path:
        """A small run that ended well."""
        if algo not in self._runs:
            config = tiny_config(algo, self._folder / "good", total_timesteps=64, checkpoint_interval=40, compile=False)
            self._runs[algo] = get_algorithm_spec(algo).train(config, run_suffix="good").run_dir
        return self._runs[algo]

    def good_sweep(self) -> Path:
        """A sweep of two runs that ended well."""
        if self._swept is None:
            with self._place("sweep", keep=True) as place:
                outcome = self._sweep(place)
            if outcome.kind != "accepted":
                raise RuntimeError(f"the good sweep was not: {outcome}")
            self._swept = place
        return self._swept

    def prepare(self) -> None:
        """Make all that is mutated, so that every fork has it."""
        for algo in AGENTS:
            self.good_run(algo)
        self.good_sweep()

    @contextlib.contextmanager
    def _place(self, name: str, *, keep: bool = False) -> Iterator[Path]:
        """A folder of its own to work in, and removed afterwards."""
        place = self._folder / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        before = os.getcwd()
        os.chdir(place)
        try:
            yield place
        finally:
            os.chdir(before)
            if not keep:
                shutil.rmtree(place, ignore_errors=True)

    # ---- checkpoints

    def checkpoint(self, seed: int) -> Outcome:
        """Evaluate, ask or go on from a checkpoint: every second has a valid checksum, and some of those name code."""
        rng = random.Random(seed)
        algo = rng.choice(AGENTS)
        with self._place(f"checkpoint_{seed}") as place:
            run = place / "inside" / "run"
            shutil.copytree(self.good_run(algo), run)
            newest = newest_checkpoint(run)[0]
            for other in run.glob("checkpoints/*"):
                if other != newest:
                    other.unlink()
            words, data = _mutated_checkpoint(newest.read_bytes(), seed, rng)
            newest.write_bytes(data)
            os.chdir(place / "inside")
            how: list[Any] = rng.choice(
                [["eval", run, "--episodes", 1], ["predict", newest, "--obs", "[0, 0, 0, 0]"], RESUME, RESUME]
            )
            outcome = command(*(how if how is not RESUME else [*RESUME, run]))
            strange = sorted(path.name for path in place.iterdir() if path.name != "inside")
            return _with(_harm(outcome, strange and f"wrote {strange}"), f"{algo} {how[0]}: {words}")

    # ---- datasets

    def dataset(self, seed: int) -> Outcome:
        """Look into a dataset, or learn from it."""
        rng = random.Random(seed)
        with self._place(f"dataset_{seed}") as place:
            elsewhere = place / "elsewhere.hdf5"
            elsewhere.write_bytes(datasets.write_hdf5(datasets.good_columns()))
            kind = ("npz", "hdf5")[seed % 2]
            mutants = datasets.npz_mutants(seed) if kind == "npz" else datasets.hdf5_mutants(seed, outside=elsewhere)
            words, data = next(mutants)
            path = place / f"data.{kind}"
            path.write_bytes(data)
            looking = ["dataset", "info", path, *rng.choice([[], ["--env", "Pendulum-v1"], ["--json"]])]
            options = {"dataset_kind": kind, "dataset_path": path, "batch_size": 8, "hidden_sizes": "[8]"}
            learning = [
                "train",
                "--algo",
                rng.choice(["bc", "td3_bc"]),
                "--env",
                "Pendulum-v1",
                "--total-timesteps",
                4,
                "--eval-episodes",
                1,
            ]
            learning += [word for name, value in options.items() for word in ("--set", f"algo_kwargs.{name}={value}")]
            outcome = command(
                *(looking if rng.random() < 0.8 else [*learning, "--set", "compile=false", "--set", "progress=off"])
            )
            if outcome.kind == "failed" and " at step " in outcome.text:  # it was read, and is nothing to learn from
                outcome = Outcome("accepted", outcome.text)
            followed = outcome.kind == "accepted" and words.endswith((" external", " virtual", " raw"))
            return _with(_harm(outcome, followed and "a link out of the file was followed"), words)

    # ---- configs

    def config(self, seed: int) -> Outcome:
        """Read a config and print it as it will be used."""
        words, text = configs.mutant(seed)
        with self._place(f"config_{seed}") as place:
            (place / "config.yaml").write_text(text, encoding="utf-8", errors="surrogatepass")
            return _with(command("config", "--config", place / "config.yaml"), words)

    def trained_config(self, seed: int) -> Outcome:
        """Train a few steps with a config, if it is accepted."""
        words, text = configs.mutant(seed)
        with self._place(f"trained_{seed}") as place:
            (place / "config.yaml").write_text(
                configs.with_small_options(text), encoding="utf-8", errors="surrogatepass"
            )
            short = [
                "--total-timesteps",
                40,
                "--eval-episodes",
                1,
                "--output-dir",
                place / "runs",
                "--set",
                "compile=false",
            ]
            return _with(command("train", "--config", place / "config.yaml", *short), words)

    # ---- folders

    def run_folder(self, seed: int) -> Outcome:
        """Report, compare, evaluate or go on with a hostile run folder, beside good ones that may not suffer."""
        rng = random.Random(seed)
        with self._place(f"folder_{seed}") as place:
            yard = folders.Yard(place, self.good_run("dqn"))
            words = folders.mutate_run(yard, seed)
            page = place / "page.html"
            ways: list[list[Any]] = [
                ["report", yard.runs, "-o", page], ["leaderboard", yard.runs], ["compare", yard.runs / "good_0", yard.hostile],
                ["eval", yard.hostile, "--episodes", 1], [*RESUME, yard.hostile], ["collect", "--checkpoint", yard.hostile, "--from-replay", "--output", "a.npz"],
            ]  # fmt: skip
            way = ways[rng.choice([0, 0, 0, 0, 1, 2, 3, 4, 4, 5])]
            outcome = command(*way)
            harm = yard.changed() and f"changed outside: {yard.changed()}"
            if way[0] in ("report", "leaderboard") and outcome.kind != "accepted":
                harm = f"one run lost the {way[0]} of all: {outcome.text}"
            elif way[0] == "report":
                text = page.read_text(errors="replace") if page.exists() else ""
                harm = (
                    harm
                    or (folders.SECRET in text and "the report shows a file outside")
                    or ("good_1" not in text and "a good run is not in the report")
                )
            return _with(_harm(outcome, harm), f"{way[0]}: {words}")

    def sweep_folder(self, seed: int) -> Outcome:
        """Go on with a sweep whose files were spoiled."""
        with self._place(f"sweep_{seed}") as place:
            shutil.copytree(self.good_sweep(), place, dirs_exist_ok=True)
            words = folders.mutate_sweep(place / "runs" / "small", seed)
            return _with(self._sweep(place), words)

    def _sweep(self, place: Path) -> Outcome:
        """The command of a sweep of two runs, with workers in this process."""
        from rl_training.commands import experiments
        from rl_training.sweeps import sweep

        backend, pause = experiments._backend, sweep.PAUSE
        experiments._backend, sweep.PAUSE = lambda args: Inline(), 0.001
        try:
            small = [
                "--set",
                "compile=false",
                "--set",
                "algo_kwargs.num_steps=16",
                "--set",
                "algo_kwargs.minibatch_size=16",
            ]
            steps = ["--total-timesteps", 16, "--eval-episodes", 1, "--name", "small", "--output-dir", "runs"]
            outcome = command("sweep", "--algo", "ppo", "--env", "CartPole-v1", "--seeds", "0-1", *steps, *small)
        finally:
            experiments._backend, sweep.PAUSE = backend, pause
        told = outcome.kind == "unclear" and outcome.text.startswith("exit code 1") and "\\nfailed " in outcome.text
        return Outcome("failed", outcome.text) if told else outcome  # a line for each run that failed, in its table

    # ---- environments

    def environment(self, seed: int) -> Outcome:
        """Train in an environment that misbehaves."""
        algo = ("ppo", "dqn", "sac")[seed % 3]
        with self._place(f"environment_{seed}") as place:
            config = tiny_config(algo, place, total_timesteps=64, compile=False, num_envs=1 + seed % 2)
            how = Misbehaving(seed).how
            outcome = _raised(
                lambda: get_algorithm_spec(algo).train(config, env=lambda: Misbehaving(seed, box=algo == "sac"))
            )
            return _with(outcome, f"{algo}: {how}")


RESUME = ["resume", "--total-timesteps", 72, "--eval-episodes", 1]


class Inline:
    """A backend of a sweep that runs each job at once, in this process."""

    slots = 1

    def __init__(self) -> None:
        self._over: list[tuple[str, str]] = []

    def start(self, job: Any) -> None:
        from rl_training.sweeps.worker import run_job

        self._over.append((job.name, run_job(job)))

    def ended(self) -> list[tuple[str, str]]:
        over, self._over = self._over, []
        return over

    def stop(self, name: str) -> None:
        pass

    def close(self) -> None:
        pass


def _mutated_checkpoint(good: bytes, seed: int, rng: random.Random) -> tuple[str, bytes]:
    if seed % 2:
        return next(damaged(good, seed))
    if rng.random() < 0.15:
        contents = checkpoints.Contents(good)
        places = [place for place in contents.places() if isinstance(contents.at(place), str)]
        place = rng.choice([("config", "env_id"), *places])
        contents.put(place, rng.choice([f"{CANARY}:Canary-v0", CANARY, f"{CANARY}:Canary"]))
        return f"{'.'.join(map(str, place))} names a module", contents.bytes()
    return next(checkpoints.mutants(good, seed))


def _raised(call: Callable[[], Any]) -> Outcome:
    """The outcome of a call of the package from Python: its own errors, in one line, are failures or refusals."""
    try:
        call()
    except (TrainingFailure, EnvironmentFailure, ConfigError, ValueError) as error:
        kind = "failed" if isinstance(error, RuntimeError) else "refused"
        return Outcome(kind if "\n" not in str(error) else "unclear", str(error), planned(error))
    return Outcome("accepted")


def _harm(outcome: Outcome, harm: Any) -> Outcome:
    return Outcome("harm", str(harm)) if harm and not outcome.bad else outcome


def _with(outcome: Outcome, words: str) -> Outcome:
    """The outcome with what had been done before it."""
    return Outcome(outcome.kind, f"{outcome.text} [{words}]", outcome.planned)
