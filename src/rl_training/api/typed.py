"""The managed classes, with their options as keywords: written by ``docs/generate.py`` from the options themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

from rl_training.api.algorithms import ManagedAlgorithm
from rl_training.api.explained import explain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Unpack

    from rl_training.envs.factory import EnvSource
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.controls import EarlyStoppingConfig
    from rl_training.runtime.spec import Network

__all__ = [
    "BC",
    "CQL",
    "DQN",
    "FQF",
    "GAIL",
    "IQL",
    "IQN",
    "MBPO",
    "MOPO",
    "PETS",
    "PPG",
    "PPO",
    "QRDQN",
    "RLPD",
    "SAC",
    "TD3BC",
    "BCKeywords",
    "CQLKeywords",
    "CommonPPOKeywords",
    "DQNKeywords",
    "DatasetKeywords",
    "Dreamer",
    "DreamerKeywords",
    "ExpertKeywords",
    "FQFKeywords",
    "GAILKeywords",
    "IQLKeywords",
    "IQNKeywords",
    "MBPOKeywords",
    "MOPOKeywords",
    "MemoryKeywords",
    "ModelKeywords",
    "NetworkKeywords",
    "OffPolicyKeywords",
    "OfflineCriticKeywords",
    "OfflineKeywords",
    "OnPolicyKeywords",
    "OptimizerKeywords",
    "PETSKeywords",
    "PPGKeywords",
    "PPOKeywords",
    "QRDQNKeywords",
    "RLPDKeywords",
    "ReplayKeywords",
    "RolloutKeywords",
    "RunKeywords",
    "SACKeywords",
    "SoftKeywords",
    "SourceKeywords",
    "TD3BCKeywords",
]


class RunKeywords(TypedDict, total=False):
    """Keywords of every managed class: the fields of TrainConfig, and the controls of every algorithm."""

    seed: int
    """seed of everything random in the run (≥ 0); default: 0"""
    total_timesteps: int
    """environment steps (offline algorithms: gradient updates) (≥ 1); default: 100000"""
    output_dir: str | Path
    """run directories are made in here; default: runs"""
    device: str
    """auto, cpu, cuda or cuda:N; default: auto"""
    num_envs: int
    """environments stepped together (≥ 1); default: 1"""
    execution_backend: Literal["local", "process", "ray"]
    """where training environments run: this process, worker processes, or Ray actors (of RAY_ADDRESS); default:
    local"""
    env_workers: int | None
    """workers that step the environments; None: as many as processors (≥ 1); default: None"""
    async_collection: bool
    """learn while the workers step, one step late; off-policy, without a model; default: False"""
    env_limit_seconds: float | None
    """seconds that a step or a reset of an environment may take before the run fails; None: any time (> 0); default:
    None"""
    eval_episodes: int
    """episodes per evaluation (≥ 1); default: 5"""
    log_interval: int | None
    """environment steps between log lines; None: about a hundred per run (≥ 1); default: None"""
    checkpoint_interval: int | None
    """environment steps between checkpoints; None: about twenty (≥ 1); default: None"""
    checkpoint_minutes: float | None
    """minutes after which a checkpoint is written however few steps were taken; None: by steps alone (> 0); default:
    5.0"""
    keep_checkpoints: int
    """checkpoints kept (replay buffers: of the newest two), beside the best (≥ 1); default: 3"""
    record_video: int
    """episodes of each evaluation recorded as videos/step_….mp4 (gif without the video extra); 0: none (≥ 0); default:
    0"""
    loggers: Sequence[Literal["tensorboard", "csv", "wandb", "mlflow"]]
    """tensorboard, csv, wandb, mlflow: where metrics go, beside metrics.jsonl; default: [tensorboard]"""
    wandb_project: str | None
    """project in Weights & Biases; None: WANDB_PROJECT, or rl_training; default: None"""
    mlflow_experiment: str | None
    """experiment in MLflow; None: MLFLOW_EXPERIMENT_NAME, or rl_training; default: None"""
    log_info: list[str] | tuple[str, ...]
    """numbers of an episode's last info to log as info/NAME, beside the rate of success; default: []"""
    tags: list[str] | tuple[str, ...]
    """free labels, kept with the run; default: []"""
    compile: bool | Literal["safe", "auto"]
    """compile updates into one graph; safe: with torch.compile's guards; auto: true if the run is long enough; default:
    auto"""
    precision: Literal["float32", "bf16"]
    """numbers that convolutions learn with; bf16: half the size, for GPUs; weights stay float32; default: float32"""
    threads: int | Literal["auto"]
    """torch threads; auto: by network width, at most OMP_NUM_THREADS; default: auto"""
    progress: Literal["auto", "bar", "lines", "off"]
    """bar in a terminal, lines elsewhere, or off; default: auto"""
    init_from: str | None
    """RUN, RUN/best or a checkpoint, whose networks a new run starts with; None: networks drawn at random; default:
    None"""
    init_parts: list[str] | tuple[str, ...]
    """names of the parts to take from it, such as actor or world_model; none: all; default: []"""
    init_optimizer: bool
    """take the state of the optimizers of those parts too; default: False"""
    init_replay: bool
    """take its replay buffer too; default: False"""
    algo_kwargs: Mapping[str, object]
    """options of the algorithm; default: {}"""
    env_kwargs: Mapping[str, object]
    """gym.make arguments, time limit and wrappers; default: {}"""
    eval_interval: int | None
    """environment steps between evaluations; None: twenty per run; 0: only at the end (≥ 0); default: None"""
    early_stopping: EarlyStoppingConfig | Mapping[str, object] | None
    """stop when an evaluation metric is reached or stops improving; default: None"""
    learning_rate_schedule: str | Mapping[str, object] | None
    """multiplier of the learning rate: constant, linear, cosine, or {type, start, end}; default: None"""
    warmup_steps: int
    """environment steps over which the learning rate rises from zero (≥ 0); default: 0"""
    max_updates: int | None
    """stop after this many updates (≥ 1); default: None"""
    max_epochs: int | None
    """stop after this many collect-and-learn cycles (offline: passes over the data) (≥ 1); default: None"""


