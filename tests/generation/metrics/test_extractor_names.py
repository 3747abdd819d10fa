"""Extractors by the names of `ham gan fid --extractor`."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from gan_run import Means

from hamburger.errors import CheckpointError, InputError, OptionError
from hamburger.generation.metrics.extractors import create_extractor, distance_name


def test_extractors_by_name(tmp_path):
    with pytest.raises(OptionError, match=r"needs --weights pt_inception.*not called FID"):
        create_extractor("inception")
    with pytest.raises(OptionError, match="did you mean 'inception'"):
        create_extractor("inceptio")
    with pytest.raises(OptionError, match=r"gan fid: there is no file --weights .*none\.pth"):
        create_extractor("inception", tmp_path / "none.pth")
    (tmp_path / "other.pth").write_bytes(b"other weights")
    with pytest.raises(CheckpointError, match="the weights that FID is defined by"):
        create_extractor("inception", tmp_path / "other.pth")
    own = create_extractor("gan_run:Means", size=8)
    assert own.label.startswith("Means@8 bilinear-antialias sha256:")
    assert own.version is None
    with pytest.raises(OptionError, match="gan_run:Nothing"):
        create_extractor("gan_run:Nothing")


def test_a_module_declares_the_version_of_its_features(monkeypatch):
    monkeypatch.setattr(Means, "features_version", "3", raising=False)
    assert create_extractor("gan_run:Means", size=8).version == "3"
    monkeypatch.setattr(Means, "features_version", 3)
    with pytest.raises(OptionError, match="features_version must be a string, got 3"):
        create_extractor("gan_run:Means", size=8)


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("torch-fidelity", {"resizer": "bilinear"}, "brings its own resizer; leave --resizer out"),
        ("torch-fidelity", {"size": 64}, "brings its own size"),
        ("torch-fidelity", {"weights": "w"}, "brings its own weights"),
        ("gan_run:Means", {"weights": "w"}, "brings its own weights; leave --weights out"),
        ("inception", {"weights": "w", "size": 64}, "brings its own size"),
    ],
)
def test_options_that_do_not_apply_to_an_extractor_are_refused(name, options, complaint):
    with pytest.raises(OptionError, match=complaint):
        create_extractor(name, **options)


def test_torch_fidelity_where_it_is_installed(monkeypatch):
    """With a stand-in, since the tests do not require the package."""
    monkeypatch.setitem(sys.modules, "torch_fidelity", None)
    with pytest.raises(OptionError, match="pip install torch-fidelity"):
        create_extractor("torch-fidelity")

    class StandIn(torch.nn.Module):
        def __init__(self, name, features):
            super().__init__()
            self.features = features

        def forward(self, images):
            assert images.dtype == torch.uint8 and self.features == ["2048"]
            assert not self.training and not torch.is_autocast_enabled("cpu")
            return (images.float().mean((2, 3)),)

    package = types.ModuleType("torch_fidelity")
    package.__version__ = "0.4.0"
    module = types.ModuleType("torch_fidelity.feature_extractor_inceptionv3")
    module.FeatureExtractorInceptionV3 = StandIn
    monkeypatch.setitem(sys.modules, "torch_fidelity", package)
    monkeypatch.setitem(sys.modules, "torch_fidelity.feature_extractor_inceptionv3", module)
    extractor = create_extractor("torch-fidelity")
    extractor.network.train()  # the extractor restores evaluation mode and full precision
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert extractor(torch.full((2, 3, 8, 8), 7, dtype=torch.uint8)).tolist() == [[7.0] * 3] * 2
    with pytest.raises(InputError, match="resize: images must be uint8"):
        extractor(torch.rand(2, 3, 8, 8))
    assert extractor.label.startswith("torch-fidelity_inception@299 its-own sha256:")
    assert extractor.version == "0.4.0"
    assert distance_name(extractor.label) == "frechet[torch-fidelity_inception@299]"


def test_the_real_torch_fidelity():
    """The features of one image do not depend on the others."""
    pytest.importorskip("torch_fidelity")
    try:
        extractor = create_extractor("torch-fidelity")
    except OSError as error:  # it downloads its weights on first use
        pytest.skip(f"its weights are not available ({error})")
    images = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8)
    extractor.network.train()
    features = extractor(images)
    assert features.shape == (3, 2048) and features.dtype == torch.float32 and not features.requires_grad
    torch.testing.assert_close(extractor(images[:1]), features[:1], rtol=1e-4, atol=1e-4)
    assert distance_name(extractor.label) == "frechet[torch-fidelity_inception@299]"
