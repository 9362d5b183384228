"""The documentation is true: snippets run, tables are current, links lead somewhere."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPETS = {
    f"{page.name}-{i}": code
    for page in PAGES
    for i, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
}
TORQUE = (
    "action = agent.predict([1.0, 0.0, 0.0]); assert action.shape == (1,) and abs(action[0]) <= 2 and len(said) == 1"
)
RETURN = "assert 1 <= float(said[-1]) <= 500"
# What the page promises of each snippet, to be checked after it in the same interpreter, with ``said`` (the lines it printed) and
# ``runs`` (status, step, gradient steps and config of every run it made). Every run must have learned and finished anyway.
PROMISES = {
    "README.md-0": "assert float(said[0]) >= 150 and said[1] in ('0', '1') and Path('cartpole.ckpt').exists()",
    "README.md-1": """
(run,), (steps, score) = runs, said[-1].split()
assert run.status.startswith('stopped: eval_return_mean') and run.status.endswith('reached its target 195'), run.status
assert run.gradient_steps == int(steps) > 500 and float(score) >= 195 and run.step < 10_000
assert [line.split()[0] for line in said[:-1]] == [str(500 * (i + 1)) for i in range(len(said) - 1)]
""",
    "actions.md-0": "mean, allowed = said[-1].split(); assert float(mean) == 6 and allowed == 'True'",
    "actions.md-1": "assert float(said[-1]) >= 1.7 and runs[0].config['algo'] == 'dqn'",
    "bc.md-0": "assert 5 <= float(said[0]) <= 100",
    "callbacks.md-0": "assert int(said[-1]) >= 10 and runs[0].config['algo'] == 'ppo'",
    "callbacks.md-1": """
rows = [json.loads(line) for line in next(Path('runs').glob('*/metrics.jsonl')).read_text().splitlines()]
assert said[-1].startswith('ppo CartPole-v1: finished at step 8,') and [r['step'] for r in rows if 'eval_short_return_mean' in r]
assert all(r['eval_short_return_mean'] <= 50 for r in rows if 'eval_short_return_mean' in r)
assert [r['curriculum_stage'] for r in rows if 'curriculum_stage' in r] == [0, 1]
""",
    "cql.md-0": TORQUE,
    "dqn.md-0": RETURN,
    "dreamer.md-0": "assert said[-1] in ('0', '1') and action in (0, 1)",
    "environments.md-0": """
assert said[0] == 'True False' and [line.split(':')[0] for line in said[1:]] == ['determinism', 'exact resume']
assert all('self.np_random' in line or 'new episodes' in line for line in said[1:])
""",
    "fqf.md-0": RETURN,
    "gail.md-0": "assert 0 <= float(said[-1]) <= 1 and [run.config['algo'] for run in runs] == ['gail', 'ppo']",
    "goals.md-0": "assert float(said[-1]) >= 0.75 and runs[0].config['algo_kwargs']['hindsight'] == 'future'",
    "iql.md-0": TORQUE,
    "iqn.md-0": RETURN,
    "logging.md-0": """
assert said[0] == f'writing about {runs[0].name} from step 0'
best = [float(line.split()[1]) for line in said[1:]]
assert best and best == sorted(best) and all(float(line.split()[0]) % 256 == 0 for line in said[1:])
""",
    "mbpo.md-0": TORQUE,
    "memory.md-0": "assert float(said[-1]) == 1 and state.shape == (32,) and action in (0, 1)",
    "mopo.md-0": TORQUE,
    "networks.md-0": "assert '(256, 64), (256,), (256,), (256,), (2, 256)' in said[-1] and runs[0].config['algo'] == 'dqn'",
    "networks.md-1": """
import numpy, torch
obs = numpy.random.default_rng(0).normal(size=(5, 4)).astype('f4')
model = agent.agent.model
for ours, theirs in zip(model.host()(obs), model(torch.from_numpy(obs))):
    numpy.testing.assert_allclose(ours, theirs.detach(), rtol=1e-4, atol=1e-5)
assert said == ['True']
""",
    "networks.md-2": "assert runs[0].gradient_steps == int(said[-1].split()[0]) > 200",
    "offline.md-0": "assert said[0].startswith('400 ') and len(half) == 100 and Path('random.npz').exists()",
    "pets.md-0": TORQUE,
    "pieces.md-0": "assert after > before + 500 and len(said) == 1 and len(replay) == STEPS",
    "pieces.md-1": "assert said == ['True'] and whole.steps == rest.steps == 100 and part.steps == 60",
    "ppg.md-0": "assert all(float(count) > 0 for count in said[-1].split())",
    "ppo.md-0": "mean, action = said[-1].split(); assert 1 <= float(mean) <= 500 and action in '01'",
    "qr_dqn.md-0": RETURN,
    "results.md-0": """