class NetworkKeywords(TypedDict, total=False):
    """How the algorithm's own networks are activated and initialised."""

    activation: Literal["relu", "tanh", "silu", "elu", "gelu", "leaky_relu"] | None
    """of hidden layers: relu, tanh, silu, elu, gelu (its tanh form) or leaky_relu; None: the algorithm's own; default:
    None"""
    initialisation: Literal["orthogonal", "xavier", "kaiming", "uniform"] | None
    """weights of hidden layers: orthogonal, xavier, kaiming or uniform (torch's own); None: the algorithm's own;
    default: None"""


class OptimizerKeywords(TypedDict, total=False):
    """The optimizer of the networks."""

    optimizer: Literal["adam", "adamw", "rmsprop", "laprop"]
    """adam, adamw, rmsprop or laprop (with adaptive clipping); default: adam"""
    weight_decay: float | None
    """adamw: share of every weight that a step of rate 1 takes away; None: 0.01 (≥ 0); default: None"""
    optimizer_betas: list[float] | tuple[float, float] | None
    """adam, adamw, laprop: how much the means of gradients and of squares keep; None: [0.9, 0.999]; default: None"""
    optimizer_decay: float | None
    """rmsprop: how much the mean of squares keeps; None: 0.95 (≥ 0, < 1); default: None"""
    optimizer_epsilon: float | None
    """added to the denominator; None: the algorithm's own (> 0); default: None"""


class SourceKeywords(TypedDict, total=False):
    """One source of transitions."""

    dataset_kind: Literal["random", "npz", "minari", "hdf5"]
    """random (collected on the spot), npz, hdf5 (D4RL's layout) or minari; default: random"""
    dataset_path: str | None
    """the file, for npz and hdf5; default: None"""
    dataset_id: str | None
    """the dataset's name, for minari; default: None"""
    dataset_download: bool
    """let Minari fetch the dataset if it is not there; default: False"""
    dataset_size: int
    """transitions to collect, for random (≥ 1); default: 10000"""
    dataset_seed: int
    """seed of the collection, for random (≥ 0); default: 0"""
    dataset_env_mismatch: Literal["refuse", "allow"]
    """data that names another environment: refuse, or allow (its reference returns are then not used); default:
    refuse"""
    dataset_episode_steps: int | None
    """for files that mark no time-outs: steps after which episodes were truncated; None: the time limit (≥ 1); default:
    None"""
    dataset_action_units: Literal["auto", "environment", "unit"]
    """boxes: environment (its own units), unit (the file scales them to [-1, 1]), or auto: refuse what looks so;
    default: auto"""


class DatasetKeywords(SourceKeywords, total=False):
    """The data that an offline run learns from."""

    dataset_mix: Sequence[Mapping[str, object]] | None
    """several sources instead of one: a list of {dataset_kind, dataset_path, ..., weight}; default: None"""
    dataset_mix_size: int | None
    """transitions drawn from the mix; None: as many as its sources hold (≥ 1); default: None"""
    dataset_mix_seed: int
    """seed of that draw (≥ 0); default: 0"""
    reward_scale: float | Literal["returns"]
    """rewards are multiplied by this; returns: by 1000 over the range of the data's returns; default: 1.0"""
    reward_shift: float
    """and this is added; default: 0.0"""
    reward_clip_min: float | None
    """and what is smaller is raised to this; default: None"""
    reward_clip_max: float | None
    """and what is larger is lowered to this; default: None"""


class OfflineKeywords(DatasetKeywords, RunKeywords, total=False):
    """The data, and how much of it an update takes."""

    batch_size: int
    """transitions per update (≥ 1); default: 256"""


class BCKeywords(NetworkKeywords, OptimizerKeywords, OfflineKeywords, total=False):
    """Keywords of BC."""

    hidden_sizes: list[int] | tuple[int, ...]
    """widths of the hidden layers (images: the last one is the number of features); default: [256, 256]"""
    learning_rate: float
    """step size of Adam (> 0); default: 0.0003"""
    loss: Literal["mse", "likelihood"]
    """for boxes: squared error of one action, or the likelihood of a squashed Gaussian; choices: always likelihood;
    default: mse"""
    best_fraction: float
    """learn from the episodes of highest return alone: this share of the data (> 0, ≤ 1); default: 1.0"""
    normalize_observations: bool
    """scale observations by the data's mean and deviation; default: False"""


class BC(ManagedAlgorithm):
    """BC: supervised learning of the data's actions (Pomerleau (1989)). Its options are ``BCKeywords``."""

    algo_name = "bc"

    def __init__(self, config: TrainConfig | EnvSource, *, env: EnvSource | None = None,
                 network: Network | None = None, **options: Unpack[BCKeywords]) -> None:  # fmt: skip
        super().__init__(config, env=env, network=network, **options)


class MemoryKeywords(TypedDict, total=False):
    """A recurrent layer in the algorithm's own networks, and the sequences that it learns from."""

    recurrent: Literal["lstm", "gru"] | None
    """a recurrent layer after the hidden ones, which remembers within an episode: lstm or gru; None: none; default:
    None"""
    recurrent_size: int
    """units of the recurrent layer (≥ 1); default: 64"""
    sequence_length: int
    """recurrent: most steps of a sequence, through which gradients flow (≥ 1); default: 64"""


