"""Starting a new run with the networks of an agent that was trained before (``init_from``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rl_training.algorithms.actor_critic import LogCoefficient
from rl_training.algorithms.base import Learner
from rl_training.base.errors import reason
from rl_training.base.options import ConfigError
from rl_training.base.saved import alike
from rl_training.data.hindsight import HindsightReplayBuffer
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.experiment.checkpointing import CheckpointState, agent_state, checksum_of, raise_on_mismatch
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.options_table import option_text
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec
from rl_training.experiment.runs import find_checkpoint
from rl_training.optim.flat import FlatOptimizer
from rl_training.runtime.counterparts import CRITICS_FORM, AgentParts, PartTensors, Route, partners_of, policy_of, route
from rl_training.runtime.slim import is_slim, named_optimizers, saved_optimizers

if TYPE_CHECKING:
    from rl_training.runtime.loops.base import Loop
    from rl_training.runtime.options import AlgorithmOptions

__all__ = ["Origin", "adopted_options", "continued_options", "start_from", "take_replay"]

POLICIES = {"actor", "model", "policy", "q_network"}  # parts that act
FITTED = 100_000.0  # observations that statistics of a dataset count for, where they are gone on with


@dataclass
class Origin:
    """The checkpoint that a run started from, and what became of its networks."""

    path: Path
    sha256: str
    step: int  # environment steps that its agent had been trained for
    taken: tuple[str, ...]
    left: tuple[str, ...]  # of the checkpoint, without a counterpart here, or not among ``init_parts``
    new: tuple[str, ...]  # of this run, without a counterpart there, or not among ``init_parts``
    notes: list[str] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """What a run's metadata says of its parent."""
        return {"path": str(self.path.resolve()), "sha256": self.sha256, "step": self.step}

    def __str__(self) -> str:
        rest = [f"; {what}: {_listed(names)}" for what, names in (("left out", self.left), ("new", self.new)) if names]
        notes = "".join(f"; {note}" for note in self.notes)
        return (
            f"weights from {self.path}, trained for {self.step:,} steps: {', '.join(self.taken)}{''.join(rest)}{notes}"
        )


def _listed(names: Sequence[str]) -> str:
    """Names of parts; a normaliser's statistics count as one."""
    return ", ".join(dict.fromkeys("normalizer" if name.startswith("normalizer.") else name for name in names))


def adopted_options(config: TrainConfig, options: type[AlgorithmOptions], *, own: bool = True) -> dict[str, Any]:
    """The options that shape networks, as the agent has them that a run starts from: a new run whose config leaves
    them open takes these, so that the networks fit."""
    _, state = find_checkpoint(config.init_from or "", buffers=False)
    theirs = get_algorithm_spec(_source(state, config)).config
    try:
        saved = theirs(**state.config.get("algo_kwargs", {}))
    except (ConfigError, TypeError):
        return {}  # whatever does not fit is then refused by its shape
    values = _form(saved, [name for name in _shared_form(options, theirs) if name not in saved.idle()])
    if not own or values.get("activation") == options.OWN_ACTIVATION:
        values.pop("activation", None)
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return {name: value for name, value in plain.items() if name not in config.algo_kwargs}


def continued_options(config: TrainConfig, options: type[AlgorithmOptions]) -> dict[str, Any]:
    """The options that suit a run because of what it starts with, in place of those that suit its task."""
    policy = not config.init_parts or bool(POLICIES & {*config.init_parts})
    return options.continuing(policy=policy, replay=config.init_replay)


def _shared_form(ours: type[AlgorithmOptions], theirs: type[AlgorithmOptions]) -> list[str]:
    """The options that shape the networks of both; how many critics there are, and of what kind, each algorithm says
    itself."""
    own = () if ours is theirs else CRITICS_FORM
    fields = ours.model_fields.keys() & theirs.model_fields.keys()
    return [name for name in ours.FORM if name in theirs.FORM and name in fields and name not in own]


def _form(options: AlgorithmOptions, names: Sequence[str]) -> dict[str, Any]:
    """The values of options that shape networks; of an activation that was left open, the algorithm's own."""
    return {
        name: getattr(options, name) or options.OWN_ACTIVATION if name == "activation" else getattr(options, name)
        for name in names
    }


