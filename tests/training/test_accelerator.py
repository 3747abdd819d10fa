"""What a run asks of the backend."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hamburger.training.accelerator import Accelerator, has_depthwise_convolution

DEPTHWISE = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=8))
GROUPED = nn.Sequential(nn.Conv2d(4, 8, 1), nn.Conv2d(8, 8, 3, groups=4))


@pytest.mark.parametrize(
    ("net", "fixed", "expected"), [(GROUPED, True, True), (GROUPED, False, False), (DEPTHWISE, True, False)]
)
def test_cudnn_tries_algorithms_only_where_that_pays(net, fixed, expected, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", not expected)
    hardware = Accelerator("cpu")
    hardware.autotune(net, fixed_batch_size=fixed)
    assert torch.backends.cudnn.benchmark is not expected  # a CPU run leaves the setting alone
    monkeypatch.setattr(Accelerator, "on_gpu", True)
    hardware.autotune(net, fixed_batch_size=fixed)
    assert torch.backends.cudnn.benchmark is expected


def test_a_network_of_one_channel_has_no_depthwise_convolution():
    assert not has_depthwise_convolution(nn.Conv2d(1, 1, 3))
    assert has_depthwise_convolution(DEPTHWISE)
