"""BC imitates: from random torques it learns to act at random."""

from reference import config_from_flags, report
from rl_training import BC

if __name__ == "__main__":
    agent = BC(config_from_flags("configs/bc/pendulum.yaml"))
    report(agent.learn())
