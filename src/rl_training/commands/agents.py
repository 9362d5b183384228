"""Commands for a trained agent: eval, predict, serve, video, export, inspect-model."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.base.errors import printable
from rl_training.commands.flags import (
    Command,
    checkpoint_argument,
    count,
    device_argument,
    rate,
    score,
    stochastic_argument,
)

if TYPE_CHECKING:
    from rl_training.artifacts.export import Exported

__all__ = ["add"]


def add(command: Command) -> None:
    """Add the commands of this module."""
    evaluate = command("eval", _eval, "evaluate a trained agent")
    checkpoint_argument(evaluate)
    evaluate.add_argument(
        "--episodes", type=count, metavar="N", help="how many episodes (default: the run's eval_episodes)"
    )
    stochastic_argument(evaluate)
    device_argument(evaluate)
    evaluate.add_argument("--json", action="store_true", help="print the metrics as one JSON object")

    predict = command("predict", _predict, "the action a trained agent takes for an observation")
    checkpoint_argument(predict)
    batch = "one observation or a batch of them, or - for standard input"
    predict.add_argument("--obs", required=True, metavar="JSON", help=batch)
    stochastic_argument(predict)
    device_argument(predict)

    serve = command("serve", _serve, "answer HTTP requests with a trained agent's actions")
    checkpoint_argument(serve)
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine)")
    serve.add_argument("--port", type=count, default=8000, metavar="N", help="0: any that is free (default: 8000)")
    serve.add_argument(
        "--max-batch", type=count, default=64, metavar="N", help="observations computed together (default: 64)"
    )
    wait = "milliseconds that a request waits for others (default: 0, it is answered with those that are there)"
    serve.add_argument("--wait-ms", type=float, default=0.0, metavar="MS", help=wait)
    device_argument(serve)

    inspect = command("inspect-model", _inspect_model, "draw what a learned model predicts beside what happens")
    checkpoint_argument(inspect)
    inspect.add_argument("--output", required=True, metavar="FILE", help="the picture, e.g. model.png")
    inspect.add_argument("--steps", type=count, default=50, metavar="N", help="how far to look ahead (default: 50)")
    inspect.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the episode (default: 0)")

    video = command("video", _video, "record episodes of a trained agent as mp4 or gif")
    checkpoint_argument(video)
    video.add_argument("-o", "--output", required=True, metavar="FILE", help="what to write: a .mp4 or a .gif")
    video.add_argument("--episodes", type=count, default=1, metavar="N", help="how many episodes (default: 1)")
    video.add_argument("--seed", type=int, metavar="N", help="seed of the episodes (default: the run's, as evaluated)")
    video.add_argument("--max-steps", type=count, metavar="N", help="cut episodes after so many steps")
    video.add_argument("--fps", type=rate, metavar="N", help="frames a second (default: the environment's own)")
    stochastic_argument(video)
    device_argument(video)

    export = command("export", _export, "write a trained policy as a file that runs without this package")
    checkpoint_argument(export)
    export.add_argument("--format", choices=("onnx", "torch"), help="default: by the file's ending")
    where = "default: policy.onnx or policy.pt2, here; -: standard output"
    export.add_argument("-o", "--output", metavar="FILE", help=where)


def _video(args: argparse.Namespace) -> None:
    from rl_training.artifacts.video import record_checkpoint
    from rl_training.envs.film import Film
    from rl_training.tracking.figures import figure, spread

    film = Film(Path(args.output), fps=args.fps)
    env_id, metrics = record_checkpoint(
        args.path, film, episodes=args.episodes, seed=args.seed, most_steps=args.max_steps,
        deterministic=not args.stochastic, device=args.device,
    )  # fmt: skip
    length = f"{metrics['eval_length_mean']:.0f}"
    if args.episodes == 1:
        outcome = f"1 episode of {env_id}, return {figure(metrics['eval_return_mean'])}, length {length}"
    else:
        result = spread(metrics["eval_return_mean"], metrics["eval_return_std"])
        outcome = f"{args.episodes} episodes of {env_id}, return {result}, mean length {length}"
    print(f"{film.path}: {outcome} ({film.frames} frames, {film.fps:g} a second)")


def _export(args: argparse.Namespace) -> None:
    """Export a policy, and print the program that runs the file.

    Where standard output is a file or a pipe, it gets the program alone, or with ``-o -`` the policy alone; what is
    said about it goes to standard error.
    """
    from rl_training.artifacts.export import ENDINGS, export_checkpoint

    if args.output != "-":
        exported = export_checkpoint(args.path, args.output, args.format)
        print(_export_note(exported), file=sys.stdout if sys.stdout.isatty() else sys.stderr)
        print(exported.program)
        return
    if args.format is None:
        raise ValueError("-o - has no ending: say --format onnx or --format torch")
    if sys.stdout.isatty():
        raise ValueError("-o - writes the policy to standard output, which is a terminal here: send it to a file")
    with tempfile.TemporaryDirectory() as folder:
        exported = export_checkpoint(args.path, Path(folder) / f"policy{ENDINGS[args.format]}", args.format)
        print(_export_note(exported, "standard output"), file=sys.stderr)
        sys.stdout.flush()
        sys.stdout.buffer.write(exported.path.read_bytes())
        sys.stdout.buffer.flush()


def _export_note(exported: Exported, where: str = "") -> str:
    """A line about an exported policy: its size, and how well it agrees with its agent."""
    agreed = f"acts as the agent does on {exported.rows:,} observations"
    if exported.difference:
        agreed += f", to {exported.difference:.1g}"
    if exported.ties:
        agreed += f" ({exported.ties} of them with two choices as good)"
    size = f"{exported.path.stat().st_size / 1024:,.0f} KiB"
    return f"# {where}: {size}, {agreed}" if where else f"# {exported.path}: {size}, {agreed}. To run it:"


def _eval(args: argparse.Namespace) -> None:
    from rl_training.runtime.workflows import evaluate_checkpoint

    metrics = evaluate_checkpoint(args.path, args.episodes, args.device, not args.stochastic)
    print(json.dumps(metrics) if args.json else f"{score(metrics)}, mean length {metrics['eval_length_mean']:.0f}")


def _predict(args: argparse.Namespace) -> None:
    import numpy as np

    from rl_training.runtime.workflows import predict_checkpoint

    obs = _observation(sys.stdin.read() if args.obs == "-" else args.obs)
    action = predict_checkpoint(args.path, obs, deterministic=not args.stochastic, device=args.device)
    print(json.dumps(np.asarray(action).tolist()))


def _observation(text: str) -> Any:
    """An array of numbers; observations of several parts, which are objects, as they are."""
    import numpy as np

    try:
        given = json.loads(text)
        parts = isinstance(given, dict) or (isinstance(given, list) and any(isinstance(one, dict) for one in given))
        obs = given if parts else np.asarray(given, dtype=np.float64)
    except (ValueError, TypeError, OverflowError, RecursionError):
        text = f"must be a JSON array of numbers (an object, for observations of several parts), got {text[:60]!r}"
        raise ValueError(f"--obs {text}") from None
    if not parts and not np.isfinite(obs).all():
        raise ValueError("--obs must be finite numbers")
    return obs


def _serve(args: argparse.Namespace) -> None:
    from rl_training.base.hosts import is_loopback
    from rl_training.serving.server import listen, require_extra, run

    require_extra()
    if args.max_batch < 1 or not 0 <= args.wait_ms <= 60_000:
        raise ValueError("--max-batch is at least 1, and --wait-ms from 0 to 60,000")
    from rl_training.serving.served import load_served

    served = load_served(args.path, args.device)
    with listen(args.host, args.port) as listener:
        local, port = is_loopback(args.host), listener.getsockname()[1]
        if not local:
            print(f"anybody who reaches {args.host} can ask this agent: there are no passwords", file=sys.stderr)
        what = f"{served.algo} on {printable(served.env_id)}, step {served.step:,}"
        host = f"[{args.host.strip('[]')}]" if ":" in args.host else args.host
        print(f"{what}: http://{host}:{port}/predict (and /health, /openapi.json); Ctrl-C stops", flush=True)
        run(served, listener, max_batch=args.max_batch, wait_ms=args.wait_ms, local=local)
    print("stopped")


def _inspect_model(args: argparse.Namespace) -> None:
    import numpy as np

    from rl_training.algorithms.dreamer import Dreamer
    from rl_training.artifacts.inspection import (
        draw,
        draw_reconstructions,
        load_agent,
        predict_episode,
        reconstruct_episode,
    )

    config, agent = load_agent(args.path)
    if isinstance(agent, Dreamer):
        episode = reconstruct_episode(config, agent, steps=args.steps, seed=args.seed)
        title = f"{args.path}: {len(episode.real)} steps of its own"
        files = draw_reconstructions(episode, Path(args.output), title)
        errors = [np.abs(rows - episode.real).mean() for rows in (episode.reconstructed, episode.imagined)]
        print(f"{', '.join(map(str, files))}: mean error {errors[0]:.3g} looking, {errors[1]:.3g} imagining")
        return
    predictions = predict_episode(config, agent, steps=args.steps, seed=args.seed)
    draw(predictions, Path(args.output), f"{args.path}: {len(predictions.rewards)} steps of random actions")
    first, last = (np.abs(predictions.predicted.mean(0) - predictions.real)[i].mean() for i in (1, -1))
    errors_text = f"{first:.3g} after one step, {last:.3g} after {len(predictions.rewards)}"
    print(f"{args.output}: mean error of observations {errors_text}")