assert low <= value <= high and at_least <= better <= at_most and list(shares) == [1, 0.75, 0.5] and len(said) >= 1
""",
    "rlpd.md-0": TORQUE,
    "sac.md-0": TORQUE,
    "multiagent.md-0": """
(score, bob), through = map(float, said[-2].split()), eval(said[-1])
assert score > 0.9 and bob > 0.9 and through == {"ann": True, "bob": True, "cyd": True}
rows = [json.loads(line) for line in next(Path('runs').glob('*/metrics.jsonl')).read_text().splitlines()]
assert max(row.get('agent_steps', 0) for row in rows) < 6_000 and any('agent_return/cyd' in row for row in rows)
""",
    "multiagent.md-1": """
rows = [json.loads(line) for line in next(Path('runs').glob('*/metrics.jsonl')).read_text().splitlines()]
rates = [row['self_play_win_rate'] for row in rows if 'self_play_win_rate' in row]
assert said[-1] in ('1', '2', '3', '4') and all(0 <= rate <= 1 for rate in rates) and max(rates) > 0.6
""",
    "simulators.md-0": "assert int(said[-1]) == 800 and runs[0].config['async_collection'] and runs[0].gradient_steps > 500",
    "simulators.md-1": "assert float(said[-1]) == 3 and runs[0].config['num_envs'] == 4",
    "td3_bc.md-0": TORQUE,
    "zoo.md-0": "recorded, again = map(float, said[-1].split()); assert recorded == again and Path('cartpole.md').exists()",
    "transfer.md-0": """
assert said[-1] == str(third.run_dir) != str(online.run_dir) and len(runs) == 3
assert all(run.config['algo_kwargs']['hidden_sizes'] == [32, 32] for run in runs)
""",
}
HARNESS = """
import contextlib, io, json, sys
from pathlib import Path
from types import SimpleNamespace

given = json.load(sys.stdin)
here, out = {'__name__': '__main__'}, io.StringIO()
with contextlib.redirect_stdout(out):
    exec(compile(given['code'], 'snippet', 'exec'), here)
runs = []
for file in sorted(Path().glob('runs/*/metadata.json')):
    from rl_training.experiment.runs import newest_checkpoint
    from rl_training.experiment.yaml_config import read_config

    facts, (_, state, _) = json.loads(file.read_text()), newest_checkpoint(file.parent, buffers=False)
    assert state.trainer_state['gradient_steps'] > 0, f'{file.parent.name} has learned nothing'
    early = bool(state.config['algo_kwargs'].get('early_stopping'))
    assert facts['status'] == 'finished' or early, facts['status']
    runs.append(SimpleNamespace(
        name=file.parent.name, status=facts['status'], step=facts['step'],
        gradient_steps=state.trainer_state['gradient_steps'], config=state.config,
    ))
said = out.getvalue().splitlines()
exec(compile(given['promise'], 'promise', 'exec'), here | {'said': said, 'runs': runs, 'Path': Path, 'json': json})
"""


@pytest.mark.parametrize("name", SNIPPETS)
def test_python_snippets_do_what_their_page_promises(name, tmp_path):
    assert name in PROMISES, f"say in PROMISES what the page promises of {name}"
    given = json.dumps({"code": SNIPPETS[name], "promise": PROMISES[name]})
    done = subprocess.run([sys.executable, "-c", HARNESS], input=given, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_promise_is_left_of_a_snippet_that_is_gone():
    assert set(PROMISES) <= set(SNIPPETS)


@pytest.mark.parametrize(
    ("code", "promise", "complaint"),
    [
        ("print(1)", "assert said == ['2']", "AssertionError"),
        (
            "from rl_training import SAC\nSAC('Pendulum-v1', total_timesteps=20, learning_starts=30, eval_episodes=1, "
            "output_dir='runs', progress='off').learn()",
            "",
            "has learned nothing",
        ),
    ],
)
def test_a_snippet_that_breaks_its_promise_is_noticed(code, promise, complaint, tmp_path):
    given = json.dumps({"code": code, "promise": promise})
    done = subprocess.run([sys.executable, "-c", HARNESS], input=given, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0 and complaint in done.stderr


def test_derived_parts_are_current():
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stdout}run: make docs"


def test_the_benchmark_pages_hold_every_record():
    words = [sys.executable, str(ROOT / "benchmarks" / "report.py"), "--check"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}run: make report"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_pages_exist(page):
    from rl_training.cli import _parser

    text = page.read_text()
    commands = set(re.findall(r"^rl-training ([\w-]+)", text, re.MULTILINE))
    known = next(action for action in _parser()._actions if action.dest == "command").choices
    assert commands <= set(known)
    targets = set(re.findall(r"^make (\w+)", text, re.MULTILINE)) | set(re.findall(r"`make (\w+)`", text))
    for target in targets:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
