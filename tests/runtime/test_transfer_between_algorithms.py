"""Starting from an agent of another algorithm: what is taken means the same, and the rest is said."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training import BC, SAC, Callback, Dreamer
from rl_training.base.options import ConfigError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models import MLPSACModel
from rl_training.runtime.counterparts import STARTING_STD
from rl_training.runtime.run import Run
from toys import Counter, tiny_config

PENDULUM = torch.from_numpy(np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)).numpy()
STEPS = {"ppo": 32, "gail": 32}


class First(Callback):
    """The learner as it is when training starts, and what it does without noise."""

    def __init__(self, obs=PENDULUM, only=True):
        """``only``: nothing is trained."""
        self.obs, self._only = obs, only

    def on_train_start(self, trainer):
        if self._only:
            trainer.request_stop("seen")
        self.learner = trainer.algorithm
        carry = self.learner.initial_carry(len(self.obs))
        self.actions = self.learner.act(self.obs, carry=carry, deterministic=True).actions.copy()
        self.state = dict(_flat(self.learner.state_dict()))


def _flat(state, prefix=""):
    for name, value in state.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, torch.Tensor):
            yield f"{prefix}{name}", value.clone()


def bare(algo, folder, steps=None, **options):
    """A config with the networks that the algorithm has by default."""
    config = tiny_config(algo, folder, **options, total_timesteps=steps or STEPS.get(algo, 6))
    kwargs = {k: v for k, v in config.algo_kwargs.items() if k in options or k not in ("hidden_sizes", "num_critics")}
    return config.replace(env_id=options.get("env_id", "Pendulum-v1"), algo_kwargs=kwargs, loggers=())


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Agents of every kind that others start from, with the networks that they have by default."""
    folder = tmp_path_factory.mktemp("sources")
    made = {name: bare(name, folder) for name in ("iql", "td3_bc", "cql", "bc", "ppo")}
    made["sac"] = bare("sac", folder, steps=24)
    made["bc_likelihood"] = bare("bc", folder, loss="likelihood")
    return {name: get_algorithm_spec(config.algo).train(config) for name, config in made.items()}


@pytest.fixture
def said(monkeypatch):
    lines = []
    monkeypatch.setattr(Run, "announce", lambda run, line: lines.append(line))
    return lines


def started(target, source, folder, first=None, **options):
    first = first or First()
    config = bare(target, folder, **options).replace(init_from=str(source.run_dir))
    result = get_algorithm_spec(target).train(config, callbacks=[first])
    return first, result


def acting(result, obs=PENDULUM):
    config = load_checkpoint(result.checkpoint_path).config
    spec = get_algorithm_spec(config["algo"])
    from rl_training.experiment.config import TrainConfig

    agent = spec.load_fn(TrainConfig(**config), load_checkpoint(result.checkpoint_path))
    return agent.act(obs, deterministic=True).actions


@pytest.mark.parametrize(
    ("source", "target"),
    [
        *[("bc", target) for target in ("sac", "td3_bc", "rlpd")],
        *[("bc_likelihood", target) for target in ("sac", "td3_bc")],
        *[(source, target) for source in ("iql", "td3_bc", "cql") for target in ("sac", "rlpd")],
        ("sac", "cql"),
        ("ppo", "gail"),
    ],
)
def test_with_bare_defaults_an_agent_acts_from_the_start_as_the_one_it_started_from(
    source, target, sources, tmp_path, said
):
    first, _ = started(target, sources[source], tmp_path)
    if target == "gail":  # which scales observations by the expert's too before it acts
        weights = load_checkpoint(sources[source].checkpoint_path).algorithm_state["model"]
        assert torch.equal(first.state["model.policy_head.weight"], weights["policy_head.weight"])
        assert torch.equal(first.state["model.trunk.0.weight"][0], weights["trunk.0.weight"][0])
        assert not torch.equal(first.state["model.value_head.weight"], weights["value_head.weight"])
    elif source == "td3_bc" and target == "rlpd":  # whose prior data moves the statistics of observations a little
        assert np.abs(first.actions - acting(sources[source])).max() < 0.05
    else:
        np.testing.assert_allclose(first.actions, acting(sources[source]), atol=1e-6)
    assert any(line.startswith("weights from") and "model." in line for line in said)


