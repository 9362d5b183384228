"""GAIL's trainer: expert data, the discriminator's updates and rewards, and nothing of the environment's rewards."""

import numpy as np
import pytest
import torch

from rl_training import GAIL, TrainConfig
from rl_training.data.dataset_files import write_npz
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.experience import collect_from_checkpoint
from rl_training.runtime.gail_trainer import GAILLoop
from rl_training.runtime.run import Run
from toys import Broken, Counter, Pictures

spec = get_algorithm_spec("gail")


def a_loop(config, env=None):
    options = spec.options(config)
    from rl_training.envs.factory import EnvFactory

    factory = EnvFactory(env if env is not None else config.env_id, config.env_kwargs)
    plan = spec.blueprint(config, factory, None, "cpu")
    run = Run(config, options, factory, plan.spaces, device=plan.device, callbacks=[])
    return spec.loop(run, spec.build(options, plan), options)


def test_nan_rewards_of_the_environment_are_never_read(tiny):
    result = spec.train(tiny("gail", normalize_rewards=True), env=lambda: Broken("nan reward", at=1))
    assert np.isfinite(result.metrics["loss"]) and np.isfinite(result.metrics["imitation_reward"])


def test_the_discriminator_learns_before_it_rewards_the_rollout(tiny, monkeypatch):
    order = []
    for name in ("train_discriminator", "reward_rollout"):
        plain = getattr(GAILLoop, name)
        monkeypatch.setattr(
            GAILLoop, name, lambda self, *a, plain=plain, name=name: (order.append(name), plain(self, *a))[1]
        )
    spec.train(tiny("gail", total_timesteps=64))
    assert order == ["train_discriminator", "reward_rollout"] * 2


def test_the_rewards_of_a_rollout_are_the_discriminators(tiny):
    loop = a_loop(tiny("gail", normalize_rewards=False))
    loop.collect()
    obs, actions = loop.flat_rollout()
    loop.reward_rollout(obs, actions)
    expected = loop.agent.discriminator_reward(obs, actions).numpy()
    np.testing.assert_allclose(loop._rollout.rewards.reshape(-1), expected, rtol=1e-6)
    loop.close()


def test_with_absorbing_states_a_constant_discriminator_gives_episodes_of_any_length_the_same_return(tiny):
    """Every step pays ln 2; an episode that has ended goes on paying it."""
    gamma = 0.9
    config = tiny("gail", absorbing=True, normalize_rewards=False, gamma=gamma, num_steps=60)
    for limit in (3, 7, 20):
        loop = a_loop(config, env=lambda limit=limit: Counter(limit=limit, terminate=True))
        with torch.no_grad():
            for parameter in loop.agent.discriminator.body[-1].parameters():
                parameter.zero_()
        loop.collect()
        loop.reward_rollout(*loop.flat_rollout())
        discounted = sum(gamma**t * r for t, r in enumerate(loop._rollout.rewards[:limit, 0]))
        assert discounted == pytest.approx(np.log(2) / (1 - gamma), rel=1e-5)
        loop.close()


def test_absorbing_states_are_sampled_in_proportion_to_their_number(tiny):
    """Episodes of 5 of 20 steps: three quarters of what an expert does is having arrived."""
    config = tiny("gail", absorbing=True, num_steps=60, env_kwargs={"max_episode_steps": 20}, expert_dataset_size=100)
    loop = a_loop(config, env=lambda: Counter(limit=5, terminate=True))
    loop.collect()
    absorbing = loop._absorbing
    assert absorbing.after_step.sum() == 12 * 15 and absorbing.after_expert == 20 * 15
    for mask in (absorbing.policy_mask, absorbing.expert_mask):
        assert mask(20_000, np.random.default_rng(0)).mean().item() == pytest.approx(0.75, abs=0.02)
    assert loop.lengths == [0]
    loop.close()


def test_the_discriminator_sees_actions_as_the_environment_takes_them(tiny):
    loop = a_loop(tiny("gail", env_id="Pendulum-v1", initial_log_std=2.0))
    loop.collect()
    _, actions = loop.flat_rollout()
    assert np.abs(loop._rollout.actions).max() > 1 and actions.abs().max() == 1
    loop.close()


def test_the_discriminator_sees_observations_before_normalisation(tiny):
    loop = a_loop(tiny("gail", normalize_observations=True), env=lambda: Counter(limit=8))
    loop.collect()
    obs, _ = loop.flat_rollout()
    assert obs[:, 0].tolist() == [t % 8 for t in range(32)]
    assert loop._rollout.obs.max() < 4  # what the policy learns from is scaled
    loop.close()


def test_a_constant_discriminator_gives_every_step_the_same_reward(tiny):
    loop = a_loop(tiny("gail", normalize_rewards=True))
    with torch.no_grad():
        for parameter in loop.agent.discriminator.body[-1].parameters():
            parameter.zero_()
    loop.collect()
    loop.reward_rollout(*loop.flat_rollout())
    assert np.ptp(loop._rollout.rewards) == 0 and 0 < loop._rollout.rewards[0, 0] < 10
    loop.close()


