"""The zoo that is made of a campaign: one agent of each finished row, of the median seed, with what its run reached."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from rl_training.artifacts.zoo import read_zoo
from rl_training.artifacts.zoo_source import LocalZoo
from rl_training.cli import _parsed
from rl_training.commands.flags import resolved
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.runs import list_checkpoints, open_run_context

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ROWS = """
rows:
  - {name: ppo/first, preset: ppo/cartpole, seeds: [1, 2], hours: 0.1, set: &tiny {total_timesteps: 64, eval_episodes: 1,
      algo_kwargs.num_steps: 32, algo_kwargs.minibatch_size: 32, algo_kwargs.update_epochs: 1, compile: false}}
  - {name: ppo/second, algo: ppo, env_id: CartPole-v1, seeds: [3], hours: 0.2, set: *tiny}
  - {name: choice/third, preset: ppo/cartpole, seeds: [4], hours: 0.2, set: *tiny}
"""


@pytest.fixture(scope="module")
def worked(tmp_path_factory):
    """A campaign's folder with three short rows, and the module under test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import campaign
        import learning
        import zoo

        patch.setattr(learning, "EPISODES", 1)
        folder = tmp_path_factory.mktemp("campaign")
        (folder / "queue.yaml").write_text(ROWS)
        campaign.work(folder)
        yield folder, zoo
    for name in ("campaign", "learning", "report", "zoo"):
        sys.modules.pop(name, None)


def made(worked, target, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["zoo.py", str(worked[0]), "--to", str(target)])
    assert worked[1].main() == 0
    return read_zoo(LocalZoo(target)) if target.exists() else {}


def result_of(folder, row, seed):
    return json.loads((folder / "runs" / row / str(seed) / "result.json").read_text())


def test_each_finished_row_gives_the_agent_of_its_lower_median_seed(worked, tmp_path, monkeypatch):
    folder = worked[0]
    before = sorted(folder.rglob("*"))
    agents = made(worked, tmp_path / "zoo", monkeypatch)
    assert set(agents) == {"ppo/first", "ppo/second"} and sorted(folder.rglob("*")) == before
    results = {seed: result_of(folder, "ppo_first", seed) for seed in (1, 2)}
    seed = min(results, key=lambda seed: results[seed]["return_mean"])
    agent = agents["ppo/first"]
    assert (agent.seed, agent.return_mean, agent.episodes) == (seed, results[seed]["return_mean"], 1)
    run_dir = next((folder / "runs" / "ppo_first" / str(seed)).glob("ppo__*"))
    newest = load_checkpoint(list_checkpoints(open_run_context(run_dir))[-1])
    assert load_checkpoint(tmp_path / "zoo" / agent.file).trainer_state["step"] == newest.trainer_state["step"]


def test_its_card_has_all_seeds_the_published_figure_and_a_command_that_makes_the_same_config(
    worked, tmp_path, monkeypatch
):
    agent = made(worked, tmp_path / "zoo", monkeypatch)["ppo/first"]
    card = (tmp_path / "zoo" / agent.card).read_text()
    for seed in (1, 2):
        assert f"{result_of(worked[0], 'ppo_first', seed)['return_mean']:.4g} (seed {seed})" in card
    assert "published for the algorithm" in card and "RL Baselines3 Zoo" in card and "| licence | MIT |" in card
    assert "One of 2 seeds" in card
    command = next(line for line in card.splitlines() if line.startswith("rl-training train --config"))
    again, saved = resolved(_parsed(shlex.split(command)[1:])), load_checkpoint(tmp_path / "zoo" / agent.file).config
    assert again.algo_kwargs.items() <= saved["algo_kwargs"].items() and again.seed == agent.seed
    assert again.total_timesteps == 64


def test_it_can_be_made_again_and_agents_of_other_rows_stay(worked, tmp_path, monkeypatch):
    first = made(worked, tmp_path / "zoo", monkeypatch)
    other = tmp_path / "other"
    shutil.copytree(worked[0], other)
    (other / "queue.yaml").write_text(ROWS.replace("ppo/second", "ppo/unfinished"))
    again = made((other, worked[1]), tmp_path / "zoo", monkeypatch)
    assert again == first  # to the last byte


def test_a_row_whose_run_is_not_there_or_went_on_is_left_out(worked, tmp_path, monkeypatch, capsys):
    other = tmp_path / "other"
    shutil.copytree(worked[0], other)
    shutil.rmtree(next((other / "runs" / "ppo_second" / "3").glob("ppo__*")))
    for seed in (1, 2):
        path = other / "runs" / "ppo_first" / str(seed) / "result.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"steps": 1}))
    assert made((other, worked[1]), tmp_path / "zoo", monkeypatch) == {}
    said = capsys.readouterr().out
    assert "is not the checkpoint that was judged" in said and "seed 3 is not in this folder" in said


@pytest.mark.parametrize(
    ("row", "figures", "seed"),
    [
        ({}, {1: 5.0, 2: 1.0, 3: 3.0}, 3),
        ({}, {1: 5.0, 2: 1.0, 3: 3.0, 4: 2.0}, 4),
        ({"figure": "success_rate"}, {7: 1.0}, 7),
    ],
)
def test_the_median_of_an_even_number_is_the_lower_one(worked, row, figures, seed):
    results = {seed: {row.get("figure", "return_mean"): value, "return_min": 0.0} for seed, value in figures.items()}
    assert worked[1].median_seed(row, results) == seed
