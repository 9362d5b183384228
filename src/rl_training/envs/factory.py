"""Making the environments of a run, with its time limit and wrappers, for training or for evaluation."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import FlattenObservation

from rl_training.base.errors import reason
from rl_training.base.modules import import_named
from rl_training.base.options import ConfigError
from rl_training.envs.actions import FlatActions
from rl_training.envs.copying import copy_env
from rl_training.envs.custom import wrapped
from rl_training.envs.masks import lifted, masked
from rl_training.envs.multi_agent import (
    NAMED_SO,
    Game,
    MultiAgentEnv,
    ParallelEnv,
    is_multi_agent,
    made_parallel,
    makes_parallel,
    parallel_name,
    require_plain,
)
from rl_training.envs.options import EnvOptions, PartsOptions, RewardOptions, parse_env_kwargs
from rl_training.envs.parts import ChosenObservation, packed
from rl_training.envs.seats import Seats
from rl_training.envs.spaces import CHANNELS, Spaces
from rl_training.envs.vector import OneOfVector, VectorEnvs, another_one, check_vector, one_of
from rl_training.envs.watchdog import Watchdog
from rl_training.envs.wrappers import (
    AtariPreprocessing,
    FrameStack,
    PartialObservation,
    PixelObservation,
    Remade,
    layers,
)

EnvSource = str | gym.Env | VectorEnv | ParallelEnv | Callable[[], gym.Env | VectorEnv | ParallelEnv]

__all__ = ["EnvFactory", "EnvSource", "env_name", "has_time_limit", "time_limit_of"]

HOMES = (  # packages whose environments are made by the name of a module: the package, the module, how its names begin
    ("gymnasium-robotics", "gymnasium_robotics",
     ("Fetch", "HandReach", "HandManipulate", "AdroitHand", "PointMaze", "AntMaze", "FrankaKitchen")),
    ("minigrid", "minigrid", ("MiniGrid-", "BabyAI-")),
    ("MinAtar", "minatar.gym", ("MinAtar/",)),
    ("highway-env", "highway_env", ("highway-", "merge-", "roundabout-", "parking-", "intersection-", "racetrack-")),
    ("panda-gym", "panda_gym", ("Panda",)),
    ("flappy-bird-gymnasium", "flappy_bird_gymnasium", ("FlappyBird-",)),
    ("shimmy", "shimmy", ("dm_control/",)),
)  # fmt: skip
_made: weakref.WeakValueDictionary[int, gym.Env | VectorEnv] = (
    weakref.WeakValueDictionary()
)  # by functions, each under its id


@dataclass(frozen=True)
class EnvFactory:
    """Makes the environments of one run; ``source`` is an id, a function, or an environment to make copies of."""

    source: EnvSource
    env_kwargs: dict[str, Any]
    render: bool = False  # make environments that render rgb arrays
    watchdog: Watchdog | None = None  # notices a step or a reset that does not return
    known: dict[str, bool] = field(
        default_factory=dict, repr=False, compare=False
    )  # what environments turned out to give

    def reward_options(self, *, training: bool = True) -> RewardOptions:
        """How rewards are scaled and clipped before they are learned from."""
        return parse_env_kwargs(self.env_kwargs, training=training)[0].wrappers.reward

    @property
    def name(self) -> str:
        return self.source if isinstance(self.source, str) else env_name(self.source)

    def time_limit(self) -> int | None:
        """The steps after which training episodes are truncated; None where that is not known."""
        env = self.make(training=True)
        try:
            return time_limit_of(env)
        finally:
            env.close()

    def spaces(self) -> Spaces:
        """The spaces of the wrapped environment."""
        env = self.make(training=False)
        try:
            return Spaces.of(env)
        finally:
            env.close()

    def make(self, *, training: bool) -> gym.Env:
        """A new environment with all wrappers."""
        env = self._make(training)
        return env if self.watchdog is None else self.watchdog.wrap(env, training=training)

    def together(self, first: gym.Env, num_envs: int, seed: int, backend: str) -> VectorEnvs | Seats | None:
        """What steps several rows of a run at once, if the source makes or is such a thing, of which ``first`` is an
        environment: a VectorEnv, or parallel environments."""
        if isinstance(first.unwrapped, MultiAgentEnv):
            first.close()
            return self._seats(num_envs, seed, backend)
        if not any(isinstance(layer, OneOfVector) for layer in layers(first)):
            return None
        made: Any = self.source if isinstance(self.source, VectorEnv) else _made_by(self.source)
        check_vector(made, first, self.name, parse_env_kwargs(self.env_kwargs, training=True)[0], backend)
        first.close()
        return VectorEnvs(made, num_envs, seed, self.watchdog, own=made is not self.source)

    def _seats(self, num_envs: int, seed: int, backend: str) -> Seats:
        if backend != "local":
            problem = f"{self.name} has several agents, and is stepped in the run's own process: take local"
            raise ConfigError([(("execution_backend",), problem)])
        evaluated, first = self.spaces().agents, self.make(training=True)
        try:
            action_space, agents = first.action_space, Spaces.of(first).agents
        finally:
            first.close()
        if agents != evaluated:
            names = f"{', '.join(agents)} in training and {', '.join(evaluated)} in evaluation"
            raise ConfigError([(("env_kwargs",), f"{self.name} has the agents {names}: they must be the same")])
        return Seats(lambda: self.game(training=True), action_space, agents, num_envs, seed, self.watchdog)

    def game(self, *, training: bool) -> Game:
        """A new parallel environment, to be played."""
        env = self.make(training=training)
        return Game(env, time_limit_of(env))

    def make_changed(self, env_kwargs: dict[str, Any]) -> gym.Env:
        """A new training environment in which some arguments differ."""
        own = {**self.env_kwargs.get("training", {}), **env_kwargs}
        return replace(self, env_kwargs={**self.env_kwargs, "training": own}).make(training=True)

    def _make(self, training: bool) -> gym.Env:
        options, kwargs = parse_env_kwargs(self.env_kwargs, training=training)
        base = partial(_base_env, self.source, options, kwargs, self.render)
        env = Remade(base) if options.remake else base()
        wrappers = options.wrappers
        if isinstance(env.unwrapped, MultiAgentEnv):
            require_plain(options, env.observation_space, self.name)
        if wrappers.atari is not None:
            env = AtariPreprocessing(env, **wrappers.atari.model_dump(exclude={"frame_stack"}))
            if options.max_episode_steps is not None:  # in steps of the agent, not frames of the emulator
                env = gym.wrappers.TimeLimit(env, options.max_episode_steps)
            env = FrameStack(env, wrappers.atari.frame_stack)
        if wrappers.pixels is not None:
            env = PixelObservation(env, **wrappers.pixels.model_dump(exclude={"frame_stack"}))
            if wrappers.pixels.frame_stack > 1:
                env = FrameStack(env, wrappers.pixels.frame_stack)
            if not wrappers.pixels.channel_first and env.observation_space.shape[-1] > CHANNELS:  # type: ignore[index]
                raise ValueError(f"more than {CHANNELS} channels need wrappers.pixels.channel_first: true")
        env = wrapped(env, wrappers.custom)
        if not isinstance(env.unwrapped, MultiAgentEnv):
            env = FlatActions.around(env, options.integer_actions, self.name)
        env, masks, parts = lifted(env, options.action_masks, wrappers.parts)
        env = _seen(env, parts, self.name)
        if wrappers.keep is not None:
            env = PartialObservation(env, wrappers.keep)
        env = FrameStack(env, wrappers.frame_stack) if wrappers.frame_stack > 1 else env
        return masked(env, masks, self.known, self.name)


def env_name(env: Any) -> str:
    """What to call an environment that was given as an object or a function."""
    spec = getattr(env, "spec", None)
    if spec is not None:
        return str(spec.id)
    if is_multi_agent(env):
        return parallel_name(env)
    inner = env if isinstance(env, type) else getattr(env, "unwrapped", env)
    return str(getattr(inner, "__name__", type(inner).__name__)).replace("<lambda>", "custom")


def time_limit_of(env: gym.Env) -> int | None:
    """The steps after which a wrapper truncates an episode; None without such a wrapper, whatever the spec has."""
    limit: int | None = None
    for layer in reversed([*layers(env)]):
        if isinstance(layer, AtariPreprocessing) and limit is not None:
            limit = -(-limit // layer.frame_skip)
        if isinstance(layer, gym.wrappers.TimeLimit):
            own = layer._max_episode_steps
            limit = own if limit is None else min(own, limit)
    return limit


def has_time_limit(env: gym.Env) -> bool:
    """Whether episodes are known to be truncated some time; ALE counts frames itself, PettingZoo's count cycles."""
    return time_limit_of(env) is not None or hasattr(env.unwrapped, "ale") or hasattr(env.unwrapped, "max_cycles")