class ReplayKeywords(RunKeywords, total=False):
    """When to act, store and learn. Unless it is set, the warm-up of a new run takes at most a tenth of its steps."""

    buffer_capacity: int
    """transitions kept; never more than the run has steps (≥ 1); default: 1000000"""
    batch_size: int
    """transitions per update (≥ 1); default: 256"""
    learning_starts: int
    """environment steps before the first update (≥ 0); default: by task"""
    train_frequency: int
    """environment steps between updates, whatever the number of environments (≥ 1); default: 1"""
    initial_random_steps: int
    """environment steps with uniformly random actions (≥ 0); default: by task"""


class OffPolicyKeywords(ReplayKeywords, total=False):
    """How often to learn from what is stored."""

    gradient_updates_per_step: int
    """updates each time (≥ 1); default: 1"""
    normalize_observations: bool
    """scale observations by their running mean and deviation; default: False"""
    hindsight: Literal["future", "final", "episode"] | None
    """goal environments: learn from goals that episodes reached later (future), last (final) or ever (episode);
    default: None"""
    hindsight_ratio: float
    """share of the rows of a batch that get such a goal (≥ 0, ≤ 1); default: 0.8"""


class DQNKeywords(MemoryKeywords, NetworkKeywords, OptimizerKeywords, OffPolicyKeywords, total=False):
    """Keywords of DQN."""

    batch_size: int
    """transitions per update; recurrent: as many sequences as have about that many (≥ 1); default: 128"""
    train_frequency: int
    """environment steps between updates, whatever the number of environments (≥ 1); default: 2"""
    sequence_length: int
    """recurrent: steps of a sequence that are learned from (≥ 2); default: 16"""
    burn_in: int
    """recurrent: steps before them that only bring the state up to date (≥ 0); default: 8"""
    hidden_sizes: list[int] | tuple[int, ...]
    """widths of the hidden layers (images: the last one is the number of features); default: [128, 128]"""
    learning_rate: float
    """step size of Adam (> 0); default: 0.001"""
    adam_epsilon: float
    """added to the denominator of adam and adamw (> 0); default: 1e-08"""
    gamma: float
    """discount (≥ 0, ≤ 1); default: 0.99"""
    target_update_interval: int
    """updates between copies to the target network (≥ 1); default: 100"""
    double: bool
    """the online network chooses the next action, the target network evaluates it; default: True"""
    dueling: bool
    """state values and advantages from separate layers; default: False"""
    noisy: bool
    """explore by learned noise on the weights; epsilon_schedule is then 0 unless given; default: False"""
    n_step: int
    """steps of reward before bootstrapping; fewer where an episode ends (≥ 1); default: 1"""
    prioritized: bool
    """draw transitions in proportion to a power of their error; default: False"""
    priority_alpha: float
    """that power: 0 is uniform, 1 in proportion to the error (≥ 0, ≤ 1); default: 0.6"""
    priority_beta: float
    """exponent of the importance weights at the start of the run; it rises linearly to 1 at the end (≥ 0, ≤ 1);
    default: 0.4"""
    epsilon_schedule: str | Mapping[str, object] | None
    """probability of a random action: {type, start, end}; default: {type: linear, start: 1.0, end: 0.05}"""
    exploration_fraction: float
    """part of the run over which epsilon_schedule goes from start to end (> 0, ≤ 1); default: 0.1"""
    max_grad_norm: float | None
    """gradients are scaled down to this norm (> 0); default: 10.0"""


class DQN(ManagedAlgorithm):
    """DQN: Q-learning with replay and a target network (arXiv:1312.5602). Its options are ``DQNKeywords``."""

    algo_name = "dqn"

    def __init__(self, config: TrainConfig | EnvSource, *, env: EnvSource | None = None,
                 network: Network | None = None, **options: Unpack[DQNKeywords]) -> None:  # fmt: skip
        super().__init__(config, env=env, network=network, **options)


class OnPolicyKeywords(RunKeywords, total=False):
    """Rollouts and the passes over them."""

    num_steps: int
    """steps of each environment per rollout; by task: 2,048 over all environments for vectors, 128 each for images (≥
    1); default: by task"""
    update_epochs: int
    """passes over each rollout; by task: 10 for vectors, 4 for images (≥ 1); default: by task"""
    minibatch_size: int
    """samples per update; by task: 64 for vectors, 256 for images or a memory (≥ 1); default: by task"""
    gamma: float
    """discount (≥ 0, ≤ 1); default: 0.99"""
    gae_lambda: float
    """how far advantages look ahead: 0 one step, 1 the whole episode (≥ 0, ≤ 1); default: 0.95"""
    target_kl: float | None
    """skip the remaining passes once the policy has moved this far (> 0); default: None"""
    normalize_observations: bool
    """scale observations by their running mean and deviation; by task: true for vectors, in a mix too; default: by
    task"""
    normalize_rewards: bool
    """scale rewards by the running deviation of the discounted return; by task: true for vectors; default: by task"""


