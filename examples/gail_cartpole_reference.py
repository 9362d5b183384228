"""GAIL imitates on CartPole. As packaged its "expert" is random, which shows that nothing else is learned; give it a real one by
training PPO and naming its run: --set is how the command does it, `expert_dataset_kind: checkpoint` how a config does."""

from reference import config_from_flags, report
from rl_training import GAIL

if __name__ == "__main__":
    agent = GAIL(config_from_flags("configs/gail/cartpole.yaml"))
    report(agent.learn())
