"""The ``rl-training`` command. Heavy imports wait until a command needs them; a user's mistake is one line and exit code 2."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rl_training.commands import agents, experiments, results
from rl_training.commands.flags import config_flags, count, resolved

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.trainer import TrainResult


def load_config(path: str | Path) -> TrainConfig:
    """YAML to a checked TrainConfig; a relative path that does not exist is looked up among the packaged presets."""
    from rl_training.experiment.yaml_config import read_config

    return read_config(path)


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    formatted, warnings.formatwarning = warnings.formatwarning, _warning
    try:
        args = _parsed(argv)
        return args.run(args) or 0
    except _Usage as usage:
        return usage.show()
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (ValueError, FileNotFoundError, PermissionError, NotADirectoryError) as error:
        return _complain(error, 2)
    except (RuntimeError, OSError) as error:
        return _complain(error, 1)
    finally:
        warnings.formatwarning = formatted


def _warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning as one line, without the place in the code it comes from."""
    return f"rl-training: warning: {' '.join(str(message).split())}\n"


def _parsed(argv: list[str] | None) -> argparse.Namespace:
    """The arguments; one that is not known is refused with the nearest that is."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    if rest:
        choices: Any = next(action for action in parser._actions if action.dest == "command").choices
        command = choices[args.command]
        option = next((word.partition("=")[0] for word in rest if word.startswith("-")), "")
        close = difflib.get_close_matches(option, list(command._option_string_actions), n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        command.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
    return args


def _complain(error: Exception, code: int) -> int:
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    print(f"rl-training: error: {text}", file=sys.stderr)
    return code


class _Usage(Exception):
    """argparse's way out, without sys.exit."""

    def __init__(self, code: int, message: str = "") -> None:
        self.code, self.message = code, message

    def show(self) -> int:
        if self.message:
            print(self.message.rstrip(), file=sys.stderr)
        return self.code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Usage(2, f"rl-training: error: {message} (see {self.prog} --help)")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise _Usage(status, message or "")


