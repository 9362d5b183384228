"""Dreamer balances a pole that it only sees: a world model of pictures, and an actor trained in what it imagines."""

from reference import config_from_flags, report
from rl_training import Dreamer

if __name__ == "__main__":
    agent = Dreamer(config_from_flags("configs/dreamer/cartpole_pixels.yaml"))
    report(agent.learn())
