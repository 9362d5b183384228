"""Export a trained policy as a file that runs without this package: by torch alone, or by ONNX Runtime.

The file holds the whole deterministic policy: from observations as the environment gives them, through normalisation
and network, to actions in the environment's units. It is checked against the live agent before it gets its name.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from rl_training.algorithms.base import Learner
from rl_training.artifacts.inputs import Named, PolicyInputs, drawn_rows
from rl_training.base.state import Rng
from rl_training.envs.factory import EnvFactory, EnvSource
from rl_training.envs.spaces import Spaces
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.runs import provenance
from rl_training.models.heads import FORBIDDEN
from rl_training.runtime.evaluation import evaluate
from rl_training.runtime.workflows import config_of, find_checkpoint

__all__ = ["ExportFailure", "Exported", "Policy", "compare_with_agent", "export_checkpoint", "export_policy"]

CHECKED, REAL = 1_000, 500  # observations that are compared, of which an episode gives at most the second number
BATCH_ROWS = 200  # observations at a time: few enough for the agent to act in numpy
TOLERANCE = 1e-5  # in an action's units; also the difference of two choices' scores below which either is right
WIDE_BOUND = 1e3  # wider bounds of a space say nothing about observations
ENDINGS = {"onnx": ".onnx", "torch": ".pt2"}
NOTES = "rl_training.json"  # the metadata within a .pt2

Given = torch.Tensor | tuple[torch.Tensor, ...]  # observations, or their parts

# (obs, carry) -> (actions, carry)
ActFunction = Callable[[np.ndarray, np.ndarray | None], tuple[np.ndarray, np.ndarray | None]]


class ExportFailure(RuntimeError):
    """Raised where an exported policy acts differently from its agent."""


class Policy(nn.Module):
    """The deterministic policy: the environment's observations (B, ...), or all of their parts, and a carry, if any, to
    actions and carry."""

    action_center: torch.Tensor
    action_scale: torch.Tensor
    action_low: torch.Tensor
    action_high: torch.Tensor
    action_start: torch.Tensor

    def __init__(self, agent: Learner, spaces: Spaces) -> None:
        super().__init__()
        self.network: Any = copy.deepcopy(agent.policy_module())
        self.normalizer = copy.deepcopy(agent.normalizer)
        self._spaces, self.inputs = spaces, PolicyInputs(spaces)
        if spaces.action_kind in ("box", "joint"):
            for name in ("center", "scale", "low", "high"):
                self.register_buffer(f"action_{name}", torch.from_numpy(getattr(spaces, name)))
        if spaces.action_kind == "multi_discrete":
            self.register_buffer("action_start", torch.from_numpy(spaces.start))
        self.to("cpu").eval().requires_grad_(False)

    def _encoded(self, obs: Given) -> Any:
        return self.inputs.encoded((obs,) if isinstance(obs, torch.Tensor) else obs, self.normalizer)

    def forward(self, obs: Given, carry: torch.Tensor | None = None) -> Any:
        x = self._encoded(obs)
        if carry is None:
            return self._actions(self.network(x))
        best, carry = self.network(x, carry)
        return self._actions(best), carry

    def _actions(self, best: torch.Tensor) -> torch.Tensor:
        """Map scores of choices, or a box's actions in [-1, 1], to the environment's, as ``Spaces.to_env`` does."""
        spaces = self._spaces
        if spaces.action_kind == "discrete":
            return best.argmax(-1) + int(spaces.start)
        if spaces.action_kind == "multi_discrete":
            chosen = [part.argmax(-1) for part in torch.split(best, list(spaces.choices), -1)]
            return torch.stack(chosen, -1) + self.action_start
        if spaces.action_kind == "multi_binary":
            return (best > 0).long()
        if spaces.action_kind == "joint":
            best = _joined(best, spaces.choices)
        mapped = self.action_center + self.action_scale * best
        mapped = torch.minimum(torch.maximum(mapped, self.action_low), self.action_high)
        return torch.unflatten(mapped.to(_torch_type(spaces.env_dtype)), -1, spaces.env_shape or (1,))

    @torch.no_grad()
    def margin(self, obs: Given, carry: torch.Tensor | None) -> torch.Tensor:
        """The lead of each row's best choice over the next, (B,), relative to scores above one; infinite for boxes."""
        spaces, x = self._spaces, self._encoded(obs)
        best = self.network(x) if carry is None else self.network(x, carry)[0]
        least = torch.full((len(best),), torch.inf) if carry is None else self.network.margin(x, carry)
        if spaces.action_kind == "box":
            return least
        counted = best if spaces.bare is None else torch.where(best > FORBIDDEN / 2, best, 0)
        best = best / counted.abs().amax(-1, keepdim=True).clamp(min=1)
        if spaces.action_kind == "multi_binary":
            return torch.minimum(least, best.abs().amin(-1))
        choices = [n for n in spaces.choices if n]
        for part in torch.split(best[:, : sum(choices)], choices, -1):
            if part.shape[-1] > 1:
                first, second = part.topk(2).values.unbind(-1)
                least = torch.minimum(least, first - second)
        return least


