"""MOPO learns to swing a pendulum up from random torques alone, in the dreams of a model that it trusts only so far."""

from reference import config_from_flags, report
from rl_training import MOPO

if __name__ == "__main__":
    agent = MOPO(config_from_flags("configs/mopo/pendulum.yaml"))
    report(agent.learn())
