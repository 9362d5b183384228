"""What is made of a trained agent: video, export."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from rl_training.commands.flags import count


def add(command: Callable) -> None:
    """Add the commands of this module."""
    video = command("video", _video, "record episodes of a trained agent as mp4 or gif")
    video.add_argument("--checkpoint", required=True, metavar="PATH", help="a run directory or a checkpoint")
    video.add_argument("-o", "--output", required=True, metavar="FILE", help="what to write: a .mp4 or a .gif")
    video.add_argument("--episodes", type=count, default=1, metavar="N", help="how many episodes (default: 1)")
    video.add_argument("--seed", type=int, metavar="N", help="seed of the episodes (default: the run's, as evaluated)")
    video.add_argument("--max-steps", type=count, metavar="N", help="cut episodes after so many steps")
    video.add_argument("--fps", type=float, metavar="N", help="frames a second (default: the environment's own)")
    video.add_argument("--stochastic", action="store_true", help="draw actions instead of taking the best ones")
    video.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")

    export = command("export", _export, "write a trained policy as a file that runs without this package")
    export.add_argument("--checkpoint", required=True, metavar="PATH", help="a run directory or a checkpoint")
    export.add_argument("--format", choices=("onnx", "torch"), help="default: by the file's ending")
    export.add_argument("-o", "--output", metavar="FILE", help="default: policy.onnx or policy.pt2, here")


def _video(args: argparse.Namespace) -> None:
    from rl_training.experiment.logging import figure, spread
    from rl_training.runtime.video import Film, record_checkpoint

    film = Film(Path(args.output), fps=args.fps)
    env_id, metrics = record_checkpoint(
        args.checkpoint, film, episodes=args.episodes, seed=args.seed, most_steps=args.max_steps,
        deterministic=not args.stochastic, device=args.device,
    )  # fmt: skip
    length = f"{metrics['eval_length_mean']:.0f}"
    if args.episodes == 1:
        came_to = f"1 episode of {env_id}, return {figure(metrics['eval_return_mean'])}, length {length}"
    else:
        result = spread(metrics["eval_return_mean"], metrics["eval_return_std"])
        came_to = f"{args.episodes} episodes of {env_id}, return {result}, mean length {length}"
    print(f"{film.path}: {came_to} ({film.frames} frames, {film.fps:g} a second)")


def _export(args: argparse.Namespace) -> None:
    """Prints a program: the lines that run the file, under a comment that says what it is."""
    from rl_training.runtime.export import export_checkpoint

    exported = export_checkpoint(args.checkpoint, args.output, args.format)
    agreed = f"acts as the agent does on {exported.rows:,} observations"
    if exported.difference:
        agreed += f", to {exported.difference:.1g}"
    if exported.ties:
        agreed += f" ({exported.ties} of them with two choices as good)"
    print(f"# {exported.path}: {exported.path.stat().st_size / 1024:,.0f} KiB, {agreed}. To run it:")
    print(exported.program)