def start_from(agent: Learner, config: TrainConfig, *, own: bool = True) -> Origin:
    """Copy the networks of the checkpoint that ``config.init_from`` names into a new agent.

    Networks, target networks, the normaliser of observations and tuned coefficients are copied, and with
    ``init_optimizer`` the state of their optimizers; buffers and counters start anew. ``config.init_parts`` restricts
    it to parts of these names. ``own``: the networks are the algorithm's own; what stands between the layers of others
    is theirs to know.
    """
    path, state = find_checkpoint(config.init_from or "", buffers=False)
    transfer = _Transfer(agent, config, state)
    if own:
        transfer.check_activation()
    taken = transfer.take()
    if not taken:
        raise _refused(
            f"nothing of {path} fits: it has {', '.join(transfer.there)}; this agent has {', '.join(transfer.here)}"
        )
    if config.init_optimizer:
        taken += transfer.take_optimizers()
    new = tuple(name for name in transfer.here if name not in transfer.written)
    left = tuple(name for name in transfer.there if name not in transfer.read)
    step = state.trainer_state.get("step", 0)
    step = step if isinstance(step, int) else 0
    return Origin(path, checksum_of(path), step, tuple(taken), left, (*new, *transfer.new), transfer.notes)


def _source(state: CheckpointState, config: TrainConfig) -> str:
    """The algorithm of a checkpoint, if an agent of the config's can start from it."""
    source, partners = str(state.config.get("algo")), partners_of(config.algo)
    if source not in partners or source not in ALGORITHMS:
        raise _refused(f"an agent of {source} does not fit {config.algo}, which takes {' or '.join(partners)}")
    return source


