"""Every learner on a device that is not a CPU (``pretend_device``), beside the same run on the CPU.

``python other_device.py GROUP FOLDER [CASE [DEVICE]]`` runs a group of cases, writing runs into the folder, and prints one line of JSON
for each: how far the device's results are from the CPU's, what crossed between host and device for each action and
each update, and which files asked for it. A run is built, acts, learns, saves, evaluates, is resumed, loaded on the
device and on the CPU, and has its policy taken out. The process ends with the device installed: one for each group.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gymnasium as gym
import numpy as np
import torch

import pretend_device
from pretend_device import Transfer
from rl_training.algorithms import planning
from rl_training.algorithms.base import Learner
from rl_training.algorithms.dynamics import ModelFit
from rl_training.algorithms.mbpo import MBPO
from rl_training.algorithms.mopo import MOPO
from rl_training.algorithms.on_policy import OnPolicyLearner
from rl_training.algorithms.terminations import TerminationClassifier
from rl_training.artifacts.export import export_checkpoint
from rl_training.envs.terminations import register_termination
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models.host import HostFunction
from rl_training.runtime import spec as spec_module
from rl_training.runtime.run import Run
from toys import Counter, Pictures, Signs, tiny_config

CPU = torch.device("cpu")
RELATIVE, ABSOLUTE = 1e-3, 1e-4  # float32 after some updates, of which Adam's first divide by small numbers
CLOCKS = ("seconds", "steps_per_second", "fps", "time")  # in names of metrics that no run repeats


class Slope(Counter):
    """A box to act in, whose episodes terminate by a rule that nobody registered."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(self) -> None:
        super().__init__(limit=7, terminate=True, actions=gym.spaces.Box(-2.0, 2.0, (1,), np.float32))

    def _obs(self) -> np.ndarray:
        return np.array([self.t, 0.1 * self.t**2], np.float32)


