"""The Hamburgers by name."""

from __future__ import annotations

import pytest

import hamburger as hb


@pytest.mark.parametrize("name", ["nmf", "vq", "cd"])
@pytest.mark.parametrize(
    ("channels", "options", "rank"),
    [(512, {}, 64), (64, {}, 8), (16, {}, 8), (64, {"inner": 256}, 32), (64, {"rank": 5}, 5)],
)
def test_the_rank_follows_the_width_as_in_the_paper(name, channels, options, rank):
    layer = hb.create_context(name, channels, **options)
    assert layer.ham.ham.rank == rank
    assert layer.ham.dictionary.bases.shape == (1, options.get("inner", channels), rank)


def test_bad_widths_are_named():
    with pytest.raises(hb.OptionError, match="channels must be a whole number"):
        hb.create_context("nmf", 0)
    with pytest.raises(hb.OptionError, match="inner must be a whole number"):
        hb.create_context("vq", 64, inner="wide")
