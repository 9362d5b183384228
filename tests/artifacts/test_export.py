"""Policies as files: what they do without this package is what the agent does with it."""

import contextlib
import io
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training import Dreamer
from rl_training.artifacts import export
from rl_training.artifacts.export import export_checkpoint
from rl_training.cli import main
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models import MLPQNetwork
from rl_training.runtime.workflows import find_checkpoint, predict_checkpoint
from toys import Counter, Pictures

ALGORITHMS = ("ppo", "sac", "dqn", "dreamer")
FORMATS = [name for name in ("torch", "onnx") if name == "torch" or find_spec("onnxruntime")]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    from toys import tiny_config

    folder, made = tmp_path_factory.mktemp("runs"), {}
    for algo in ALGORITHMS:
        config = tiny_config(
            algo, folder, total_timesteps=64, **({"normalize_observations": True} if algo == "sac" else {})
        )
        made[algo] = get_algorithm_spec(algo).train(config).run_dir
    return made


@pytest.fixture(scope="module")
def exported(runs, tmp_path_factory):
    """The folder of one format's files, and what was printed about each, as ``rl-training export`` makes them."""
    made = {}

    def export_all(format):
        if format not in made:
            folder, printed = tmp_path_factory.mktemp(format), {}
            for algo, run_dir in runs.items():
                path = folder / f"{algo}{export.ENDINGS[format]}"
                with contextlib.redirect_stdout(Terminal()) as out:
                    assert main(["export", "--checkpoint", str(run_dir), "--format", format, "-o", str(path)]) == 0
                printed[algo] = out.getvalue()
            made[format] = folder, printed
        return made[format]

    return export_all


@pytest.mark.parametrize("format", FORMATS)
def test_the_printed_lines_run_where_this_package_cannot_be_imported(runs, exported, format):
    folder, printed = exported(format)
    alone = "import sys, json\nsys.modules['rl_training'] = None\n"
    alone += f"for program in {list(printed.values())!r}:\n    exec(program, there := {{}})\n"
    alone += "    print('=', json.dumps(there['action'].tolist()))\n"
    done = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line[2:])[0] for line in done.stdout.splitlines() if line.startswith("=")]
    for algo, answer in zip(ALGORITHMS, answers, strict=True):
        assert printed[algo].startswith(f"# {folder / algo}{export.ENDINGS[format]}: ")
        assert "acts as the agent does on 1,000 observations" in printed[algo].splitlines()[0]
        expected = predict_checkpoint(runs[algo], np.zeros(3 if algo == "sac" else 4))
        assert np.allclose(answer, expected, atol=1e-5), algo