class CommonPPOKeywords(NetworkKeywords, OptimizerKeywords, OnPolicyKeywords, total=False):
    """Options of PPO without a memory; PPG and GAIL add to them."""

    hidden_sizes: list[int] | tuple[int, ...]
    """widths of the hidden layers (images: the last one is the number of features); default: [64, 64]"""
    learning_rate: float
    """step size of Adam (> 0); default: 0.0003"""
    clip_coef: float
    """how far the policy's probabilities may move in one rollout (> 0); default: 0.2"""
    clip_coef_schedule: str | Mapping[str, object] | None
    """schedule of clip_coef: {type, start, end}; default: None"""
    ent_coef: float
    """weight of the entropy bonus (≥ 0); default: 0.0"""
    ent_coef_schedule: str | Mapping[str, object] | None
    """schedule of ent_coef: {type, start, end}; default: None"""
    vf_coef: float
    """weight of the value loss (≥ 0); default: 0.5"""
    max_grad_norm: float | None
    """gradients are scaled down to this norm (> 0); default: 0.5"""
    clip_values: bool
    """also limit how far values move, by clip_coef; default: False"""
    normalize_advantages: bool
    """zero mean and unit deviation within each minibatch; default: True"""
    initial_log_std: float
    """log-deviation of Box actions at the start, in units of the box; by task: -0.5; default: by task"""


class ExpertKeywords(TypedDict, total=False):
    """The source of the expert's data: the options of any dataset, prefixed by ``expert_``, or a checkpoint."""

    expert_dataset_kind: Literal["random", "npz", "minari", "hdf5", "checkpoint"]
    """where the expert's data is: npz, hdf5, minari, a checkpoint to collect it with; random: no expert at all;
    default: random"""
    expert_dataset_path: str | None
    """the file, or the checkpoint (or its run); default: None"""
    expert_dataset_id: str | None
    """the dataset's name, for minari; default: None"""
    expert_dataset_size: int
    """transitions to collect, for random (≥ 1); default: 2000"""
    expert_dataset_seed: int
    """seed of a collection (≥ 0); default: 0"""
    expert_dataset_env_mismatch: Literal["refuse", "allow"]
    """an expert of another environment: refuse, or allow (there is then no score relative to it); default: refuse"""
    expert_dataset_episode_steps: int | None
    """for files that mark no time-outs: steps after which episodes were truncated; None: the time limit (≥ 1); default:
    None"""
    expert_dataset_action_units: Literal["auto", "environment", "unit"]
    """boxes: environment (its own units), unit (the file scales them to [-1, 1]), or auto: refuse what looks so;
    default: auto"""
    expert_episodes: int | None
    """use only so many of its episodes, the first (a checkpoint: None is 10) (≥ 1); default: None"""


class GAILKeywords(CommonPPOKeywords, ExpertKeywords, total=False):
    """Keywords of GAIL."""

    normalize_rewards: bool
    """scale the discriminator's rewards by the running deviation of their return; default: by task"""
    discriminator_learning_rate: float
    """step size of Adam, for the discriminator (> 0); default: 0.0003"""
    discriminator_updates: int
    """its updates for each rollout (≥ 1); default: 4"""
    discriminator_batch_size: int
    """rows of the expert, and as many of the policy, in each (≥ 1); default: 256"""
    discriminator_hidden_sizes: list[int] | tuple[int, ...]
    """widths of its hidden layers; default: [64, 64]"""
    normalize_discriminator: bool
    """scale its observations by running statistics of expert and policy; default: True"""
    reward_type: Literal["softplus", "logsigmoid", "logit"]
    """softplus (rewards survival), logsigmoid (termination) or logit; default: softplus"""
    absorbing: bool
    """make the time after a termination a state that is discriminated and rewarded too; default: False"""
    label_smoothing: float
    """how far the discriminator's labels are from one and zero (≥ 0, < 0.5); default: 0.0"""
    gradient_penalty: float
    """weight of the penalty that pulls its gradient norm to one (≥ 0); default: 0.0"""
    bc_updates: int
    """updates of behaviour cloning before the first rollout; they leave the deviation of Box actions as it is (≥ 0);
    default: 0"""
    features_dim: int | None
    """images: features of the policy's convolutions; None: as hidden_sizes (≥ 1); default: None"""
    head_hidden_sizes: list[int] | tuple[int, ...]
    """images: layers between those features and the policy's outputs; default: []"""
    discriminator_features_dim: int
    """images: features of the discriminator's convolutions (≥ 1); default: 256"""
    discriminator_head_hidden_sizes: list[int] | tuple[int, ...] | None
    """images: layers after; None: discriminator_hidden_sizes; default: None"""


class GAIL(ManagedAlgorithm):
    """GAIL: imitation: paid for being taken for the expert (arXiv:1606.03476). Its options are ``GAILKeywords``."""

    algo_name = "gail"

    def __init__(self, config: TrainConfig | EnvSource, *, env: EnvSource | None = None,
                 network: Network | None = None, **options: Unpack[GAILKeywords]) -> None:  # fmt: skip
        super().__init__(config, env=env, network=network, **options)


class PPOKeywords(MemoryKeywords, CommonPPOKeywords, total=False):
    """Keywords of PPO."""


class PPO(ManagedAlgorithm):
    """PPO: clipped policy gradient on fresh rollouts (arXiv:1707.06347). Its options are ``PPOKeywords``."""

    algo_name = "ppo"

    def __init__(self, config: TrainConfig | EnvSource, *, env: EnvSource | None = None,
                 network: Network | None = None, **options: Unpack[PPOKeywords]) -> None:  # fmt: skip
        super().__init__(config, env=env, network=network, **options)


class QRDQNKeywords(DQNKeywords, total=False):
    """Keywords of QRDQN."""

    num_quantiles: int
    """quantiles of each action's return (≥ 1); default: 50"""
    kappa: float
    """threshold of the Huber loss: errors up to this size count squared (> 0); default: 1.0"""


class QRDQN(ManagedAlgorithm):
    """QRDQN: quantiles of the return at fixed fractions (arXiv:1710.10044). Its options are ``QRDQNKeywords``."""

    algo_name = "qr_dqn"

    def __init__(self, config: TrainConfig | EnvSource, *, env: EnvSource | None = None,
                 network: Network | None = None, **options: Unpack[QRDQNKeywords]) -> None:  # fmt: skip
        super().__init__(config, env=env, network=network, **options)


