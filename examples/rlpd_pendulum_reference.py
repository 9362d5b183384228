"""RLPD swings a pendulum up within minutes of experience, with random torques as prior data."""

from reference import config_from_flags, report
from rl_training import RLPD

if __name__ == "__main__":
    agent = RLPD(config_from_flags("configs/rlpd/pendulum.yaml"))
    report(agent.learn())
