"""Small parallel environments, as PettingZoo has them and without it, in which everything is known."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

LAST = 7  # steps of an episode of Visitors at most


def schedule(seed: int) -> dict[str, list[tuple[int, int, str]]]:
    """When the visitors of an episode are there: (first step, step with which they leave, how)."""
    rng = np.random.default_rng(seed)
    visits: dict[str, list[tuple[int, int, str]]] = {}
    for agent in ("ann", "bob", "cyd"):
        visits[agent], t = [], int(rng.integers(3)) if agent != "ann" else 0
        while t < LAST:
            stop = min(LAST, t + int(rng.integers(1, 5)))
            visits[agent].append((t, stop, ("terminated", "truncated")[int(rng.integers(2))]))
            t = stop + int(rng.integers(1, 4))
    return visits


class Visitors:
    """Three agents that come, go and come back by the ``schedule`` of the seed.

    An agent observes a number of the episode, which agent it is, the step, and where the actions of all have led (if
    they are ``coupled``). Absent agents have entries too, of numbers that must not be used. When nobody is there, the
    episode is over.
    """

    metadata = {"name": "visitors", "render_modes": ["rgb_array"], "render_fps": 5}

    def __init__(self, coupled: bool = False, render_mode: str | None = None, image: bool = False) -> None:
        self.possible_agents, self.agents = ["ann", "bob", "cyd"], []
        self.coupled, self.render_mode, self.image = coupled, render_mode, image

    def observation_space(self, agent):
        if self.image:
            return gym.spaces.Box(0, 255, (1, 6, 6), np.uint8)
        return gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def action_space(self, agent):
        return gym.spaces.Discrete(3)

    def there(self, agent, t):
        return any(start <= t < stop for start, stop, _ in self.visits[agent])

    def obs(self, agent):
        row = [self.number, self.possible_agents.index(agent), self.t, self.x]
        if self.image:
            return np.full((1, 6, 6), sum(n * k for n, k in zip(row, (50, 20, 3, 1))), np.uint8)
        return np.array(row, np.float32)

    def reset(self, seed=None, options=None):
        self.visits, self.number, self.t, self.x = schedule(seed), seed % 997 / 997, 0, 0.0
        self.agents = [agent for agent in self.possible_agents if self.there(agent, 0)]
        return {agent: self.obs(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions):
        assert list(actions) == self.agents, (actions, self.agents)
        assert all(isinstance(action, int) and action in (0, 1, 2) for action in actions.values())
        acted, self.t = self.agents, self.t + 1
        if self.coupled:
            self.x = 0.5 * self.x + sum(actions.values())
        ends = {a: next(how for s, stop, how in self.visits[a] if s < self.t <= stop) for a in acted}
        left = [a for a in acted if not self.there(a, self.t)]
        self.agents = [a for a in self.possible_agents if self.there(a, self.t)]
        junk = dict.fromkeys(self.possible_agents, np.nan)
        return (
            {a: self.obs(a) if a in acted or a in self.agents else np.nan for a in self.possible_agents},
            junk | {a: self.possible_agents.index(a) + 0.1 * self.t + actions[a] for a in acted},
            dict.fromkeys(self.possible_agents, True) | {a: a in left and ends[a] == "terminated" for a in acted},
            dict.fromkeys(self.possible_agents, True) | {a: a in left and ends[a] == "truncated" for a in acted},
            {a: {"is_success": a == "ann", "visited": self.t} for a in acted},
        )

    def render(self):
        return np.full((16, 16, 3), 10 * self.t, np.uint8)

    def close(self):
        self.closed = True


class Meet:
    """Two agents see the same cue and are paid if both choose the action that it names, for ``steps`` steps."""

    metadata = {"name": "meet"}

    def __init__(self, steps: int = 8) -> None:
        self.possible_agents, self.agents, self.steps, self.max_cycles = ["left", "right"], [], steps, steps

    def observation_space(self, agent):
        return gym.spaces.Box(0, 1, (3,), np.float32)

    def action_space(self, agent):
        return gym.spaces.Discrete(3)

    def _obs(self):
        self.cue = int(self.rng.integers(3))
        return {agent: np.eye(3, dtype=np.float32)[self.cue] for agent in self.possible_agents}

    def reset(self, seed=None, options=None):
        self.rng, self.t, self.agents = np.random.default_rng(seed), 0, ["left", "right"]
        return self._obs(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.t += 1
        paid = float(all(action == self.cue for action in actions.values()))
        late, who = self.t >= self.steps, self.agents
        self.agents = [] if late else who
        flags = dict.fromkeys(who, False), dict.fromkeys(who, late)
        return self._obs(), dict.fromkeys(who, paid), *flags, {agent: {} for agent in who}

    def close(self):
        pass


class Duel(Meet):
    """Two agents of whom the one with the larger action wins what the other loses."""

    metadata = {"name": "duel"}

    def step(self, actions):
        obs, _, *rest = super().step(actions)
        won = float(np.sign(actions["left"] - actions["right"]))
        return obs, {"left": won, "right": -won}, *rest


def meeting_parallel_env(**options):
    return Meet(**options)


def no_parallel_env():
    return []