class IQNKeywords(QRDQNKeywords, total=False):
    """Keywords of IQN."""

    num_quantiles: int
    """random fractions on each side of the regression (≥ 1); default: 8"""
    stratified: bool
    """draw one fraction from each of num_quantiles equal parts; false: independently, as in the paper; default:
    False"""
    action_samples: int
    """fractions at which actions are valued (≥ 1); default: 32"""
    embedding_dim: int
    """cosines that embed a fraction (≥ 1); default: 64"""


class IQN(ManagedAlgorithm):
    """IQN: quantiles of the return at random fractions (arXiv:1806.06923). Its options are ``IQNKeywords``."""

    algo_name = "iqn"

    def __init__(self, config: TrainConfig | EnvSource, *, env: EnvSource | None = None,
                 network: Network | None = None, **options: Unpack[IQNKeywords]) -> None:  # fmt: skip
        super().__init__(config, env=env, network=network, **options)


class SoftKeywords(NetworkKeywords, total=False):
    """Discount, temperature and target critics of SAC, wherever its batches come from."""

    hidden_sizes: list[int] | tuple[int, ...]
    """widths of the hidden layers of actor and critics; default: [256, 256]"""
    gamma: float
    """discount (≥ 0, ≤ 1); default: 0.99"""
    alpha: float | Literal["auto"]
    """temperature: a number, or auto to tune it to target_entropy; default: auto"""
    target_entropy: float | None
    """entropy a tuned temperature aims for; None: minus the action dimension; default: None"""
    tau: float
    """how far target critics move per update (> 0, ≤ 1); default: 0.005"""


class SACKeywords(SoftKeywords, OptimizerKeywords, OffPolicyKeywords, total=False):
    """Keywords of SAC."""

    learning_starts: int
    """environment steps before the first update; by task: a tenth of the run, at most 10,000 (≥ 0); default: by task"""
    initial_random_steps: int
    """environment steps with uniformly random actions; by task: as learning_starts (≥ 0); default: by task"""
    alpha: float | Literal["auto"]
    """temperature: a number, or auto to tune it to target_entropy; by task: 0.2 for episodes of 1,000 steps; default:
    by task"""
    learning_rate: float
    """step size of Adam, for actor, critics and temperature; by task: 0.001 (> 0); default: by task"""


class SAC(ManagedAlgorithm):
    """SAC: maximum-entropy actor-critic with replay (arXiv:1812.05905). Its options are ``SACKeywords``."""

    algo_name = "sac"

    def __init__(self, config: TrainConfig | EnvSource, *, env: EnvSource | None = None,
                 network: Network | None = None, **options: Unpack[SACKeywords]) -> None:  # fmt: skip
        super().__init__(config, env=env, network=network, **options)


class ModelKeywords(TypedDict, total=False):
    """Options of the ensemble of dynamics models."""

    model_hidden_sizes: list[int] | tuple[int, ...]
    """widths of the model's hidden layers; default: [200, 200, 200, 200]"""
    num_ensembles: int
    """members of the ensemble (≥ 1); default: 7"""
    model_learning_rate: float
    """step size of Adam, for the model (> 0); default: 0.001"""
    standardise_targets: bool
    """the model's outputs are in units of the targets' deviations, as its inputs are; default: False"""


class PETSKeywords(ModelKeywords, ReplayKeywords, total=False):
    """Keywords of PETS."""

    eval_interval: int | None
    """environment steps between evaluations, which plan for every step; None: twenty per run; 0: only at the end (≥ 0);
    default: 0"""
    batch_size: int
    """transitions per gradient step of each member (≥ 1); default: 32"""
    learning_starts: int
    """environment steps before the first fit (≥ 0); default: by task"""
    train_frequency: int
    """environment steps between fits (≥ 1); default: 200"""
    model_hidden_sizes: list[int] | tuple[int, ...]
    """widths of the model's hidden layers; default: [200, 200, 200]"""
    num_ensembles: int
    """members of the ensemble (≥ 1); default: 5"""
    standardise_targets: bool
    """the model's outputs are in units of the targets' deviations, as its inputs are; default: True"""
    model_updates_per_step: float | None
    """gradient steps of a fit for each step between fits; None: five passes over the data, at least 1,000 (> 0);
    default: None"""
    planner: Literal["cem", "icem", "random"]
    """how plans are searched for; by task: icem where episodes may terminate, else the paper's cem; default: by task"""
    planning_horizon: int
    """actions of a plan; by task: 20 where episodes are known never to terminate, else 40 (≥ 1); default: by task"""
    planning_candidates: int
    """plans that are tried in each iteration (≥ 2); default: 100"""
    planning_topk: int
    """of which the best so many shape the next iteration (≥ 1); default: 10"""
    planning_iterations: int
    """iterations for each action (≥ 1); default: 8"""
    planning_particles: int
    """particles for each plan; rounded up to as many for every member (≥ 1); default: 5"""
    planning_alpha: float
    """how much of the search's mean and variance stays in an iteration (≥ 0, ≤ 1); default: 0.1"""
    propagation: Literal["tsinf", "ts1"]
    """particles keep their member for a plan, or change it every step; default: tsinf"""


class PETS(ManagedAlgorithm):
    """PETS: planning through an ensemble of learned models (arXiv:1805.12114). Its options are ``PETSKeywords``."""

    algo_name = "pets"

    def __init__(self, config: TrainConfig | EnvSource, *, env: EnvSource | None = None,
                 network: Network | None = None, **options: Unpack[PETSKeywords]) -> None:  # fmt: skip
        super().__init__(config, env=env, network=network, **options)


