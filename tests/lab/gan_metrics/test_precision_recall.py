"""Precision and recall of point sets with known values, and against plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hamburger.errors import NotFiniteError, OptionError, ShapeError
from hamburger_lab.gan_metrics import distances as module
from hamburger_lab.gan_metrics.distances import neighbour_radii, precision_recall


def line(*values):
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def by_loops(real, fake, k):
    def share(points, centres):
        reach = [sorted(math.dist(c, o) for j, o in enumerate(centres) if j != i)[k - 1] for i, c in enumerate(centres)]
        inside = [any(math.dist(p, c) <= r for c, r in zip(centres, reach, strict=True)) for p in points]
        return sum(inside) / len(inside)

    return share(fake, real), share(real, fake)


def test_radii_by_hand():
    assert neighbour_radii(line(0, 1, 3, 7), 1).tolist() == [1, 1, 2, 4]
    assert neighbour_radii(line(0, 1, 3, 7), 3).tolist() == [7, 6, 4, 7]
    assert neighbour_radii(line(2, 2, 2, 5), 2).tolist() == [0, 0, 0, 3]


def test_sets_by_hand():
    real, fake = line(0, 1, 2, 3), line(0.5, 1.5, 40, 41)
    # k = 1: real balls of radius 1 hold 0.5 and 1.5; fake balls reach [-0.5, 1.5] and [0.5, 2.5] and those near 40
    actual = precision_recall(real, fake, k=1)
    assert (actual.precision, actual.recall, actual.k) == (0.5, 0.75, 1)


def test_equal_sets_and_sets_far_apart():
    x = torch.randn(50, 8)
    same = precision_recall(x, x)
    assert (same.precision, same.recall, same.k) == (1, 1, 3)
    apart = precision_recall(x, x + 1000)
    assert (apart.precision, apart.recall) == (0, 0)


def test_a_collapsed_generator_is_precise_and_recalls_little():
    real = torch.randn(200, 2)
    collapsed = real[:1].repeat(50, 1)
    actual = precision_recall(real, collapsed)
    assert actual.precision == 1
    assert actual.recall == 1 / 200  # balls of radius 0 hold the one real sample that was copied


def test_the_boundary_belongs_to_the_ball():
    actual = precision_recall(line(0, 1), line(2, 2), k=1)
    assert actual.precision == 1
    assert actual.recall == 0


@given(st.integers(4, 12), st.integers(4, 12), st.integers(1, 3), st.integers(0, 10**6))
def test_precision_and_recall_match_loops(n, m, k, seed):
    torch.manual_seed(seed)
    real, fake = torch.randn(n, 2).double(), torch.randn(m, 2).double() * 1.5
    actual = precision_recall(real, fake, k=k)
    assert (actual.precision, actual.recall) == pytest.approx(by_loops(real.tolist(), fake.tolist(), k))


def test_blocks_change_nothing(monkeypatch):
    real, fake = torch.randn(57, 5), torch.randn(43, 5)
    whole = precision_recall(real, fake)
    for pairs in (1, 100, 57 * 9):
        monkeypatch.setattr(module, "PAIRS", pairs)
        assert precision_recall(real, fake) == whole


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "PAIRS", 1000)
    shapes, plain = [], module._distances

    def seen(x, y):
        distances = plain(x, y)
        shapes.append(distances.numel())
        return distances

    monkeypatch.setattr(module, "_distances", seen)
    precision_recall(torch.randn(300, 2), torch.randn(200, 2))
    assert max(shapes) <= 1000


def test_mistakes_are_named():
    x = torch.randn(10, 3)
    with pytest.raises(OptionError, match="more than 3"):
        precision_recall(x, x[:3])
    with pytest.raises(OptionError):
        precision_recall(x, x, k=0)
    with pytest.raises(ShapeError):
        precision_recall(x, torch.randn(10, 4))
    with pytest.raises(NotFiniteError):
        precision_recall(x, x / 0)