class Pixels(Pictures):
    """Pictures with a box to act in."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)


gym.register("Slope-v0", Slope)
gym.register("KnownSlope-v0", Slope)
register_termination("KnownSlope-v0", lambda obs, actions, next_obs: next_obs[:, 0] > 6.5)


@dataclass(frozen=True)
class Case:
    """A tiny run: an algorithm, where it differs from ``toys.SMOKE``, its steps, and how many more when resumed."""

    algo: str
    options: dict[str, Any] = field(default_factory=dict)
    env: Any = None
    steps: int = 26
    more: int = 2
    exported: bool = False  # to a file; of the others only the policy is taken out


ON_POLICY = {"num_steps": 8, "minibatch_size": 4, "update_epochs": 2, "num_envs": 2}
VALUES = {"train_frequency": 2, "target_update_interval": 2}
SHORT = {"dataset_size": 60, "batch_size": 8}
FITS = {"model_updates": 4, "rollout_batch_size": 12, "model_batch_size": 16, "synthetic_batch_ratio": 0.5}
PLANS = {"train_frequency": 12, "learning_starts": 20, "initial_random_steps": 20, "model_updates_per_step": 0.2}
DREAMER = {"train_frequency": 8, "sequence_length": 6, "imagination_horizon": 2}
GROUPS: dict[str, dict[str, Case]] = {
    "on-policy": {
        "ppo": Case("ppo", {**ON_POLICY, "clip_values": True, "target_kl": 10.0}, steps=32, more=16),
        "ppo, box": Case("ppo", {**ON_POLICY, "env_id": "Pendulum-v1"}, steps=32, more=16),
        "ppo, pictures": Case("ppo", ON_POLICY, Pictures, steps=16, more=16),
        "ppg": Case("ppg", {**ON_POLICY, "aux_frequency": 2}, steps=32, more=32),
        "ppg, pictures": Case("ppg", {**ON_POLICY, "aux_frequency": 1}, Pictures, steps=16, more=16),
        "gail": Case("gail", {**ON_POLICY, "gradient_penalty": 10.0, "bc_updates": 2}, steps=32, more=16),
        "gail, absorbing states": Case(
            "gail", {**ON_POLICY, "absorbing": True, "env_id": "Slope-v0", "label_smoothing": 0.1}, steps=32, more=16
        ),
        "gail, pictures": Case("gail", ON_POLICY, Pictures, steps=16, more=16),
        "gail, parts": Case("gail", ON_POLICY, Signs, steps=16, more=16),
    },
    "values": {
        "dqn": Case("dqn", VALUES),
        "dqn, everything": Case(
            "dqn",
            {
                **{**VALUES, "prioritized": True, "n_step": 3, "noisy": True, "dueling": True},
                "normalize_observations": True,
            },
        ),
        "dqn, pictures": Case("dqn", {**VALUES, "prioritized": True, "n_step": 2}, Pictures, exported=True),
        "qr_dqn": Case("qr_dqn", {**VALUES, "prioritized": True, "dueling": True, "noisy": True}),
        "iqn": Case("iqn", {**VALUES, "prioritized": True, "stratified": True, "n_step": 2}),
        "dqn, parts": Case("dqn", {**VALUES, "normalize_observations": True}, Signs, exported=True),
        "iqn, pictures": Case("iqn", {**VALUES, "double": False, "noisy": True}, Pictures),
        "fqf": Case("fqf", {**VALUES, "prioritized": True, "noisy": True, "normalize_observations": True}),
        "fqf, pictures": Case("fqf", VALUES, Pictures),
    },
    "actors": {
        "sac": Case("sac", {"normalize_observations": True}, exported=True),
        "sac, fixed temperature": Case("sac", {"alpha": 0.1}),
        "rlpd": Case("rlpd", {"offline_pretrain_updates": 2, "normalize_observations": True}),
        "cql": Case("cql", {**SHORT, "lagrange": 1.0, "backup_entropy": True}, steps=3),
        "cql, choices": Case("cql", {**SHORT, "env_id": "CartPole-v1"}, steps=3),
        "iql": Case("iql", {**SHORT, "normalize_observations": True}, steps=3),
        "td3_bc": Case("td3_bc", SHORT, steps=4),
        "bc": Case("bc", {**SHORT, "normalize_observations": True}, steps=3),
        "bc, likelihood": Case("bc", {**SHORT, "loss": "likelihood"}, steps=3),
        "bc, pictures": Case("bc", SHORT, Pictures, steps=3),
    },
    "models": {
        "pets": Case("pets", PLANS, steps=24),
        "pets, icem": Case("pets", {**PLANS, "planner": "icem", "propagation": "ts1"}, steps=24),
        "pets, known terminations": Case("pets", {**PLANS, "env_id": "KnownSlope-v0", "planner": "random"}, steps=24),
        "mbpo": Case("mbpo", {**FITS, "model_train_frequency": 3, "rollout_horizon": 2}, steps=24),
        "mbpo, learned terminations": Case("mbpo", {**FITS, "env_id": "Slope-v0", "rollout_horizon": 2}, steps=22),
        "mopo": Case("mopo", {**SHORT, **FITS, "layer_norm": True}, steps=3),
        "mopo, known terminations": Case("mopo", {**SHORT, **FITS, "env_id": "KnownSlope-v0"}, steps=3),
        "dreamer": Case("dreamer", {**DREAMER, "optimizer": "laprop", "imagination_batch_size": 5}, exported=True),
        "dreamer, box": Case("dreamer", {**DREAMER, "env_id": "Pendulum-v1", "normalize_observations": True}),
        "dreamer, pictures": Case("dreamer", {**DREAMER, "size": "nano"}, Pictures),
    },
}


# ---- what crosses, by what it crosses for

PURPOSES = {  # by the innermost function of the package that tells; anything else belongs to an update
    "load_state_dict": "load",
    "state_to_host": "save",
    "Metrics._read": "report",
    "ObservationNormalizer._set": "statistics",
    "ObservationNormalizer._scale": "statistics",
    "GAILLoop.reward_rollout": "rewards",
    "Learner.act": "act",
    "OnPolicyLearner.values": "act",
    "TerminationClassifier.fit": "terminations",
    "ModelFit._one_epoch": "epoch",
    "ModelFit": "data",
    "imagine": "rollout",
    "Imagination.refresh": "rollout",
    "_AfterInit.__call__": "build",
    "Blueprint.make": "build",
    "Blueprint.normalizer": "build",
}
COUNTED = {  # methods whose calls mark an action, an update, an epoch of a fit and a step of imagined rollouts
    "act": ((Learner, "act"), (OnPolicyLearner, "values")),
    "update": ((Run, "record_update"), (Run, "record_auxiliary_update")),
    "epoch": ((ModelFit, "_one_epoch"),),
    "rollout": ((MOPO, "imagined_step"), (MBPO, "imagined_step")),
}


def purpose(transfer: Transfer) -> str:
    """What a transfer was for."""
    for caller in transfer.callers:
        for name, what in PURPOSES.items():
            if caller.endswith(name) or caller.startswith(f"{name}."):
                return what
    return "update"


@contextmanager
def marked(ledger: list[Any]) -> Iterator[None]:
    """Write into the ledger, after every call that counts, what it was."""

    def after(method: Callable[..., Any], what: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            finally:
                ledger.append(what)

        return call

    with ExitStack() as stack:
        for what, methods in COUNTED.items():
            for owner, name in methods:
                stack.enter_context(patch.object(owner, name, after(vars(owner)[name], what)))
        yield


def most_at_once(ledger: list[Any], what: str) -> dict[str, int]:
    """The most that crossed each way for one of them."""
    most, present = {"to": 0, "back": 0}, {"to": 0, "back": 0}
    for entry in ledger:
        if isinstance(entry, Transfer):
            if purpose(entry) == what:
                present[entry.way] += 1
        elif entry == what:
            most = {way: max(most[way], present[way]) for way in most}
            present = dict.fromkeys(present, 0)
    return most


# ---- a run and what it leaves


def run(case: Case, device: torch.device, folder: Path) -> dict[str, Any]:
    """Train, resume, load and act on the device; everything that the CPU's results are compared with."""
    spec = get_algorithm_spec(case.algo)
    short = {"max_episode_steps": 12} if case.env is None else {}
    config = tiny_config(
        case.algo, folder, total_timesteps=case.steps, env_kwargs=short, eval_interval=0, log_interval=1000,
        **case.options,
    )  # fmt: skip
    first = spec.train(config, env=case.env)
    state = load_checkpoint(first.checkpoint_path)
    longer = spec.train(config.replace(total_timesteps=case.steps + case.more), env=case.env, checkpoint_state=state)
    state = load_checkpoint(longer.checkpoint_path)
    result: dict[str, Any] = {"trained": dict(first.metrics), "resumed": dict(longer.metrics)}
    result["state"] = state.algorithm_state
    for name in ("auto", "cpu"):  # the device's checkpoint serves either
        agent, spaces = spec.load(config, state, name, env=case.env)
        rows = 1 if case.algo == "pets" else 3  # which plans for one after the other
        obs = np.random.default_rng(0).integers(0, 2, (rows, *spaces.obs_shape)).astype(spaces.obs_dtype)
        carry = agent.initial_carry(rows)
        acting = agent.act(obs, carry=carry, deterministic=True)
        again = agent.act(obs, carry=acting.carry, rng=np.random.default_rng(1))
        result[f"acts, loaded on {name}"] = [acting.actions, *acting.extras.values(), again.actions]
        if case.algo != "pets":
            module, given = agent.policy_module(), agent.normalizer.host(obs) if agent.normalizer else obs
            inputs = [
                torch.from_numpy(x).to(device if name == "auto" else CPU) for x in (given, carry) if x is not None
            ]
            with torch.no_grad():
                outputs = module(*inputs)
            result[f"policy, loaded on {name}"] = outputs[0] if isinstance(outputs, tuple) else outputs
    if case.exported:
        export_checkpoint(longer.checkpoint_path, folder / "policy.pt2", env=case.env)
    return result