@pytest.mark.parametrize("source", ["iql", "td3_bc"])
def test_critics_go_along_where_they_have_the_same_form(source, sources, tmp_path, said):
    critics = load_checkpoint(sources[source].checkpoint_path).algorithm_state["model"]
    first, _ = started("sac", sources[source], tmp_path / "sac")
    assert torch.equal(first.state["model.critics.0.weight"], critics["critics.0.weight"])
    first, _ = started("rlpd", sources[source], tmp_path / "rlpd")
    assert len(first.state["model.critics.0.weight"]) == 10
    first, _ = started("rlpd", sources[source], tmp_path / "alike", num_critics=2, layer_norm=False)
    assert torch.equal(first.state["model.critics.0.weight"], critics["critics.0.weight"])
    told = [line for line in said if line.startswith("weights")]
    assert "without entropy" in told[0] and "num_critics 2 and layer_norm false" in told[1]
    assert "num_critics" not in told[2]


def test_a_deviation_without_a_counterpart_starts_small_everywhere_and_is_named(sources, tmp_path, said):
    first, _ = started("sac", sources["td3_bc"], tmp_path)
    assert first.state["model.actor.4.weight"].shape == (2, 256)
    assert not first.state["model.actor.4.weight"][1].any()
    assert float(first.state["model.actor.4.bias"][1].exp()) == pytest.approx(STARTING_STD)
    assert any("the deviation in model.actor" in line for line in said)


def test_a_policy_of_choices_goes_from_bc_to_ppo(tmp_path, said):
    obs = np.random.default_rng(1).normal(size=(30, 4)).astype(np.float32)
    config = bare("bc", tmp_path, steps=10, env_id="CartPole-v1")
    cloned = get_algorithm_spec("bc").train(config)
    first, result = started("ppo", cloned, tmp_path, First(obs), env_id="CartPole-v1")
    assert (first.actions == acting(cloned, obs)).all()
    saved = load_checkpoint(result.checkpoint_path).config["algo_kwargs"]
    assert saved["hidden_sizes"] == [256, 256] and saved["activation"] == "relu"
    assert saved["normalize_observations"] is False
    assert any("the values' half of model.trunk" in line for line in said)


def test_activations_and_sizes_that_are_set_otherwise_are_refused_with_the_option_to_set(sources, tmp_path):
    for options, advice in (
        ({"activation": "tanh"}, "set activation to relu, as there"),
        ({"hidden_sizes": [64, 64]}, "set hidden_sizes to [256, 256], as there"),
    ):
        with pytest.raises(ConfigError, match="init_from: ") as caught:
            started("ppo", sources["bc"], tmp_path, **options)
        assert advice in str(caught.value)
    config = bare("rlpd", tmp_path).replace(init_from=str(sources["iql"].run_dir), init_parts=["actor", "critics"])
    with pytest.raises(ConfigError, match="set num_critics to 2 and layer_norm to false, as there"):
        get_algorithm_spec("rlpd").train(config)
    assert not list(tmp_path.iterdir())


def test_other_pairs_are_refused_with_those_that_fit(sources, tmp_path):
    with pytest.raises(ConfigError, match="an agent of sac does not fit iql, which takes iql or bc or td3_bc"):
        started("iql", sources["sac"], tmp_path)
    with pytest.raises(ConfigError, match="an agent of ppo does not fit sac"):
        started("sac", sources["ppo"], tmp_path)


def test_networks_of_ones_own_are_not_guessed_at(sources, tmp_path):
    class Own(torch.nn.Module):
        def __init__(self, *, head, hidden_sizes, obs_dim):
            super().__init__()
            self.head, self.body = head, torch.nn.Sequential(torch.nn.Linear(obs_dim, head.size), torch.nn.PReLU())

        def forward(self, obs):
            return self.body(obs)

    result = BC(bare("bc", tmp_path / "own"), network=Own).learn()
    with pytest.raises(ConfigError, match="only where both are of this package"):
        started("sac", result, tmp_path / "new")


def test_parts_can_be_named_between_algorithms(sources, tmp_path):
    critics = load_checkpoint(sources["iql"].checkpoint_path).algorithm_state["model"]
    config = bare("sac", tmp_path).replace(init_from=str(sources["iql"].run_dir), init_parts=["critics"])
    first = First()
    get_algorithm_spec("sac").train(config, callbacks=[first])
    assert torch.equal(first.state["model.critics.0.weight"], critics["critics.0.weight"])
    assert not torch.equal(first.state["model.actor.0.weight"], critics["actor.0.weight"])


