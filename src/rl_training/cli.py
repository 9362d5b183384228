"""The ``rl-training`` command: a user's mistake is one line and exit code 2; heavy imports wait for their command."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rl_training.base.aliases import TARGETS, known_as
from rl_training.base.errors import printable
from rl_training.base.modules import look_here
from rl_training.base.signals import StoppedAtOnce
from rl_training.base.stop_kind import RESUMABLE
from rl_training.base.streams import flush_or_silence, say, silence
from rl_training.base.trust import trust_modules
from rl_training.commands import agents, completion, data, environments, experiments, info, results, train, zoo
from rl_training.commands.flags import settle_checkpoint

if TYPE_CHECKING:
    from rl_training.commands.flags import Action
    from rl_training.experiment.config import TrainConfig

__all__ = ["load_config", "main"]

INTERRUPTED = 130  # the shells' code for Ctrl-C: there is nothing to go on from
EXIT_CODES = (
    "Exit codes: 0 finished, by early stopping or a budget too; 3 stopped by a signal or a request, and can be "
    "resumed; 2 a mistake in what was asked; 1 a failure; 130 interrupted before anything was saved."
)


def load_config(path: str | Path) -> TrainConfig:
    """Read a YAML config; a relative path that does not exist is looked up among the packaged presets."""
    from rl_training.experiment.yaml_config import read_config

    return read_config(path)


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    formatted, warnings.formatwarning = warnings.formatwarning, _warning
    path = list(sys.path)
    try:
        args = _parsed(argv)
        look_here(trust_modules(getattr(args, "trust", ())))
        return int(args.run(args) or 0)
    except _Usage as usage:
        return usage.show()
    except BrokenPipeError:  # of a command that only prints: its reader has seen enough
        silence(sys.stdout)
        return 0
    except StoppedAtOnce as stopped:
        return _stopped(stopped)
    except KeyboardInterrupt:
        say("interrupted", sys.stderr)
        return INTERRUPTED
    except (ValueError, FileNotFoundError, PermissionError, NotADirectoryError, MemoryError) as error:
        return _complain(error, 2)
    except (RuntimeError, OSError) as error:
        return _complain(error, 1)
    finally:
        flush_or_silence()
        warnings.formatwarning, sys.path[:] = formatted, path


def _warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Format a warning as one line, without its place in the code."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(message))  # Gymnasium colours its own
    return f"rl-training: warning: {printable(' '.join(plain.split()))}\n"


def _parsed(argv: list[str] | None) -> argparse.Namespace:
    """Parse the arguments; an unknown one is refused with the nearest known one."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    choices: Any = next(action for action in parser._actions if action.dest == "command").choices
    command = getattr(args, "parser", choices[args.command])  # of a command below a command
    rest, problem = settle_checkpoint(args, rest)
    if rest:
        option = next((word.partition("=")[0] for word in rest if word.startswith("-")), "")
        command.error(f"unrecognized arguments: {' '.join(rest)}{_hint(option, list(command._option_string_actions))}")
    if problem:
        command.error(problem)
    return args


def _hint(option: str, flags: list[str]) -> str:
    """The flag that an unknown one may have meant, or the option that ``--set`` sets."""
    name = option.lstrip("-").replace("-", "_")
    here = known_as(name, [flag.lstrip("-").replace("-", "_") for flag in flags])
    close = difflib.get_close_matches(option, flags, n=1)
    if here is not None:
        return f"; did you mean --{here.replace('_', '-')}?"
    target = name if name in TARGETS else known_as(name, TARGETS)
    if target is not None and "--set" in flags:
        return f"; did you mean --set {target}=...?"
    return f"; did you mean {close[0]}?" if close else ""


def _stopped(stopped: StoppedAtOnce) -> int:
    """Say what is left of a run that was stopped before it could save."""
    if stopped.run_dir is None:
        say("interrupted before anything was saved", sys.stderr)
        return INTERRUPTED
    say(f"stopped at once; its last checkpoint stays: rl-training resume {stopped.run_dir}", sys.stderr)
    return RESUMABLE


def _complain(error: Exception, code: int) -> int:
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    say(f"rl-training: error: {printable(text)}", sys.stderr)
    return code


class _Usage(Exception):
    """Raised in place of argparse's sys.exit."""

    def __init__(self, code: int, message: str = "") -> None:
        self.code, self.message = code, message

    def show(self) -> int:
        if self.message:
            say(self.message.rstrip(), sys.stderr)
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
        epilog=EXIT_CODES,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"rl-training {__version__}", help="print the version")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Action, summary: str) -> argparse.ArgumentParser:
        epilog = EXIT_CODES if name in ("train", "resume", "sweep", "tune") else None
        sub = commands.add_parser(name, help=summary, description=summary, epilog=epilog, allow_abbrev=False)
        sub.set_defaults(run=run)
        return sub

    for module in (train, agents, data, environments, info, experiments, results, zoo):
        module.add(command)
    completion.add(command, commands.choices)
    return parser


if __name__ == "__main__":
    sys.exit(main())
