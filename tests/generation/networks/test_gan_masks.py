"""YLG's masks against a slow construction from the paper's text and the counts of the authors' code."""

from __future__ import annotations

import pytest
import torch

from hamburger.generation.networks.contexts import HEADS, attention_pattern, build_masks, rank_cells


def slow_ranks(height, width):
    """Walk the anti-diagonals from the top left, each from its topmost cell down."""
    ranks, rank = {}, 0
    for distance in range(height + width - 1):
        for i in range(height):
            j = distance - i
            if 0 <= j < width:
                ranks[i, j] = rank
                rank += 1
    return ranks


def slow_sees(name, a, b, s):
    """Whether rank a attends to rank b, with segments of s ranks."""
    same = a // s == b // s
    return {
        "ltr-1": same and b <= a,
        "rtl-1": same and b >= a,
        "ltr-2": a == b or (b + 1) % s == 0,
        "rtl-2": a == b or b % s == 0,
    }[name]


@pytest.mark.parametrize(("height", "width"), [(8, 8), (16, 16), (8, 12)])
def test_masks_against_a_slow_construction(height, width):
    rows, columns = height // 2, width // 2
    ranks = slow_ranks(rows, columns)
    cells = [(i, j) for i in range(rows) for j in range(columns)]
    s = int(len(cells) ** 0.5)
    actual = build_masks(height, width)
    assert actual.shape == (8, height * width, len(cells))
    for head, name in enumerate(HEADS):
        for query in range(height * width):
            query_cell = cells[query % len(cells)]
            row = torch.tensor([slow_sees(name, ranks[query_cell], ranks[cell], s) for cell in cells])
            assert torch.equal(actual[head, query], row), (name, query)


def test_enumeration_of_a_small_grid():
    assert rank_cells(3, 3).tolist() == [0, 1, 3, 2, 4, 6, 5, 7, 8]


def test_counts_at_32_pixels():
    actual = build_masks(32, 32)
    assert actual.shape == (8, 1024, 256)
    for name, mask in zip(HEADS, actual, strict=True):
        per_query = mask.sum(1)
        assert mask.sum() == (8_704 if name.endswith("1") else 17_344)
        low, high = (1, 16) if name.endswith("1") else (16, 17)
        assert (per_query.min(), per_query.max()) == (low, high)


def test_queries_use_the_row_of_another_position():
    """Query (y, x) takes the row of the key (2 (y mod 8) + [x >= 16], x mod 16)."""
    masks, cells = build_masks(32, 32), rank_cells(16, 16)
    for y, x in ((0, 0), (9, 20), (31, 31), (17, 3)):
        cell = 16 * (2 * (y % 8) + (x >= 16)) + x % 16
        row = attention_pattern(HEADS[0], 256)[cells[cell], cells]
        assert torch.equal(masks[0, 32 * y + x], row)


@pytest.mark.parametrize("way", ["ltr", "rtl"])
def test_full_information_needs_the_second_pattern_after_the_first(way):
    first, second = (attention_pattern(f"{way}-{i}", 256).long() for i in (1, 2))
    assert (second @ first > 0).all()
    assert not (first @ second > 0).all()
