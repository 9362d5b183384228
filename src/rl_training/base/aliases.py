"""Names that people bring from other libraries, with the ones that they have here, for suggestions in errors."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["ABSENT", "ALGORITHM_ALIASES", "TARGETS", "known_as"]

_OPTIONS = """
learning_rate policy_learning_rate model_learning_rate actor_learning_rate: lr alpha_lr rate step_size learning_rate
num_envs: n_envs nenvs n_env num_env envs num_workers n_workers num_environments
num_steps n_step: n_steps nsteps steps_per_env rollout_length rollout_steps unroll_length num_steps
batch_size minibatch_size: batch bs batchsize batch_size minibatch minibatch_size mini_batch_size sgd_minibatch_size
update_epochs max_epochs: n_epochs num_epochs epochs ppo_epochs k_epochs update_epochs
ent_coef entropy_coef alpha: ent_coeff entropy_coeff entropy_coefficient entropy_weight ent_coef entropy_coef
vf_coef: vf_coeff value_coef value_coeff value_loss_coef vf_loss_coeff critic_coef
clip_coef: clip clip_range clip_param clip_eps clip_epsilon clip_ratio eps_clip
gae_lambda: lam lmbda lambda_ gae gae_lam
gamma: discount discount_factor
buffer_capacity: buffer_size replay_size replay_buffer_size replay_capacity memory_size buffer
learning_starts: learning_start start_steps start_timesteps warmup warmup_timesteps
initial_random_steps: random_steps start_random_steps
train_frequency: train_freq update_freq update_every update_frequency
gradient_updates_per_step update_epochs: gradient_steps updates_per_step utd utd_ratio
target_update_interval: target_update target_update_freq target_network_frequency target_update_period
tau: polyak soft_target_tau
max_grad_norm: max_grad grad_clip clip_grad grad_norm gradient_clip max_gradient_norm
hidden_sizes: net_arch hidden_size hidden_dim hidden_dims hidden_layers hidden_units hidden layers fcnet_hiddens
normalize_observations: norm_obs normalize_obs obs_norm
normalize_rewards: norm_reward normalize_reward reward_norm
num_quantiles: n_quantiles
hindsight: goal_selection_strategy her use_her relabel replay_strategy
hindsight_ratio: n_sampled_goal her_ratio relabel_ratio replay_k
num_critics: n_critics
num_ensembles: ensemble_size n_ensemble num_models
exploration_fraction: exploration explore_fraction
epsilon_schedule: epsilon eps exploration_final_eps epsilon_decay
total_timesteps: timesteps total_steps steps num_timesteps n_timesteps max_timesteps max_steps train_steps
env_id: env environment env_name gym_id environment_id
algo: algorithm
seed: random_seed
eval_interval: eval_freq eval_every eval_frequency
eval_episodes: n_eval_episodes num_eval_episodes
checkpoint_interval: save_freq save_interval checkpoint_freq
log_interval: log_freq log_every
output_dir: logdir log_dir out out_dir save_dir tensorboard_log
early_stopping: early_stop patience
"""  # here, the best first: elsewhere

_WORDS = [line.partition(":")[::2] for line in _OPTIONS.strip().splitlines()]
_HERE: dict[str, tuple[str, ...]] = {}
for _here, _elsewhere in _WORDS:
    for _name in _elsewhere.split():
        _HERE[_name] = _HERE.get(_name, ()) + tuple(name for name in _here.split() if name != _name)
TARGETS = frozenset(name for here, _ in _WORDS for name in here.split())

ALGORITHM_ALIASES = {"dreamerv3": "dreamer", "discretecql": "cql", "qlearning": "dqn", "behaviorcloning": "bc"}
ABSENT = {  # algorithms that are not here: the nearest ones that are
    **dict.fromkeys(("a2c", "a3c", "trpo", "vpg", "reinforce", "acktr", "acer", "impala", "appo"), ("ppo",)),
    **dict.fromkeys(("maskableppo", "ppolstm"), ("ppo",)),
    "recurrentppo": ("dreamer", "ppo"),
    **dict.fromkeys(("ddpg", "tqc", "crossq"), ("sac",)),
    "td3": ("sac", "td3_bc"),
    **dict.fromkeys(("redq", "droq"), ("rlpd", "sac")),
    **dict.fromkeys(("c51", "categoricaldqn"), ("qr_dqn",)),
    **dict.fromkeys(("rainbow", "doubledqn", "ddqn", "duelingdqn"), ("dqn",)),
    **dict.fromkeys(("bcq", "bear", "edac", "sacn"), ("cql", "td3_bc")),
    **dict.fromkeys(("awac", "awr", "crr", "xql"), ("iql",)),
    **dict.fromkeys(("decisiontransformer", "dt", "dagger"), ("bc", "iql")),
    **dict.fromkeys(("combo", "morel", "rambo"), ("mopo",)),
    **dict.fromkeys(("muzero", "tdmpc", "tdmpc2", "planet", "dreamerv2", "r2d2"), ("dreamer",)),
    "airl": ("gail",),
    **dict.fromkeys(("mpc", "cem"), ("pets",)),
}


def known_as(name: str, known: Iterable[str]) -> str | None:
    """What an option of another library is called here, if it is one of ``known``."""
    present = set(known)
    return next((here for here in _HERE.get(name.lower(), ()) if here in present), None)
