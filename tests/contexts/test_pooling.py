"""Average pooling, window by window."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hamburger as hb
from hamburger.contexts.pooling import AveragePooling


def averages(x, window):
    """The mean of the positions of the map that a window holds."""
    *_, h, w = x.shape
    reach = window // 2
    out = np.empty_like(x)
    for i in range(h):
        for j in range(w):
            rows, columns = slice(max(0, i - reach), i + reach + 1), slice(max(0, j - reach), j + reach + 1)
            out[:, :, i, j] = x[:, :, rows, columns].mean((2, 3))
    return out


@pytest.mark.parametrize("window", [1, 3, 5])
def test_values(window):
    layer = AveragePooling(4, window=window)
    x = torch.randn(2, 4, 5, 7, dtype=torch.float64)
    expected = torch.from_numpy(averages(x.numpy(), window))
    assert torch.allclose(layer(x), expected) and torch.allclose(layer.context(x), expected - x)
    assert not list(layer.parameters())


def test_an_even_window_is_refused():
    with pytest.raises(hb.OptionError, match=r"pooling: window must be odd, .*\(got 4\)"):
        hb.create_context("pooling", 8, window=4)
