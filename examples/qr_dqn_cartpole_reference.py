"""QR-DQN balances a pole, and knows how its returns are distributed: quantiles at fixed fractions."""

from reference import config_from_flags, report
from rl_training import QRDQN

if __name__ == "__main__":
    agent = QRDQN(config_from_flags("configs/qr_dqn/cartpole.yaml"))
    report(agent.learn())
