"""Runs with hindsight: what the learner is given, exact resume, rows taken over and exported, and what is refused."""

import numpy as np
import pytest

import goal_toys
from rl_training import Callback
from rl_training.artifacts.collection import export_replay
from rl_training.base.options import ConfigError
from rl_training.commands.flags import score
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.workflows import resume_training
from toys import StopAt, rows_of, same_end

TASKS = {
    "sac": "Point",
    "rlpd": "Point",
    "dqn": "EndingBitFlips",
    "qr_dqn": "BitFlips",
    "iqn": "BitFlips",
    "fqf": "BitFlips",
}
STEPS = 90
pytestmark = pytest.mark.filterwarnings("ignore:.*no time limit")


def goal_config(tiny, algo, **changes):
    given = {"hindsight": "future", "total_timesteps": STEPS, "env_id": f"Goal{TASKS[algo]}-v0"}
    config = tiny(algo, **{**given, **changes})
    own = {name: value for name, value in config.algo_kwargs.items() if value is not None}
    return config.replace(algo_kwargs=own)


def train(config, *callbacks, **arguments):
    return get_algorithm_spec(config.algo).train(config, callbacks=list(callbacks), **arguments)


class Batches(Callback):
    """Keeps copies of all batches."""

    def __init__(self):
        self.batches = []

    def on_batch(self, trainer, batch):
        self.batches.append({name: column.clone() for name, column in batch.items()})


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("algo", TASKS)
def test_learners_are_given_the_environments_own_rewards_for_other_goals(algo, num_envs, tiny):
    """Of every row, the reward is ten times what the environment pays for its goals, clipped at -7; most rows have a goal
    that was not their episode's, and terminate where the environment says so."""
    heard, env = Batches(), getattr(goal_toys, TASKS[algo])()
    wrappers = {"wrappers": {"reward": {"scale": 10.0, "clip": 7.0}}}
    offline = {"offline_batch_ratio": 0.0, "offline_pretrain_updates": 0} if algo == "rlpd" else {}
    train(goal_config(tiny, algo, num_envs=num_envs, env_kwargs=wrappers, hindsight_ratio=1.0, **offline), heard)
    assert len(heard.batches) > 5
    dim = len(env.reset(seed=0)[0]["observation"])
    achieved, desired = slice(0, dim), slice(dim, 2 * dim)  # the parts are in the order of their names
    paid = []
    for batch in heard.batches:
        obs, after = (batch[name].numpy() for name in ("obs", "next_obs"))
        assert (obs[:, desired] == after[:, desired]).all()
        own = env.compute_reward(after[:, achieved], after[:, desired], {})
        assert batch["rewards"].tolist() == (7 * own).tolist()
        ends = own == 0 if algo == "dqn" else np.zeros(len(own))
        assert batch["dones"].tolist() == ends.tolist()
        paid += own.tolist()
    assert np.mean(np.array(paid) == 0) > 0.1  # seldom without other goals


@pytest.mark.parametrize(
    ("algo", "strategy", "num_envs"), [("sac", "episode", 3), ("dqn", "future", 1), ("rlpd", "final", 2)]
)
def test_a_run_with_hindsight_resumes_bit_for_bit(algo, strategy, num_envs, tiny):
    """In a ring that has gone around, in the middle of episodes."""
    config = goal_config(tiny, algo, hindsight=strategy, num_envs=num_envs, buffer_capacity=41, total_timesteps=150)
    whole = train(config, run_suffix="whole")
    part = train(config, StopAt(65, 100), run_suffix="part")
    middle = resume_training(part.run_dir, callbacks=[StopAt(100)])
    last = resume_training(middle.run_dir)
    same_end(load_checkpoint(whole.checkpoint_path), load_checkpoint(last.checkpoint_path))
    assert load_checkpoint(whole.checkpoint_path).buffer_state["replay"]["hindsight"]["eras"] == [[0, num_envs]]


def test_rows_are_handed_on_to_a_run_with_other_environments_and_to_one_without_hindsight(tiny):
    first = train(goal_config(tiny, "sac", num_envs=2), run_suffix="first")
    config = goal_config(tiny, "sac", num_envs=3, init_from=str(first.run_dir), init_replay=True)
    second = train(config, run_suffix="second")
    state = load_checkpoint(second.checkpoint_path).buffer_state["replay"]
    assert state["hindsight"]["eras"] == [[0, 2], [STEPS, 3]] and state["size"] == 2 * STEPS
    plain = train(
        goal_config(tiny, "sac", hindsight=None, init_from=str(second.run_dir), init_replay=True), run_suffix="plain"
    )
    state = load_checkpoint(plain.checkpoint_path).buffer_state["replay"]
    assert "hindsight" not in state and state["size"] == 3 * STEPS
    with pytest.raises(ConfigError, match="init_replay: was filled without hindsight: its rows do not say"):
        train(config.replace(init_from=str(plain.run_dir)), run_suffix="back")


