"""A zoo of trained agents: what is put in comes out unchanged, and nothing of a zoo is believed before it is checked."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import random
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from fuzzing.damage import damaged
from rl_training import PPO, TrainConfig
from rl_training.artifacts import zoo_source as sources
from rl_training.artifacts.zoo import fetch_agent, put_agent, read_zoo, zoo_agent
from rl_training.artifacts.zoo_adding import add_agent, default_name
from rl_training.artifacts.zoo_card import non_default_options, training_command
from rl_training.artifacts.zoo_source import LocalZoo, WebZoo, ZooError, zoo_source
from rl_training.base.files import UnusualFile
from rl_training.cli import _parsed, main
from rl_training.commands.flags import resolved
from rl_training.experiment.checkpointing import load_checkpoint, save_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.workflows import evaluate_checkpoint
from toys import tiny_config

NAME = "ppo/CartPole-v1"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run of PPO, evaluated at its end over three episodes."""
    config = tiny_config("ppo", tmp_path_factory.mktemp("runs"), eval_episodes=3, compile=False)
    return get_algorithm_spec("ppo").train(config)


@pytest.fixture(scope="module")
def made(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "zoo"
    add_agent(run.run_dir, folder, facts={"licence": "MIT", "note": "a | b\nc"})
    return folder


@pytest.fixture
def zoo(made, tmp_path, monkeypatch):
    """A zoo with one agent, ./zoo of an empty working directory."""
    monkeypatch.delenv("RL_TRAINING_ZOO", raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    shutil.copytree(made, tmp_path / "zoo")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "zoo"


def rewrite(zoo, **changes):
    """Change values of the agent's entry in the index."""
    index = json.loads((zoo / "zoo.json").read_text())
    index["agents"][NAME] |= changes
    (zoo / "zoo.json").write_text(json.dumps(index))


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(capsys, *words, code=2):
    """The line with which a command is refused; nothing is written where the command stands."""
    before = files_of(Path())
    capsys.readouterr()
    assert main(list(map(str, words))) == code
    said = capsys.readouterr()
    assert files_of(Path()) == before and said.out == ""
    assert said.err.count("\n") == 1 and said.err.startswith("rl-training: error: ")
    return said.err


# ---- the way in and out


def test_an_agent_comes_out_of_a_zoo_as_it_went_in(run, zoo, capsys):
    assert main(["zoo", "get", NAME]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("ppo-CartPole-v1.ckpt: ppo/CartPole-v1, ")
    assert [line.strip() for line in said[1:]] == [
        "rl-training eval ppo-CartPole-v1.ckpt",
        "rl-training video ppo-CartPole-v1.ckpt -o agent.mp4",
        "rl-training train --algo ppo --env CartPole-v1 --init-from ppo-CartPole-v1.ckpt",
    ]
    assert Path("ppo-CartPole-v1.ckpt").read_bytes() == (zoo / "ppo" / "CartPole-v1.ckpt").read_bytes()
    assert Path("ppo-CartPole-v1.md").read_bytes() == (zoo / "ppo" / "CartPole-v1.md").read_bytes()
    whole = evaluate_checkpoint(run.checkpoint_path, 3)
    assert evaluate_checkpoint("ppo-CartPole-v1.ckpt", 3) == whole
    entry = read_zoo(LocalZoo(zoo))[NAME]
    assert (entry.return_mean, entry.return_std, entry.episodes) == (
        whole["eval_return_mean"], whole["eval_return_std"], 3,
    )  # fmt: skip
    assert (entry.algo, entry.env_id, entry.steps, entry.seed) == ("ppo", "CartPole-v1", 128, 3)
    assert PPO.load("ppo-CartPole-v1.ckpt").predict([0.0] * 4) == PPO.load(run.run_dir).predict([0.0] * 4)
    assert main(["train", "--algo", "ppo", "--env", "CartPole-v1", "--init-from", "ppo-CartPole-v1.ckpt",
                 "--total-timesteps", "32", "--eval-episodes", "1", "--set", "num_steps=32", "--set", "minibatch_size=32",
                 "--set", "compile=false"]) == 0  # fmt: skip
    assert main(["resume", "ppo-CartPole-v1.ckpt", "--output-dir", "runs"]) == 2


def test_the_card_says_what_the_agent_is_and_its_command_makes_the_same_config(run, zoo):
    card = (zoo / "ppo" / "CartPole-v1.md").read_text()
    entry = read_zoo(LocalZoo(zoo))[NAME]
    assert f"{entry.return_mean:.6g} ± {entry.return_std:.4g} over 3 episodes" in card
    assert "| licence | MIT |" in card and "| note | a \\| b c |" in card and "| environment steps | 128 |" in card
    config = TrainConfig(**load_checkpoint(run.checkpoint_path).config)
    command = training_command(config)
    assert command in card
    again = resolved(_parsed(shlex.split(command)[1:]))
    assert again.algo_kwargs.items() <= config.algo_kwargs.items()
    assert non_default_options(again) == non_default_options(config) and again.seed == 3


def test_an_agents_default_name_is_its_algorithm_and_its_task(tmp_path):
    for env_id, name in (("CartPole-v1", "CartPole-v1"), ("ALE/Pong-v5", "ALE-Pong-v5"), ("a.b:C-v1", "C-v1")):
        assert default_name(TrainConfig(algo="ppo", env_id=env_id)) == f"ppo/{name}"


def test_the_listing_shows_each_agent_and_json_all_that_is_known(zoo, capsys):
    assert main(["zoo", "list"]) == 0
    head, line, end = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["name", "algorithm", "environment", "steps"]
    assert line.split()[:4] == [NAME, "ppo", "CartPole-v1", "128"] and "±" in line and line.endswith("KiB")
    assert end.startswith("1 agent in zoo")
    assert main(["zoo", "list", "--json", "--from", str(zoo)]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed == {"source": str(zoo), **{"agents": json.loads((zoo / "zoo.json").read_text())["agents"]}}


def test_a_zoo_is_found_where_the_variable_says(zoo, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RL_TRAINING_ZOO", str(zoo))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["zoo", "list"]) == 0 and str(zoo) in capsys.readouterr().out


def test_without_any_zoo_one_line_says_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("RL_TRAINING_ZOO", raising=False)
    monkeypatch.chdir(tmp_path)
    line = refused(capsys, "zoo", "list")
    assert "--from" in line and "RL_TRAINING_ZOO" in line and "./zoo" in line
    assert "no such folder" in refused(capsys, "zoo", "list", "--from", "nowhere")
    (tmp_path / "zoo").mkdir()
    assert "zoo is no zoo: it has no zoo.json" in refused(capsys, "zoo", "list")


@pytest.mark.parametrize("wrong", ["CartPole-v1", "ppo/CartPole-v2", "PPO/cartpole-v1", "ppo/Cartpole"])
def test_a_wrong_name_is_answered_with_the_nearest(zoo, capsys, wrong):
    assert f"zoo has no agent '{wrong}'; did you mean {NAME}?" in refused(capsys, "zoo", "get", wrong)


# ---- putting in


def test_adding_the_same_name_replaces_it_and_leaves_the_others(run, zoo, capsys):
    add_agent(run.run_dir, zoo, name="other", facts={"licence": "MIT"})
    other = {name: content for name, content in files_of(zoo).items() if name.startswith("other")}
    assert main(["zoo", "add", str(run.run_dir), "--to", "zoo", "--card", "licence=none", "x=y"]) == 0
    agents = read_zoo(LocalZoo(zoo))
    assert set(agents) == {NAME, "other"} and agents[NAME].facts == {"licence": "none", "x": "y"}
    assert {name: content for name, content in files_of(zoo).items() if name.startswith("other")} == other
    for one in agents.values():  # the index says what the files are
        assert hashlib.sha256((zoo / one.file).read_bytes()).hexdigest() == one.sha256
        assert hashlib.sha256((zoo / one.card).read_bytes()).hexdigest() == one.card_sha256
        assert (zoo / one.file).stat().st_size == one.bytes


def test_a_return_is_that_of_the_very_checkpoint(run, tmp_path):
    """An evaluation of an earlier step is not: such a checkpoint is evaluated anew, and so is the best."""
    state = load_checkpoint(run.checkpoint_path, buffers=False)
    state.metadata["last_eval"] = {**state.metadata["last_eval"], "eval_return_mean": 1234.0}
    own = add_agent(save_checkpoint(tmp_path / "own.ckpt", state), tmp_path / "zoo")
    assert own.return_mean == 1234.0
    state.metadata["notes"]["evaluated"] = 64
    older = add_agent(save_checkpoint(tmp_path / "older.ckpt", state), tmp_path / "zoo")
    assert older.return_mean < 600 and older.episodes == 20
    del state.metadata["notes"]  # as in best.ckpt
    best = add_agent(save_checkpoint(tmp_path / "best.ckpt", state), tmp_path / "zoo", episodes=4)
    assert best.return_mean < 600 and best.episodes == 4
    assert best.return_mean != evaluate_checkpoint(tmp_path / "best.ckpt", 4)["eval_return_mean"]  # other episodes
    assert "had no part in choosing it" in (tmp_path / "zoo" / best.card).read_text()


def test_an_agent_of_a_zoo_goes_into_another_zoo_with_its_return(zoo, tmp_path):
    first = read_zoo(LocalZoo(zoo))[NAME]
    second = add_agent(zoo / first.file, tmp_path / "second")
    assert (second.return_mean, second.episodes, second.versions) == (first.return_mean, 3, first.versions)


def test_a_return_that_is_no_number_is_refused_and_changes_nothing(run, zoo):
    before = files_of(zoo)
    scores = {"eval_return_mean": float("nan"), "eval_return_std": 0.0, "eval_episodes": 3.0}
    with pytest.raises(ValueError, match="eval_return_mean"):
        add_agent(run.run_dir, zoo, evaluation=scores)
    with pytest.raises(ZooError, match="no return that is a number"):
        add_agent(run.run_dir, zoo, evaluation={**scores, "eval_return_mean": 1.0, "eval_episodes": 0.0})
    assert files_of(zoo) == before


@pytest.mark.parametrize(
    "name", ["../up", "/top", "a//b", "a/../b", ".hidden", "a/.b", "a\nb", "", "a b", "x" * 201, "a\\b"]
)
def test_a_name_that_is_no_path_within_the_zoo_is_refused(run, zoo, name):
    before = files_of(zoo.parent)
    with pytest.raises(ZooError, match="the name"):
        add_agent(run.run_dir, zoo, name=name)
    assert files_of(zoo.parent) == before


def test_a_card_cannot_contradict_the_agent(run, zoo, capsys):
    for pair in ("return=9999", "Seed=7", "licence", "=x", "1=2"):
        refused(capsys, "zoo", "add", run.run_dir, "--to", "zoo", "--card", pair)


def test_an_agent_that_cannot_be_loaded_again_is_not_added(run, zoo):
    state = load_checkpoint(run.checkpoint_path)
    state.algorithm_state["policy"] = {}
    before = files_of(zoo)
    with pytest.raises(ValueError, match="does not fit"):
        add_agent(save_checkpoint(zoo.parent / "broken.ckpt", state), zoo)
    assert files_of(zoo) == before


def test_when_a_file_cannot_be_written_the_zoo_stays_as_it_was(run, zoo, monkeypatch):
    before, count = files_of(zoo), [0]
    fsync = os.fsync

    def full(descriptor):
        count[0] += 1
        if count[0] == 4:  # the agent is packed into a file and its folder first, then checkpoint and card
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        add_agent(run.run_dir, zoo, facts={"other": "card"})
    assert files_of(zoo) == before and count[0] == 4


def test_a_link_in_a_zoo_is_not_written_through(run, zoo, tmp_path):
    (tmp_path / "outside").mkdir()
    (zoo / "linked").symlink_to(tmp_path / "outside")
    (zoo / "file.ckpt").symlink_to(tmp_path / "outside" / "file")
    for name in ("linked/agent", "file"):
        with pytest.raises(UnusualFile, match="symbolic link"):
            add_agent(run.run_dir, zoo, name=name)
    assert not list((tmp_path / "outside").iterdir())


# ---- getting out: what is there already


def test_files_that_are_there_are_left_alone_and_others_overwritten_only_by_force(zoo, capsys, monkeypatch):
    assert main(["zoo", "get", NAME, "-o", "a.ckpt"]) == 0
    good = Path("a.ckpt").read_bytes()
    asked = []
    monkeypatch.setattr(
        LocalZoo, "pieces", lambda self, file, most, old=LocalZoo.pieces: asked.append(file) or old(self, file, most)
    )
    assert main(["zoo", "get", NAME, "-o", "a.ckpt"]) == 0
    assert "was there already" in capsys.readouterr().out and asked == ["zoo.json"]
    for path in (Path("a.ckpt"), Path("a.md")):
        kept = path.read_bytes()
        path.write_bytes(kept[:-1] + b"?")  # of the same size
        assert f"{path} is there already, with another content" in refused(capsys, "zoo", "get", NAME, "-o", "a.ckpt")
        assert main(["zoo", "get", NAME, "-o", "a.ckpt", "--force"]) == 0
        assert path.read_bytes() == kept
    assert Path("a.ckpt").read_bytes() == good
    Path("b.ckpt").symlink_to("a.ckpt")
    assert "symbolic link" in refused(capsys, "zoo", "get", NAME, "-o", "b.ckpt", "--force")
    assert "should end in .ckpt" in refused(capsys, "zoo", "get", NAME, "-o", "a.md", "--force")


# ---- files and indices that are wrong


def test_a_file_that_is_not_the_one_of_the_index_takes_no_place(zoo, capsys):
    file = zoo / "ppo" / "CartPole-v1.ckpt"
    good = file.read_bytes()
    wrong = {
        "sha256 differs": good[:-1] + bytes([good[-1] ^ 1]),
        "it is not whole": good[:-7],
        "more than the": good + b"x",
    }
    for problem, content in wrong.items():
        file.write_bytes(content)
        assert problem in refused(capsys, "zoo", "get", NAME)
    file.unlink()
    assert "has lost ppo/CartPole-v1.ckpt" in refused(capsys, "zoo", "get", NAME)
    file.write_bytes(good)
    (zoo / "ppo" / "CartPole-v1.md").write_bytes(b"another card")
    refused(capsys, "zoo", "get", NAME)


def test_links_in_a_local_zoo_are_not_followed(zoo, tmp_path, capsys):
    file = zoo / "ppo" / "CartPole-v1.ckpt"
    file.rename(tmp_path / "elsewhere.ckpt")
    file.symlink_to(tmp_path / "elsewhere.ckpt")
    assert "symbolic link" in refused(capsys, "zoo", "get", NAME)
    file.unlink()
    (tmp_path / "elsewhere.ckpt").rename(file)
    (zoo / "ppo").rename(tmp_path / "moved")
    (zoo / "ppo").symlink_to(tmp_path / "moved")
    assert "symbolic link" in refused(capsys, "zoo", "get", NAME)
    (zoo / "zoo.json").rename(tmp_path / "index")
    (zoo / "zoo.json").symlink_to(tmp_path / "index")
    assert "symbolic link" in refused(capsys, "zoo", "list")
    os.unlink(zoo / "zoo.json")
    os.mkfifo(zoo / "zoo.json")
    assert "a pipe" in refused(capsys, "zoo", "list")


BAD = {
    "file": ["../a.ckpt", "/etc/a.ckpt", "a/../../b.ckpt", "C:\\a.ckpt", "http://x/a.ckpt", "a.txt", "a.ckpt\n", 7, None, "//a.ckpt"],
    "card": ["../a.md", "a.ckpt", "~/a.md", "", ["a.md"]],
    "sha256": ["", "x" * 64, "A" * 64, 5, None],
    "card_sha256": ["0" * 63],
    "bytes": [0, -1, 2**40, True, "9", 1.5, None, 10**400],
    "card_bytes": [1 << 21],
    "steps": [-1, "many"],
    "episodes": [0, 2.0],
    "algo": ["", "x" * 201, 3],
    "env_id": [{}, None],
    "return_mean": ["9", None, 1e300, True],
    "return_std": [[]],
    "commit": [7],
    "versions": [[]],
    "facts": ["text"],
}  # fmt: skip


@pytest.mark.parametrize(("item", "value"), [(item, value) for item, values in BAD.items() for value in values])
def test_an_entry_with_a_wrong_value_is_refused_by_its_name(zoo, capsys, item, value):
    rewrite(zoo, **{item: value})
    line = refused(capsys, "zoo", "get", NAME)
    assert f"zoo.json: {item} of '{NAME}' should be " in line


def test_an_entry_that_lacks_a_value_and_an_index_of_another_kind_are_refused(zoo, capsys):
    index = json.loads((zoo / "zoo.json").read_text())
    for item in BAD.keys() - {"commit", "versions", "facts"}:
        short = {name: value for name, value in index["agents"][NAME].items() if name != item}
        (zoo / "zoo.json").write_text(json.dumps({"format": 1, "agents": {NAME: short}}))
        assert f"{item} of '{NAME}' should be" in refused(capsys, "zoo", "list")
    texts = {
        "is not JSON": ["", "{", "[" * 100_000, '{"a": NaN}', '{"format": 1, "agents": {"a": Infinity}}', "\x00"],
        "holds no agents": ["[]", "7", '{"format": 1}', '{"format": 1, "agents": []}'],
        "has format": ['{"format": 2, "agents": {}}', '{"agents": {}}', '{"format": true, "agents": {}}'],
        "the name": ['{"format": 1, "agents": {"../a": {}}}', '{"format": 1, "agents": {"\\u001b[2J": {}}}'],
        "should be an object": ['{"format": 1, "agents": {"a": 3}}'],
        "than the": [" " * ((1 << 22) + 1)],
    }
    for problem, several in texts.items():
        for text in several:
            (zoo / "zoo.json").write_text(text)
            assert problem in refused(capsys, "zoo", "list")


def test_what_a_terminal_would_obey_is_written_out(zoo, capsys):
    rewrite(zoo, env_id="Cart\x1b[2JPole; rm -rf", algo="ppo\n")
    for words in (["list"], ["get", NAME]):
        assert main(["zoo", *words]) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out and "rm -rf --init" not in out
    assert "train ... --init-from" in out


def test_the_module_of_an_environment_is_named_and_not_trusted(zoo, capsys):
    rewrite(zoo, env_id="stranger_module:Env-v0")
    assert main(["zoo", "get", NAME]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "code of stranger_module" in said[1] and "if you trust that, add --trust stranger_module" in said[1]
    assert not any("stranger" in line for line in said[2:])


VALUES = [
    None,
    True,
    -1,
    2**70,
    1e308,
    "",
    "../x.ckpt",
    "/x.md",
    "\x1b[0m",
    "a" * 5_000,
    [],
    {},
    [[[]]],
    {"$file": "x"},
]


def test_a_mutated_index_lists_and_gets_or_is_refused_in_one_line(zoo, capsys):
    """Several hundred damaged texts and wrong values: never a traceback, and nothing but the agent's own two files."""
    good = (zoo / "zoo.json").read_bytes()
    files, outcomes = {name: content for name, content in files_of(zoo).items() if name != "zoo.json"}, {0: 0, 2: 0}
    mutants = [data for _, data in damaged(good, 7, 200)]
    rng = random.Random(11)
    for _ in range(200):
        index = json.loads(good)
        place = rng.choice([index, index["agents"], index["agents"][NAME], index["agents"][NAME]["versions"]])
        key = rng.choice([*place, "another"])
        place[rng.choice([key, "../" + key])] = rng.choice(VALUES)
        mutants.append(json.dumps(index).encode())
    for number, data in enumerate(mutants):
        (zoo / "zoo.json").write_bytes(data)
        code = main(["zoo", "get", NAME, "-o", "out/agent.ckpt"] if number % 2 else ["zoo", "list"])
        said = capsys.readouterr()
        outcomes[code] += 1
        assert said.err.count("\n") == (code == 2), said.err
        assert {name: content for name, content in files_of(zoo).items() if name != "zoo.json"} == files
        written = set(files_of(zoo.parent / "out")) if Path("out").exists() else set()
        assert written in (set(), {"agent.ckpt", "agent.md"})
        if written:
            assert Path("out/agent.ckpt").read_bytes() == files[f"{NAME}.ckpt"]
        shutil.rmtree("out", ignore_errors=True)
    assert min(outcomes.values()) > 20


# ---- a web server


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files; ``answers`` says what it does instead for some paths."""

    answers: dict = {}

    def do_GET(self):
        answer = self.answers.get(self.path)
        super().do_GET() if answer is None else answer(self)

    def log_message(self, *args):
        pass


@contextmanager
def served(folder, answers=None):
    """A zoo's folder behind a server of this machine."""
    own = type("Own", (Handler,), {"answers": answers or {}})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), lambda *args: own(*args, directory=str(folder)))
    server.handle_error = lambda *args: None  # a client that hangs up
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_an_agent_comes_from_a_web_server_as_from_a_folder(zoo, capsys):
    with served(zoo.parent) as url:
        assert main(["zoo", "list", "--from", f"{url}/zoo/"]) == 0
        assert NAME in capsys.readouterr().out
        assert main(["zoo", "get", NAME, "--from", f"{url}/zoo", "-o", "new/a.ckpt"]) == 0
    assert files_of(Path("new")) == {
        "a.ckpt": (zoo / f"{NAME}.ckpt").read_bytes(), "a.md": (zoo / f"{NAME}.md").read_bytes(),
    }  # fmt: skip


def body(content, length=None, code=200, **headers):
    def answer(handler):
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name, value)
        if length is not None:
            handler.send_header("Content-Length", str(length))
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def test_a_download_that_ends_early_or_never_or_is_wrong_leaves_nothing(zoo, capsys):
    good = (zoo / f"{NAME}.ckpt").read_bytes()
    endless = {"more than the": body(good + b"x" * 10_000_000), "that it may have": body(b"", 1 << 50)}
    wrong = {
        "it is not whole": body(good[:-9]),
        "cannot read|not whole": body(good[:-9], len(good)),
        "sha256": body(b"x" * len(good)),
    }
    for problem, answer in (wrong | endless).items():
        with served(zoo, {f"/{NAME}.ckpt": answer}) as url:
            words = ["zoo", "get", NAME, "--from", url]
            before = files_of(Path())
            assert main(words) in (1, 2)
            err = capsys.readouterr().err
            assert any(one in err for one in problem.split("|")) and err.count("\n") == 1, err
            assert files_of(Path()) == before


def test_an_interrupted_download_leaves_nothing(zoo, monkeypatch):
    with served(zoo) as url:
        source = WebZoo(url)
        agent = read_zoo(source)[NAME]

        def interrupted(self, file, most, whole=WebZoo.pieces):
            yield next(whole(self, file, most))
            raise KeyboardInterrupt

        monkeypatch.setattr(WebZoo, "pieces", interrupted)
        before = files_of(zoo.parent)
        with pytest.raises(KeyboardInterrupt):
            fetch_agent(source, agent, Path("a.ckpt"))
        assert files_of(zoo.parent) == before


def test_a_redirect_stays_within_its_scheme(zoo, capsys):
    def to(where, code=302):
        return body(b"", 0, code, Location=where)

    with served(zoo, {}) as url:
        answers = {"/zoo.json": to(f"{url}/zoo.json")}
        with served(zoo.parent, answers) as other:
            assert main(["zoo", "list", "--from", other]) == 0  # to another place of the same scheme
            capsys.readouterr()
            for where in (
                f"file://{zoo}/zoo.json",
                "https://127.0.0.1:9/zoo.json",
                "ftp://127.0.0.1/zoo.json",
                "data:,x",
            ):
                for code in (301, 302, 303, 307, 308):
                    answers["/zoo.json"] = to(where, code)
                    assert "redirects" in refused(capsys, "zoo", "list", "--from", other)
            answers["/zoo.json"] = to("/zoo.json")
            assert "without end" in refused(capsys, "zoo", "list", "--from", other)


def test_a_server_that_is_not_there_silent_slow_or_broken_is_one_line(zoo, capsys, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = refused(capsys, "zoo", "list", "--from", f"http://127.0.0.1:{port}", code=1)
    assert f"cannot read http://127.0.0.1:{port}/zoo.json" in line
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(sources, "TIMEOUT", 0.2)
        where = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert "timed out" in refused(capsys, "zoo", "list", "--from", where, code=1)
    monkeypatch.setattr(sources, "TIMEOUT", 20.0)
    with served(zoo, {"/zoo.json": body(b"", 0, 500)}) as url:
        assert "500" in refused(capsys, "zoo", "list", "--from", url, code=1)
        assert "is no zoo: it has no zoo.json" in refused(capsys, "zoo", "list", "--from", f"{url}/ppo")
        monkeypatch.setattr(sources, "PATIENCE", -1e9)
        assert "too slow" in refused(capsys, "zoo", "list", "--from", f"{url}/../", code=1)
    with served(zoo, {"/zoo.json": lambda handler: handler.wfile.write(b"nonsense\r\n\r\n")}) as url:
        refused(capsys, "zoo", "list", "--from", url, code=1)


@pytest.mark.parametrize(
    "text",
    ["file:///etc", "ftp://host/x", "http://", "http://user:pw@host/x", "http://host/x?y", "http://host/x#y", "http://ho st/",
     "http://host:99999/", "http://[::1/", "http://höst/", "javascript://x", "HTTP://host\n/"],
)  # fmt: skip
def test_another_url_is_refused(text, zoo, capsys):
    line = refused(capsys, "zoo", "list", "--from", text)
    assert "URL" in line and "pw" not in line


def test_listing_and_getting_load_no_torch(zoo):
    program = "import sys; from rl_training.cli import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    for words in (["zoo", "list"], ["zoo", "get", NAME]):
        assert subprocess.run([sys.executable, "-c", program, *words], capture_output=True).returncode == 0


def test_names_are_found_and_entries_put_by_hand_are_checked(zoo):
    agents = read_zoo(zoo_source(str(zoo)))
    assert zoo_agent(agents, NAME, LocalZoo(zoo)) is agents[NAME]
    facts = {
        "algo": "ppo",
        "env_id": "X-v0",
        "steps": 1,
        "seed": 0,
        "return_mean": 1.0,
        "return_std": 0.0,
        "episodes": 0,
    }
    with pytest.raises(ZooError, match="episodes of 'x' should be"):
        put_agent(zoo, "x", b"content", "card", facts)
