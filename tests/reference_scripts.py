"""Runs a reference script as a user would."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def check_reference_script(
    name: str, folder: Path, total_timesteps: int, max_episode_steps: int | None = None, **options: int
) -> None:
    short = [] if max_episode_steps is None else ["--set", f"env_kwargs.max_episode_steps={max_episode_steps}"]
    words = [
        "--total-timesteps",
        str(total_timesteps),
        "--output-dir",
        str(folder),
        "--seed",
        "4",
        "--eval-episodes",
        "1",
        *short,
        *(word for item in options.items() for word in ("--set", "algo_kwargs.{}={}".format(*item))),
    ]
    done = subprocess.run([sys.executable, str(EXAMPLES / name), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    values = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert Path(values["run_dir"]).parent == folder and "__seed4__" in values["run_dir"]
    assert Path(values["checkpoint_path"]).exists()
    assert "eval_return_mean" in values["metrics"]