def test_a_file_or_a_pipe_gets_the_program_alone(runs, tmp_path, capsys):
    path = tmp_path / "policy.pt2"
    assert main(["export", "--checkpoint", str(runs["ppo"]), "-o", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("import torch\n") and "#" not in out.splitlines()[0]
    exec(out, there := {})
    assert there["action"].tolist() == [predict_checkpoint(runs["ppo"], np.zeros(4))]
    assert err.startswith(f"# {path}: ") and err.count("\n") == 1


def test_standard_output_gets_the_policy_alone_where_it_is_the_output(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with open("policy.pt2", "w") as file, contextlib.redirect_stdout(file):
        assert main(["export", "--checkpoint", str(runs["ppo"]), "-o", "-", "--format", "torch"]) == 0
    err = capsys.readouterr().err
    assert err.startswith("# standard output: ") and err.count("\n") == 1
    policy = torch.export.load("policy.pt2").module()
    assert policy(torch.zeros(1, 4)).tolist() == [predict_checkpoint(runs["ppo"], np.zeros(4))]
    assert [path.name for path in tmp_path.iterdir()] == ["policy.pt2"]


def test_a_policy_is_not_written_to_a_terminal_nor_without_a_format(runs, capsys):
    with contextlib.redirect_stdout(Terminal()) as out:
        assert main(["export", "--checkpoint", str(runs["ppo"]), "-o", "-", "--format", "torch"]) == 2
    assert out.getvalue() == "" and "which is a terminal here: send it to a file" in capsys.readouterr().err
    assert main(["export", "--checkpoint", str(runs["ppo"]), "-o", "-"]) == 2
    assert "-o - has no ending: say --format onnx or --format torch" in capsys.readouterr().err


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_but_the_file_is_written(exported, format):
    names = sorted(path.name for path in exported(format)[0].iterdir())
    assert names == sorted(f"{algo}{export.ENDINGS[format]}" for algo in ALGORITHMS)


def test_a_policy_with_a_carry_lives_through_an_episode_as_the_agent_does(runs, exported):
    policy = torch.export.load(exported("torch")[0] / "dreamer.pt2").module()
    agent = Dreamer.load(find_checkpoint(runs["dreamer"], buffers=False)[0]).agent
    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=1)
    held, over = agent.initial_carry(1), False
    carry = torch.zeros(held.shape)
    while not over:
        action, carry = policy(torch.from_numpy(obs[None]), carry)
        acting = agent.act(obs[None], carry=held, deterministic=True)
        held = acting.carry
        assert action.tolist() == acting.actions.tolist() and np.allclose(carry.numpy(), held, atol=1e-4)
        obs, _, terminated, truncated, _ = env.step(action.item())
        over = terminated or truncated


class Turned(gym.Env):
    """Pictures with their channels last."""

    observation_space, action_space = gym.spaces.Box(0, 255, (36, 40, 3), np.uint8), gym.spaces.Discrete(3, start=5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.high // 2, {}

    def step(self, action):
        return self.observation_space.high // 3, 0.0, True, False, {}


@pytest.mark.parametrize(
    ("env", "shape"),
    [
        (lambda: Counter(actions=gym.spaces.Discrete(4, start=-2)), ()),
        (lambda: Counter(actions=gym.spaces.MultiDiscrete([2, 1, 3], start=[7, -2, 0])), (3,)),
        (lambda: Counter(actions=gym.spaces.MultiBinary(4)), (4,)),
        (lambda: Counter(actions=gym.spaces.Box(np.array([[-1.0, 0.0]]), np.array([[3.0, 0.5]]), dtype=np.float64)), (1, 2)),
        (lambda: Counter(actions=gym.spaces.Box(-np.inf, np.inf, (2,)))  , (2,)),
        (lambda: Counter(actions=gym.spaces.Box(np.array([3.0, -1.0]), np.array([3.0, 1e7]), dtype=np.float64)), (2,)),
        (Pictures, ()),
        (Turned, ()),
    ],
    ids=["discrete", "multi-discrete", "multi-binary", "box", "unbounded box", "odd bounds", "pictures", "channels last"],
)  # fmt: skip
def test_every_kind_of_space_goes_into_the_file(tiny, tmp_path, env, shape):
    result = get_algorithm_spec("ppo").train(tiny("ppo", env_id="own", total_timesteps=64), env=env)
    path = export_checkpoint(result.run_dir, tmp_path / "own.pt2", env=env).path
    policy, made = torch.export.load(path).module(), env()
    obs = torch.from_numpy(np.stack([made.reset()[0]] * 2))
    action = policy(obs).numpy()
    assert action.shape == (2, *shape)
    assert made.action_space.contains(action[0] if shape else action[0].item())


class Narrow(MLPQNetwork):
    """A network of the user's own."""

    def __init__(self, **arguments):
        super().__init__(**{**arguments, "hidden_sizes": (8,)})


def test_a_network_of_ones_own_goes_into_the_file(tiny, tmp_path):
    run_dir = get_algorithm_spec("dqn").train(tiny("dqn"), network=Narrow).run_dir
    made = export_checkpoint(run_dir, output=tmp_path / "own.pt2", network=Narrow)
    assert (tmp_path / "own.pt2").exists() and made.difference < 1e-5


def test_the_file_says_what_it_is(exported):
    facts = {export.NOTES: ""}
    torch.export.load(exported("torch")[0] / "sac.pt2", extra_files=facts)
    noted = json.loads(facts[export.NOTES])
    assert (noted["algo"], noted["env_id"], noted["step"]) == ("sac", "Pendulum-v1", 64)
    assert noted["action_space"] == "Box(-2.0, 2.0, (1,), float32)" and "git" in noted and "torch" in noted["versions"]
    if "onnx" in FORMATS:
        import onnxruntime

        session = onnxruntime.InferenceSession(exported("onnx")[0] / "sac.onnx")
        kept = session.get_modelmeta().custom_metadata_map
        assert {name: json.loads(fact) for name, fact in kept.items()} == noted


@pytest.mark.parametrize("format", FORMATS)
def test_no_path_of_this_machine_is_in_the_file(exported, format):
    data = (exported(format)[0] / f"dqn{export.ENDINGS[format]}").read_bytes()
    assert str(Path(export.__file__).parent).encode() not in data and b"site-packages" not in data


def test_a_file_that_acts_otherwise_does_not_stay(runs, tmp_path, monkeypatch, capsys):
    right = export.Policy._actions
    monkeypatch.setattr(export.Policy, "_actions", lambda self, best: right(self, best) + 3e-5)
    path = tmp_path / "sac.pt2"
    path.write_text("an older one")
    assert main(["export", "--checkpoint", str(runs["sac"]), "-o", str(path)]) == 1
    assert "acts otherwise than the agent on 200 of 200 observations" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["sac.pt2"] and path.read_text() == "an older one"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "say --format onnx or --format torch"),
        (["-o", "policy.pth"], "say --format onnx or --format torch"),
        (["-o", "policy.onnx", "--format", "torch"], "torch files end in .pt2, and policy.onnx does not"),
    ],
)
def test_mistakes_are_one_line(runs, words, complaint, capsys):
    assert main(["export", "--checkpoint", str(runs["ppo"]), *words]) == 2
    assert complaint in capsys.readouterr().err


def test_onnx_without_its_packages_says_what_to_install(runs, monkeypatch, capsys):
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    assert main(["export", "--checkpoint", str(runs["ppo"]), "--format", "onnx"]) == 2
    assert "pip install 'rl_training[export]'" in capsys.readouterr().err