def test_an_exported_replay_has_the_goals_and_rewards_of_the_environment(tiny):
    result = train(goal_config(tiny, "dqn", num_envs=2))
    data, env = export_replay(result.run_dir), goal_toys.EndingBitFlips()
    obs = data.obs.numpy()
    assert len(data) == STEPS
    ended = (data.dones + data.truncations).numpy()[:-1] > 0
    same = (obs[1:, 8:16] == obs[:-1, 8:16]).all(1)
    assert same[~ended].all() and not same.all()  # goals change between episodes alone
    own = env.compute_reward(data.next_obs.numpy()[:, :8], obs[:, 8:16], {})
    assert data.rewards.tolist() == own.tolist()


def test_every_environment_that_is_made_is_closed(tiny):
    """By a function: those that are trained in, evaluated in, looked at, and asked for rewards."""
    made, closed = [], []

    class Kind(goal_toys.Point):
        def __init__(self):
            super().__init__()
            made.append(self)

        def close(self):
            closed.append(self)

    train(goal_config(tiny, "sac"), env=Kind, run_suffix="with")
    assert {id(env) for env in made} == {id(env) for env in closed}
    count = len(made)
    train(goal_config(tiny, "sac", hindsight=None), env=Kind, run_suffix="without")
    assert len(made) == 2 * count - 1  # the one that is asked for rewards


def test_an_environment_given_as_an_object_is_asked_for_rewards_too(tiny):
    env, heard = goal_toys.EndingBitFlips(5), Batches()
    train(goal_config(tiny, "dqn", hindsight_ratio=1.0), heard, env=env)
    after = np.concatenate([batch["next_obs"].numpy() for batch in heard.batches])
    rewards = np.concatenate([batch["rewards"].numpy() for batch in heard.batches])
    assert rewards.tolist() == env.compute_reward(after[:, :5], after[:, 5:10], {}).tolist()


def test_rewards_for_other_goals_are_changed_by_the_options_of_prior_data_too(tiny):
    """Half of -1 and 3 more, or half of 0 and 3 more."""
    heard = Batches()
    options = {"offline_batch_ratio": 0.0, "offline_pretrain_updates": 0, "reward_scale": 0.5, "reward_shift": 3.0}
    train(goal_config(tiny, "rlpd", hindsight_ratio=1.0, **options), heard)
    assert {reward for batch in heard.batches for reward in batch["rewards"].tolist()} == {2.5, 3.0}


def test_success_is_logged(tiny):
    result = train(goal_config(tiny, "sac", eval_interval=45, log_interval=30))
    rows = rows_of(result.run_dir)
    assert all("success_rate" in row for row in rows if "episode_return" in row)
    assert [row["step"] for row in rows if "eval_success_rate" in row] == [45, 90]
    assert score(result.metrics).endswith(f" over 1 episode, {result.metrics['eval_success_rate']:.0%} succeed")
    assert score({"eval_episodes": 2, "eval_return_mean": 1.0, "eval_return_std": 0.0}).endswith(" over 2 episodes")


# ---- what is refused


@pytest.mark.parametrize(
    ("algo", "changes", "problem"),
    [
        ("sac", {"hindsight": None, "hindsight_ratio": 0.5}, "hindsight_ratio does nothing without hindsight"),
        ("sac", {"hindsight": "past"}, "algo_kwargs.hindsight: should be 'future', 'final' or 'episode'"),
        ("sac", {"hindsight_ratio": 1.5}, "algo_kwargs.hindsight_ratio: should be less than or equal to 1"),
        (
            "sac",
            {"env_id": "Pendulum-v1"},
            "algo_kwargs.hindsight: Pendulum-v1 is no goal environment: its observations",
        ),
        (
            "dqn",
            {"env_id": "CartPole-v1"},
            "algo_kwargs.hindsight: CartPole-v1 is no goal environment: its observations",
        ),
        ("dqn", {"n_step": 3}, "hindsight changes the goals of single rows drawn uniformly: leave n_step out"),
        (
            "fqf",
            {"prioritized": True},
            "hindsight changes the goals of single rows drawn uniformly: leave prioritized out",
        ),
        (
            "sac",
            {"env_kwargs": {"wrappers": {"frame_stack": 2}}},
            "algo_kwargs.hindsight: GoalPoint-v0 is no goal environment",
        ),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(algo, changes, problem, tiny, tmp_path):
    with pytest.raises(ConfigError, match=problem) as caught:
        train(goal_config(tiny, algo, **changes))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("algo", ["ppo", "mbpo", "pets", "dreamer", "cql"])
def test_algorithms_without_a_replay_of_single_rows_do_not_know_it(algo, tiny):
    with pytest.raises(ConfigError, match=f"algo_kwargs.hindsight: unknown option of {algo}"):
        train(tiny(algo, hindsight="future"))


def test_the_names_of_other_libraries_are_answered(tiny):
    with pytest.raises(ConfigError, match="goal_selection_strategy: unknown option of sac; did you mean 'hindsight'"):
        train(tiny("sac", goal_selection_strategy="future"))


def test_environments_do_not_change_beneath_relabelled_rewards(tiny):
    class Curriculum(Callback):
        def on_update_end(self, trainer, result):
            trainer.set_env_kwargs(limit=5)

    with pytest.raises(ValueError, match="with hindsight, environments cannot be changed"):
        train(goal_config(tiny, "sac"), Curriculum())
