"""The statistics of Agarwal et al. (2021), against numbers worked out by hand or printed elsewhere."""

import numpy as np
import pytest

from rl_training.analysis.statistics import (
    iqm,
    mean,
    median,
    performance_profile,
    probability_of_improvement,
    sample_efficiency,
    stratified_bootstrap,
)


def test_iqm_cuts_a_quarter_at_either_end():
    assert iqm([0, 1, 2, 3, 4, 5, 6, 100]) == 3.5  # of 2, 3, 4, 5
    assert iqm([100, 3, 1, 2, -50]) == 2  # a quarter of five is one
    assert iqm([1, 2, 6]) == 3  # a quarter of three is none: the mean


def test_iqm_is_the_trimmed_mean_of_scipys_documentation():
    x = np.arange(20).reshape(5, 4)
    assert [iqm(row) for row in x] == [1.5, 5.5, 9.5, 13.5, 17.5]
    assert [iqm(column) for column in x.T] == [8, 9, 10, 11]


def test_iqm_takes_the_runs_of_all_tasks_together():
    assert iqm({"easy": [1, 2, 3, 4], "hard": [10, 20, 30, 1000]}) == (3 + 4 + 10 + 20) / 4
    assert iqm(np.array([[1, 10], [2, 20], [3, 30], [4, 1000]])) == (3 + 4 + 10 + 20) / 4  # runs by tasks


def test_mean_and_median_are_over_tasks():
    scores = {"a": [0, 2], "b": [10, 20, 30], "c": [4]}
    assert mean(scores) == (1 + 20 + 4) / 3
    assert median(scores) == 4
    assert median([1, 2, 30]) == 2  # a single task: over its runs


def test_probability_of_improvement_is_mann_and_whitneys_u():
    males, females = [19, 22, 16, 29, 24], [20, 11, 17, 12]  # scipy.stats.mannwhitneyu's example: U = 17 of 20 pairs
    assert probability_of_improvement(males, females) == pytest.approx(17 / 20)
    assert probability_of_improvement(females, males) == pytest.approx(3 / 20)


def test_equal_scores_count_half_and_tasks_count_alike():
    assert probability_of_improvement([1, 1], [1, 1, 1]) == 0.5
    x, y = {"a": [2, 2], "b": [0] * 10}, {"a": [1], "b": [5]}
    assert probability_of_improvement(x, y) == 0.5  # sure on one, hopeless on the other, however many the runs


def test_two_sides_need_the_same_tasks():
    with pytest.raises(ValueError, match="same tasks"):
        probability_of_improvement({"a": [1]}, {"b": [1]})


def test_profile_is_the_share_of_runs_above_each_level():
    profile = performance_profile([1, 2, 2, 5], [0, 1, 2, 5])
    assert profile.tolist() == [1, 0.75, 0.25, 0]
    both = performance_profile({"a": [0, 1], "b": [2, 2, 2]}, [0.5])
    assert both.tolist() == [0.75]


def test_bootstrap_draws_again_within_each_task():
    interval = stratified_bootstrap(mean, {"easy": [100, 100, 100], "hard": [0, 0, 0]})
    assert interval == (50, 50, 50)  # drawing across tasks would spread it


def test_bootstrap_of_two_runs_reaches_both():
    assert stratified_bootstrap(mean, [0, 1]) == (0.5, 0, 1)  # 0 and 1 come up a quarter of the time each


def test_bootstrap_agrees_with_the_textbook_for_many_runs():
    runs = np.random.default_rng(1).normal(10, 2, 100)
    value, low, high = stratified_bootstrap(mean, runs)
    half = 1.96 * runs.std() / 10
    assert value == pytest.approx(runs.mean())
    assert (low, high) == pytest.approx((runs.mean() - half, runs.mean() + half), abs=0.1 * half)


def test_bootstrap_is_the_same_every_time_and_in_any_memory():
    runs = np.random.default_rng(2).normal(size=700)  # more than one piece
    first = stratified_bootstrap(probability_of_improvement, runs, runs + 0.3, resamples=40)
    assert first == stratified_bootstrap(probability_of_improvement, runs, runs + 0.3, resamples=40)
    assert first.low < first.value < first.high < 0.5


def test_one_run_has_no_interval():
    assert stratified_bootstrap(iqm, [7]) == (7, None, None)
    assert sample_efficiency([([1, 2], [3, 4])]).low is None


def test_a_wider_confidence_gives_a_wider_interval():
    runs = [1, 4, 2, 8, 5, 7]
    narrow, wide = (stratified_bootstrap(mean, runs, confidence=c) for c in (0.5, 0.95))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_nothing_and_nonsense_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        iqm([])
    with pytest.raises(ValueError, match="finite"):
        iqm([1.0, float("nan")])


def test_curves_are_aligned_on_the_steps_they_share():
    curve = sample_efficiency([([0, 10, 20], [0, 10, 20]), ([5, 15], [100, 200])], statistic=mean)
    assert curve.steps.tolist() == [5, 10, 15]
    assert curve.value.tolist() == [(5 + 100) / 2, (10 + 150) / 2, (15 + 200) / 2]
    assert curve.low.tolist() == [5, 10, 15] and curve.high.tolist() == [100, 150, 200]


def test_curves_of_many_points_get_an_even_grid():
    steps = np.arange(1000)
    curve = sample_efficiency([(steps, steps * 2.0), (steps, steps * 2.0)], points=11)
    assert len(curve.steps) == 11 and curve.steps[[0, -1]].tolist() == [0, 999]
    np.testing.assert_allclose(curve.value, curve.steps * 2)


def test_curves_without_common_steps_are_refused():
    with pytest.raises(ValueError, match="no steps in common"):
        sample_efficiency([([0, 1], [0, 1]), ([5, 6], [0, 1])])
