"""IQL learns to swing a pendulum up from random torques, and asks for no action that is not among them."""

from reference import config_from_flags, report
from rl_training import IQL

if __name__ == "__main__":
    agent = IQL(config_from_flags("configs/iql/pendulum.yaml"))
    report(agent.learn())