def _joined(best: torch.Tensor, columns: tuple[int, ...]) -> torch.Tensor:
    """Actions (B, A) of choices and numbers, of the logits of all choices and then all numbers."""
    sizes = [n for n in columns if n]
    chosen = [part.argmax(-1, keepdim=True).to(best.dtype) for part in torch.split(best[:, : sum(sizes)], sizes, -1)]
    numbers = list(torch.split(best[:, sum(sizes) :], 1, -1))
    return torch.cat([(chosen if n else numbers).pop(0) for n in columns], -1)


def _torch_type(dtype: Any) -> torch.dtype:
    return torch.from_numpy(np.zeros(0, dtype)).dtype


@dataclass(frozen=True)
class Exported:
    """An exported file, how well it agrees with the agent, and the ``program`` that runs it without this package."""

    path: Path
    format: str
    rows: int  # observations on which file and agent were compared
    ties: int  # observations for which two choices were equally good
    difference: float  # largest difference of a box's actions, in their units
    program: str


def export_checkpoint(
    path: str | Path,
    output: str | Path | None = None,
    format: str | None = None,
    *,
    env: EnvSource | None = None,
    network: Any = None,
) -> Exported:
    """Write the policy of a checkpoint, or of the newest one of a run, as ``onnx`` or ``torch``.

    The format is chosen by the output's ending, unless it is given; the output is policy.onnx or policy.pt2, unless it
    is given. ``env`` and ``network`` are what the run was started with.
    """
    format, output = _named(format, output)
    _, state = find_checkpoint(path, buffers=False)
    config = config_of(state, env=env)
    agent, spaces = get_algorithm_spec(config.algo).load(config, state, "cpu", env=env, network=network)
    factory = EnvFactory(config.env_id if env is None else env, config.env_kwargs)
    return export_policy(agent, spaces, factory, config, output, format, step=int(state.trainer_state["step"]))


def _named(format: str | None, output: str | Path | None) -> tuple[str, Path]:
    if format is None:
        ending = Path(output or "").suffix
        format = next((name for name, known in ENDINGS.items() if known == ending), None)
        if format is None:
            raise ValueError("say --format onnx or --format torch, or write to a .onnx or a .pt2 file")
    if format not in ENDINGS:
        raise ValueError(f"a policy is exported as {' or '.join(ENDINGS)}, not as {format!r}")
    path = Path(output) if output is not None else Path(f"policy{ENDINGS[format]}")
    if path.suffix != ENDINGS[format]:
        raise ValueError(f"{format} files end in {ENDINGS[format]}, and {path} does not")
    if format == "onnx" and any(find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")):
        raise ValueError("onnx files need the export extra: pip install 'rl_training[export]'")
    return format, path


def export_policy(
    agent: Learner,
    spaces: Spaces,
    factory: EnvFactory,
    config: TrainConfig,
    output: Path,
    format: str,
    *,
    step: int = 0,
) -> Exported:
    """Write an agent's policy, and check the file against the agent; a file that fails is removed."""
    policy = Policy(agent, spaces)
    obs, carry, space = _observations(agent, spaces, factory, config.seed)
    facts = _facts(config, space, factory, None if carry is None else carry.shape[-1], step)
    facts["inputs"] = policy.inputs.names
    if spaces.form is not None:
        facts["actions"] = spaces.form.facts()
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".export-") as folder:
        partial = Path(folder) / output.name
        {"onnx": _write_onnx, "torch": _write_torch}[format](_traced(policy, obs, carry), partial, facts)
        run = {"onnx": _run_onnx, "torch": _run_torch}[format](partial, policy.inputs)
        ties, difference = compare_with_agent(agent, spaces, policy, run, obs, carry)
        os.replace(partial, output)
    return Exported(
        output, format, len(obs), ties, difference, _program(output, format, facts, policy.inputs.columns(obs[:1]))
    )