def _base_env(source: EnvSource, options: EnvOptions, kwargs: dict[str, Any], render: bool) -> gym.Env:
    limit = options.max_episode_steps if options.wrappers.atari is None else None
    if isinstance(source, str):
        return _from_id(source, limit, _arguments(source, options, kwargs, render))
    if kwargs:
        raise ConfigError([((name,), "belongs to gym.make, but the environment was given as it is") for name in kwargs])
    if isinstance(source, VectorEnv):
        env: gym.Env = another_one(source) or one_of(source, source)
    elif is_multi_agent(source):
        env = MultiAgentEnv.copy_of(source, render=render)
    else:
        env = copy_env(source, render=render) if isinstance(source, gym.Env) else _from_function(source)
    own = time_limit_of(env)
    if limit is not None and own is not None and own < limit:
        raise ConfigError(
            [(("env_kwargs", "max_episode_steps"), f"the environment was given with a time limit of {own} of its own")]
        )
    return _limited(env, limit)


def _arguments(env_id: str, options: EnvOptions, kwargs: dict[str, Any], render: bool) -> dict[str, Any]:
    """The arguments of gym.make."""
    if render:
        kwargs = {**kwargs, "render_mode": "rgb_array"}
    if options.wrappers.pixels is not None:
        kwargs = {"render_mode": "rgb_array", **kwargs}
    if options.wrappers.atari is not None:
        _register_games(env_id)
        known = gym.registry.get(env_id)
        if known is None or "frameskip" in known.kwargs:
            kwargs = {"frameskip": 1, "obs_type": "grayscale", **kwargs}
    return kwargs


