"""Options take finite numbers of 64 bits, unless an option says what an infinity means."""

import math
import typing

import pytest

from rl_training import TrainConfig
from rl_training.base.options import ConfigError
from rl_training.cli import main
from rl_training.data.dataset_options import MixedSource
from rl_training.envs.options import AtariOptions, EnvOptions, PartsOptions, PixelOptions, RewardOptions
from rl_training.experiment.registry import ALGORITHMS, get_algorithm_spec
from rl_training.runtime.controls import EarlyStoppingConfig
from rl_training.sweeps.space import Range

INFINITE = {"largest_weight": math.inf, "noise_clip": math.inf}  # no limit
MODELS = [
    TrainConfig,
    EnvOptions,
    RewardOptions,
    AtariOptions,
    PartsOptions,
    PixelOptions,
    MixedSource,
    EarlyStoppingConfig,
    Range,
]


def takes(annotation, kind):
    return annotation is kind or any(takes(part, kind) for part in typing.get_args(annotation))


def numbers(model, kind):
    return [name for name, field in model.model_fields.items() if takes(field.annotation, kind)]


def complaint(model, name, value):
    """What a model says of one option's value; None if it says nothing."""
    required = {"algo": "ppo", "env_id": "CartPole-v1"} if model is TrainConfig else {}
    required |= {"prioritized": True} if "prioritized" in model.model_fields else {}  # without it, some do nothing
    try:
        model(**{**required, name: value})
    except ConfigError as error:
        return next((message for loc, message in error.problems if loc[:1] == (name,)), None)
    return None


def models():
    return [*MODELS, *(get_algorithm_spec(algo).config for algo in ALGORITHMS)]


def test_no_option_takes_a_number_that_is_not_finite_without_saying_so():
    asked, taken = 0, set()
    for model in models():
        for name in {*numbers(model, float), *numbers(model, int)}:
            for value in (math.nan, math.inf, -math.inf):
                asked += 1
                if complaint(model, name, value) is None:
                    taken.add((name, value))
    assert taken == set(INFINITE.items())
    assert asked > 1_000


def test_no_option_takes_a_whole_number_of_more_than_64_bits():
    for model in models():
        for name in {*numbers(model, float), *numbers(model, int)}:
            for value in (2**63, -(2**63) - 1, 10**40, 10**5000):
                assert complaint(model, name, value) is not None, (model.__name__, name, value)
        for name in numbers(model, int):
            if not takes(model.model_fields[name].annotation, float):
                assert complaint(model, name, 1e30) is not None, (model.__name__, name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algo_kwargs.learning_rate=.nan", "algo_kwargs.learning_rate: should be a finite number, got nan"),
        ("algo_kwargs.hidden_sizes=[36893488147419103232]", "algo_kwargs.hidden_sizes.0: must fit into 64 bits"),
        ("total_timesteps=1e30", "total_timesteps: must fit into 64 bits"),
        ("threads=5000", "threads: must be 1 to 1,024 or 'auto', got 5000"),
    ],
)
def test_the_command_line_says_which_number_it_does_not_take(text, message, capsys):
    assert main(["config", "--algo", "sac", "--env", "Pendulum-v1", "--set", text]) == 2
    assert message in capsys.readouterr().err


def test_arguments_of_an_environment_may_be_infinite():
    config = TrainConfig(algo="sac", env_id="Hopper-v5", env_kwargs={"healthy_z_range": [0.7, math.inf]})
    get_algorithm_spec("sac").options(config)


@pytest.mark.parametrize("obs", ["[NaN, 0, 0]", "[1e999, 0, 0]", "[" * 5000, "[1" + "0" * 400 + "]"])
def test_an_observation_to_predict_from_is_finite(obs, capsys):
    assert main(["predict", "nowhere.ckpt", "--obs", obs]) == 2
    assert "--obs must be" in capsys.readouterr().err


@pytest.mark.parametrize("fps", ["inf", "nan", "0", "-3"])
def test_a_video_has_a_rate_above_zero(fps, capsys):
    assert main(["video", "--checkpoint", "nowhere", "-o", "a.gif", f"--fps={fps}"]) == 2
    assert "is not a number above 0" in capsys.readouterr().err
