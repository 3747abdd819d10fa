"""Distances of saved features, computed by a program that shares no code with the library."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gaussians import fit_gaussian
from torch import nn

from hamburger_lab.gan_metrics.distances import frechet_distance, mmd2, precision_recall
from hamburger_lab.gan_metrics.extractors import module_extractor

PROGRAM = Path(__file__).parents[2] / "helpers" / "saved_features.py"


@pytest.mark.parametrize("k", [1, 3])
def test_an_independent_program_computes_the_same_distances(tmp_path, k):
    torch.manual_seed(5)
    net = nn.Sequential(nn.Conv2d(3, 7, 5, stride=3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    extractor = module_extractor(net, "small", size=12)
    real = torch.randint(256, (60, 3, 16, 16), dtype=torch.uint8)
    fake = torch.randint(20, 250, (45, 3, 16, 16), dtype=torch.uint8)
    features = [extractor(images) for images in (real, fake)]
    paths = [tmp_path / "real.npy", tmp_path / "fake.npy"]
    for path, each in zip(paths, features, strict=True):
        np.save(path, each.numpy())
    output = subprocess.run(
        [sys.executable, PROGRAM, *paths, str(k)], capture_output=True, text=True, check=True
    ).stdout
    theirs = json.loads(output)

    ours = precision_recall(*features, k=k)
    assert 0 < ours.precision < 1 and 0 < ours.recall < 1, "fractions of 0 or 1 would test little"
    assert (ours.precision, ours.recall) == (theirs["precision"], theirs["recall"])
    assert mmd2(*features) == pytest.approx(theirs["kernel"], rel=1e-9)
    assert frechet_distance(*map(fit_gaussian, features)) == pytest.approx(theirs["frechet"], rel=1e-7)
