"""Extractors by the names of `ham gan fid --extractor`."""

from __future__ import annotations

import hashlib
import sys
import types

import pytest
import torch
from gan_run import Means

from hamburger.errors import CheckpointError, InputError, OptionError, ShapeError
from hamburger_lab.gan_metrics import extractors
from hamburger_lab.gan_metrics.extractors import create_extractor, distance_name


def test_extractors_by_name(tmp_path):
    with pytest.raises(OptionError, match="did you mean 'inception'"):
        create_extractor("inceptio")
    with pytest.raises(OptionError, match=r"gan fid: there is no file --weights .*none\.pth"):
        create_extractor("inception", tmp_path / "none.pth")
    extractor = create_extractor("gan_run:Means", size=8)
    assert extractor.label.startswith("Means@8 bilinear-antialias sha256:")
    assert extractor.version is None
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
        ("gan_run:Means", {"weights": "w"}, "brings its own weights; leave --weights out"),
        ("inception", {"weights": "w", "size": 64}, "brings its own size"),
    ],
)
def test_options_that_do_not_apply_to_an_extractor_are_refused(name, options, complaint):
    with pytest.raises(OptionError, match=complaint):
        create_extractor(name, **options)


@pytest.fixture
def package(monkeypatch, tmp_path):
    """A stand-in for torch-fidelity, since the tests do not require the package."""

    class StandIn(torch.nn.Module):
        def __init__(self, name, features, feature_extractor_weights_path):
            super().__init__()
            self.features, self.path = features, feature_extractor_weights_path

        def forward(self, images):
            assert images.dtype == torch.uint8 and self.features == ["2048"]
            assert not self.training and not torch.is_autocast_enabled("cpu")
            return (images.float().mean((2, 3)),)

    package = types.ModuleType("torch_fidelity")
    package.__version__ = "0.4.0"
    module = types.ModuleType("torch_fidelity.feature_extractor_inceptionv3")
    module.FeatureExtractorInceptionV3 = StandIn
    module.URL_INCEPTION_V3 = f"file://{tmp_path}/published/weights-inception-2015-12-05-6726825d.pth"
    monkeypatch.setitem(sys.modules, "torch_fidelity", package)
    monkeypatch.setitem(sys.modules, "torch_fidelity.feature_extractor_inceptionv3", module)


def test_inception_needs_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_fidelity", None)
    with pytest.raises(OptionError, match="pip install torch-fidelity"):
        create_extractor("inception")


def test_only_the_official_weights_are_used(package, monkeypatch, tmp_path):
    path = tmp_path / "weights.pth"
    path.write_bytes(b"other weights")
    with pytest.raises(CheckpointError, match=r"the weights that FID is defined by have 6726825d0af5f729"):
        create_extractor("inception", path)
    monkeypatch.setattr(extractors, "OFFICIAL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    extractor = create_extractor("inception", path)
    assert extractor.network.network.path == str(path)
    extractor.network.train()  # the extractor restores evaluation mode and full precision
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert extractor(torch.full((2, 3, 8, 8), 7, dtype=torch.uint8)).tolist() == [[7.0] * 3] * 2
    with pytest.raises(InputError, match="extractor: images must be uint8"):
        extractor(torch.rand(2, 3, 8, 8))
    with pytest.raises(ShapeError, match="'b 3 h w'"):
        extractor(torch.zeros(1, 1, 8, 8, dtype=torch.uint8))
    assert extractor.label.startswith("fid_inception@299 bilinear-tf1 sha256:")
    assert extractor.version == "torch-fidelity 0.4.0"
    assert (distance_name(extractor.label), distance_name(extractor.label, "kernel")) == ("FID", "KID")
    monkeypatch.undo()
    assert distance_name(extractor.label) == "frechet[fid_inception@299]"


def test_weights_are_downloaded_once(package, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    published = tmp_path / "published" / "weights-inception-2015-12-05-6726825d.pth"
    published.parent.mkdir()
    published.write_bytes(b"the weights")
    with pytest.raises(RuntimeError, match="invalid hash"):
        create_extractor("inception")
    monkeypatch.setattr(extractors, "OFFICIAL_SHA256", hashlib.sha256(b"the weights").hexdigest())
    create_extractor("inception")
    published.unlink()
    assert distance_name(create_extractor("inception").label) == "FID"


def test_the_real_torch_fidelity(tmp_path, monkeypatch):
    """The features of one image do not depend on the others."""
    module = pytest.importorskip("torch_fidelity.feature_extractor_inceptionv3")
    monkeypatch.setattr(module, "load_state_dict_from_url", lambda *_, **__: None)
    monkeypatch.setattr(module.FeatureExtractorInceptionV3, "load_state_dict", lambda *_: None)
    network = module.FeatureExtractorInceptionV3("inception-v3-compat", ["2048"])
    monkeypatch.undo()
    path = tmp_path / "weights.pth"
    torch.save(network.state_dict(), path)
    monkeypatch.setattr(extractors, "OFFICIAL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    extractor = create_extractor("inception", path)
    images = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8)
    extractor.network.train()
    features = extractor(images)
    assert features.shape == (3, 2048) and features.dtype == torch.float32 and not features.requires_grad
    torch.testing.assert_close(extractor(images[:1]), features[:1], rtol=1e-4, atol=1e-4)
