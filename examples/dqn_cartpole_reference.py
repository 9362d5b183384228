"""DQN balances a pole: replayed transitions, a target network, exploration that fades."""

from reference import config_from_flags, report
from rl_training import DQN

if __name__ == "__main__":
    agent = DQN(config_from_flags("configs/dqn/cartpole.yaml"))
    report(agent.learn())
