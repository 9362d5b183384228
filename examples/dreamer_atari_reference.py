"""Dreamer plays Breakout from pictures; needs ale-py: pip install 'rl_training[atari]'."""

import importlib.util
import sys

from reference import config_from_flags, report
from rl_training import Dreamer

if __name__ == "__main__":
    if importlib.util.find_spec("ale_py") is None:
        sys.exit("this example needs Atari: pip install 'rl_training[atari]'")
    agent = Dreamer(config_from_flags("configs/dreamer/breakout_atari.yaml"))
    report(agent.learn())
