"""MOPO learns to swing a pendulum up from random torques alone, in rollouts of a learned model, with rewards lowered where the model is unsure."""

from reference import config_from_flags, report
from rl_training import MOPO

if __name__ == "__main__":
    agent = MOPO(config_from_flags("configs/mopo/pendulum.yaml"))
    report(agent.learn())
