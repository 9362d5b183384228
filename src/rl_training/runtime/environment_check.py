"""What there is to know of an environment before training in it, found by playing, and what to do about it."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from rl_training.base.errors import reason
from rl_training.base.options import ConfigError
from rl_training.envs.factory import EnvFactory, EnvSource
from rl_training.envs.film import VideoError, check_recording
from rl_training.envs.goals import GoalRewards, goals_in
from rl_training.envs.spaces import Spaces
from rl_training.envs.trial import Played, Player, play, repeated, repeated_in_another_order
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec
from rl_training.runtime.evaluation import UNLIMITED

__all__ = ["Examined", "Remark", "algorithms_for", "check_env", "remarks_on"]

Level = Literal["ok", "note", "problem"]
PAYS = 1e-4  # seconds of a step from which worker processes gain more than their messages cost
WAITS = 0.25  # share of processor time in a step below which it waits for something else
SAME_LENGTH = 3  # episodes that all terminate after as many steps look like a time limit
NOTHING = 1e-8  # values no larger than this are zeros that were rounded
LONGEST_SPACE = 200  # characters of a space in a remark
APART = 100.0  # times by which the ranges of entries may differ before scaling them is worth a word


class Remark(NamedTuple):
    """What was found about one thing, and what to do about it."""

    about: str
    level: Level
    says: str
    do: str = ""


@dataclass
class Examined:
    """Everything that was found out by playing; ``again``, ``fresh`` and ``resumed`` say what was not repeated."""

    name: str
    factory: EnvFactory
    spaces: Spaces
    given: tuple[str, str]  # the spaces of observations and actions as the environment has them
    played: Played
    time_limit: int | None
    limited: bool  # whether episodes are known to be truncated some time
    again: str = ""  # in the same environment
    fresh: str = ""  # in a new one
    resumed: str = ""  # in a new one that is rebuilt in the middle of an episode
    seeds_matter: bool = True
    modes: tuple[str, ...] = ()  # in which it renders
    unfilmed: str = ""  # why it cannot be filmed

    @property
    def step_seconds(self) -> float:
        return float(np.median(self.played.step_seconds)) if self.played.step_seconds else 0.0

    @property
    def busy_share(self) -> float:
        """Processor seconds of a second of stepping."""
        clock = sum(self.played.step_seconds)
        return sum(self.played.step_busy) / clock if clock else 1.0


def check_env(
    env: EnvSource, env_kwargs: dict[str, Any] | None = None, *, seed: int = 0, steps: int = 1_000
) -> dict[str, Any]:
    """Play at random in an environment, and say whether it can be trained in, what it is like, and what to do about it.

    ``env`` is an id, a function or an environment, as for the algorithms' classes, and ``env_kwargs`` is the option of
    that name. Returns plain values: ``trainable``, ``remarks`` (about, level, says, do) and ``facts``.
    """
    if steps < 1:
        raise ValueError(f"a check needs at least one step, got {steps}")
    factory = EnvFactory(env, dict(env_kwargs or {}))
    try:
        found = _examine(factory, seed, steps)
    except ConfigError:
        raise  # the caller's mistake, not the environment's
    except Exception as error:  # whatever its constructor may raise
        remarks = [Remark("making", "problem", reason(error), _advice_on_making(str(error)))]
        return _report(factory.name, remarks, {})
    remarks = list(remarks_on(found))
    return _report(factory.name, remarks, _facts(found))


def _advice_on_making(text: str) -> str:
    return "set what the line names by --set env_kwargs..." if "env_kwargs." in text else ""


def _report(name: str, remarks: list[Remark], facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "environment": name,
        "trainable": all(remark.level != "problem" for remark in remarks),
        "remarks": [remark._asdict() for remark in remarks],
        "facts": facts,
    }


def _examine(factory: EnvFactory, seed: int, steps: int) -> Examined:
    """Make the environment, play in it, and repeat what was played in it and in others."""
    player = Player(factory, seed)
    inner = player.watched.env
    given = _text(inner.observation_space), _text(inner.action_space)
    try:
        played = Played(seed=seed) if player.spaces.agents else play(player, steps, seed)
        limits = player.time_limit, player.limited
        found = Examined(factory.name, factory, player.spaces, given, played, *limits, modes=player.modes)
        if played.steps and not played.failure:
            found.again = repeated_in_another_order(player, played)
    finally:
        player.close()
    if not played.steps or played.failure:
        return found
    found.fresh = _in_another(factory, seed, played)
    found.seeds_matter = bool(_in_another(factory, seed + 1, played))
    if played.saved is not None:
        found.resumed = _in_another(factory, seed, played, resumed=True)
    found.unfilmed = _filming(factory, found.modes)
    return found


def _text(space: Any) -> str:
    """A space in one line, which ends where it gets long."""
    text = " ".join(str(space).split())
    return text if len(text) <= LONGEST_SPACE else f"{text[:LONGEST_SPACE]}..."


def _in_another(factory: EnvFactory, seed: int, played: Played, *, resumed: bool = False) -> str:
    """What is not repeated in an environment that is made for this."""
    player = Player(factory, seed)
    try:
        return repeated(player, played, resumed=resumed)
    finally:
        player.close()


def _filming(factory: EnvFactory, modes: tuple[str, ...]) -> str:
    """Why the environment cannot be filmed; empty if it can."""
    if "rgb_array" not in modes:
        listed = ", ".join(modes) or "nothing"
        return f"its metadata list {listed} as render_modes, and films need rgb_array"
    try:
        check_recording(factory, factory.name)
    except (VideoError, ValueError) as error:
        return reason(error).removeprefix(f"record_video: {factory.name} cannot be filmed: ")
    return ""


def algorithms_for(spaces: Spaces, name: str) -> dict[str, str]:
    """Every algorithm, with what it needs instead of these spaces; empty for those that take them."""
    found = {}
    for algo in ALGORITHMS:
        spec = get_algorithm_spec(algo)
        try:
            spec.require(spaces, name)
            found[algo] = ""
        except ValueError as error:
            needs = str(error).partition(";")[0].removeprefix(f"{algo} ")
            found[algo] = needs.partition(f", and {name} ")[0]
    return found


def remarks_on(found: Examined) -> Iterator[Remark]:
    """What is to be said of everything that was found, in the order in which one would ask."""
    yield from _on_spaces(found)
    if found.played.failure:
        yield Remark("rules", "problem", found.played.failure, "mend it in the environment: training would stop there")
        return
    if found.spaces.agents:
        says = f"{', '.join(map(str, found.spaces.agents))} share one policy; what their steps return is not tried here"
        yield Remark("agents", "note", says, "see the page on several agents, and train for a few steps")
        return
    yield Remark("rules", "ok", f"reset and step return what Gymnasium asks for, in {found.played.steps:,} steps")
    topics: tuple[Callable[[Examined], Iterator[Remark]], ...] = (
        _on_seeds, _on_resuming, _on_rewards, _on_time_limits, _on_endings, _on_speed, _on_infos, _on_masks, _on_goals,
        _on_films,
    )  # fmt: skip
    for topic in topics:
        yield from topic(found)


def _on_spaces(found: Examined) -> Iterator[Remark]:
    spaces, played = found.spaces, found.played
    obs, actions = found.given
    seen = f"{obs}, seen as {spaces.describe().rpartition(' and ')[0]}"
    if played.outside:
        yield Remark(
            "observations", "note", f"{seen}; {played.outside_count:,} of {len(played.ticks):,} lie outside: "
            f"{played.outside}", "mend the space; numbers are learned from as they are",
        )  # fmt: skip
    else:
        yield Remark("observations", "ok", seen)
    yield from _on_ranges(played)
    if spaces.unbounded:
        yield Remark(
            "actions", "note", f"{actions}; without usable bounds in the dimensions {list(spaces.unbounded)}",
            "give the space finite bounds: most algorithms keep these dimensions within [-1, 1]",
        )  # fmt: skip
    else:
        scaled = ", which agents give in [-1, 1]" if spaces.action_kind == "box" else ""
        yield Remark("actions", "ok", f"{actions}{scaled}")
    yield from _on_algorithms(found)


def _on_ranges(played: Played) -> Iterator[Remark]:
    """Entries of a vector whose values lie far apart."""
    if played.low is None or played.high is None:
        return
    sizes = np.maximum(np.abs(played.low), np.abs(played.high))
    some = sizes[sizes > NOTHING]
    if len(some) and (some.max() > APART or some.max() / some.min() > APART):
        text = f"entries are as large as {some.max():.3g}, and others no larger than {some.min():.3g}"
        yield Remark("ranges", "note", text, "set normalize_observations: true, where the algorithm has it")


def _on_algorithms(found: Examined) -> Iterator[Remark]:
    needs = algorithms_for(found.spaces, found.name)
    takers = [algo for algo, need in needs.items() if not need]
    if takers:
        yield Remark("algorithms", "ok", f"{', '.join(takers)} ({len(takers)} of {len(needs)})")
    else:
        yield Remark("algorithms", "problem", f"none takes {found.spaces.describe()}", "wrap it: env_kwargs.wrappers")
    for need in dict.fromkeys(filter(None, needs.values())):
        others = ", ".join(algo for algo, one in needs.items() if one == need)
        yield Remark("algorithms", "ok", f"not {others}: {need}")


def _on_seeds(found: Examined) -> Iterator[Remark]:
    if found.fresh:
        yield Remark(
            "determinism", "note", f"the same seed and actions give something else in a new environment: {found.fresh}",
            "draw everything random from self.np_random, after super().reset(seed=seed) in reset",
        )  # fmt: skip
    elif found.again:
        yield Remark(
            "determinism", "note", f"something is left of earlier episodes: the second time, {found.again}",
            "set everything anew in reset; or set env_kwargs.remake: true, which makes it anew for every episode",
        )  # fmt: skip
    else:
        says = f"the same seed and actions give the same {found.played.repeated} steps, here and in a new environment"
        yield Remark("determinism", "ok", says)
    if found.fresh or found.seeds_matter:
        return
    yield Remark(
        "seeds", "note", "another seed gives the same episode: nothing in it is random, or its seed is ignored",
        "if nothing is random, eval_episodes: 1 is enough; else pass the seed of reset on",
    )  # fmt: skip


def _on_resuming(found: Examined) -> Iterator[Remark]:
    if found.played.saved is None:
        yield Remark("exact resume", "ok", "not tried: no episode went on where one could have been stopped")
    elif found.resumed:
        yield Remark(
            "exact resume", "note", f"rebuilt by its seed and actions, {found.resumed}: a run that is stopped goes on "
            "with new episodes", "as for determinism; training itself is not hurt",
        )  # fmt: skip
    elif found.again:
        yield Remark(
            "exact resume", "note", "it was rebuilt here, but what is left of earlier episodes is not saved",
            "as for determinism; training itself is not hurt",
        )  # fmt: skip
    else:
        yield Remark("exact resume", "ok", "rebuilt in the middle of an episode, it goes on as it would have")


def _on_rewards(found: Examined) -> Iterator[Remark]:
    rewards = np.array(found.played.rewards) + 0.0  # without the sign of zeros
    paid = np.abs(rewards[rewards != 0])
    typical = float(paid.mean()) if len(paid) else 0.0
    says = f"from {rewards.min():.3g} to {rewards.max():.3g} a step, {_share(len(paid), len(rewards))} of them not 0"
    if found.played.returns:
        says += f"; {np.mean(found.played.returns):.4g} an episode"
    constant = bool((rewards == rewards[0]).all())
    if constant and len(rewards) > 1 and not found.played.terminated:
        text = "every step paid the same: random actions learn nothing from it"
        do = "expect a hard search: hindsight for goals, a shaped reward, or prior data (rlpd)"
        yield Remark("rewards", "note", f"{says}; {text}", do)
    elif len(paid) and not 0.01 <= typical <= 10:
        scale = 10.0 ** -round(math.log10(typical))
        yield Remark(
            "rewards", "note", says, f"bring them near one: env_kwargs.wrappers.reward.scale: {scale:g} (PPO, PPG and "
            "GAIL have normalize_rewards)",
        )  # fmt: skip
    else:
        yield Remark("rewards", "ok", says)


def _share(some: int, of: int) -> str:
    if some in (0, of):
        return "all" if some else "none"
    percent = 100 * some / of
    return f"{percent:.2g} %" if percent < 10 else f"{min(percent, 99):.0f} %"


def _on_time_limits(found: Examined) -> Iterator[Remark]:
    if found.limited:
        limit = f"{found.time_limit:,} steps" if found.time_limit is not None else "the emulator's own, in frames"
        yield Remark("time limit", "ok", limit)
        return
    lengths = found.played.lengths
    if found.played.truncated:
        says = f"its own: {found.played.truncated} of {len(lengths)} episodes were truncated"
        yield Remark("time limit", "ok", f"{says}, the longest of {max(lengths):,} steps")
        return
    seen = f"the longest of {len(lengths)} episodes had {max(lengths):,}" if lengths else "no episode ended here"
    yield Remark(
        "time limit", "note", f"none, as far as can be seen ({seen}): an episode that does not end is trained in for "
        f"ever, cut after {UNLIMITED:,} steps in evaluation, and makes checkpoints grow and resuming slow",
        "set env_kwargs.max_episode_steps",
    )  # fmt: skip


def _on_endings(found: Examined) -> Iterator[Remark]:
    played = found.played
    lengths = played.lengths
    if not lengths:
        yield Remark("endings", "ok", f"no episode ended within {played.steps:,} random steps")
        return
    says = f"{played.terminated} terminated, {played.truncated} truncated; {min(lengths):,} to {max(lengths):,} steps"
    same = len(set(lengths)) == 1 and len(lengths) >= SAME_LENGTH and lengths[0] > 1
    if same and played.terminated == len(lengths):
        yield Remark(
            "endings", "note", f"all {len(lengths)} episodes terminated after {lengths[0]:,} steps, as at a time limit",
            "if it is one, return truncated=True: nothing is expected to come after a termination",
        )  # fmt: skip
    else:
        yield Remark("endings", "ok", says)


def _on_speed(found: Examined) -> Iterator[Remark]:
    seconds, waits = found.step_seconds, found.busy_share < WAITS
    says = f"{_rate(seconds)} steps a second, {1e3 * float(np.median(found.played.reset_seconds)):.3g} ms a reset"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if seconds < PAYS:
        yield Remark("speed", "ok", f"{says}: worker processes would gain nothing")
    elif waits:
        yield Remark(
            "speed", "note", f"{says}, of which it waits {1 - found.busy_share:.0%}",
            "set execution_backend: process, and env_workers as high as num_envs",
        )  # fmt: skip
    elif cores > 1:
        yield Remark("speed", "note", says, f"execution_backend: process pays here, with {cores} processors")
    else:
        yield Remark("speed", "ok", f"{says}: worker processes would gain nothing on one processor")


def _rate(seconds: float) -> str:
    return f"{1 / seconds:,.0f}" if seconds else "very many"


def _on_infos(found: Examined) -> Iterator[Remark]:
    played = found.played
    if played.success is not None:
        yield Remark("success", "ok", f"{played.success} in the last info: success_rate is reported")
    others = [name for name in played.numbers if name != played.success]
    if others:
        yield Remark("info", "ok", f"numbers in the last info: {', '.join(others)}; log_info: [{others[0]}] logs one")


def _on_masks(found: Examined) -> Iterator[Remark]:
    allowed = found.played.allowed
    if allowed:
        yield Remark("masks", "ok", f"action masks, which allow {min(allowed)} to {max(allowed)} actions")


def _on_goals(found: Examined) -> Iterator[Remark]:
    if goals_in(found.spaces) is None:
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            rewards = GoalRewards(found.factory, found.spaces)
        except Exception as error:  # whatever its functions raise
            yield Remark("goals", "note", reason(error), "hindsight is refused until this is mended")
            return
    rewards.close()
    said = [str(one.message) for one in caught if "compute_reward" in str(one.message)]
    how = f", {' and '.join(rewards.by_row)} row by row, which is slower" if rewards.by_row else ""
    if said:
        yield Remark("goals", "note", said[0], "pay steps by compute_reward, or leave hindsight off")
    else:
        yield Remark("goals", "ok", f"compute_reward pays as steps do{how}; hindsight: future learns from failures")


def _on_films(found: Examined) -> Iterator[Remark]:
    if "rgb_array" not in found.modes:
        yield Remark("video", "ok", f"no films: {found.unfilmed}")
    elif found.unfilmed:
        yield Remark("video", "note", f"cannot be filmed: {found.unfilmed}", "training does not need it")
    else:
        yield Remark("video", "ok", "renders images: record_video and rl-training video work")


def _facts(found: Examined) -> dict[str, Any]:
    """Everything that was found, as plain values."""
    played, spaces = found.played, found.spaces
    rewards = played.rewards or [0.0]
    return {
        "observation_space": found.given[0], "action_space": found.given[1], "seen_as": spaces.describe(),
        "algorithms": algorithms_for(spaces, found.name), "seed": played.seed, "steps": played.steps,
        "observations_outside": played.outside_count, "unbounded_actions": list(spaces.unbounded),
        "failure": played.failure or None,
        "repeats": None if played.failure or not played.steps else {"again": not found.again, "fresh": not found.fresh},
        "seeds_matter": found.seeds_matter,
        "resumes_exactly": None if played.saved is None or played.failure else not (found.resumed or found.again),
        "reward": {"min": min(rewards), "max": max(rewards), "mean_size": float(np.abs(rewards).mean())},
        "time_limit": found.time_limit, "has_time_limit": found.limited,
        "episodes": {"returns": played.returns, "lengths": played.lengths, "terminated": played.terminated,
                     "truncated": played.truncated},
        "step_seconds": found.step_seconds, "processor_share": round(found.busy_share, 3),
        "step_processor_seconds": float(np.median(played.step_busy)) if played.step_busy else 0.0,
        "info_numbers": sorted(played.numbers), "success": played.success, "masks": bool(played.allowed),
        "goals": goals_in(spaces) is not None, "agents": list(map(str, spaces.agents)),
        "films": played.steps > 0 and not found.unfilmed and not played.failure,
    }  # fmt: skip
