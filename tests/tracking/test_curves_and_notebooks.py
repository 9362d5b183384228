"""Curves as arrays and pictures, and progress in a notebook: one output, redrawn in its place."""

import sys
import xml.etree.ElementTree as ElementTree
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from rl_training import PPO
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.tracking.curves import Line, draw_curves, ticks
from rl_training.tracking.notebook import Panel, notebook_shell
from rl_training.tracking.progress import Progress
from toys import rows_of

SVG = "{http://www.w3.org/2000/svg}"


def elements(picture, kind):
    return ElementTree.fromstring(picture).iter(f"{SVG}{kind}")


# ---- pictures


def test_a_picture_has_a_line_for_each_curve_that_has_points():
    curves = [Line("a & b", [0, 50, 100], [0.0, 1.0, float("nan")]), Line("none", [], []), Line("c", [10], [-3.0])]
    picture = draw_curves(curves, title="<returns>")
    texts = [element.text for element in elements(picture, "text")]
    assert "a & b" in texts and "c" in texts and "none" not in texts and "environment steps" in texts
    lines = [element for element in elements(picture, "path") if element.get("fill") == "none"]
    assert [len(line.get("d").split("L")) for line in lines] == [2, 1]


def test_higher_values_are_drawn_higher_and_later_steps_further_right():
    points = [*elements(draw_curves([Line("x", [0, 10, 20], [1.0, 3.0, 2.0])]), "circle")]
    xs, ys = ([float(point.get(name)) for point in points] for name in ("cx", "cy"))
    assert xs == sorted(xs) and xs[2] - xs[1] == xs[1] - xs[0] and ys[1] < ys[2] < ys[0]


@pytest.mark.parametrize("values", [[5.0, 5.0], [0.0, 0.0], [1e-9, 2e-9], [-1e12, 1e12], []])
def test_any_range_can_be_drawn(values):
    picture = draw_curves([Line("x", range(len(values)), values)])
    assert all("nan" not in element.get("y") for element in elements(picture, "text"))


def test_ticks_are_round_numbers_within_the_range():
    assert ticks(-3, 103) == [0, 50, 100]
    assert ticks(0.0, 1.0) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])


# ---- the curve of an agent


def test_an_agent_has_its_curve_as_arrays_and_as_a_picture(tmp_path):
    options = {"num_steps": 32, "eval_interval": 64, "eval_episodes": 1, "progress": "off"}
    agent = PPO("CartPole-v1", total_timesteps=256, log_interval=32, output_dir=tmp_path, **options)
    with pytest.raises(ValueError, match="no checkpoint yet"):
        agent.curve()
    rows = rows_of(agent.learn().run_dir)
    curve = agent.curve()
    assert curve.eval_steps.tolist() == [64, 128, 192, 256]
    assert curve.eval_returns.tolist() == [row["eval_return_mean"] for row in rows if "eval_return_mean" in row]
    training = [(row["step"], row["episode_return"]) for row in rows if "episode_return" in row]
    assert [*zip(curve.steps, curve.returns)] == training and curve.steps.dtype == np.float64
    picture = agent.plot(tmp_path / "curve.svg")
    assert (tmp_path / "curve.svg").read_text() == picture._repr_svg_() and "ppo on CartPole-v1" in picture.svg
    with pytest.raises(ValueError, match=r"is saved as \.svg, such as curve\.svg"):
        agent.plot(tmp_path / "curve.png")


def test_an_agent_from_a_file_without_a_run_has_no_curve(tmp_path):
    options = {"num_steps": 32, "eval_episodes": 1, "progress": "off"}
    agent = PPO("CartPole-v1", total_timesteps=32, output_dir=tmp_path / "runs", **options)
    agent.learn()
    loaded = PPO.load(agent.save(tmp_path / "alone.ckpt"))
    with pytest.raises(ValueError, match=r"alone\.ckpt lies in no run directory"):
        loaded.curve()


# ---- notebooks


@pytest.fixture
def shown(monkeypatch):
    """IPython in a kernel, as far as it is used: what it was asked to show, by output."""
    outputs = []

    class Handle:
        def __init__(self, thing):
            outputs.append([thing._repr_html_()])
            self.number = len(outputs) - 1

        def update(self, thing):
            outputs[self.number].append(thing._repr_html_())

    def display(thing, *, display_id):
        assert display_id is True
        return Handle(thing)

    ipython, module = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython, module.display = lambda: SimpleNamespace(kernel=object()), display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return outputs


def test_a_run_in_a_notebook_has_one_output_with_bar_and_curve(tiny, shown, capsys):
    config = tiny("ppo", env_id="Reaching-v0", progress="auto", log_interval=32, eval_interval=64, eval_episodes=2)
    get_algorithm_spec("ppo").train(config)
    (output,) = shown
    assert capsys.readouterr().err == ""
    last = output[-1]
    assert "ppo Reaching-v0: run directory" in last and "128/128" in last and "width: 100.0%" in last
    assert last.count("<svg") == 1 and "training episodes" in last and "evaluation" in last and "succeed" in last
    assert "<svg" not in output[0] and "width: 0.0%" in output[0]


def test_progress_off_shows_nothing_in_a_notebook(tiny, shown):
    get_algorithm_spec("ppo").train(tiny("ppo", progress="off"))
    assert shown == []


def test_ipython_in_a_terminal_is_no_notebook(shown, monkeypatch):
    assert notebook_shell() is not None
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: SimpleNamespace())
    assert notebook_shell() is None and Progress("auto", title="x", total=1, start=0)._panel is None
    monkeypatch.delitem(sys.modules, "IPython")
    assert notebook_shell() is None


def test_a_panel_is_drawn_twice_a_second_at_most(shown):
    now = [0.0]
    panel = Panel("x", lambda: now[0])
    for tick in range(100):
        now[0] = tick / 100
        panel.show(tick / 100, ["tick"])
    assert len(shown[0]) == 2
    panel.show(1.0, ["end"], last=True)
    assert "end" in shown[0][-1] and repr(panel).endswith("x  end")


def test_long_curves_are_thinned_and_keep_their_ends(shown):
    panel = Panel("x", lambda: 0.0)
    for step in range(1_000):
        panel.point(step, episodes=float(step), evaluation=None)
    steps, values = panel._curves["episodes"]
    assert steps[0] == 0 and steps[-1] == 999 and len(steps) <= 400 and steps == values == sorted(set(steps))


def test_what_a_panel_says_is_text(shown):
    panel = Panel("<title>", lambda: 0.0)
    panel.say("a < b & c")
    assert "a &lt; b &amp; c" in shown[0][-1] and "<title>" not in shown[0][-1]
