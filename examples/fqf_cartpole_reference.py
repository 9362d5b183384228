"""FQF balances a pole: quantiles of the return at fractions it learns to choose."""

from reference import config_from_flags, report
from rl_training import FQF

if __name__ == "__main__":
    agent = FQF(config_from_flags("configs/fqf/cartpole.yaml"))
    report(agent.learn())
