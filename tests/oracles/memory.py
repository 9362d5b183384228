"""Networks with a memory as a plain loop over time, with torch's own recurrent layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def plain_layer(weights: dict[str, torch.Tensor], prefix: str) -> tuple[nn.Module, int]:
    """torch's LSTM or GRU with the weights of a memory, and the size of its output."""
    own = {name.removeprefix(prefix): w.detach() for name, w in weights.items() if name.startswith(prefix)}
    gates, size = own["weight_hh_l0"].shape
    layer = (nn.LSTM if gates == 4 * size else nn.GRU)(own["weight_ih_l0"].shape[1], size)
    layer.to(own["weight_hh_l0"].dtype).load_state_dict(own)
    return layer, size


def one_step(layer: nn.Module, size: int, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """The state (S,) after one input (F,), by torch's layer."""
    h, c = state[None, None, :size], state[None, None, size:]
    if isinstance(layer, nn.LSTM):
        _, (h, c) = layer(x[None, None], (h.contiguous(), c.contiguous()))
        return torch.cat([h.flatten(), c.flatten()])
    return layer(x[None, None], h.contiguous())[1].flatten()


class PlainActorCritic(nn.Module):
    """PPO's network of two towers with a memory each, one observation at a time."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        weights = model.state_dict()
        self.towers, self.layers, self.log_std = nn.ModuleList(), nn.ModuleList(), weights.get("log_std")
        for tower in range(2):
            hidden, number = [], 0
            while f"trunk.encoder.{number}.weight" in weights:
                weight, bias = (weights[f"trunk.encoder.{number}.{part}"][tower] for part in ("weight", "bias"))
                linear = nn.Linear(*weight.shape, dtype=weight.dtype)
                linear.load_state_dict({"weight": weight.T, "bias": bias.flatten()})
                hidden += [linear, nn.Tanh()]
                number += 2
            self.towers.append(nn.Sequential(*hidden))
            layer, self.size = plain_layer(weights, f"trunk.memories.{tower}.layer.")
            self.layers.append(layer)
        self.heads = nn.ModuleList(
            nn.Linear(self.size, weights[f"{name}.weight"].shape[0], dtype=weights[f"{name}.weight"].dtype)
            for name in ("policy_head", "value_head")
        )
        for head, name in zip(self.heads, ("policy_head", "value_head")):
            head.load_state_dict({part: weights[f"{name}.{part}"] for part in ("weight", "bias")})

    def step(self, obs: torch.Tensor, carry: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Outputs (A,), value () and the next state (C,) for one observation (D,)."""
        states = [
            one_step(layer, self.size, tower(obs), state)
            for layer, tower, state in zip(self.layers, self.towers, carry.chunk(2))
        ]
        outputs, value = (head(state[: self.size]) for head, state in zip(self.heads, states))
        return outputs, value[0], torch.cat(states)