def distances(a: Any, b: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of two results: its name, and its distance in units of what rounding explains."""
    if isinstance(a, dict):
        assert isinstance(b, dict) and a.keys() == b.keys(), f"{path}: {sorted(a)} against {sorted(b)}"
        for key in a:
            if not any(clock in key for clock in CLOCKS):
                yield from distances(a[key], b[key], f"{path}.{key}".lstrip("."))
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b)):
            yield from distances(x, y, f"{path}.{i}")
    elif a is not None and not isinstance(a, str):
        x, y = (np.asarray(v.cpu() if isinstance(v, torch.Tensor) else v, np.float64) for v in (a, b))
        assert x.shape == y.shape, f"{path}: {x.shape} against {y.shape}"
        off = np.where(np.isnan(x) & np.isnan(y), 0.0, np.abs(x - y) / (ABSOLUTE + RELATIVE * np.abs(x)))
        yield path, float(off.max(initial=0.0))


@contextmanager
def runs_on(device: torch.device) -> Iterator[None]:
    """Let ``device: auto`` mean this one, and let both draw and act in the same way: in torch, not in numpy."""
    drawn = planning.truncated_noise

    def inverted(shape: tuple[int, ...], place: torch.device) -> torch.Tensor:
        if place.type != "cpu":
            return drawn(shape, place)
        share = torch.special.ndtr(torch.tensor(-2.0)) + torch.empty(shape).uniform_(-1, 1).add(1).mul(0.5 * 0.95449974)
        return torch.special.ndtri(share)  # a CPU would reject

    with (
        patch.object(spec_module, "resolve_device", lambda name: CPU if name == "cpu" else device),
        patch.object(planning, "truncated_noise", inverted),
        patch.object(HostFunction, "_decide", lambda self: vars(self).update(_function=None, _same=None)),
    ):
        yield


def compare(name: str, case: Case, folder: Path) -> dict[str, Any]:
    """Run a case on both; a record of what was found."""
    device = pretend_device.install()
    with runs_on(CPU):
        there = run(case, CPU, folder / "cpu")
    with runs_on(device), pretend_device.transfers() as ledger, marked(ledger):
        here = run(case, device, folder / "device")
    furthest, off = max(distances(there, here), key=lambda pair: math.inf if math.isnan(pair[1]) else pair[1])
    crossed = [entry for entry in ledger if isinstance(entry, Transfer)]
    outside = {(entry.file, purpose(entry)) for entry in crossed if entry.file not in ("", "base/devices.py")}
    return {
        "case": name,
        "algo": case.algo,
        "off": off,
        "furthest": furthest,
        **{what: most_at_once(ledger, what) for what in COUNTED},
        "outside": sorted(f"{file} to {what}" for file, what in outside if what not in ("build", "load")),
    }


def main(group: str, folder: str, only: str = "", device: str = pretend_device.NAME) -> None:
    """``only``: the case of that name; ``device``: another one, with random numbers of its own, is not compared."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    TerminationClassifier.UPDATES = 3
    for number, (name, case) in enumerate(GROUPS[group].items()):
        if only not in ("", name):
            continue
        place, record = Path(folder) / str(number), {"case": name, "algo": case.algo}
        if device == pretend_device.NAME:
            record = compare(name, case, place)
        else:
            with runs_on(torch.device(device)):
                run(case, torch.device(device), place)
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
