"""Environments of other packages work as they come. ``make test-envs`` installs them, a group with versions that work together into
an environment each, and runs this; ``make test`` does not."""

from importlib.util import find_spec

import pytest
from lives import Case, Life

CODES = {"wrappers": {"parts": {"drop": ["mission"], "image_range": 10}}}
SCREENS = {"max_episode_steps": 60, "wrappers": {"atari": {"noop_max": 4, "screen_size": 36, "frame_stack": 2}}}
SHORT, ANEW = {"max_episode_steps": 30}, {"max_episode_steps": 100, "remake": True}
ROADS = {"max_episode_steps": 20}
CASES = [
    Case("grids", "minigrid", "minigrid", "MiniGrid-Empty-5x5-v0", ("ppo", "dqn"), CODES),
    Case("grids", "minigrid", "minigrid", "MiniGrid-DoorKey-6x6-v0", ("ppo",), CODES),
    Case("grids", "minigrid", "minigrid", "BabyAI-GoToRedBall-v0", ("ppo",), CODES),
    Case("grids", "MinAtar", "minatar.gym", "MinAtar/Breakout-v1", ("ppo", "dqn"), ANEW),
    Case("grids", "MinAtar", "minatar.gym", "MinAtar/SpaceInvaders-v1", ("ppo",), ANEW),
    Case("grids", "highway-env", "highway_env", "highway-fast-v0", ("ppo", "dqn"), ROADS),
    Case("grids", "highway-env", "highway_env", "parking-v0", ("ppo", "sac"), ROADS),
    Case("grids", "ale-py", "ale_py", "ALE/Breakout-v5", ("ppo", "dqn"), SCREENS),
    Case("flappy", "flappy-bird-gymnasium", "flappy_bird_gymnasium", "FlappyBird-v0", ("ppo", "dqn"), {"max_episode_steps": 100}, ("pygame",)),
    *(
        Case("robots", "gymnasium-robotics", "gymnasium_robotics", name, algos, SHORT, ("mujoco",))
        for name, algos in (("FetchReach-v4", ("ppo", "sac")), ("PointMaze_UMaze-v3", ("sac",)), ("AntMaze_UMaze-v5", ("ppo", "sac")))
    ),
    *(
        Case("control", "Shimmy", "shimmy", f"dm_control/{name}-v0", algos, SHORT, ("dm_control", "mujoco"))
        for name, algos in (("cartpole-swingup", ("ppo", "sac")), ("cheetah-run", ("sac",)))
    ),
    *(
        Case("panda", "panda-gym", "panda_gym", name, algos, {"remake": True}, ("pybullet",))
        for name, algos in (("PandaReach-v3", ("ppo", "sac")), ("PandaPush-v3", ("sac",)))
    ),
]  # fmt: skip
RUNS = [(case, algo) for case in CASES for algo in case.algos]


@pytest.mark.parametrize(("case", "algo"), RUNS, ids=[f"{case.venv}-{case.env_id}-{algo}" for case, algo in RUNS])
def test_an_environment_of_others_lives_through_everything(case, algo, tmp_path):
    if find_spec(case.module.partition(".")[0]) is None:
        pytest.skip(f"{case.package} is not installed: make test-envs")
    Life(case, algo, tmp_path).live()


def test_grids_pettingzoo_has_environments_of_several_agents():
    """Only that it is there: environments of several agents have tests of their own."""
    pettingzoo = pytest.importorskip("pettingzoo", reason="pettingzoo is not installed: make test-envs")
    assert hasattr(pettingzoo, "ParallelEnv")
