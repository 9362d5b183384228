"""PPO balances a pole: eight environments, short rollouts, many passes over each."""

from reference import config_from_flags, report
from rl_training import PPO

if __name__ == "__main__":
    agent = PPO(config_from_flags("configs/ppo/cartpole.yaml"))
    report(agent.learn())
