"""What goes into an exported file acts as the agent does: every algorithm, with and without scaled observations."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.artifacts.export import Policy
from rl_training.envs.factory import EnvFactory
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec
from toys import SMOKE, Counter

BOX = gym.spaces.Box(np.array([-2.0, 0.0]), np.array([4.0, 1.0]), dtype=np.float64)
SPACES = {
    "box": BOX,
    "discrete": gym.spaces.Discrete(3, start=2),
    "multi_discrete": gym.spaces.MultiDiscrete([3, 2], start=[1, 0]),
    "multi_binary": gym.spaces.MultiBinary(3),
    "joint": gym.spaces.Dict({"push": BOX, "turn": gym.spaces.Discrete(3, start=2)}),
}


class Wide(Counter):
    """Observes four numbers."""

    observation_space = gym.spaces.Box(-9, 9, (4,), np.float32)


class Images(Counter):
    """Observes images with their channels last."""

    observation_space = gym.spaces.Box(0, 255, (36, 40, 3), np.uint8)


def agent_of(algo, env, **options):
    """A learner with random weights for the environment's spaces, and these."""
    spec = get_algorithm_spec(algo)
    sizes = {"hidden_sizes": [32]} if "hidden_sizes" in spec.config.model_fields else {}
    config = TrainConfig(algo=algo, env_id="own", algo_kwargs={**SMOKE[algo][1], **sizes, **options})
    plan = spec.blueprint(config, EnvFactory(env, {}), None, "cpu")
    torch.manual_seed(0)
    agent = spec.build(spec.options(config), plan)
    with torch.no_grad():
        for part in agent._parts().values():
            for name, weights in part.named_parameters() if isinstance(part, torch.nn.Module) else ():
                weights.copy_(torch.randn(weights.shape) * (0.1 if "bias" in name else 1.0))
    return agent, plan.spaces


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    ("algo", "kind"),
    [
        (algo, kind)
        for algo in ALGORITHMS
        for kind in get_algorithm_spec(algo).actions
        if algo not in ("pets", "dreamer")  # one searches, the other carries a state: tests/artifacts/test_export.py
    ],
)
def test_the_policy_gives_the_agents_best_actions_in_the_environments_units(algo, kind, normalize):
    options = {"normalize_observations": normalize}
    if "normalize_observations" not in get_algorithm_spec(algo).config.model_fields:
        if normalize:
            pytest.skip("it has no such option")
        options = {}
    agent, spaces = agent_of(algo, lambda: Wide(actions=SPACES[kind]), **options)
    rng = np.random.default_rng(1)
    obs = rng.normal(1, 2, (60, 4)).astype(np.float32)
    if normalize:
        agent.normalizer.fit(obs)
    agent.set_eval_mode()
    expected = spaces.to_env(agent.act(obs, deterministic=True).actions)
    given = Policy(agent, spaces)(torch.from_numpy(obs)).numpy()
    if kind == "joint":  # flat in a file, and in its parts again by the form that the spaces have
        given, expected = ([spaces.form.restored(row) for row in rows] for rows in (given, expected))
        assert all(SPACES[kind].contains(action) for action in given)
        given, expected = (np.array([[*a["push"], a["turn"]] for a in actions]) for actions in (given, expected))
        np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-5)
        assert len(np.unique(given[:, 2])) > 1
        return
    expected = np.asarray(expected)
    assert given.shape == expected.shape and given.dtype == expected.dtype
    np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-5)
    assert len(np.unique(given, axis=0)) > 1 and all(SPACES[kind].contains(a if np.ndim(a) else int(a)) for a in given)


@pytest.mark.parametrize("algo", [a for a in ALGORITHMS if "image" in get_algorithm_spec(a).obs and a != "dreamer"])
def test_images_with_their_channels_last_are_turned_within(algo):
    agent, spaces = agent_of(algo, lambda: Images(actions=gym.spaces.Discrete(3, start=2)))
    obs = np.random.default_rng(0).integers(0, 256, (12, 36, 40, 3)).astype(np.uint8)
    expected = spaces.to_env(agent.act(spaces.encode(obs), deterministic=True).actions)
    assert Policy(agent, spaces)(torch.from_numpy(obs)).tolist() == expected
