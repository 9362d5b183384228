"""IQN balances a pole: quantiles of the return at fractions drawn at random."""

from reference import config_from_flags, report
from rl_training import IQN

if __name__ == "__main__":
    agent = IQN(config_from_flags("configs/iqn/cartpole.yaml"))
    report(agent.learn())