class _Transfer:
    """One checkpoint's parts and one agent's, and what has been copied."""

    def __init__(self, agent: Learner, config: TrainConfig, state: CheckpointState) -> None:
        self._agent, self._config, self._state = agent, config, state
        self._algo = _source(state, config)
        with raise_on_mismatch():
            self._saved = agent_state(state)
        _check_normalizer(agent, self._saved)
        self.here: AgentParts = dict(_units(agent))
        self.there: AgentParts = dict(_saved_units(self._saved))
        self._names = config.init_parts
        for name in self._names:
            if not any(name in unit.split(".") for unit in self.here):
                has = ", ".join(self.here)
                raise ConfigError([(("init_parts",), f"{name!r} is no part of this agent, which has {has}")])
        self._whole: set[int] = set()  # places in memory of the tensors that were copied as they are
        self.read: set[str] = set()
        self.written: set[str] = set()
        self.new: list[str] = []  # parts of parts that stay new
        self.notes: list[str] = []

    @torch.no_grad()
    def take(self) -> list[str]:
        """Copy what fits and is asked for; the names of it."""
        one = None if self._algo == self._config.algo else route(self._algo, self._config.algo)
        taken = [] if one is None else self._take_policy()
        for name in self.here:
            other = self._counterpart(name, one)
            if other is None or not _named(name, self._names) or self._differs_by_design(name, other):
                continue
            self._require_fit(name, other)
            for key, tensor in self.here[name].items():
                tensor.copy_(self.there[other][key])
                self._whole.add(tensor.data_ptr())
            self.written.add(name)
            self.read.add(other)
            taken.append(name)
        if one is not None and taken and one.note:
            self.notes.append(one.note)
        self._go_on_with_statistics()
        return taken

    def _counterpart(self, unit: str, one: Route | None) -> str | None:
        """The saved part of the same name and meaning; a model-based agent's policy is another's whole agent."""
        plain = unit.removeprefix("policy.")
        if one is not None and plain not in one.units and not unit.startswith("normalizer."):
            return None
        return next((name for name in (unit, f"policy.{unit}", plain) if name in self.there), None)

    def _take_policy(self) -> list[str]:
        """The policy, between algorithms whose networks have other forms."""
        saved = self._state.config
        theirs = policy_of(self._algo, saved.get("algo_kwargs", {}), self.there)
        mine = policy_of(self._config.algo, self._config.algo_kwargs, self.here)
        if self._names and not any(_named(unit, self._names) for unit in ([] if mine is None else mine.units)):
            return []
        if mine is None or theirs is None:
            raise _refused(
                f"a policy of {self._algo} becomes one of {self._config.algo} only where both are of this package"
            )
        if mine.shapes() != theirs.shapes():
            here, there = (", ".join(map(str, policy.shapes())) for policy in (mine, theirs))
            raise _refused(
                f"the weights of the {self._algo} agent's policy have the shapes {there}, here they are {here}"
                f"{self._advice()}"
            )
        calm = mine.take(theirs)
        own, target = mine.units[0], mine.units[0].replace("model.actor", "target_model.actor")
        if target != own and target in self.here:  # a target policy starts where the policy does
            for key, tensor in self.here[target].items():
                tensor.copy_(self.here[own][key])
        self.written |= {*mine.units, target}
        self.read |= {*theirs.units} | {unit for unit in self.there if unit.endswith("target_model.actor")}
        self.new += [f"the deviation in {own}"] * (not calm) + [mine.beside] * bool(mine.beside)
        return [*mine.units]

    def check_activation(self) -> None:
        """Weights between other activations have the same shapes and mean something else."""
        ours, theirs = self._forms()
        if not _images(self.here) and ours.get("activation") != theirs.get("activation", ours.get("activation")):
            raise _refused(
                f"the {self._algo} agent's layers have {theirs['activation']} between them, here it is "
                f"{ours['activation']}; set activation to {theirs['activation']}, as there"
            )

    def _forms(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The options that shape networks, here and there, as far as they have the same meaning."""
        ours = get_algorithm_spec(self._config.algo).options(self._config)
        try:
            theirs = get_algorithm_spec(self._algo).config(**self._state.config.get("algo_kwargs", {}))
        except (ConfigError, TypeError):
            return {}, {}
        names = _shared_form(type(ours), type(theirs))
        return _form(ours, names), _form(theirs, names)

    def _differs_by_design(self, unit: str, other: str) -> bool:
        """Whether critics of two algorithms differ in number or in normalisation: then they are new, unless they are
        asked for."""
        plain = self._algo != self._config.algo and unit.endswith("critics") and "critics" not in self._names
        ours, theirs = _ensemble(self.here[unit]), _ensemble(self.there[other])
        if not plain or ours == theirs:
            return False
        if not unit.rpartition(".")[0].endswith("target_model"):
            settings = f"num_critics {theirs[0]} and layer_norm {str(theirs[1]).lower()}"
            self.notes.append(f"to take the critics too, give them the form that they have there: {settings}")
        return True

    def _require_fit(self, unit: str, other: str) -> None:
        """Refuse a part whose tensors have other names, types or shapes."""
        ours, theirs = _described(self.here[unit]), _described(self.there[other])
        if ours == theirs:
            return
        name = next(key for key in (*ours, *theirs) if ours.get(key) != theirs.get(key))
        sizes = [f"{kind[0]}" if (kind := side.get(name)) else "none" for side in (theirs, ours)]
        at = f"{unit}.{name}".rstrip(".")
        raise _refused(
            f"{at} of the {self._algo} agent has the shape {sizes[0]}, here it is {sizes[1]}"
            f"{self._advice(unit, other)}, or name the parts to take in init_parts"
        )

    def _advice(self, unit: str = "", other: str = "") -> str:
        """Which options make the networks alike, as far as options do."""
        ours, theirs = self._forms()
        wanted = {name: value for name, value in theirs.items() if ours[name] != value}
        known = get_algorithm_spec(self._config.algo).config.model_fields
        if unit.endswith("critics"):
            here, there = (dict(zip(CRITICS_FORM, _ensemble(one))) for one in (self.here[unit], self.there[other]))
            wanted |= {name: there[name] for name in CRITICS_FORM if name in known and there[name] != here[name]}
        settings = [f"{name} to {option_text(value)}" for name, value in wanted.items()]
        spaces = self._state.metadata.get("spaces")
        if _masked(self._agent) and not (isinstance(spaces, dict) and spaces.get("masked")):
            settings.append("env_kwargs.action_masks to false")
        return f"; set {' and '.join(settings)}, as there" if settings else "; make the networks alike"

    def _go_on_with_statistics(self) -> None:
        """Statistics of a dataset, which were fitted at once, become ones that further observations move slowly."""
        parts = {name: self.here.get(f"normalizer.{name}", {}).get("") for name in STATISTICS}
        if any(part is None for part in parts.values()) or "normalizer.mean" not in self.written:
            return
        mean, inverse_std, square, exact_mean, count = parts.values()
        if float(count) == 0 and bool((inverse_std != 1).any()):  # type: ignore[arg-type, union-attr]
            exact_mean.copy_(mean)  # type: ignore[union-attr, arg-type]
            square.copy_(FITTED / inverse_std.double().square())  # type: ignore[union-attr]
            count.fill_(FITTED)  # type: ignore[union-attr]

    def take_optimizers(self) -> list[str]:
        """The state of every optimizer all of whose parameters were taken."""
        if is_slim(self._state):
            problem = "the agent comes from a slim checkpoint (of a zoo), which holds no optimizers; leave it off"
            raise ConfigError([(("init_optimizer",), problem)])
        saved = dict(saved_optimizers(self._saved))
        taken = []
        for name, optimizer in named_optimizers(self._agent):
            other = next((n for n in (name, f"policy.{name}", name.removeprefix("policy.")) if n in saved), None)
            if other is None or not all(p.data_ptr() in self._whole for p in optimizer.params):
                continue
            try:
                alike(saved[other], optimizer.state_dict())
            except ValueError:
                continue  # another optimizer, or one of more parameters
            optimizer.load_state_dict(saved[other])
            taken.append(name)
        if not taken:
            raise ConfigError(
                [(("init_optimizer",), f"no optimizer of the {self._algo} agent fits what is taken from it")]
            )
        return taken


def _masked(agent: Learner) -> bool:
    """Whether an agent chooses among actions that masks allow."""
    return any(getattr(getattr(agent, name, None), "masks", None) is not None for name in POLICIES)


STATISTICS = ("mean", "inverse_std", "square", "exact_mean", "count")  # of a normaliser, by name


def take_replay(loop: Loop, config: TrainConfig, origin: Origin) -> None:
    """Fill a new run's replay buffer with the transitions of the run that it starts from."""
    replay = getattr(loop, "replay", None)
    kinds = (ReplayBuffer, HindsightReplayBuffer)  # and no other subclass: rows alone say nothing of priorities
    if not isinstance(replay, ReplayBuffer) or type(replay) not in kinds or not replay.single:
        kept = (
            "keeps no replay buffer" if replay is None else "keeps images, sequences, priorities or returns over steps"
        )
        raise _no_replay(f"{config.algo} {kept} here; single transitions of vectors can be taken")
    _, state = find_checkpoint(origin.path, buffers=True)
    saved = (state.buffer_state or {}).get("replay")
    if not isinstance(saved, dict):
        slim = ", as it is a slim checkpoint (of a zoo)" if is_slim(state) else ""
        raise _no_replay(f"{origin.path} holds no replay buffer{slim}")
    try:
        replay.take_over(saved, int(state.config.get("num_envs", 1)))
    except ValueError as error:
        raise _no_replay(reason(error)) from None
    origin.notes.append(f"with {len(replay):,} transitions of {state.config.get('env_id')}")


def _no_replay(problem: str) -> ConfigError:
    return ConfigError([(("init_replay",), problem)])


def _units(learner: Learner, prefix: str = "") -> Iterator[tuple[str, PartTensors]]:
    """The parts of a learner's networks by name (``model.actor``), each as its tensors, which can be written to."""
    parts = learner._parts()
    tuned = {id(p) for part in parts.values() if isinstance(part, FlatOptimizer) for p in part.params}
    for name, part in parts.items():
        if isinstance(part, Learner):
            yield from _units(part, f"{prefix}{name}.")
        elif isinstance(part, nn.Module):
            yield from _grouped(f"{prefix}{name}", part.state_dict())
        elif isinstance(part, LogCoefficient) and id(part.value) in tuned:
            yield f"{prefix}{name}", {"": part.state_dict()}


def _saved_units(saved: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, PartTensors]]:
    """The same of a saved agent, without its optimizers."""
    for name, part in saved.items():
        if isinstance(part, torch.Tensor):
            yield f"{prefix}{name}", {"": part}
        elif isinstance(part, dict) and not name.endswith("optimizer"):
            if part and all(isinstance(value, torch.Tensor) for value in part.values()):
                yield from _grouped(f"{prefix}{name}", part)
            else:
                yield from _saved_units(part, f"{prefix}{name}.")


