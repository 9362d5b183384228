"""TD3+BC learns to swing a pendulum up from random torques, without ever stepping the environment."""

from reference import config_from_flags, report
from rl_training import TD3BC

if __name__ == "__main__":
    agent = TD3BC(config_from_flags("configs/td3_bc/pendulum.yaml"))
    report(agent.learn())
