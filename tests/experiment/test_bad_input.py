"""Bad input of every kind: a clear message, nothing lost, nothing executed."""

import copy
import random
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from rl_training import PPO, TrainConfig
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.runs import dump_yaml, newest_checkpoint
from rl_training.experiment.yaml_config import presets, read_config
from rl_training.runtime.run import TrainingFailure
from rl_training.runtime.workflows import resume_training
from toys import Broken, Counter, tiny_config

RUBBISH = [None, "lots", -1, -0.5, True, [], {}, [1, "x"], {"a": 1}, float("nan"), 1e400, "", "../..", 0]


def mutants(count: int):
    """Valid configs, each with one thing wrong."""
    rng = random.Random(0)
    sources = [read_config(p).plain() for p in presets()]
    for number in range(count):
        config = copy.deepcopy(rng.choice(sources))
        group = config if rng.random() < 0.5 else config["algo_kwargs"]
        kind = rng.choice(["typo", "value", "value", "drop", "extra"])
        name = rng.choice(sorted(group))
        if kind == "typo":
            place = rng.randrange(len(name))
            group[name[:place] + rng.choice("abcxyz") * 2 + name[place + 1 :]] = group.pop(name)
        elif kind == "value":
            group[name] = rng.choice(RUBBISH)
        elif kind == "drop":
            config.pop(rng.choice(["algo", "env_id"]))
        else:
            group[f"extra_{number}"] = rng.choice(RUBBISH)
        yield config


def test_two_hundred_mutated_configs_give_a_message_or_a_valid_config(tmp_path):
    refused = 0
    for number, config in enumerate(mutants(200)):
        path = tmp_path / f"{number}.yaml"
        path.write_text(dump_yaml(config))
        try:
            read_config(path)
        except ValueError as error:
            refused += 1
            text = str(error)
            assert text and "\n" not in text and len(text) < 400 and path.name in text, text
            assert "pydantic" not in text and "validation error" not in text, text
    assert refused >= 100  # many mutations are harmless (a missing seed, an interval of none), most are not


@pytest.mark.parametrize("how", ["raises", "nan observation", "nan reward"])
@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_a_failing_environment_names_the_step_and_keeps_the_last_checkpoint(tmp_path, algo, how):
    config = tiny_config(algo, tmp_path, total_timesteps=400, checkpoint_interval=32, eval_interval=0)
    message = {
        "raises": "KeyError: .*lost a wheel",
        "nan observation": "observation is not finite",
        "nan reward": "reward nan",
    }[how]
    with pytest.raises(
        TrainingFailure, match=rf"{message}.*step 99.*the last good checkpoint is .*step_0000000096.ckpt"
    ):
        get_algorithm_spec(algo).train(config, run_suffix="x", env=lambda: Broken(how, at=100))
    run = next(tmp_path.iterdir())
    assert "Traceback" in (run / "error.txt").read_text()
    assert newest_checkpoint(run)[1].trainer_state["step"] == 96


def test_nan_losses_stop_the_run_and_are_never_saved_over_a_good_checkpoint(tiny):
    import torch

    from rl_training import Callback

    class Poison(Callback):
        def on_update_end(self, trainer, result):
            if trainer.global_step >= 64:
                with torch.no_grad():
                    trainer.algorithm.q_network.body[0][0].weight.fill_(float("nan"))

    config = tiny("dqn", total_timesteps=400, checkpoint_interval=16, log_interval=1000, eval_interval=0)
    with pytest.raises(TrainingFailure, match=r"not finite at step 64; the last good checkpoint is .*step_0000000048"):
        get_algorithm_spec("dqn").train(config, callbacks=[Poison()])
    often = tiny("dqn", total_timesteps=400, checkpoint_interval=1000, log_interval=1, eval_interval=0)
    with pytest.raises(TrainingFailure, match=r"loss is nan at step 6\d"):
        get_algorithm_spec("dqn").train(often, callbacks=[Poison()])


