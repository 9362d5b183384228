"""SAC swings a pendulum up: continuous torques, and a temperature that tunes itself."""

from reference import config_from_flags, report
from rl_training import SAC

if __name__ == "__main__":
    agent = SAC(config_from_flags("configs/sac/pendulum.yaml"))
    report(agent.learn())