class RolloutKeywords(SoftKeywords, ModelKeywords, total=False):
    """Options of fits with a holdout, of rollouts, and of the policy that learns from them."""

    num_elites: int
    """members, the best on held-out data, that rollouts use (≥ 1); default: 5"""
    model_batch_size: int
    """transitions per gradient step of each member (≥ 1); default: 256"""
    model_updates: int | None
    """the most gradient steps one fit may take; None: until it no longer helps (≥ 1); default: None"""
    model_patience: int
    """epochs without progress on held-out data after which a fit may end (≥ 0); default: 5"""
    model_patience_updates: int
    """gradient steps without progress that must have passed too: on little data an epoch is only a step or two (≥ 0);
    default: 200"""
    model_holdout_ratio: float
    """share of the data held out to score a fit, up to 5,000 transitions (> 0, < 1); default: 0.2"""
    rollout_batch_size: int
    """rollouts begun at each refresh (≥ 1); default: 100000"""
    rollout_horizon: int
    """steps of a rollout (≥ 1); default: 1"""
    rollouts_retained: int
    """refreshes whose rollouts are kept (≥ 1); default: 1"""
    synthetic_buffer_capacity: int | None
    """imagined transitions kept; None: those retained (≥ 1); default: None"""
    synthetic_batch_ratio: float
    """share of imagined transitions in every batch (≥ 0, ≤ 1); default: 0.95"""
    policy_learning_rate: float
    """step size of Adam, for actor, critics and temperature (> 0); default: 0.0003"""
    layer_norm: bool
    """normalise the critics' hidden layers, which bounds the values of unseen actions; default: False"""


class MBPOKeywords(RolloutKeywords, ReplayKeywords, total=False):
    """Keywords of MBPO."""

    batch_size: int
    """transitions per policy update (≥ 1); default: 256"""
    learning_starts: int
    """environment steps before the first fit and update; by task: a tenth of the run, from 500 to 5,000 (≥ 0); default:
    by task"""
    initial_random_steps: int
    """environment steps with uniformly random actions; by task: as learning_starts (≥ 0); default: by task"""
    target_entropy: float | None
    """entropy a tuned temperature aims for; None: minus the action dimension; by task: the paper's, if it has one;
    default: by task"""
    gradient_updates_per_step: int
    """policy updates each time (≥ 1); default: 20"""
    model_train_frequency: int
    """environment steps between fits (≥ 1); default: 250"""
    rollout_refresh_interval: int | None
    """environment steps between rollouts; None: model_train_frequency, after each fit (≥ 1); default: None"""
    rollout_schedule: list[int] | tuple[int, int, int, int] | None
    """[first step, last step, length before, length after]: rollouts that grow; None: rollout_horizon; default: None"""


class MBPO(ManagedAlgorithm):
    """MBPO: SAC on short rollouts of a learned model (arXiv:1906.08253). Its options are ``MBPOKeywords``."""

    algo_name = "mbpo"

    def __init__(self, config: TrainConfig | EnvSource, *, env: EnvSource | None = None,
                 network: Network | None = None, **options: Unpack[MBPOKeywords]) -> None:  # fmt: skip
        super().__init__(config, env=env, network=network, **options)


class FQFKeywords(QRDQNKeywords, total=False):
    """Keywords of FQF."""

    num_quantiles: int
    """fractions proposed for each observation (≥ 2); default: 32"""
    embedding_dim: int
    """cosines that embed a fraction (≥ 1); default: 64"""
    fraction_learning_rate: float
    """step size of RMSprop for the fractions (> 0); default: 0.001"""
    fraction_scaling: Literal["range", "none"]
    """divide the fractions' gradient by the batch's mean range of quantiles; none: as in the paper; default: range"""
    train_at_fractions: bool
    """regress quantiles at the fractions too, where their gradient needs them; false: as in the paper; default: True"""
    entropy_coef: float
    """weight of the entropy that keeps fractions apart (≥ 0); default: 0.001"""


class FQF(ManagedAlgorithm):
    """FQF: quantiles of the return at learned fractions (arXiv:1911.02140). Its options are ``FQFKeywords``."""

    algo_name = "fqf"

    def __init__(self, config: TrainConfig | EnvSource, *, env: EnvSource | None = None,
                 network: Network | None = None, **options: Unpack[FQFKeywords]) -> None:  # fmt: skip
        super().__init__(config, env=env, network=network, **options)


class OfflineCriticKeywords(NetworkKeywords, OptimizerKeywords, OfflineKeywords, total=False):
    """What offline learners of values have in common."""

    hidden_sizes: list[int] | tuple[int, ...]
    """widths of the hidden layers; default: [256, 256]"""
    learning_rate: float
    """step size of Adam, for every network (> 0); default: 0.0003"""
    gamma: float
    """discount (≥ 0, ≤ 1); default: 0.99"""
    tau: float
    """how far target networks move, each time they do (> 0, ≤ 1); default: 0.005"""
    normalize_observations: bool
    """scale observations by the data's mean and deviation; default: False"""


