"""Parallel environments, as PettingZoo has them: several agents that step at once and share their spaces.

Nothing of PettingZoo is imported: whatever has a ParallelEnv's methods is one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from rl_training.base.errors import reason
from rl_training.envs.checks import EnvironmentFailure, described
from rl_training.envs.options import EnvOptions, WrapperOptions
from rl_training.envs.wrappers import layers

__all__ = [
    "NAMED_SO",
    "Game",
    "MultiAgentEnv",
    "ParallelEnv",
    "is_multi_agent",
    "made_parallel",
    "makes_parallel",
    "parallel_name",
    "require_plain",
]

FILL = 0.0  # entries of the rows of agents that are not there
PARALLEL = ("reset", "step", "observation_space", "action_space")
FUNCTION = "parallel_env"
NAMED_SO = f"is a class of parallel environments or a function whose name ends in {FUNCTION}"
LIMITS = ("max_cycles", "max_steps")  # attributes of environments that truncate episodes themselves
RESET = "(observations, infos), dictionaries by agent"
STEP = "(observations, rewards, terminations, truncations, infos), dictionaries by agent"
Result = tuple[Any, Any, Any, Any, Any]  # observation, reward, terminated, truncated, info of one agent


class ParallelEnv(Protocol):
    """What is used of PettingZoo's ParallelEnv."""

    agents: list[Any]
    possible_agents: list[Any]

    def reset(self, seed: int | None = None, options: Any = None) -> Any: ...

    def step(self, actions: Any) -> Any: ...

    def observation_space(self, agent: Any) -> Any: ...

    def action_space(self, agent: Any) -> Any: ...


def is_multi_agent(env: Any) -> bool:
    """Whether an object is a parallel environment, or one whose agents take turns, which is refused later."""
    own = not isinstance(env, gym.Env | gym.vector.VectorEnv | type)
    return own and (_takes_turns(env) or all(callable(getattr(env, name, None)) for name in PARALLEL))


def makes_parallel(make: Any, name: str) -> bool:
    """Whether what a module has under a name may be called to make a parallel environment. A file may name it, and the
    arguments too: a class of such environments may be, and a function whose name says what it is for."""
    if isinstance(make, type):
        return all(callable(getattr(make, method, None)) for method in PARALLEL)
    return callable(make) and name.endswith(FUNCTION)


def made_parallel(env: Any) -> MultiAgentEnv:
    """What somebody's function made, if it is a parallel environment."""
    if not is_multi_agent(env):
        raise ValueError(f"it is {type(env).__name__}, not a parallel environment")
    return MultiAgentEnv(env)


def _takes_turns(env: Any) -> bool:
    return callable(getattr(env, "agent_iter", None))


def parallel_name(env: Any) -> str:
    """What to call a parallel environment: PettingZoo's keep their names in their metadata."""
    given = (getattr(env, "metadata", None) or {}).get("name")
    return str(given or type(getattr(env, "unwrapped", env)).__name__)


class MultiAgentEnv(gym.Env[Any, Any]):
    """A parallel environment behind the spaces that its agents share.

    Wrappers around it map the observation of any of its agents; ``Game`` plays it. As an environment of Gymnasium it
    can be reset, rendered and closed, and not stepped: it has several actions.
    """

    def __init__(self, parallel: Any) -> None:
        name = parallel_name(parallel)
        if _takes_turns(parallel):
            raise ValueError(
                f"{name} is an environment whose agents take turns (AECEnv): if it can step them at once, make it "
                "parallel with pettingzoo.utils.aec_to_parallel; PettingZoo's tutorials name libraries for the others"
            )
        ids = getattr(parallel, "possible_agents", None)
        if not ids:
            raise ValueError(f"{name} does not say which agents there can be: it needs possible_agents")
        self.parallel, self.agent_ids = parallel, list(ids)
        self.agent_names = tuple(map(str, self.agent_ids))
        first, *others = self.agent_ids
        self.observation_space, self.action_space = parallel.observation_space(first), parallel.action_space(first)
        for other in others:
            for own, kind in ((self.observation_space, "observation_space"), (self.action_space, "action_space")):
                space = getattr(parallel, kind)(other)
                if space != own:
                    raise ValueError(
                        f"{name}: agents that share a policy share their spaces, and {kind} is {own} for {first} and "
                        f"{space} for {other}; SuperSuit can pad them (pad_observations_v0, pad_action_space_v0), and "
                        "BenchMARL and RLlib train a policy for each group of agents"
                    )
        self.metadata = dict(getattr(parallel, "metadata", None) or {})
        self.render_mode = getattr(parallel, "render_mode", None)
        base = getattr(parallel, "unwrapped", parallel)
        if any(getattr(base, limit, None) for limit in LIMITS):
            self.max_cycles = True  # it truncates episodes itself

    @classmethod
    def copy_of(cls, parallel: Any, *, render: bool = False) -> MultiAgentEnv:
        """Around a copy of an environment that was given as an object; with ``render``, one that renders rgb arrays."""
        try:
            made = copy.deepcopy(parallel)
        except Exception as error:  # whatever may be in it, and whatever that may raise
            name = parallel_name(parallel)
            raise ValueError(f"{name} cannot be copied ({reason(error)}); pass a function that makes it") from None
        base = getattr(made, "unwrapped", made)
        if render and "rgb_array" in (getattr(base, "metadata", None) or {}).get("render_modes", ()):
            base.render_mode = "rgb_array"
        return cls(made)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """The observation of the first agent that is there, and its info."""
        obs, infos = self.begin(seed)
        agent = next(iter(obs))
        return obs[agent], dict(infos.get(agent) or {})

    def step(self, action: Any) -> Any:
        raise ValueError(f"{parallel_name(self.parallel)} has several agents, and this steps a single one")

    def begin(self, seed: int | None) -> tuple[dict[Any, Any], Any]:
        """Begin an episode: the observations of the agents that are there, and infos."""
        result = self.parallel.reset(seed=seed)
        if not isinstance(result, tuple) or len(result) != 2 or not all(isinstance(one, Mapping) for one in result):
            raise EnvironmentFailure(f"reset returned {described(result)}, not {RESET}")
        present = self.listed()
        if not present:
            raise EnvironmentFailure("an episode began without agents")
        return {agent: _of(result[0], "observation", agent) for agent in present}, result[1]

    def listed(self) -> list[Any]:
        """The agents that the environment says are there."""
        agents = list(self.parallel.agents)
        unknown = [agent for agent in agents if agent not in self.agent_ids]
        if unknown:
            raise EnvironmentFailure(f"agent {unknown[0]!r} is not among possible_agents")
        return agents

    def render(self) -> Any:
        return self.parallel.render()

    def close(self) -> None:
        self.parallel.close()


