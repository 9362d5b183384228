"""PPG balances a pole: PPO, and every sixteen rollouts a phase that distils the value into the policy's features."""

from reference import config_from_flags, report
from rl_training import PPG

if __name__ == "__main__":
    agent = PPG(config_from_flags("configs/ppg/cartpole.yaml"))
    report(agent.learn())