# ---- normalisers


def test_statistics_of_a_dataset_are_moved_only_slowly_by_what_is_seen_online(sources, tmp_path):
    _, result = started("sac", sources["td3_bc"], tmp_path, First(only=False), steps=24)
    fitted = load_checkpoint(sources["td3_bc"].checkpoint_path).algorithm_state["normalizer"]
    online = load_checkpoint(result.checkpoint_path).algorithm_state["normalizer"]
    assert float(online["count"]) == 100_000 + 24
    torch.testing.assert_close(online["mean"], fitted["mean"], atol=2e-3, rtol=0)
    torch.testing.assert_close(online["inverse_std"], fitted["inverse_std"], atol=0, rtol=1e-2)


def test_statistics_that_were_taken_are_not_fitted_again_to_a_dataset(tmp_path):
    trained = get_algorithm_spec("sac").train(bare("sac", tmp_path, normalize_observations=True))
    _, result = started("cql", trained, tmp_path, First(only=False), steps=2)
    there, here = (load_checkpoint(one.checkpoint_path).algorithm_state["normalizer"] for one in (trained, result))
    assert torch.equal(there["mean"], here["mean"]) and torch.equal(there["inverse_std"], here["inverse_std"])


# ---- optimizers and replay


def test_optimizers_go_along_if_asked_where_all_of_their_parameters_do(sources, tmp_path, said):
    config = bare("sac", tmp_path).replace(init_from=str(sources["sac"].run_dir), init_optimizer=True)
    first = First()
    get_algorithm_spec("sac").train(config, callbacks=[first])
    saved = dict(_flat(load_checkpoint(sources["sac"].checkpoint_path).algorithm_state))
    for name in ("actor_optimizer.square", "critic_optimizer.mean", "critic_optimizer.count"):
        assert torch.equal(first.state[name], saved[name]) and saved[name].any()
    config = bare("sac", tmp_path).replace(init_from=str(sources["iql"].run_dir), init_optimizer=True)
    get_algorithm_spec("sac").train(config, callbacks=[first])
    assert first.state["critic_optimizer.count"] > 0 and first.state["actor_optimizer.count"] == 0
    assert "critic_optimizer" in said[-1] and "actor_optimizer" not in said[-1]
    part = config.replace(init_from=str(sources["sac"].run_dir), init_parts=["critics"])
    get_algorithm_spec("sac").train(part, callbacks=[first])
    assert first.state["critic_optimizer.count"] > 0 and first.state["actor_optimizer.count"] == 0
    with pytest.raises(ConfigError, match="init_optimizer: no optimizer of the bc agent fits"):
        get_algorithm_spec("sac").train(config.replace(init_from=str(sources["bc"].run_dir)))


def test_a_replay_buffer_goes_along_if_asked_and_learning_starts_at_once(sources, tmp_path, said):
    small = bare("sac", tmp_path, steps=20)
    kwargs = {"batch_size": 16, "buffer_capacity": 500}
    config = small.replace(init_from=str(sources["sac"].run_dir), init_replay=True, algo_kwargs=kwargs)
    result = get_algorithm_spec("sac").train(config)
    there, here = (load_checkpoint(r.checkpoint_path).buffer_state["replay"] for r in (sources["sac"], result))
    count = there["size"]
    assert here["size"] == count + 20 and torch.equal(here["packed"][: count - 1], there["packed"][: count - 1])
    ends = there["packed"][:, -1], here["packed"][:, -1]  # truncations are the last column
    assert not ends[0].any() and ends[1].nonzero().flatten().tolist() == [count - 1]  # the old episode does not go on
    assert result.metrics["gradient_steps"] == 5  # from step 16 on, the size of a batch
    assert f"with {count} transitions of Pendulum-v1" in said[-1]
    saved = load_checkpoint(result.checkpoint_path).config["algo_kwargs"]
    assert saved["initial_random_steps"] == 0 and saved["learning_starts"] == 0


