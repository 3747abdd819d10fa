"""Extractors: reproducible features, verified weights, and labels in results."""

from __future__ import annotations

import math

import pytest
import torch
from gaussians import fit_gaussian
from tolerances import assert_close
from torch import nn

from hamburger.errors import InputError, OptionError, ShapeError
from hamburger_lab.gan_metrics.distances import KernelDistance, PrecisionRecall
from hamburger_lab.gan_metrics.evaluate import Distances, collect_features
from hamburger_lab.gan_metrics.extractors import (
    OFFICIAL_SHA256,
    distance_name,
    module_extractor,
    state_digest,
)


def images(b=4, size=16):
    return torch.randint(256, (b, 3, size, size), dtype=torch.uint8)


class Small(nn.Module):
    def __init__(self, d=6):
        super().__init__()
        self.conv = nn.Conv2d(3, d, 3)
        self.norm = nn.BatchNorm2d(d)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.norm(self.conv(x))).mean((2, 3))


def test_hash_of_the_official_weights():
    assert OFFICIAL_SHA256 == "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"


def test_same_images_same_features():
    extractor = module_extractor(Small(), "small", size=12)
    x = images()
    first = extractor(x)
    extractor.network.train()  # dropout and batch statistics would change the features
    assert torch.equal(extractor(x), first)
    assert_close(torch.cat([extractor(part) for part in x.split(1)]), first)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(extractor(x), first)
    assert first.dtype == torch.float32
    assert not first.requires_grad


def test_labels_depend_on_name_weights_and_size():
    net = Small()
    label = module_extractor(net, "small", size=12).label
    assert label == module_extractor(net, "small", size=12).label
    assert label == f"small@12 bilinear-antialias sha256:{state_digest(net)[:16]}"
    others = {
        module_extractor(net, "tiny", size=12).label,
        module_extractor(net, "small", size=13).label,
    }
    kept = module_extractor(net, "small", size=12)
    before = kept(x := images())
    with torch.no_grad():
        net.norm.running_mean[0] += 1e-3
    others.add(module_extractor(net, "small", size=12).label)
    assert label not in others
    assert len(others) == 3
    assert torch.equal(kept(x), before)
    assert kept.label == label


def test_misleading_names_are_refused():
    with pytest.raises(OptionError, match="reserved"):
        module_extractor(Small(), "fid_inception", size=12)
    with pytest.raises(OptionError, match="letters"):
        module_extractor(Small(), "FID @299", size=12)
    assert distance_name("FID") == "frechet[FID]"


def test_a_network_must_return_one_row_per_image():
    with pytest.raises(ShapeError, match="'b d'"):
        module_extractor(nn.Conv2d(3, 4, 1), "maps", size=8)(images())


def test_streamed_statistics_equal_those_of_all_features():
    extractor = module_extractor(Small(), "small", size=12)
    x = images(20)
    whole = fit_gaussian(extractor(x))
    for split in (1, 7, 20):
        actual, kept = collect_features(x.split(split), extractor, keep=9)
        torch.testing.assert_close(actual.mean, whole.mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(actual.covariance, whole.covariance, rtol=1e-4, atol=1e-6)
        assert_close(kept, extractor(x[:9]))
    with pytest.raises(InputError, match="no images"):
        collect_features([], extractor)


def test_a_result_names_its_extractor():
    extractor = module_extractor(Small(), "small", size=12)
    kernel, neighbours = KernelDistance(0.125, 0.25, 4, 20), PrecisionRecall(0.5, 0.75, 3)
    actual = Distances(extractor.label, 40, 30, 1.5, kernel, neighbours)
    row = actual.row()
    assert actual.name == row["name"] == "frechet[small@12]"
    assert row["extractor"] == extractor.label
    assert extractor.label in str(actual)
    assert "FID" not in str(actual)
    assert (row["frechet"], row["kid"], row["precision"], row["recall"]) == (1.5, 0.125, 0.5, 0.75)
    assert row["kid_subset_std"] == pytest.approx(row["kid_standard_error"] * math.sqrt(4)) and "+-" not in str(actual)
    assert f"{row['kid']:.5f} (subsets of 20 vary by {row['kid_subset_std']:.5f}), precision" in str(actual)
    assert (row["real_images"], row["fake_images"], row["kid_subset_size"], row["neighbours"]) == (40, 30, 20, 3)