def _parser() -> argparse.ArgumentParser:
    from rl_training import __version__

    parser = _Parser(
        prog="rl-training",
        description="Train, evaluate, resume and inspect reinforcement-learning agents.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"rl-training {__version__}", help="print the version")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Callable, summary: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        sub.set_defaults(run=run)
        return sub

    train = command("train", _train, "train an agent from a config, a preset, or an algorithm and an environment")
    config_flags(train)
    train.add_argument("--run-suffix", metavar="NAME", help="end of the run directory's name (default: the time)")
    train.add_argument("--json", action="store_true", help="print the result as one JSON object")

    resume = command("resume", _resume, "go on with a stopped run, exactly as if it had never stopped")
    resume.add_argument("path", help="a run directory or a checkpoint")
    resume.add_argument("--total-timesteps", type=count, metavar="N", help="a new total (default: the run's own)")
    resume.add_argument(
        "--output-dir", metavar="DIR", help="go on in a new run directory in here (default: the same one)"
    )
    resume.add_argument("--eval-episodes", type=count, metavar="N", help="episodes per evaluation")
    resume.add_argument("--json", action="store_true", help="print the result as one JSON object")

    evaluate = command("eval", _eval, "evaluate a checkpoint, or the newest one of a run")
    evaluate.add_argument("path", help="a run directory or a checkpoint")
    evaluate.add_argument(
        "--episodes", type=count, metavar="N", help="how many episodes (default: the run's eval_episodes)"
    )
    evaluate.add_argument("--stochastic", action="store_true", help="draw actions instead of taking the best ones")
    evaluate.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    evaluate.add_argument("--json", action="store_true", help="print the metrics as one JSON object")

    predict = command("predict", _predict, "the action a trained agent takes for an observation")
    predict.add_argument("path", help="a run directory or a checkpoint")
    predict.add_argument(
        "--obs", required=True, metavar="JSON", help="one observation or a batch of them, or - for standard input"
    )
    predict.add_argument("--stochastic", action="store_true", help="draw the action instead of taking the best one")
    predict.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")

    collect = command(
        "collect", _collect, "record a dataset from a trained agent, random actions, or a run's replay buffer"
    )
    collect.add_argument("--checkpoint", metavar="PATH", help="a run directory or a checkpoint")
    collect.add_argument("--env", metavar="ID", help="with --random and no checkpoint: the environment")
    collect.add_argument("--output", required=True, metavar="FILE", help="where to; for minari: the dataset's id")
    collect.add_argument("--format", choices=("npz", "hdf5", "minari"), help="default: by the file's ending")
    collect.add_argument("--steps", type=count, metavar="N", help="how many steps")
    collect.add_argument("--episodes", type=count, metavar="N", help="or how many whole episodes")
    collect.add_argument("--deterministic", action="store_true", help="take the best action instead of drawing one")
    collect.add_argument("--stochastic", dest="deterministic", action="store_false", help="draw actions (the default)")
    collect.add_argument("--random", action="store_true", help="uniformly random actions instead of the agent's")
    collect.add_argument("--from-replay", action="store_true", help="the run's replay buffer instead of new steps")
    collect.add_argument(
        "--expert", metavar="RETURN|PATH", help="return that scores 100, or the checkpoint of an expert"
    )
    collect.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the collection (default: 0)")

    dataset = command("dataset", _dataset_info, "look into a file of transitions")
    dataset.add_argument("what", choices=("info",), help="size, returns, spaces, and what would break training")
    dataset.add_argument("path", help="an npz or hdf5 file, or a Minari id")
    dataset.add_argument("--format", choices=("npz", "hdf5", "minari"), help="default: by the file's ending")
    dataset.add_argument("--env", metavar="ID", help="the environment it is meant for: check that the data fits it")
    dataset.add_argument(
        "--episode-steps", type=count, metavar="N", help="for files that mark no time-outs: steps of the time limit"
    )
    dataset.add_argument("--json", action="store_true", help="print the findings as one JSON object")

    inspect = command("inspect-model", _inspect_model, "draw what a learned model predicts beside what happens")
    inspect.add_argument("--checkpoint", required=True, metavar="PATH", help="a run directory or a checkpoint")
    inspect.add_argument("--output", required=True, metavar="FILE", help="the picture, e.g. model.png")
    inspect.add_argument("--steps", type=count, default=50, metavar="N", help="how far to look ahead (default: 50)")
    inspect.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the episode (default: 0)")

    listing = command("list", _list, "the algorithms")
    listing.add_argument("--json", action="store_true", help="print them as a JSON list")

    show = command("show", _show, "an algorithm's options, with meaning, bounds and default")
    show.add_argument("algo", help="name of an algorithm, e.g. ppo")
    show.add_argument("--json", action="store_true", help="print the options as a JSON object")

    config = command("config", _config, "print a config as it will be used, with every default filled in")
    config_flags(config)
    config.add_argument("--json", action="store_true", help="print it as JSON instead of YAML")

    schema = command("schema", _schema, "the JSON schema of a config, for editors")
    schema.add_argument("algo", help="name of an algorithm, e.g. ppo")

    doctor = command("doctor", _doctor, "check this machine: versions, devices, compiler, environments")
    doctor.add_argument("--json", action="store_true", help="print the findings as one JSON object")
    for module in (agents, experiments, results):
        module.add(command)
    return parser


def _train(args: argparse.Namespace) -> int:
    config = resolved(args)
    from rl_training.experiment.registry import get_algorithm_spec

    return _report(
        get_algorithm_spec(config.algo).train(config, run_suffix=args.run_suffix), config.total_timesteps, args.json
    )


def _resume(args: argparse.Namespace) -> int:
    from rl_training.runtime.workflows import config_of, find_checkpoint, resume_training

    path, state = find_checkpoint(args.path, buffers=False)
    total = args.total_timesteps or config_of(state).total_timesteps
    result = resume_training(
        path, total_timesteps=args.total_timesteps, output_dir=args.output_dir, eval_episodes=args.eval_episodes
    )
    return _report(result, total, args.json)


def _report(result: TrainResult, total: int, as_json: bool) -> int:
    metrics = result.metrics
    if as_json:
        print(
            json.dumps(
                {"run_dir": str(result.run_dir), "checkpoint_path": str(result.checkpoint_path), "metrics": metrics}
            )
        )
        return 0
    step = int(metrics["global_step"])
    print(f"{_outcome(step, total, metrics)}: return {_score(metrics)}")
    if step < total:
        print(f"because     {_reason(result.run_dir)}")
    print(f"checkpoint  {result.checkpoint_path}")
    if step < total:
        print(f"go on with  rl-training resume {result.run_dir}")
    else:
        print(f"evaluate    rl-training eval {result.run_dir}")
        events = any((result.run_dir / "tensorboard").iterdir())
        drawn = f" (and tensorboard --logdir {result.run_dir.parent})" if events else ""
        print(f"curves      {result.run_dir / 'metrics.jsonl'}{drawn}")
    return 0


def _outcome(step: int, total: int, metrics: dict[str, Any]) -> str:
    """Nothing is called trained that has not learned."""
    if metrics["update_count"] or metrics["gradient_steps"]:
        return f"{'trained' if step >= total else 'stopped'} at step {step:,}"
    if step < total:
        return f"stopped at step {step:,}, before the first update"
    return f"finished at step {step:,} without an update, the agent is untrained"


def _reason(run_dir: Path) -> str:
    """Why a run ended before its total."""
    status = json.loads((run_dir / "metadata.json").read_text())["status"]
    return status.removeprefix("stopped: ")


def _score(metrics: dict[str, Any]) -> str:
    from rl_training.experiment.logging import spread

    episodes = int(metrics["eval_episodes"])
    result = spread(metrics["eval_return_mean"], metrics["eval_return_std"])
    return f"{result} over {episodes} episode{'s' if episodes != 1 else ''}"


def _eval(args: argparse.Namespace) -> None:
    from rl_training.runtime.workflows import evaluate_checkpoint

    metrics = evaluate_checkpoint(args.path, args.episodes, args.device, not args.stochastic)
    print(
        json.dumps(metrics) if args.json else f"return {_score(metrics)}, mean length {metrics['eval_length_mean']:.0f}"
    )


def _predict(args: argparse.Namespace) -> None:
    import numpy as np

    from rl_training.runtime.workflows import predict_checkpoint

    text = sys.stdin.read() if args.obs == "-" else args.obs
    try:
        obs = np.asarray(json.loads(text), dtype=np.float64)
    except (ValueError, TypeError):
        raise ValueError(f"--obs must be a JSON array of numbers, got {text[:60]!r}") from None
    action = predict_checkpoint(args.path, obs, deterministic=not args.stochastic, device=args.device)
    print(json.dumps(np.asarray(action).tolist()))


def _format(path: str, chosen: str | None) -> str:
    if chosen is not None:
        return chosen
    suffix = Path(path).suffix.lower()
    known = {".npz": "npz", ".hdf5": "hdf5", ".h5": "hdf5"}
    if suffix not in known:
        raise ValueError(f"{path} ends in none of {', '.join(known)}; say what it is with --format")
    return known[suffix]


def _collect(args: argparse.Namespace) -> None:
    from rl_training.data import dataset_files as files
    from rl_training.envs.factory import EnvFactory
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime import collection
    from rl_training.runtime.workflows import config_of, find_checkpoint

    kind = _format(args.output, args.format)
    if args.checkpoint is None and not (args.random and args.env):
        raise ValueError("give --checkpoint, or --random and --env")
    if args.env is not None and args.checkpoint is not None:
        raise ValueError("--env goes with --random and no checkpoint; a checkpoint has its own environment")
    if args.from_replay and (args.steps or args.episodes or args.random):
        raise ValueError("--from-replay takes the whole buffer: --steps, --episodes and --random do not go with it")
    if args.checkpoint is not None:
        config = config_of(find_checkpoint(args.checkpoint, buffers=False)[1])
    else:
        config = TrainConfig(algo="bc", env_id=args.env)
    if args.from_replay:
        data = collection.export_replay(args.checkpoint)
    else:
        much = {"steps": args.steps, "episodes": args.episodes, "seed": args.seed, "progress": "auto"}
        if args.random:
            data = collection.collect(config, None, **much)
        else:
            data = collection.collect_from_checkpoint(args.checkpoint, deterministic=args.deterministic, **much)
    collection.add_returns(data)
    collection.add_references(data, config, seed=args.seed, expert=args.expert)
    if kind == "minari":
        env = EnvFactory(config.env_id, config.env_kwargs).make(training=False)
        files.write_minari(args.output, data, env)
    else:
        {"npz": files.write_npz, "hdf5": files.write_hdf5}[kind](Path(args.output), data)
    _show_dataset(args.output, collection.describe(data))


def _dataset_info(args: argparse.Namespace) -> None:
    from rl_training.data.offline_dataset import load_transition_dataset
    from rl_training.envs.factory import EnvFactory
    from rl_training.runtime.collection import describe
    from rl_training.runtime.offline import time_limits

    local = args.format is None and not Path(args.path).suffix and not Path(args.path).exists()
    kind = "minari" if local else _format(args.path, args.format)
    where = {"dataset_id": args.path} if kind == "minari" else {"dataset_path": args.path}
    factory = None if args.env is None else EnvFactory(args.env, {})
    limit = args.episode_steps if factory is None else args.episode_steps or (lambda: time_limits(factory))
    with warnings.catch_warnings(record=True) as assumed:
        warnings.simplefilter("always")
        data = load_transition_dataset(kind, **where, time_limit=limit)
    facts = describe(data, factory)
    facts["concerns"] += [str(warning.message) for warning in assumed if warning.category is UserWarning]
    if args.json:
        print(json.dumps(facts))
    else:
        _show_dataset(args.path, facts)


def _show_dataset(path: str, facts: dict[str, Any]) -> None:
    meta = facts["meta"]
    print(
        f"{path}: {facts['transitions']:,} transitions in {facts['episodes']:,} episodes of {meta.get('env_id', '?')}"
    )
    left = f", {facts['unfinished']:,} unfinished" if facts["unfinished"] else ""
    print(f"ends          {facts['terminations']:,} terminated, {facts['truncations']:,} truncated{left}")
    if facts["return_mean"] is not None:
        spread = ", ".join(f"{value:.4g}" for value in facts["return_quantiles"])
        print(f"returns       mean {facts['return_mean']:.4g}; smallest, quartiles, largest: {spread}")
        print(f"lengths       mean {facts['length_mean']:.4g}")
    print(f"observations  {facts['observations']}")
    print(f"actions       {facts['actions']} in {facts['action_range']}")
    print(f"rewards       in {facts['reward_range']}")
    for name in ("random_return", "expert_return", "seed", "behaviour"):
        if meta.get(name) is not None:
            print(f"{name:13} {meta[name] if not isinstance(meta[name], dict) else json.dumps(meta[name])}")
    for concern in facts["concerns"]:
        print(f"WARNING       {concern}")


def _inspect_model(args: argparse.Namespace) -> None:
    import numpy as np

    from rl_training.algorithms.dreamer import Dreamer
    from rl_training.runtime.inspection import draw, draw_dream, dream_episode, load_agent, predict_episode

    config, agent = load_agent(args.checkpoint)
    if isinstance(agent, Dreamer):
        dreamed = dream_episode(config, agent, steps=args.steps, seed=args.seed)
        files = draw_dream(dreamed, Path(args.output), f"{args.checkpoint}: {len(dreamed.real)} steps of its own")
        errors = [np.abs(rows - dreamed.real).mean() for rows in (dreamed.reconstructed, dreamed.imagined)]
        print(f"{', '.join(map(str, files))}: mean error {errors[0]:.3g} looking, {errors[1]:.3g} imagining")
        return
    predictions = predict_episode(config, agent, steps=args.steps, seed=args.seed)
    draw(predictions, Path(args.output), f"{args.checkpoint}: {len(predictions.rewards)} steps of random actions")
    first, last = (np.abs(predictions.predicted.mean(0) - predictions.real)[i].mean() for i in (1, -1))
    print(
        f"{args.output}: mean error of observations {first:.3g} after one step, {last:.3g} after {len(predictions.rewards)}"
    )


def _list(args: argparse.Namespace) -> None:
    from rl_training.experiment.registry import ALGORITHMS

    if args.json:
        print(json.dumps([entry._asdict() for entry in ALGORITHMS.values()]))
        return
    for entry in ALGORITHMS.values():
        print(f"{entry.name:8} {entry.year}  {entry.summary} ({entry.paper})")


def _show(args: argparse.Namespace) -> None:
    from rl_training.experiment.options_table import describe
    from rl_training.experiment.registry import get_algorithm_spec

    spec = get_algorithm_spec(args.algo)
    rows = describe(spec.config)
    if args.json:
        print(json.dumps({row.name: row._asdict() for row in rows}))
        return
    print(f"{spec.entry.public}: {spec.entry.summary} ({spec.entry.paper}, {spec.entry.year})")
    print(f"takes {' or '.join(spec.obs)} observations and {' or '.join(spec.actions)} actions\n")
    width, kinds = max(len(row.name) for row in rows), max(len(row.default) for row in rows)
    for row in rows:
        print(f"{row.name:{width}}  {row.default:{kinds}}  {row.meaning}{f' ({row.bounds})' if row.bounds else ''}")


def _config(args: argparse.Namespace) -> None:
    config = resolved(args)
    from rl_training.experiment.registry import get_algorithm_spec
    from rl_training.experiment.runs import dump_yaml

    spec = get_algorithm_spec(config.algo)
    options = spec.options(spec.complete(config))
    whole = {**config.plain(), "algo_kwargs": options.model_dump(mode="json", exclude=options.idle())}
    print(json.dumps(whole) if args.json else dump_yaml(whole), end="\n" if args.json else "")


def _schema(args: argparse.Namespace) -> None:
    from rl_training.experiment.yaml_config import json_schema

    print(json.dumps(json_schema(args.algo), indent=2))


def _doctor(args: argparse.Namespace) -> int:
    from rl_training.experiment.doctor import examine

    findings = examine()
    if args.json:
        print(json.dumps([finding._asdict() for finding in findings]))
    else:
        for finding in findings:
            print(f"{'ok ' if finding.ok else 'NO '} {finding.what}: {finding.detail}")
    return 0 if all(finding.ok or finding.optional for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