class CQLKeywords(OfflineCriticKeywords, total=False):
    """Keywords of CQL."""

    hidden_sizes: list[int] | tuple[int, ...]
    """widths of the hidden layers; default: [256, 256, 256]"""
    tau: float
    """boxes: how far target critics move per update (> 0, ≤ 1); default: 0.005"""
    actor_learning_rate: float
    """boxes: step size of Adam, for the actor (> 0); default: 0.0001"""
    cql_alpha: float
    """weight of the penalty on actions that the data does not show (> 0); default: 5.0"""
    num_cql_samples: int
    """boxes: actions from each of three distributions that estimate it (≥ 1); default: 10"""
    cql_temperature: float
    """boxes: of the soft maximum over actions (> 0); default: 1.0"""
    lagrange: float | None
    """boxes: tune the weight until the gap is this; None: keep it; default: None"""
    alpha: float | Literal["auto"]
    """boxes: temperature: a number, or auto to tune it to target_entropy; default: auto"""
    target_entropy: float | None
    """boxes: goal of a tuned temperature; None: minus the action dimension; default: None"""
    bc_updates: int
    """boxes: updates at the start in which the actor imitates the data (≥ 0); default: 0"""
    backup_entropy: bool
    """boxes: count the next action's entropy in the targets; default: False"""
    target_update_interval: int
    """choices: updates between copies to the target network (≥ 1); default: 200"""


class CQL(ManagedAlgorithm):
    """CQL: offline: values of unseen actions are pushed down (arXiv:2006.04779). Its options are ``CQLKeywords``."""

    algo_name = "cql"

    def __init__(self, config: TrainConfig | EnvSource, *, env: EnvSource | None = None,
                 network: Network | None = None, **options: Unpack[CQLKeywords]) -> None:  # fmt: skip
        super().__init__(config, env=env, network=network, **options)


class MOPOKeywords(RolloutKeywords, OfflineKeywords, total=False):
    """Keywords of MOPO."""

    rollout_batch_size: int
    """rollouts begun at each refresh (≥ 1); default: 10000"""
    rollout_horizon: int
    """steps of a rollout (≥ 1); default: 5"""
    rollouts_retained: int
    """refreshes whose rollouts are kept (≥ 1); default: 5"""
    rollout_refresh_interval: int
    """policy updates between rollouts (≥ 1); default: 1000"""
    penalty_coef: float
    """how much an imagined reward is lowered by the model's uncertainty (≥ 0); default: 1.0"""
    penalty: Literal["max_std", "max_deviation", "ensemble_std"]
    """the measure of uncertainty: max_std (the paper's), max_deviation or ensemble_std; default: max_std"""


class MOPO(ManagedAlgorithm):
    """MOPO: offline: SAC on penalised rollouts of a model (arXiv:2005.13239). Its options are ``MOPOKeywords``."""

    algo_name = "mopo"

    def __init__(self, config: TrainConfig | EnvSource, *, env: EnvSource | None = None,
                 network: Network | None = None, **options: Unpack[MOPOKeywords]) -> None:  # fmt: skip
        super().__init__(config, env=env, network=network, **options)


class PPGKeywords(CommonPPOKeywords, total=False):
    """Keywords of PPG."""

    normalize_advantages: bool
    """zero mean and unit deviation over the whole rollout; default: True"""
    architecture: Literal["detach", "dual"]
    """detach: one trunk, no gradient of the value in the policy phase; dual: two trunks; by task: dual for vectors;
    default: by task"""
    aux_learning_rate: float
    """step size of the auxiliary phase's own Adam (> 0); default: 0.0003"""
    aux_frequency: int
    """rollouts between auxiliary phases (≥ 1); default: 16"""
    aux_epochs: int
    """passes of an auxiliary phase over the kept rollouts (≥ 0); default: 6"""
    aux_minibatch_size: int
    """samples per update of the auxiliary phase (≥ 1); default: 512"""
    aux_buffer_rollouts: int | None
    """rollouts kept for the phase, the last ones; None: all since the last phase (≥ 1); default: None"""
    aux_value_coef: float
    """weight of the auxiliary value's regression (≥ 0); default: 1.0"""
    behavior_clone_coef: float
    """weight of the KL divergence from the policy before the phase (≥ 0); default: 1.0"""
    value_clone_coef: float
    """weight of the true value's regression (≥ 0); default: 1.0"""


class PPG(ManagedAlgorithm):
    """PPG: PPO, and a phase that distils the value (arXiv:2009.04416). Its options are ``PPGKeywords``."""

    algo_name = "ppg"

    def __init__(self, config: TrainConfig | EnvSource, *, env: EnvSource | None = None,
                 network: Network | None = None, **options: Unpack[PPGKeywords]) -> None:  # fmt: skip
        super().__init__(config, env=env, network=network, **options)


class TD3BCKeywords(OfflineCriticKeywords, total=False):
    """Keywords of TD3BC."""

    normalize_observations: bool
    """scale observations by the data's mean and deviation; default: True"""
    alpha: float
    """weight of the values against imitation, once values have mean size 1 (≥ 0); default: 2.5"""
    policy_delay: int
    """critic updates for each move of the actor and the targets (≥ 1); default: 2"""
    policy_noise: float
    """deviation of the noise on the target's actions (≥ 0); default: 0.2"""
    noise_clip: float
    """that noise is clipped to this; .inf: not at all (≥ 0); default: 0.5"""


class TD3BC(ManagedAlgorithm):
    """TD3BC: offline: TD3 that stays near the data (arXiv:2106.06860). Its options are ``TD3BCKeywords``."""

    algo_name = "td3_bc"

    def __init__(self, config: TrainConfig | EnvSource, *, env: EnvSource | None = None,
                 network: Network | None = None, **options: Unpack[TD3BCKeywords]) -> None:  # fmt: skip
        super().__init__(config, env=env, network=network, **options)


class IQLKeywords(OfflineCriticKeywords, total=False):
    """Keywords of IQL."""

    actor_rate_schedule: str | Mapping[str, object] | None
    """multiplier of the actor's learning rate, beside the common schedule; default: cosine"""
    expectile: float
    """which expectile of Q over the data's actions the value network learns (> 0, < 1); default: 0.7"""
    inverse_temperature: float
    """how sharply the actor prefers actions of high advantage (≥ 0); default: 3.0"""
    largest_weight: float
    """no action weighs more than this in the actor's loss; .inf: no limit (> 0); default: 100.0"""


