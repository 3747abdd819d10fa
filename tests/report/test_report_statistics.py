"""Means, deviations and intervals against scipy."""

from __future__ import annotations

import pytest
from scipy import stats

from hamburger.report.study import compare_paired, half_width, summarise, t_quantile


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.706204736174698), (2, 4.302652729749462), (4, 2.776445105197793), (9, 2.2621571628540993)],
)
def test_t_quantiles_match_published_tables(degrees, quantile):
    assert t_quantile(0.975, degrees) == pytest.approx(quantile, rel=1e-9)


def test_half_width_needs_two_values():
    assert half_width(summarise([1.0, 3.0])) == pytest.approx(t_quantile(0.975, 1))
    with pytest.raises(ValueError, match="at least two values"):
        half_width(summarise([1.0]))


def test_paired_interval_matches_scipy():
    ours, theirs = {1: 0.72, 2: 0.71, 3: 0.75, 4: 0.70}, {1: 0.70, 2: 0.68, 3: 0.70, 4: 0.71, 9: 0.1}
    comparison = compare_paired(ours, theirs)
    test = stats.ttest_rel([ours[s] for s in (1, 2, 3, 4)], [theirs[s] for s in (1, 2, 3, 4)])
    interval = test.confidence_interval(0.95)
    assert comparison.n == 4
    assert comparison.interval == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert not comparison.clear


def test_difference_is_clear_if_zero_is_outside():
    theirs = dict.fromkeys(range(3), 0.5)
    assert compare_paired({0: 0.60, 1: 0.61, 2: 0.62}, theirs).clear
    assert compare_paired({0: 0.40, 1: 0.41, 2: 0.42}, theirs).clear
    assert not compare_paired({0: 0.40, 1: 0.61, 2: 0.52}, theirs).clear


def test_few_seeds_have_no_interval():
    assert compare_paired({0: 1.0, 1: 1.5}, {0: 0.5, 1: 0.5}).interval is None
    assert compare_paired({0: 1.0}, {1: 0.5}) is None
    assert summarise([0.25]).deviation is None


def test_deviation_is_the_sample_deviation():
    values = [0.3, 0.5, 0.4, 0.9]
    assert summarise(values).deviation == pytest.approx(stats.tstd(values))
