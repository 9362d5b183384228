"""The ``rl-training`` command: a user's mistake is one line and exit code 2; heavy imports wait for their command."""

from __future__ import annotations

import argparse
import difflib
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rl_training.commands import agents, data, experiments, info, results, train

if TYPE_CHECKING:
    from rl_training.commands.flags import Action
    from rl_training.experiment.config import TrainConfig

__all__ = ["load_config", "main"]


def load_config(path: str | Path) -> TrainConfig:
    """Read a YAML config; a relative path that does not exist is looked up among the packaged presets."""
    from rl_training.experiment.yaml_config import read_config

    return read_config(path)


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    formatted, warnings.formatwarning = warnings.formatwarning, _warning
    try:
        args = _parsed(argv)
        return int(args.run(args) or 0)
    except _Usage as usage:
        return usage.show()
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (ValueError, FileNotFoundError, PermissionError, NotADirectoryError, MemoryError) as error:
        return _complain(error, 2)
    except (RuntimeError, OSError) as error:
        return _complain(error, 1)
    finally:
        warnings.formatwarning = formatted


def _warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Format a warning as one line, without its place in the code."""
    return f"rl-training: warning: {' '.join(str(message).split())}\n"


def _parsed(argv: list[str] | None) -> argparse.Namespace:
    """Parse the arguments; an unknown one is refused with the nearest known one."""
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
    """Raised in place of argparse's sys.exit."""

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

    def command(name: str, run: Action, summary: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        sub.set_defaults(run=run)
        return sub

    for module in (train, agents, data, info, experiments, results):
        module.add(command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