FULL_DISK = """
import resource, sys
sys.path.insert(0, {tests!r})
import conftest
from pathlib import Path
from toys import tiny_config
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.run import TrainingFailure
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
config = tiny_config("dqn", Path(sys.argv[1]), total_timesteps=4000, checkpoint_interval=64, buffer_capacity=4000, log_interval=4000, eval_interval=0)
try:
    get_algorithm_spec("dqn").train(config, run_suffix="full")
except TrainingFailure as error:
    print(error)
"""


def test_a_full_disk_keeps_the_last_whole_checkpoint(tmp_path):
    """Files may not grow beyond 40 kB here, so a growing replay buffer stops fitting after a while."""
    code = FULL_DISK.format(tests=str(Path(__file__).parents[1]), limit=40_000)
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert (
        "cannot save" in done.stdout
        and "File too large" in done.stdout
        and "the last good checkpoint is" in done.stdout
    ), done.stderr
    run = tmp_path / "dqn__CartPole-v1__seed3__full"
    path, state, problems = newest_checkpoint(run)
    assert not problems and state.trainer_state["step"] > 0 and str(path) in done.stdout
    assert not list(run.glob("checkpoints/.*"))
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 40_000


def test_two_processes_cannot_train_in_one_directory(tiny):
    from rl_training.base.files import InUse, lock_folder
    from rl_training.runtime.workflows import resume_training

    result = get_algorithm_spec("ppo").train(tiny("ppo"))
    with lock_folder(result.run_dir), pytest.raises(InUse, match="in use by another process"):
        resume_training(result.run_dir, total_timesteps=256)


def test_another_number_of_environments_cannot_resume(tiny):
    from rl_training.experiment.checkpointing import CheckpointError

    result = get_algorithm_spec("ppo").train(tiny("ppo", num_envs=2))
    state = load_checkpoint(result.checkpoint_path)
    with pytest.raises(CheckpointError, match="num_envs cannot change"):
        get_algorithm_spec("ppo").train(tiny("ppo", num_envs=3, total_timesteps=400), checkpoint_state=state)


def test_a_best_checkpoint_can_be_evaluated_but_not_resumed(tiny):
    from rl_training.runtime.workflows import evaluate_checkpoint, resume_training

    result = get_algorithm_spec("sac").train(tiny("sac"))
    best = result.run_dir / "checkpoints" / "best.ckpt"
    assert evaluate_checkpoint(best, 1)["eval_episodes"] == 1
    with pytest.raises(TrainingFailure, match="holds the agent alone"):
        resume_training(best, total_timesteps=300)


def test_a_smaller_total_than_the_run_has_steps_is_refused(tiny):
    result = get_algorithm_spec("dqn").train(tiny("dqn", total_timesteps=100))
    with pytest.raises(TrainingFailure, match="at step 100 already, beyond a total of 50"):
        resume_training(result.run_dir, total_timesteps=50)


def test_an_environments_own_complaint_is_one_line():
    config = TrainConfig(algo="dqn", env_id="LunarLander-v3", env_kwargs={"gravity": 5.0})
    with pytest.raises(ValueError, match="cannot make the environment 'LunarLander-v3': gravity"):
        get_algorithm_spec("dqn").train(config)


def test_an_environment_failing_in_evaluation_keeps_the_checkpoint(tiny):
    class Fragile(Counter):
        made = 0

        def __init__(self):
            super().__init__()
            Fragile.made += 1
            self.number = Fragile.made

        def step(self, action):
            if self.number > 2:  # the first is looked at, the second trains, the third evaluates
                raise OSError("display lost")
            return super().step(action)

    with pytest.raises(
        TrainingFailure, match=r"OSError: display lost in evaluation; .*; the last good checkpoint is .*step_0000000064"
    ):
        PPO(tiny("ppo", checkpoint_interval=32, eval_interval=64), env=Fragile).learn()
