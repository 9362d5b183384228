"""Scripts that complete the command line in a shell, tried in the shells that are here."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rl_training.cli import main
from rl_training.experiment.registry import ALGORITHMS


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """The script of each shell, in a file."""
    folder = tmp_path_factory.mktemp("scripts")
    for shell in ("bash", "zsh", "fish"):
        words = [sys.executable, "-m", "rl_training", "completion", shell]
        (folder / shell).write_text(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    return folder


def bash(script, *words, folder="."):
    """What bash offers for the last word."""
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("no bash here")
    typed = " ".join(f"'{word}'" for word in ("rl-training", *words))
    program = f"source {script}; COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _rl_training; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    # no PATH: nothing is started, this package least of all
    done = subprocess.run([shell, "-c", program], capture_output=True, text=True, cwd=folder, env={"PATH": ""})
    assert done.stderr == ""
    return set(done.stdout.split())


PRESETS = {f"configs/ppo/{path.name}" for path in (Path(__file__).parents[2] / "configs" / "ppo").glob("*.yaml")}
OFFERED = [
    (("tr",), {"train"}),
    (("re",), {"resume", "report"}),
    (("--v",), {"--version"}),
    (("train", "--al"), {"--algo"}),
    (("train", "--algo", "qr"), {"qr_dqn"}),
    (("train", "--algo", ""), set(ALGORITHMS)),
    (("sweep", "--backend", ""), {"local", "ray"}),
    (("train", "--config", "configs/ppo/"), PRESETS),
    (("show", "td"), {"td3_bc"}),
    (("schema", "drea"), {"dreamer"}),
    (("export", "--format", ""), {"onnx", "torch"}),
    (("completion", ""), {"bash", "zsh", "fish"}),
    (("eval", "--dev"), {"--device"}),
    (("train", "--seed", ""), set()),
]


@pytest.mark.parametrize(("words", "offered"), OFFERED)
def test_bash_completes_commands_flags_algorithms_and_presets(scripts, words, offered, tmp_path):
    assert bash(scripts / "bash", *words, folder=tmp_path) == offered


def test_bash_completes_after_an_equals_sign_which_is_a_word_to_it(scripts):
    assert bash(scripts / "bash", "train", "--algo", "=", "dr") == {"dreamer"}
    assert bash(scripts / "bash", "train", "--algo", "=") == set(ALGORITHMS)


def test_bash_completes_files_where_files_are_meant(scripts, tmp_path):
    (tmp_path / "mine.yaml").write_text("")
    for words in (("eval", "mi"), ("train", "--config", "mi"), ("video", "--checkpoint", "mi")):
        assert bash(scripts / "bash", *words, folder=tmp_path) == {"mine.yaml"}
    assert bash(scripts / "bash", "train", "mi", folder=tmp_path) == set()


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here")
@pytest.mark.parametrize(("words", "offered"), OFFERED)
def test_zsh_has_the_same_words(scripts, words, offered):
    command, before = ("", "rl-training") if len(words) == 1 else (words[0], words[-2])
    program = f"compdef() {{ }}; source {scripts / 'zsh'}; _rl_training_words '{command}' '{before}' '{words[-1]}'"
    done = subprocess.run(["zsh", "-f", "-c", program], capture_output=True, text=True)
    assert done.stderr == ""
    assert {word for word in done.stdout.split() if word.startswith(words[-1])} - {":files:"} == offered


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish here")
def test_fish_completes_commands_flags_algorithms_and_presets(scripts, tmp_path):
    asked = [(words, offered) for words, offered in OFFERED if words != ("train", "--seed", "")]
    lines = [
        f"source {scripts / 'fish'}",
        *(f"complete -C 'rl-training {' '.join(words)}'; echo" for words, _ in asked),
    ]
    done = subprocess.run(["fish", "--no-config", "-c", "\n".join(lines)], capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr == ""
    for (words, offered), said in zip(asked, done.stdout.split("\n\n")):
        assert offered <= {line.split("\t")[0] for line in said.splitlines()}, words


def test_every_command_and_flag_is_in_every_script(scripts):
    from rl_training.cli import _parser

    parsers = next(action for action in _parser()._actions if action.dest == "command").choices
    for shell in ("bash", "zsh", "fish"):
        text = (scripts / shell).read_text()
        for name, parser in parsers.items():
            assert name in text
            for option in parser._option_string_actions:
                assert option in text or f"-l {option[2:]} " in text or f"-s {option[1:]} " in text, (shell, option)


def test_making_a_script_loads_nothing_heavy():
    program = (
        "import sys; from rl_training.cli import main; main(['completion', 'bash']); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0


def test_another_shell_is_refused(capsys):
    assert main(["completion", "tcsh"]) == 2
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err