def _grouped(name: str, tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, PartTensors]]:
    """A module's tensors by the child that they belong to."""
    children: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        child, _, rest = key.partition(".")
        children.setdefault(f"{name}.{child}", {})[rest] = tensor
    yield from children.items()


def _named(unit: str, names: Sequence[str]) -> bool:
    """Whether a part is to be taken; the normaliser belongs to every network that sees observations."""
    return not names or bool({"normalizer", *names} & set(unit.split(".")))


def _images(units: AgentParts) -> bool:
    """Whether a network of these has convolutions."""
    return any(tensor.ndim == 4 for tensors in units.values() for tensor in tensors.values())


def _described(tensors: PartTensors) -> dict[str, Any]:
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}


def _ensemble(tensors: PartTensors) -> tuple[int, bool]:
    """How many networks an ensemble of critics has, and whether their layers are normalised."""
    weights = [tensor for name, tensor in tensors.items() if name.endswith("weight") and tensor.ndim == 3]
    return (len(weights[0]) if weights else 0), any(weight.shape[1] == 1 for weight in weights)


def _check_normalizer(agent: Learner, saved: Mapping[str, Any]) -> None:
    """Networks mean nothing for observations that are scaled otherwise."""
    scaled = isinstance(saved.get("normalizer"), dict)
    if scaled != (agent.normalizer is not None):
        raise _refused(
            f"its agent {'scales' if scaled else 'does not scale'} observations and this one "
            f"{'does not' if scaled else 'does'}; set normalize_observations to {str(scaled).lower()}"
        )


def _refused(problem: str) -> ConfigError:
    return ConfigError([(("init_from",), problem)])
