"""What can be done with an agent of a zoo, as lines for a shell."""

from __future__ import annotations

import re
import shlex
from typing import Any

from rl_training.base.errors import printable
from rl_training.base.trust import modules_named

__all__ = ["next_commands", "trust_note"]

PLAIN = re.compile(r"[A-Za-z0-9][\w./-]*").fullmatch  # of an environment that no module is imported for


def next_commands(file: str, algo: str, env_id: str) -> list[str]:
    """What can be done with an agent's file. A module that it names is never one that a command trusts by itself."""
    name = shlex.quote(printable(file))
    own = f"--algo {algo} --env {env_id}" if PLAIN(env_id) and PLAIN(algo) else "..."
    return [
        f"rl-training eval {name}",
        f"rl-training video {name} -o agent.mp4",
        f"rl-training train {own} --init-from {name}",
    ]


def trust_note(env_id: str, env_kwargs: Any = None) -> str:
    """A line about the modules of others whose code an agent's environment is; empty if there are none."""
    modules = modules_named(env_id, env_kwargs)
    if not modules:
        return ""
    flags = " ".join(f"--trust {printable(module)}" for module in modules)
    return f"Its environment is code of {', '.join(map(printable, modules))}: if you trust that, add {flags}"
