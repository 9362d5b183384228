"""The one list of algorithms. Everything public is derived from it; nothing heavy is imported for it."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rl_training.runtime.spec import AlgorithmSpec


class Entry(NamedTuple):
    name: str  # config key, registry key, rl_training.algorithms.<name>
    public: str  # rl_training.<public>
    trainer: str  # rl_training.runtime.<trainer>
    year: int
    paper: str
    summary: str


ALGORITHMS = {
    entry.name: entry
    for entry in (
        Entry("bc", "BC", "bc_trainer", 1989, "Pomerleau (1989)", "supervised learning of the data's actions"),
        Entry("dqn", "DQN", "dqn_trainer", 2013, "arXiv:1312.5602", "Q-learning with replay and a target network"),
        Entry(
            "gail", "GAIL", "gail_trainer", 2016, "arXiv:1606.03476", "imitation: paid for being taken for the expert"
        ),
        Entry("ppo", "PPO", "ppo_trainer", 2017, "arXiv:1707.06347", "clipped policy gradient on fresh rollouts"),
        Entry("qr_dqn", "QRDQN", "dqn_trainer", 2017, "arXiv:1710.10044", "quantiles of the return at fixed fractions"),
        Entry("iqn", "IQN", "dqn_trainer", 2018, "arXiv:1806.06923", "quantiles of the return at random fractions"),
        Entry("sac", "SAC", "sac_trainer", 2018, "arXiv:1812.05905", "maximum-entropy actor-critic with replay"),
        Entry(
            "pets", "PETS", "pets_trainer", 2018, "arXiv:1805.12114", "planning through an ensemble of learned models"
        ),
        Entry("mbpo", "MBPO", "mbpo_trainer", 2019, "arXiv:1906.08253", "SAC on short rollouts of a learned model"),
        Entry("fqf", "FQF", "dqn_trainer", 2019, "arXiv:1911.02140", "quantiles of the return at learned fractions"),
        Entry(
            "cql", "CQL", "cql_trainer", 2020, "arXiv:2006.04779", "offline: values of unseen actions are pushed down"
        ),
        Entry(
            "mopo", "MOPO", "mopo_trainer", 2020, "arXiv:2005.13239", "offline: SAC on penalised rollouts of a model"
        ),
        Entry("ppg", "PPG", "ppg_trainer", 2020, "arXiv:2009.04416", "PPO, and a phase that distils the value"),
        Entry("td3_bc", "TD3BC", "td3_bc_trainer", 2021, "arXiv:2106.06860", "offline: TD3 that stays near the data"),
        Entry("iql", "IQL", "iql_trainer", 2021, "arXiv:2110.06169", "offline: no value of an action outside the data"),
        Entry(
            "dreamer",
            "Dreamer",
            "dreamer_trainer",
            2023,
            "arXiv:2301.04104",
            "a world model, and learning in imagination",
        ),
        Entry("rlpd", "RLPD", "rlpd_trainer", 2023, "arXiv:2302.02948", "online learning that starts from prior data"),
    )
}


def get_entry(name: str) -> Entry:
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    hint = difflib.get_close_matches(name, ALGORITHMS, n=1)
    advice = f"; did you mean {hint[0]!r}?" if hint else f"; known: {', '.join(ALGORITHMS)}"
    raise ValueError(f"unknown algorithm {name!r}{advice}")


def get_algorithm_spec(name: str) -> AlgorithmSpec:
    return import_module(f"rl_training.runtime.{get_entry(name).trainer}").SPECS[name]
