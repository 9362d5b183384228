"""The completion command: a script that lets a shell complete commands, flags, algorithms and presets.

The script holds all the words, so that nothing of this package is started while somebody types.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rl_training.commands.flags import Command

__all__ = ["add"]

SHELLS = ("bash", "zsh", "fish")
PATHS = ("FILE", "DIR", "PATH", "RUNS", "RUN", "A", "B", "RETURN|PATH")  # metavars of files and folders
DEVICES = ("auto", "cpu", "cuda")


class Values(NamedTuple):
    """What can follow a flag or stand for an argument: words, and perhaps files."""

    words: tuple[str, ...] = ()
    files: bool = False


class Flag(NamedTuple):
    """A flag by its names, its help, and what follows it; None: nothing does."""

    names: tuple[str, ...]
    help: str
    values: Values | None


class CompletionEntry(NamedTuple):
    """A command: what it is for, its flags, and what else it takes."""

    summary: str
    flags: list[Flag]
    arguments: Values


def add(command: Command, parsers: Mapping[str, argparse.ArgumentParser]) -> None:
    """Add the command; ``parsers`` are those of all commands."""

    def run(args: argparse.Namespace) -> None:
        entries = {name: _entry(parser) for name, parser in parsers.items()}
        print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](entries))

    completion = command("completion", run, "a script that completes this command's words in a shell")
    completion.add_argument("shell", choices=SHELLS, help='for bash: eval "$(rl-training completion bash)"')


def _entry(parser: argparse.ArgumentParser) -> CompletionEntry:
    flags: list[Flag] = []
    words: list[str] = []
    files = False
    for action in _actions(parser):
        if action.option_strings:
            values = None if action.nargs == 0 else _values(action)
            flags.append(Flag(tuple(action.option_strings), action.help or "", values))
        else:
            taken = _values(action)
            words += taken.words
            files = files or taken.files
    return CompletionEntry(parser.description or "", flags, Values(tuple(words), files))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """What a command takes, and the commands below it, each flag once."""
    seen: set[str] = set()
    for action in parser._actions:
        below = action.choices.values() if isinstance(action, argparse._SubParsersAction) else ()
        for one in (action, *(inner for sub in below for inner in _actions(sub))):
            if not seen.intersection(one.option_strings):
                seen.update(one.option_strings)
                yield one


def _values(action: argparse.Action) -> Values:
    """What an argument can be."""
    from rl_training.experiment.registry import ALGORITHMS
    from rl_training.experiment.yaml_config import presets

    if action.choices is not None:
        return Values(tuple(map(str, action.choices)))
    if action.dest == "algo":
        return Values(tuple(ALGORITHMS))
    if action.dest == "config":
        return Values(tuple(presets()), files=True)
    if action.dest == "device":
        return Values(DEVICES)
    return Values(files=action.metavar in PATHS or not action.option_strings)


def _words(entries: Mapping[str, CompletionEntry]) -> Iterator[str]:
    """The lines of a function for bash and zsh: (command, word before, word) to candidates; ``:files:`` stands for
    files."""
    yield "_rl_training_words() {"
    yield '  case "$1 $2" in'
    for name, entry in entries.items():
        for flag in entry.flags:
            if flag.values is not None:
                pattern = "|".join(f'"{name} {spelling}"' for spelling in flag.names)
                yield f'    {pattern}) echo "{_line(flag.values)}"; return ;;'
    yield "  esac"
    yield '  case "$1 $3" in'
    yield f'    " "*) echo "{" ".join(entries)} --help --version" ;;'
    for name, entry in entries.items():
        spellings = " ".join(spelling for flag in entry.flags for spelling in flag.names)
        yield f'    "{name} -"*) echo "{spellings}" ;;'
        yield f'    "{name} "*) echo "{_line(entry.arguments)}" ;;'
    yield "  esac"
    yield "}"


def _line(values: Values) -> str:
    return " ".join([*values.words, *([":files:"] if values.files else [])])


BASH = """
_rl_training() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command= candidates
  if [ "$word" = "=" ]; then word=; elif [ "$before" = "=" ]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi
  if [ "$COMP_CWORD" -gt 1 ]; then command=${COMP_WORDS[1]}; fi
  candidates=$(_rl_training_words "$command" "$before" "$word")
  COMPREPLY=($(compgen -W "${candidates//:files:/}" -- "$word"))
  case $candidates in
    *:files:*) compopt -o filenames 2>/dev/null; COMPREPLY+=($(compgen -f -- "$word")) ;;
  esac
}
complete -F _rl_training rl-training"""

ZSH = """
_rl_training() {
  local command= before=${words[CURRENT-1]} candidates
  if compset -P '*='; then before=${IPREFIX%=}; fi
  if (( CURRENT > 2 )); then command=${words[2]}; fi
  candidates=$(_rl_training_words "$command" "$before" "$PREFIX")
  compadd -- ${=candidates//:files:/}
  if [[ $candidates == *:files:* ]]; then _files; fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
compdef _rl_training rl-training"""


def _bash(entries: Mapping[str, CompletionEntry]) -> str:
    return "\n".join(_words(entries)) + BASH


def _zsh(entries: Mapping[str, CompletionEntry]) -> str:
    return "#compdef rl-training\n" + "\n".join(_words(entries)) + ZSH


def _fish(entries: Mapping[str, CompletionEntry]) -> str:
    lines = ["complete -c rl-training -f", "complete -c rl-training -n __fish_use_subcommand -l version -l help"]
    for name, entry in entries.items():
        lines.append(f"complete -c rl-training -n __fish_use_subcommand -a {name} -d {_quoted(entry.summary)}")
        within = f"complete -c rl-training -n '__fish_seen_subcommand_from {name}'"
        for flag in entry.flags:
            named = " ".join(f"-{'l' if word.startswith('--') else 's'} {word.lstrip('-')}" for word in flag.names)
            lines.append(f"{within} {named}{_following(flag.values)} -d {_quoted(flag.help)}")
        if entry.arguments.words or entry.arguments.files:
            lines.append(within + _following(entry.arguments).replace(" -r", "").replace(" -x", ""))
    return "\n".join(lines)


def _following(values: Values | None) -> str:
    """What a flag takes, as fish's options."""
    if values is None:
        return ""
    return f" {'-r -F' if values.files else '-x'}" + (f" -a '{' '.join(values.words)}'" if values.words else "")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