class IQL(ManagedAlgorithm):
    """IQL: offline: no value of an action outside the data (arXiv:2110.06169). Its options are ``IQLKeywords``."""

    algo_name = "iql"

    def __init__(self, config: TrainConfig | EnvSource, *, env: EnvSource | None = None,
                 network: Network | None = None, **options: Unpack[IQLKeywords]) -> None:  # fmt: skip
        super().__init__(config, env=env, network=network, **options)


class DreamerKeywords(ReplayKeywords, total=False):
    """Keywords of Dreamer."""

    buffer_capacity: int
    """observations kept; never more than the run can have (≥ 1); default: 100000"""
    batch_size: int
    """sequences per update (≥ 1); default: 16"""
    train_frequency: int
    """environment steps between updates, whatever the number of environments (≥ 1); default: 8"""
    size: Literal["nano", "tiny", "small", "1m", "12m"]
    """how large the networks are; nano is a toy; default: tiny"""
    features_dim: int | None
    """width of the heads' hidden layers; None: the size's (≥ 1); default: None"""
    action_embed_dim: int | None
    """width of the embedded action; None: as other inputs of the RSSM (≥ 1); default: None"""
    sequence_length: int
    """observations of a sequence (≥ 2); default: 64"""
    world_model_updates: int
    """updates of the world model each time (≥ 0); default: 1"""
    actor_critic_updates: int
    """updates of actor and critic each time, together with the former (≥ 0); default: 1"""
    imagination_horizon: int
    """steps that are imagined (≥ 1); default: 15"""
    imagination_batch_size: int | None
    """observed states to imagine from; None: all of a batch (replayed returns then bootstrap from imagined ones) (≥ 1);
    default: None"""
    world_model_learning_rate: float
    """step size, for the world model (> 0); default: 0.0003"""
    actor_learning_rate: float
    """step size, for the actor (> 0); default: 0.0001"""
    critic_learning_rate: float
    """step size, for the critic (> 0); default: 0.0001"""
    optimizer: Literal["adam", "laprop"]
    """adam, or laprop with adaptive clipping (the paper's); default: adam"""
    max_grad_norm: float | None
    """gradients are scaled down to this norm, with adam (> 0); default: 100.0"""
    normalize_observations: bool
    """vectors: scale them by their running mean and deviation; default: False"""
    gamma: float
    """discount (≥ 0, < 1); default: 0.997"""
    gae_lambda: float
    """λ of the λ-returns: how far they look ahead before they bootstrap (≥ 0, ≤ 1); default: 0.95"""
    entropy_coef: float
    """weight of the actor's entropy (≥ 0); default: 0.0003"""
    entropy_coef_schedule: str | Mapping[str, object] | None
    """schedule of entropy_coef: {type, start, end}; default: None"""


class Dreamer(ManagedAlgorithm):
    """Dreamer: a world model, and learning in imagination (arXiv:2301.04104). Its options are ``DreamerKeywords``."""

    algo_name = "dreamer"

    def __init__(self, config: TrainConfig | EnvSource, *, env: EnvSource | None = None,
                 network: Network | None = None, **options: Unpack[DreamerKeywords]) -> None:  # fmt: skip
        super().__init__(config, env=env, network=network, **options)


class RLPDKeywords(DatasetKeywords, SACKeywords, total=False):
    """Keywords of RLPD."""

    learning_starts: int
    """environment steps before updates; by task: at most a tenth of the run (≥ 0); default: by task"""
    initial_random_steps: int
    """environment steps with random actions; by task: as learning_starts (≥ 0); default: by task"""
    gradient_updates_per_step: int
    """critic updates each time, followed by one of the actor (≥ 1); default: 20"""
    alpha: float | Literal["auto"]
    """temperature: a number, or auto to tune it to target_entropy; default: auto"""
    target_entropy: float | None
    """entropy a tuned temperature aims for; None: minus half the action dimension; default: None"""
    learning_rate: float
    """step size of Adam, for actor, critics and temperature (> 0); default: 0.0003"""
    num_critics: int
    """critics in the ensemble (≥ 1); default: 10"""
    layer_norm: bool
    """normalise the critics' hidden layers, which bounds the values of unseen actions; default: True"""
    target_subset: int
    """critics, drawn anew for each update, whose smallest value is the target (≥ 1); default: 2"""
    backup_entropy: bool
    """count the next action's entropy in the targets; default: True"""
    offline_pretrain_updates: int
    """updates on the prior data before the first step (≥ 0); default: 0"""
    frozen_actor_updates: int
    """updates at the start, pretraining included, of the critics alone: for a policy from init_from (≥ 0); default:
    0"""
    offline_batch_ratio: float
    """share of prior data in every batch (≥ 0, ≤ 1); default: 0.5"""


class RLPD(ManagedAlgorithm):
    """RLPD: online learning that starts from prior data (arXiv:2302.02948). Its options are ``RLPDKeywords``."""

    algo_name = "rlpd"

    def __init__(self, config: TrainConfig | EnvSource, *, env: EnvSource | None = None,
                 network: Network | None = None, **options: Unpack[RLPDKeywords]) -> None:  # fmt: skip
        super().__init__(config, env=env, network=network, **options)


explain(BC, CQL, DQN, FQF, GAIL, IQL, IQN, MBPO, MOPO, PETS, PPG, PPO, QRDQN, RLPD, SAC, TD3BC, Dreamer)
