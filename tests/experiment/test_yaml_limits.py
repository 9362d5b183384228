"""YAML that stands for more than it says: refused in one line, at once, wherever YAML is read."""

import pytest

from rl_training.analysis.records import read_run_config
from rl_training.base.options import ConfigError
from rl_training.base.yaml_text import MOST_CHARACTERS, YamlProblem, parse_yaml
from rl_training.cli import main
from rl_training.experiment.yaml_config import parse_override, read_config
from rl_training.sweeps.plan import parse_values
from rl_training.sweeps.space import read_space

# each line is nine of the line before: 3 * 9 ** 8 values in 300 characters
LAUGHS = "a: &a [x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(9 * [f'*{before}'])}]\n" for before, name in zip("abcdefgh", "bcdefghi")
)
INLINE = "[&a [x, x, x], " + ", ".join(
    f"&{name} [{', '.join(9 * [f'*{before}'])}]" for before, name in zip("abcdefgh", "bcdefghi")
) + "]"  # fmt: skip


def test_aliases_of_aliases_are_refused_in_every_file_and_flag(tmp_path, capsys):
    path = tmp_path / "config.yaml"
    path.write_text(LAUGHS)
    with pytest.raises(ConfigError, match=r"config\.yaml:\d: its aliases stand for more than 10,000 values"):
        read_config(path)
    with pytest.raises(ConfigError, match="aliases stand for more"):
        read_space(path)
    with pytest.raises(ValueError, match="not valid YAML"):
        read_run_config(path)
    for parse in (parse_override, parse_values):
        with pytest.raises(ConfigError, match="--set x"):
            parse(f"x={INLINE}")
    assert main(["config", "--config", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("kind", ["rt", "safe", "pure"])
@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "{" * 9_000, "- " * 30_000, "a: &a [*a]", "x: " + "9" * 6_000, "a: 2001-99-99", "\0", "x" * (MOST_CHARACTERS + 1)],
    ids=["lists", "mappings", "dashes", "itself", "digits", "no date", "zero", "long"],
)  # fmt: skip
def test_text_beyond_the_limits_is_one_problem(text, kind):
    with pytest.raises(YamlProblem) as problem:
        parse_yaml(text, kind)
    assert "\n" not in str(problem.value) and len(str(problem.value)) < 300


def test_ordinary_anchors_and_merges_are_read(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(
        "algo: ppo\nenv_id: CartPole-v1\nalgo_kwargs: &base {hidden_sizes: [8], num_steps: 16}\ntags: [&x one, *x]\n"
    )
    config = read_config(path)
    assert config.tags == ("one", "one") and config.algo_kwargs["num_steps"] == 16
    merged = parse_yaml("base: &b {x: 1}\nown: {<<: *b, y: 2}")
    assert merged["own"] == {"x": 1, "y": 2}


def test_a_search_space_that_inherits_from_itself_is_refused(tmp_path):
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text(f"inherit: {two}\nseed: [1]\n")
    two.write_text(f"inherit: {one}\nseed: [2]\n")
    with pytest.raises(ConfigError, match="inherits from itself"):
        read_space(one)
    one.write_text("inherit: [1]\n")
    with pytest.raises(ConfigError, match="inherit names a file or an algorithm"):
        read_space(one)