def expert_file(folder, episodes=4, length=5):
    """A Counter's episodes, in which action 1 is always taken."""
    t = np.tile(np.arange(length, dtype=np.float32), episodes)
    ends = (t == length - 1).astype(np.float32)
    columns = {"obs": t[:, None], "actions": np.ones(len(t), np.int64), "rewards": np.ones(len(t))}
    columns |= {"next_obs": t[:, None] + 1, "terminations": ends, "truncations": np.zeros(len(t))}
    path = folder / "expert.npz"
    write_npz(path, TransitionDataset.from_dict(columns))
    return str(path)


def test_expert_episodes_keeps_the_first_episodes_of_a_file(tiny, tmp_path):
    given = {"expert_dataset_kind": "npz", "expert_dataset_path": expert_file(tmp_path), "expert_episodes": 3}
    loop = a_loop(tiny("gail", **given), env=lambda: Counter(limit=5, terminate=True))
    assert len(loop.expert) == 15 and loop._run.references["expert_return"] == 5
    loop.close()


def test_a_checkpoint_makes_the_experts_data_and_the_score_is_relative_to_it(tiny):
    expert = get_algorithm_spec("ppo").train(tiny("ppo"))
    given = {"expert_dataset_kind": "checkpoint", "expert_dataset_path": str(expert.run_dir), "expert_episodes": 2}
    loop = a_loop(tiny("gail", **given))
    greedy = collect_from_checkpoint(expert.run_dir, episodes=2, deterministic=True, seed=0)
    assert len(loop.expert) == len(greedy)
    assert loop._run.references["expert_return"] == greedy.returns().mean() != loop._run.references["random_return"]
    loop.close()
    assert "eval_score" in spec.train(tiny("gail", **given)).metrics


def test_an_expert_of_another_environment_is_refused(tiny):
    expert = get_algorithm_spec("ppo").train(tiny("ppo"))
    given = {"expert_dataset_kind": "checkpoint", "expert_dataset_path": str(expert.run_dir)}
    with pytest.raises(ValueError, match="was recorded in CartPole-v1, not in Acrobot-v1; expert_dataset_env"):
        spec.train(tiny("gail", env_id="Acrobot-v1", **given))


def test_a_random_expert_has_no_score_and_an_unfinished_episode_no_return(tiny, tmp_path):
    assert "eval_score" not in spec.train(tiny("gail", total_timesteps=32)).metrics
    t = np.arange(7, dtype=np.float32)
    columns = {"obs": t[:, None], "actions": np.ones(7, np.int64), "rewards": np.ones(7), "next_obs": t[:, None] + 1}
    data = TransitionDataset.from_dict({**columns, "terminations": t == 4, "truncations": np.zeros(7)})
    assert data.finished_returns().tolist() == [5.0]


def test_a_warm_start_imitates_before_the_first_rollout(tiny, tmp_path):
    given = {"expert_dataset_kind": "npz", "expert_dataset_path": expert_file(tmp_path), "bc_updates": 200}
    config = tiny("gail", **given, total_timesteps=32, learning_rate=1e-2, clip_coef=1e-9)
    agent = GAIL(config, env=lambda: Counter(limit=5, terminate=True))
    agent.learn()
    assert all(agent.predict([float(t)]) == 1 for t in range(5))


def test_a_warm_start_outlives_the_first_look_at_observations(tiny, tmp_path):
    """An expert that turns from 0 to 1 halfway: to be cloned on the scale that is acted on."""
    t = np.tile(np.arange(6, dtype=np.float32), 5)
    columns = {
        "obs": t[:, None],
        "actions": (t > 2).astype(np.int64),
        "rewards": np.ones(30),
        "next_obs": t[:, None] + 1,
    }
    path = tmp_path / "turn.npz"
    write_npz(path, TransitionDataset.from_dict({**columns, "terminations": t == 5, "truncations": np.zeros(30)}))
    given = {"expert_dataset_kind": "npz", "expert_dataset_path": str(path), "bc_updates": 300, "clip_coef": 1e-9}
    config = tiny("gail", **given, total_timesteps=32, learning_rate=1e-2, normalize_observations=True)
    agent = GAIL(config, env=lambda: Counter(limit=6, terminate=True))
    assert "clone_loss" in agent.learn().metrics
    assert [agent.predict([float(t)]) for t in range(6)] == [0, 0, 0, 1, 1, 1]


def test_a_random_expert_is_announced_as_no_expert(tiny, capsys):
    spec.train(tiny("gail", progress="lines", total_timesteps=32))
    assert "there is no expert" in capsys.readouterr().err


def test_pictures_and_their_options(tiny):
    sizes = {"features_dim": 8, "head_hidden_sizes": [6], "discriminator_features_dim": 8}
    config = tiny("gail", **sizes, discriminator_head_hidden_sizes=[4])
    assert np.isfinite(spec.train(config, env=Pictures).metrics["loss"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expert_dataset_kind": "npz"}, "npz data needs expert_dataset_path"),
        ({"expert_dataset_kind": "checkpoint"}, "checkpoint data needs expert_dataset_path"),
        ({"absorbing": True, "gamma": 1.0}, "gamma must be below 1"),
        ({"reward_type": "log"}, "reward_type"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        spec.options(TrainConfig(algo="gail", env_id="CartPole-v1", algo_kwargs=changes))
