"""PETS learns how a pendulum moves and plans every torque through what it has learned."""

from reference import config_from_flags, report
from rl_training import PETS

if __name__ == "__main__":
    agent = PETS(config_from_flags("configs/pets/pendulum.yaml"))
    report(agent.learn())