def _of(values: Mapping[Any, Any], what: str, agent: Any) -> Any:
    if agent not in values:
        raise EnvironmentFailure(f"there is no {what} of agent {agent!r}, which is there")
    return values[agent]


def require_plain(options: EnvOptions, space: gym.Space[Any], name: str) -> None:
    """Refuse what is for environments with one agent: wrappers that change more than the observation of an agent as it
    comes, environments that are made anew, and masks of actions."""
    if options.remake:
        raise ValueError(f"{name} has several agents, and env_kwargs.remake is for one: set everything in reset")
    if options.action_masks and isinstance(space, gym.spaces.Dict) and "action_mask" in space.spaces:
        text = "env_kwargs.action_masks: false leaves them in what networks see, and any action may be taken"
        raise ValueError(f"{name} has masks of actions and several agents, and only one agent keeps to them: {text}")
    own, plain = ("parts", "keep", "reward"), WrapperOptions()
    for given in WrapperOptions.model_fields:
        if given not in own and getattr(options.wrappers, given) != getattr(plain, given):
            raise ValueError(
                f"{name} has several agents, for which env_kwargs.wrappers takes {', '.join(own)} and not {given}: "
                "wrap the environment itself, as with SuperSuit"
            )


class Game:
    """One parallel environment being played. Every agent it can have has a seat, in the order of ``possible_agents``;
    ``present`` says which of them are taken.

    An agent whose episode ends leaves, and its seat stays empty until an agent of its name appears again, at the latest
    when the next episode of the environment begins: that is when no agent is left, or the time is up.
    """

    def __init__(self, env: gym.Env, limit: int | None) -> None:
        """``env``: a MultiAgentEnv with its wrappers; ``limit``: steps after which all agents are truncated."""
        base: Any = env.unwrapped
        self.env, self._base, self._limit = env, base, limit
        wrappers = [layer for layer in layers(env) if isinstance(layer, gym.ObservationWrapper)]
        self._maps: list[Callable[[Any], Any]] = [wrapper.observation for wrapper in reversed(wrappers)]
        space: Any = env.observation_space
        self.ids, self.size = base.agent_ids, len(base.agent_ids)
        self.empty = np.full(space.shape, FILL, space.dtype)  # the observation of an empty seat
        self.present = np.zeros(self.size, bool)
        self.steps = 0  # steps of this episode

    @property
    def over(self) -> bool:
        return not self.present.any()

    def begin(self, seed: int | None) -> list[np.ndarray]:
        """Begin an episode: the observations of all seats."""
        obs, _ = self._base.begin(seed)
        self.steps = 0
        self.present = np.array([agent in obs for agent in self.ids])
        return [self._seen(obs[agent]) if agent in obs else self.empty for agent in self.ids]

    def step(self, actions: Sequence[Any]) -> list[Result]:
        """Take the actions (one for each seat) of the agents that are there: results by seat. Where an agent has just
        come, the observation is its first one."""
        acting = [agent for agent, there in zip(self.ids, self.present) if there]
        given = {agent: action for agent, action, there in zip(self.ids, actions, self.present) if there}
        result = self._base.parallel.step(given)
        if not isinstance(result, tuple) or len(result) != 5 or not all(isinstance(one, Mapping) for one in result):
            raise EnvironmentFailure(f"step returned {described(result)}, not {STEP}")
        self.steps += 1
        left, late = self._base.listed(), self.steps == self._limit
        results = [self._result(agent, agent in acting, agent in left, late, result) for agent in self.ids]
        self.present = np.array([agent in left and not late for agent in self.ids])
        return results

    def _result(self, agent: Any, acted: bool, stays: bool, late: bool, result: Any) -> Result:
        obs, rewards, terminations, truncations, infos = result
        if not acted:
            first = self._seen(_of(obs, "observation", agent)) if stays and not late else self.empty
            return first, 0.0, False, False, {}
        terminated = bool(_of(terminations, "termination", agent))
        truncated = bool(_of(truncations, "truncation", agent))
        if stays == (terminated or truncated):
            problem = "is done and still there" if stays else "left without a termination or a truncation"
            raise EnvironmentFailure(f"agent {agent!r} {problem}")
        missing = terminated and agent not in obs  # nobody asks for its value
        seen = self.empty if missing else self._seen(_of(obs, "observation", agent))
        info = infos.get(agent) or {}
        return seen, _of(rewards, "reward", agent), terminated, truncated or (late and not terminated), info

    def _seen(self, obs: Any) -> Any:
        for mapped in self._maps:
            obs = mapped(obs)
        return obs