def compare_with_agent(
    agent: Learner, spaces: Spaces, policy: Policy, run: ActFunction, obs: np.ndarray, carry: np.ndarray | None
) -> tuple[int, float]:
    """Compare a file with its agent: how many rows have ties, and the largest difference of a box's actions."""
    ties, largest, units = 0, 0.0, replace(spaces, form=None)  # whole numbers are rounded by whoever uses the file
    for start in range(0, len(obs), BATCH_ROWS):
        rows = slice(start, start + BATCH_ROWS)
        before = None if carry is None else carry[rows]
        acting = agent.act(spaces.encode(obs[rows]), carry=before, deterministic=True)
        expected, (given, next_carry) = np.asarray(units.to_env(acting.actions)), run(obs[rows], before)
        if given.shape != expected.shape:
            raise ExportFailure(f"the exported policy gives actions of shape {given.shape}, the agent {expected.shape}")
        carried = None if before is None else torch.from_numpy(before)
        margin = policy.margin(_tensors(policy.inputs.columns(obs[rows])), carried).numpy()
        clear = margin >= TOLERANCE
        off = np.abs(given.astype(np.float64) - expected).reshape(len(given), -1)
        if spaces.action_kind in ("box", "joint"):
            off = off / np.maximum(spaces.scale, 1)
            largest = max(largest, float(off[clear].max(initial=0)))
        if before is not None:
            off = np.concatenate([off, 0.1 * np.abs(next_carry - acting.carry)], -1)
        wrong = int((~(off <= TOLERANCE)).any(-1)[clear].sum())
        if wrong:
            raise ExportFailure(
                f"the exported policy acts otherwise than the agent on {wrong} of {len(given)} observations "
                f"(by up to {np.nanmax(off[clear]):.3g}); nothing was written"
            )
        ties += int((~clear).sum())
    return ties, largest


def _observations(
    agent: Learner, spaces: Spaces, factory: EnvFactory, seed: int
) -> tuple[np.ndarray, np.ndarray | None, gym.Space[Any]]:
    """Make observations for the check, with carries and their space.

    The first are those of an episode. The others are drawn from the space or, where that is wide, from a normal
    distribution around what the agent has seen. Carries are those of the episode.
    """
    seen: list[np.ndarray] = []
    found: list[gym.Env] = []

    def watch(episode: int, env: gym.Env, obs: Any) -> None:
        found[:] = [env]
        seen.append(np.array(obs, spaces.obs_dtype))

    evaluate(agent, factory, episodes=1, seed=seed, most_steps=REAL - 1, watch=watch)
    real, space = np.stack(seen), found[0].observation_space
    assert isinstance(space, gym.spaces.Box)
    rng, shape = Rng(seed, "export").generator, (CHECKED - len(real), *real.shape[1:])
    if spaces.parts is not None and (spaces.in_rows or spaces.image):
        drawn = drawn_rows(spaces.parts, real, shape[0], rng)
    elif spaces.image:
        drawn = rng.integers(256, size=shape, dtype=np.uint8)
    else:
        mean, deviation = real.mean(0), real.std(0)
        if agent.normalizer is not None:
            mean, deviation = (x.cpu().numpy() for x in (agent.normalizer.mean, 1 / agent.normalizer.inverse_std))
        narrow = (np.abs(space.low) < WIDE_BOUND) & (np.abs(space.high) < WIDE_BOUND)
        within = rng.uniform(np.where(narrow, space.low, 0), np.where(narrow, space.high, 0), shape)
        drawn = np.where(narrow, within, rng.normal(mean, 2 * deviation + 1e-3, shape)).astype(spaces.obs_dtype)
    carry = agent.initial_carry(1)
    if carry is None:
        return np.concatenate([real, drawn]), None, space
    carries = [carry]
    for row in real[:-1]:
        carries.append(agent.act(spaces.encode(row)[None], carry=carries[-1], deterministic=True).carry)
    visited = np.concatenate(carries)
    return (
        np.concatenate([real, drawn]),
        np.concatenate([visited, visited[rng.integers(len(visited), size=len(drawn))]]),
        space,
    )


def _facts(
    config: TrainConfig, space: gym.Space[Any], factory: EnvFactory, carry: int | None, step: int
) -> dict[str, Any]:
    env = factory.make(training=False)
    env.close()
    facts = {"algo": config.algo, "env_id": config.env_id, "env_kwargs": config.env_kwargs, "step": step}
    where = provenance()
    facts |= {"observation_space": str(space), "action_space": str(env.action_space), "carry": carry}
    return {**facts, "git": where["git"], "versions": where["versions"]}


