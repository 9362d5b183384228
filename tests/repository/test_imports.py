"""Every public name can be the first thing a program imports, by every path that leads to it.

What was imported before must not matter, so each statement runs in a process of its own. A server that has loaded the libraries,
and nothing of rl_training, forks one for each statement: a fresh interpreter that starts in milliseconds.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rl_training

PACKAGE = Path(rl_training.__file__).parent
MANAGED = {  # public name: module of the learner and of the trainer
    "PPO": ("ppo", "ppo"), "PPG": ("ppg", "ppg"), "GAIL": ("gail", "gail"), "DQN": ("dqn", "dqn"),
    "QRDQN": ("qr_dqn", "dqn"), "IQN": ("iqn", "dqn"), "FQF": ("fqf", "dqn"), "SAC": ("sac", "sac"),
    "RLPD": ("rlpd", "rlpd"), "CQL": ("cql", "cql"), "IQL": ("iql", "iql"), "BC": ("bc", "bc"),
    "TD3BC": ("td3_bc", "td3_bc"), "MOPO": ("mopo", "mopo"), "MBPO": ("mbpo", "mbpo"), "PETS": ("pets", "pets"),
    "Dreamer": ("dreamer", "dreamer"),
}  # fmt: skip
PATHS = {  # module, without rl_training: what users import from it
    "": "__version__ TrainConfig load_config ManagedAlgorithm Callback Logger check_env",
    "cli": "main load_config",
    "api": "ManagedAlgorithm",
    "api.algorithms": "ManagedAlgorithm",
    "experiment.config": "TrainConfig",
    "experiment.runs": "create_run_context RunContext",
    "experiment.checkpointing": "CheckpointState save_checkpoint load_checkpoint",
    "experiment.registry": "get_algorithm_spec",
    "experiment.default_manager": "DefaultExperimentManager",
    "runtime.trainer": "TrainResult TrainerState",
    "runtime.workflows": "evaluate_checkpoint predict_checkpoint resume_training",
    "runtime.callbacks": "Callback",
    "runtime.collector": "CollectResult",
    "runtime.controls": "EarlyStoppingConfig EarlyStoppingCallback build_control_callbacks",
    "runtime.schedules": "ScheduleSpec resolve_schedule_spec resolve_schedule_value apply_learning_rate_scale",
    "algorithms.base": "UpdateResult",
    "algorithms.ppo": "PPO ppo_loss",
    "algorithms.ppg": "PPG ppg_loss ppg_auxiliary_loss",
    "algorithms.gail": "GAIL",
    "algorithms.dqn": "DQN dqn_loss",
    "algorithms.sac": "SAC sac_loss",
    "algorithms.rlpd": "RLPD rlpd_loss",
    "algorithms.cql": "CQL cql_loss",
    "algorithms.mopo": "MOPO mopo_model_loss",
    "algorithms.mbpo": "MBPO",
    "algorithms.pets": "PETS pets_loss",
    "algorithms.dreamer": "Dreamer",
    "models.mlp_actor_critic": "MLPActorCritic",
    "models.mlp_ppg": "MLPPPGModel",
    "models.mlp_q_network": "MLPQNetwork",
    "models.mlp_qr_q_network": "MLPQRQNetwork",
    "models.mlp_iqn_network": "MLPIQNetwork",
    "models.mlp_fqf_network": "MLPFQFNetwork",
    "models.mlp_sac": "MLPSACModel",
    "models.mlp_mopo": "MLPMOPOEnsembleModel",
    "models.mlp_gail_discriminator": "MLPGAILDiscriminator",
    "models": "MLPActorCritic MLPPPGModel MLPQNetwork MLPQRQNetwork MLPIQNetwork MLPFQFNetwork MLPSACModel "
    "MLPMOPOEnsembleModel MLPGAILDiscriminator",
    "data": "ReplayBuffer PrioritizedReplayBuffer RecurrentReplayBuffer RolloutBuffer TransitionDataset "
    "load_transition_dataset mix_transition_datasets",
}
HELPERS = [
    "bc",
    "cql",
    "iql",
    "mopo",
    "rlpd",
    "td3_bc",
]  # trainers of prior data: _infer_env_spaces, _build_offline_dataset
PACKAGES = ["algorithms", "api", "data", "envs", "experiment", "models", "runtime"]


def dotted(module: str) -> str:
    return f"rl_training.{module}" if module else "rl_training"


def statements() -> list[str]:
    found = [f"from {dotted(module)} import {name}" for module, names in PATHS.items() for name in names.split()]
    found += [f"import rl_training; rl_training.{package}.__name__" for package in PACKAGES]
    found += ["from rl_training.experiment.registry import get_algorithm_spec; get_algorithm_spec('ppo').train_fn"]
    for public, (learner, trainer) in MANAGED.items():
        same = f"assert X.algo_name == '{learner}' and X.__name__ == '{public}', X"
        for package in ("rl_training", "rl_training.api", "rl_training.algorithms", "rl_training.api.algorithms"):
            found.append(
                f"from {package} import {public} as X; {same}; import rl_training; assert X is rl_training.{public}"
            )
        found += [
            f"import rl_training; X = rl_training.api.{public}; {same}",
            f"from rl_training.algorithms import {public}Algorithm as L; assert L.__name__ == '{public}', L; "
            f"assert L.__module__ == 'rl_training.algorithms.{learner}', L",
            f"from rl_training.algorithms.{learner} import {public}; assert not hasattr({public}, 'algo_name')",
            f"from rl_training.runtime.{trainer}_trainer import train_{learner}",
        ]
    for name in HELPERS:
        found += [f"from rl_training.runtime.{name}_trainer import _infer_env_spaces, _build_offline_dataset"]
    return found


def modules() -> list[str]:
    """Every module of the package: whichever comes first, no circle may close."""
    files = (path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py") if path.name != "__main__.py")
    return sorted(".".join(["rl_training", *(part for part in file.parts if part != "__init__")]) for file in files)


SERVER = """
import json, os, sys, traceback
import numpy, torch, gymnasium, pydantic, ruamel.yaml, safetensors.torch, filelock
class Warm(pydantic.BaseModel):  # loads what pydantic puts off
    number: int = pydantic.Field(1, ge=1)
