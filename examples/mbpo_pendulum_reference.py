"""MBPO swings a pendulum up in two thousand steps, dreaming many more."""

from reference import config_from_flags, report
from rl_training import MBPO

if __name__ == "__main__":
    agent = MBPO(config_from_flags("configs/mbpo/pendulum.yaml"))
    report(agent.learn())
