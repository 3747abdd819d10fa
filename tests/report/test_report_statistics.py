"""Means, deviations and intervals against scipy."""

from __future__ import annotations

import pytest
from scipy import stats

from hamburger.report.statistics import paired, summarise, t_below, t_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 30])
def test_students_distribution_is_scipys(freedom):
    for t in (-1.7, 0.0, 0.4, 2.5, 12.0):
        assert t_below(t, freedom) == pytest.approx(stats.t.cdf(t, freedom), abs=1e-12)
    for share in (0.6, 0.975, 0.995):
        assert t_quantile(share, freedom) == pytest.approx(stats.t.ppf(share, freedom), rel=1e-9)


def test_a_paired_interval_is_scipys():
    ours, theirs = {1: 0.72, 2: 0.71, 3: 0.75, 4: 0.70}, {1: 0.70, 2: 0.68, 3: 0.70, 4: 0.71, 9: 0.1}
    found = paired(ours, theirs)
    test = stats.ttest_rel([ours[s] for s in (1, 2, 3, 4)], [theirs[s] for s in (1, 2, 3, 4)])
    interval = test.confidence_interval(0.95)
    assert found.n == 4
    assert found.interval == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert not found.clear


def test_clear_means_that_zero_is_outside():
    theirs = dict.fromkeys(range(3), 0.5)
    assert paired({0: 0.60, 1: 0.61, 2: 0.62}, theirs).clear
    assert paired({0: 0.40, 1: 0.41, 2: 0.42}, theirs).clear
    assert not paired({0: 0.40, 1: 0.61, 2: 0.52}, theirs).clear


def test_few_seeds_have_no_interval():
    assert paired({0: 1.0, 1: 1.5}, {0: 0.5, 1: 0.5}).interval is None
    assert paired({0: 1.0}, {1: 0.5}) is None
    assert summarise([0.25]).deviation is None


def test_the_deviation_is_that_of_a_sample():
    values = [0.3, 0.5, 0.4, 0.9]
    assert summarise(values).deviation == pytest.approx(stats.tstd(values))