def _traced(policy: Policy, obs: np.ndarray, carry: np.ndarray | None) -> torch.export.ExportedProgram:
    """Trace the policy as a graph for batches of any size."""
    columns = policy.inputs.columns(obs[:3])
    given = _tensors((*columns, *([] if carry is None else [carry[:3]])))
    batch = torch.export.Dim("batch")
    shapes: Any = tuple({0: batch} for _ in given)
    if policy.inputs.parts is None:
        program = torch.export.export(policy, given, dynamic_shapes=shapes)
    else:
        program = torch.export.export(Named(policy, len(columns)), given, dynamic_shapes=(shapes,))
    for node in program.graph.nodes:  # they hold paths of this machine
        node.meta.pop("stack_trace", None)
    return program


def _write_torch(program: torch.export.ExportedProgram, path: Path, facts: dict[str, Any]) -> None:
    torch.export.save(program, path, extra_files={NOTES: json.dumps(facts)})


def _tensors(columns: tuple[np.ndarray, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(np.ascontiguousarray(column)) for column in columns)


def _run_torch(path: Path, inputs: PolicyInputs) -> ActFunction:
    module = torch.export.load(path).module()

    def run(obs: np.ndarray, carry: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        given = _tensors(inputs.columns(obs))
        if carry is None:
            return module(*given).numpy(), None
        actions, carried = module(*given, torch.from_numpy(carry))
        return actions.numpy(), carried.numpy()

    return run


def _write_onnx(program: torch.export.ExportedProgram, path: Path, facts: dict[str, Any]) -> None:
    given = facts["inputs"]
    names = (given, ["action"]) if facts["carry"] is None else ([*given, "carry"], ["action", "next_carry"])
    with _quietly():
        made = torch.onnx.export(program, dynamo=True, input_names=names[0], output_names=names[1], verbose=False)
    assert made is not None
    for node in made.model.graph:
        node.metadata_props.clear()
    made.model.metadata_props.update({name: json.dumps(fact) for name, fact in facts.items()})
    made.save(str(path), external_data=False)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Silence the exporter's warnings about missing packages and deprecations."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _run_onnx(path: Path, inputs: PolicyInputs) -> ActFunction:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def run(obs: np.ndarray, carry: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        given = dict(zip(inputs.names, inputs.columns(obs)))
        if carry is None:
            return session.run(None, given)[0], None
        actions, carried = session.run(None, {**given, "carry": carry})
        return actions, carried

    return run


def _kind(column: np.ndarray, for_torch: bool) -> str:
    name = column.dtype.name
    return f"dtype=torch.{name}" if for_torch else f"np.{name}{'_' if name == 'bool' else ''}"


def _program(path: Path, format: str, facts: dict[str, Any], columns: tuple[np.ndarray, ...]) -> str:
    """Write a short program that loads the file and computes an action."""
    carry, names = facts["carry"], facts["inputs"]
    torch_too, library = format == "torch", "torch" if format == "torch" else "np"
    words = [name if name.isidentifier() and not iskeyword(name) else f"obs_{i}" for i, name in enumerate(names)]
    arrays = [
        f"{word} = {library}.zeros({column.shape}, {_kind(column, torch_too)})" for word, column in zip(words, columns)
    ]
    as_given = f"# a batch of observations of {facts['env_id']}"
    if facts["env_kwargs"].get("wrappers"):
        as_given += ", as its wrappers give them"
    fresh = "  # nothing yet: at the start of every episode"
    if format == "torch":
        lines = ["import torch", "", f"policy = torch.export.load({json.dumps(str(path))}).module()"]
        lines += [f"{arrays[0]}  {as_given}", *arrays[1:]]
        lines += [f"carry = torch.zeros(1, {carry}){fresh}"] if carry else []
        given = ", ".join(words)
        lines += [f"action, carry = policy({given}, carry)" if carry else f"action = policy({given})"]
    else:
        lines = ["import numpy as np", "import onnxruntime", ""]
        lines += [f"policy = onnxruntime.InferenceSession({json.dumps(str(path))})"]
        lines += [f"{arrays[0]}  {as_given}", *arrays[1:]]
        lines += [f"carry = np.zeros((1, {carry}), np.float32){fresh}"] if carry else []
        given = ", ".join(f"{json.dumps(name)}: {word}" for name, word in zip(names, words))
        call = f'policy.run(None, {{{given}, "carry": carry}})' if carry else f"policy.run(None, {{{given}}})"
        lines += [f"action, carry = {call}" if carry else f"(action,) = {call}"]
    return "\n".join([*lines, f"print(action[0])  # an action of {facts['action_space']}"])
