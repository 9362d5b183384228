"""Runs a reference script as a user would."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def check_reference_script(
    name: str, folder: Path, total_timesteps: int, changes: dict[str, int] | None = None, **options: int
) -> None:
    """``options`` are the algorithm's; ``changes`` are of anything in the config, by its path."""
    settings = {**(changes or {}), **{f"algo_kwargs.{name}": value for name, value in options.items()}}
    words = [
        "--total-timesteps",
        str(total_timesteps),
        "--output-dir",
        str(folder),
        "--seed",
        "4",
        "--eval-episodes",
        "1",
        *(word for path, value in settings.items() for word in ("--set", f"{path}={value}")),
    ]
    done = subprocess.run([sys.executable, str(EXAMPLES / name), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    values = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert Path(values["run_dir"]).parent == folder and "__seed4__" in values["run_dir"]
    assert Path(values["checkpoint_path"]).exists()
    assert "eval_return_mean" in values["metrics"]
