"""The list of algorithms, from which everything public is derived; importing it imports nothing heavy."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from rl_training.base.aliases import ABSENT, ALGORITHM_ALIASES

if TYPE_CHECKING:
    from rl_training.runtime.spec import AlgorithmSpec


__all__ = ["ALGORITHMS", "Entry", "get_algorithm_spec", "get_entry"]


class Entry(NamedTuple):
    """One algorithm of the registry."""

    name: str  # config key, registry key, rl_training.algorithms.<name>
    public: str  # rl_training.<public>
    trainer: str  # rl_training.runtime.<trainer>
    year: int
    paper: str
    summary: str


_TABLE = """
bc      BC       bc_trainer       1989  Pomerleau (1989)  supervised learning of the data's actions
dqn     DQN      dqn_trainer      2013  arXiv:1312.5602   Q-learning with replay and a target network
gail    GAIL     gail_trainer     2016  arXiv:1606.03476  imitation: paid for being taken for the expert
ppo     PPO      ppo_trainer      2017  arXiv:1707.06347  clipped policy gradient on fresh rollouts
qr_dqn  QRDQN    dqn_trainer      2017  arXiv:1710.10044  quantiles of the return at fixed fractions
iqn     IQN      dqn_trainer      2018  arXiv:1806.06923  quantiles of the return at random fractions
sac     SAC      sac_trainer      2018  arXiv:1812.05905  maximum-entropy actor-critic with replay
pets    PETS     pets_trainer     2018  arXiv:1805.12114  planning through an ensemble of learned models
mbpo    MBPO     mbpo_trainer     2019  arXiv:1906.08253  SAC on short rollouts of a learned model
fqf     FQF      dqn_trainer      2019  arXiv:1911.02140  quantiles of the return at learned fractions
cql     CQL      cql_trainer      2020  arXiv:2006.04779  offline: values of unseen actions are pushed down
mopo    MOPO     mopo_trainer     2020  arXiv:2005.13239  offline: SAC on penalised rollouts of a model
ppg     PPG      ppg_trainer      2020  arXiv:2009.04416  PPO, and a phase that distils the value
td3_bc  TD3BC    td3_bc_trainer   2021  arXiv:2106.06860  offline: TD3 that stays near the data
iql     IQL      iql_trainer      2021  arXiv:2110.06169  offline: no value of an action outside the data
dreamer Dreamer  dreamer_trainer  2023  arXiv:2301.04104  a world model, and learning in imagination
rlpd    RLPD     rlpd_trainer     2023  arXiv:2302.02948  online learning that starts from prior data
"""  # name, public name, trainer, year, paper, summary


def _entry(line: str) -> Entry:
    name, public, trainer, year, rest = line.split(None, 4)
    paper, summary = rest.split("  ", 1)
    return Entry(name, public, trainer, int(year), paper, summary.strip())


ALGORITHMS = {entry.name: entry for entry in map(_entry, _TABLE.strip().splitlines())}


def get_entry(name: str) -> Entry:
    """Look up an algorithm; an unknown name is refused with the nearest known one."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    plain = name.lower().replace("-", "").replace("_", "").replace(" ", "")
    if plain in ABSENT:
        raise ValueError(f"unknown algorithm {name!r}: not in this package; closest: {', '.join(ABSENT[plain])}")
    spelt = {entry.replace("_", ""): entry for entry in ALGORITHMS} | ALGORITHM_ALIASES
    hint = [spelt[plain]] if plain in spelt else difflib.get_close_matches(name, ALGORITHMS, n=1)
    advice = f"; did you mean {hint[0]!r}?" if hint else f"; known: {', '.join(ALGORITHMS)}"
    raise ValueError(f"unknown algorithm {name!r}{advice}")


def get_algorithm_spec(name: str) -> AlgorithmSpec:
    """Import an algorithm's trainer and return its spec."""
    specs: dict[str, AlgorithmSpec] = import_module(f"rl_training.runtime.{get_entry(name).trainer}").SPECS
    return specs[name]