def test_a_run_with_anothers_replay_resumes_exactly(sources, tmp_path):
    from rl_training.runtime.workflows import resume_training

    class Stop(Callback):
        def on_update_end(self, trainer, result):
            if trainer.global_step == 18:
                trainer.request_stop("enough for now")

    kwargs = {"batch_size": 16, "buffer_capacity": 500}
    config = bare("sac", tmp_path / "a", steps=24).replace(init_from=str(sources["sac"].run_dir), init_replay=True)
    config = config.replace(algo_kwargs=kwargs)
    whole = get_algorithm_spec("sac").train(config)
    part = get_algorithm_spec("sac").train(config.replace(output_dir=tmp_path / "b"), callbacks=[Stop()])
    assert part.metrics["global_step"] == 18
    resumed = resume_training(part.run_dir)
    ends = [dict(_flat(load_checkpoint(r.checkpoint_path).algorithm_state)) for r in (whole, resumed)]
    assert ends[0].keys() == ends[1].keys() and all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.parametrize(
    ("source", "target", "problem"),
    [
        ("bc", "sac", "holds no replay buffer"),
        ("ppo", "ppo", "ppo keeps no replay buffer here"),
    ],
)
def test_a_replay_that_is_not_there_is_refused(source, target, problem, sources, tmp_path):
    with pytest.raises(ConfigError, match=f"init_replay: .*{problem}"):
        get_algorithm_spec(target).train(
            bare(target, tmp_path).replace(init_from=str(sources[source].run_dir), init_replay=True)
        )
    assert not list(tmp_path.iterdir())


def test_options_that_do_nothing_without_a_source_are_refused(tmp_path):
    for name, value in (("init_parts", ["actor"]), ("init_optimizer", True), ("init_replay", True)):
        with pytest.raises(ConfigError, match=f"{name}: does nothing without init_from"):
            SAC(bare("sac", tmp_path).replace(**{name: value})).learn()


# ---- warm-up, and a world model for another task


def test_a_trained_policy_acts_from_the_first_step_and_a_new_one_warms_up(sources, tmp_path):
    def random_steps(**changes):
        config = bare("sac", tmp_path).replace(total_timesteps=1_000, algo_kwargs={}, **changes)
        return get_algorithm_spec("sac").complete(config).algo_kwargs["initial_random_steps"]

    start = str(sources["sac"].run_dir)
    assert random_steps() == 100 and random_steps(init_from=start) == 0
    assert random_steps(init_from=start, init_parts=["critics"]) == 100


class Shifted(Counter):
    """Counter with a reward that is another function of its observation."""

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, float(obs[0] > 1), *rest


def test_a_world_model_goes_to_another_task_and_says_what_does_not_fit(tmp_path):
    def dreamer(env, **changes):
        config = tiny_config("dreamer", tmp_path).replace(env_id="Counter", total_timesteps=48, **changes)
        return Dreamer(config, env=env)

    first = First(np.zeros((2, 1), np.float32))
    trained = dreamer(lambda: Counter(limit=6)).learn()
    changes = {"init_from": str(trained.run_dir), "init_parts": ["world_model"], "seed": 9}
    dreamer(lambda: Shifted(limit=6), **changes).learn(callbacks=[first])
    saved = dict(_flat(load_checkpoint(trained.checkpoint_path).algorithm_state))
    worlds = [name for name in saved if name.startswith("world_model.")]
    assert worlds and all(torch.equal(saved[name], first.state[name]) for name in worlds)
    actors = [name for name in saved if name.startswith("actor.")]
    assert not all(torch.equal(saved[name], first.state[name]) for name in actors)
    with pytest.raises(ConfigError, match=r"rssm.*has the shape .* name the parts to take in init_parts"):
        dreamer(lambda: Counter(limit=6, actions=gym.spaces.Discrete(5)), **changes).learn()
    parts = {**changes, "init_parts": ["encoder", "decoder", "reward"]}
    dreamer(lambda: Counter(limit=6, actions=gym.spaces.Discrete(5)), **parts).learn(callbacks=[first])
    encoders = [name for name in worlds if name.startswith(("world_model.encoder", "world_model.reward"))]
    assert encoders and all(torch.equal(saved[name], first.state[name]) for name in encoders)


def test_what_stands_between_the_layers_of_ones_own_networks_is_theirs_to_know(tmp_path):
    class Own(MLPSACModel):
        pass

    config = bare("sac", tmp_path, steps=24, activation="tanh")
    parent = get_algorithm_spec("sac").train(config)
    again = bare("sac", tmp_path, steps=24).replace(init_from=str(parent.run_dir))
    result = get_algorithm_spec("sac").train(again, network=Own)
    assert load_checkpoint(result.checkpoint_path).config["algo_kwargs"].get("activation") is None