def _from_function(make: Any) -> gym.Env:
    if not callable(make):
        raise ValueError(
            f"an environment is an id, a gymnasium.Env or a function that makes one, got {type(make).__name__}"
        )
    known = another_one(make)
    if known is not None:
        return known
    env = _made_by(make)
    if isinstance(env, gym.Env):
        return env
    try:
        return one_of(env, make)
    finally:
        env.close()


def _made_by(make: Any) -> gym.Env | VectorEnv:
    """A new environment, or a new VectorEnv."""
    env = make()
    if not isinstance(env, gym.Env | VectorEnv) and not is_multi_agent(env):
        raise ValueError(f"the environment factory gave {type(env).__name__}, not a gymnasium.Env")
    base = getattr(env, "unwrapped", env)
    if _made.get(id(base)) is base:
        raise ValueError(
            f"{env_name(make)} gave the same environment twice; it must make a new one each time (an object is copied, "
            "if it is passed itself)"
        )
    _made[id(base)] = base
    return env if isinstance(env, gym.Env | VectorEnv) else made_parallel(env)


def _from_id(env_id: str, limit: int | None, kwargs: dict[str, Any]) -> gym.Env:
    if env_id.startswith("ALE/"):
        _register_games(env_id)
    module, colon, name = env_id.partition(":")
    try:
        make = getattr(_home(module, name), name, None) if colon else None
        if make is not None and makes_parallel(make, name):
            return _limited(made_parallel(make(**kwargs)), limit)
        env = gym.make(env_id, max_episode_steps=limit, disable_env_checker=True, **kwargs)
    except Exception as error:  # whatever the environment's own constructor may raise
        raise ValueError(f"cannot make the environment {env_id!r}: {reason(error)}{_hint(env_id, error)}") from None
    if "mujoco" in sys.modules and hasattr(sys.modules["mujoco"], "set_mju_user_warning"):
        sys.modules["mujoco"].set_mju_user_warning(lambda message: None)  # else it writes a log file where it stands
    return env


def _limited(env: gym.Env, limit: int | None) -> gym.Env:
    return env if limit is None else gym.wrappers.TimeLimit(env, limit)


def _hint(env_id: str, error: Exception) -> str:
    """What helps where an environment of a known package, or what a module names, cannot be made; else nothing."""
    unknown = isinstance(error, gym.error.Error)
    module, _, name = env_id.partition(":")
    if unknown and callable(getattr(sys.modules.get(module), name or " ", None)):
        return f"; {module} has {name}, and what it makes is taken by name if it {NAMED_SO}"
    if env_id.startswith("gymnasium_robotics:") and not unknown:
        return "; pip install 'rl_training[robotics]' brings these robots, and a MuJoCo that they work with"
    for package, home, names in HOMES if unknown and ":" not in env_id else ():
        if env_id.startswith(names):
            return f"; {package} has it as {home}:{env_id}"
    return ""


def _home(module: str, name: str) -> Any:
    """Import the module that a name belongs to. If that alone does not make the name known, and the module has a
    function ``register_envs`` (MinAtar), it is called."""
    home = import_named(module)
    register = getattr(home, "register_envs", None)
    if (
        name not in gym.registry
        and not hasattr(home, name)
        and callable(register)
        and register is not gym.register_envs
    ):
        register()
    return home


def _register_games(env_id: str) -> None:
    try:
        import ale_py
    except ImportError:
        raise ValueError(f"{env_id} needs the atari extra: pip install 'rl_training[atari]'") from None
    gym.register_envs(ale_py)


def _seen(env: gym.Env, options: PartsOptions, name: str) -> gym.Env:
    """Vectors and images as they are, other small observations flattened to a vector, and Dicts, Tuples and other
    images as rows of their parts."""
    space = env.observation_space
    try:
        rows = packed(env, options)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if rows is not None:
        return rows
    if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        return ChosenObservation(env)
    return env if isinstance(space, gym.spaces.Box) and len(space.shape) in (1, 3) else FlattenObservation(env)
