"""CQL learns to swing a pendulum up from random torques, and distrusts every action that is not among them."""

from reference import config_from_flags, report
from rl_training import CQL

if __name__ == "__main__":
    agent = CQL(config_from_flags("configs/cql/pendulum.yaml"))
    report(agent.learn())