assert not [name for name in sys.modules if name.partition('.')[0] == 'rl_training']
problems = {}
for statement in json.load(sys.stdin):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            exec(statement, {})
        except BaseException as error:
            os.write(writer, f'{type(error).__name__}: {error}'[:500].encode() or b'?')
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, 'rb') as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if said or status:
        problems[statement] = said.decode() or f'status {status}'
print(json.dumps(problems))
"""


def problems(statements: list[str]) -> dict[str, str]:
    """What went wrong with each statement that did not run, each in an interpreter state of its own."""
    done = subprocess.run([sys.executable, "-c", SERVER], input=json.dumps(statements), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


@needs_fork
def test_the_server_notices_what_cannot_be_imported():
    wrong = [
        "from rl_training import Nonsense",
        "import rl_training.nonsense",
        "assert False",
        "import os; os._exit(3)",
    ]
    assert set(problems([*wrong, "import rl_training"])) == set(wrong)


@needs_fork
def test_every_public_name_is_importable_first_by_every_path():
    assert problems(statements()) == {}


@needs_fork
def test_every_module_is_importable_first():
    assert problems([f"import {name}" for name in modules()]) == {}


@pytest.mark.parametrize(
    "statement",
    [
        "from rl_training.api import PPO",
        "from rl_training import PPO",
        "from rl_training.algorithms import PPO",
        "from rl_training.api import *; PPO, ManagedAlgorithm",
        "from rl_training import *; PPO, TrainConfig",
        "from rl_training.algorithms import *; PPO, PPOAlgorithm",
    ],
)
def test_names_are_importable_in_an_interpreter_started_for_them(statement):
    done = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
