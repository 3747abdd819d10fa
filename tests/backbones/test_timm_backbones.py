"""Encoders of timm with the interface of our backbones."""

from __future__ import annotations

import pytest
import torch

from hamburger.backbones import create_backbone
from hamburger.errors import CheckpointError, OptionError, ShapeError, UnknownNameError
from hamburger.segmentation.model import create_model

timm = pytest.importorskip("timm")


@pytest.mark.parametrize(
    ("name", "stride", "size"),
    [("resnet18", 16, (65, 47)), ("convnext_atto", 16, (64, 96)), ("mobilenetv3_small_050", 32, (65, 47))],
)
def test_maps_have_the_declared_channels_and_strides(name, stride, size):
    backbone = create_backbone(f"timm:{name}", output_stride=stride).eval()
    with torch.no_grad():
        maps = backbone(torch.randn(1, 3, *size))
    assert len(maps) == 4 and backbone.strides[-1] == stride
    assert tuple(m.shape[1] for m in maps) == backbone.channels
    assert [tuple(m.shape[2:]) for m in maps] == [tuple(-(-n // s) for n in size) for s in backbone.strides]


def test_channels_last_encoders_are_permuted():
    name = "timm:swin_tiny_patch4_window7_224"
    options = {"output_stride": 32, "embed_dim": 12, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 1, 1)}
    backbone = create_backbone(name, **options).eval()
    maps = backbone(torch.randn(1, 3, 224, 224))
    assert [tuple(m.shape[1:]) for m in maps] == [(12, 56, 56), (24, 28, 28), (48, 14, 14), (96, 7, 7)]
    with pytest.raises(ShapeError, match="img_size"):
        backbone(torch.randn(1, 3, 100, 91))
    with pytest.raises(OptionError, match="pass output_stride=32"):
        create_backbone(name, **{**options, "output_stride": 8})


@pytest.mark.parametrize(
    ("name", "stride", "options"),
    [
        ("vit_tiny_patch16_224", 16, {"embed_dim": 24, "depth": 3}),
        ("swin_tiny_patch4_window7_224", 32, {"embed_dim": 12, "depths": (1, 2, 1, 1), "num_heads": (1, 1, 1, 1)}),
    ],
)
def test_transformers_take_images_of_any_size(name, stride, options):
    net = create_model(
        "hamnet", backbone=f"timm:{name}", output_stride=stride, num_classes=3, backbone_options=options
    ).eval()
    assert net.backbone.corners is False
    with torch.no_grad():
        for size in ((33, 47), (64, 64), (1, 1)):
            assert net(torch.randn(1, 3, *size)).shape == (1, 3, *size)
    # their native size still works
    plain = timm.create_model(name, features_only=True, **options).eval()
    plain.load_state_dict(net.backbone.net.state_dict())
    x = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        for actual, expected in zip(net.backbone.net(x), plain(x), strict=True):
            torch.testing.assert_close(actual, expected)


def test_a_fixed_size_encoder_reports_unknown_corners():
    options = {"embed_dim": 24, "depth": 3, "dynamic_img_size": False, "img_size": 32}
    backbone = create_backbone("timm:vit_tiny_patch16_224", output_stride=16, **options)
    assert backbone.corners is None and len(backbone(torch.randn(1, 3, 32, 32))) == 3
    with pytest.raises(ShapeError, match="img_size"):
        backbone(torch.randn(1, 3, 64, 64))


def test_invalid_options_are_named():
    with pytest.raises(UnknownNameError, match="did you mean 'resnet50'"):
        create_backbone("timm:resnt50")
    with pytest.raises(OptionError, match=r"timm\.create_model"):
        create_backbone("timm:resnet18", no_such_option=1)


def test_offline_error_says_what_to_do(monkeypatch):
    def offline(name, **options):
        assert options["pretrained"]
        raise OSError("no route to host")

    monkeypatch.setattr(timm, "create_model", offline)
    for name in ("resnet50", "timm:resnet18"):
        with pytest.raises(CheckpointError, match=r"no route to host; offline, pass the path"):
            create_backbone(name, pretrained="timm")


def test_timm_weights_fit_both_stems(monkeypatch):
    """The names of downloadable weights exist in timm and have our parameters."""
    real = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained, **rest: real(name, pretrained=False, **rest))
    for stem in ("deep", "plain"):
        backbone = create_backbone("resnet50", stem=stem, pretrained="timm")
        assert backbone.report.ok and len(backbone.report.loaded) > 300
    with pytest.raises(OptionError, match="leave stride_in at '3x3'"):
        create_backbone("resnet50", stride_in="1x1", pretrained="timm")
    with pytest.raises(OptionError, match="stem='plain'"):
        create_backbone("resnet18", pretrained="timm")
    with pytest.raises(OptionError, match="no weights for 'tiny'"):
        create_backbone("tiny", output_stride=4, pretrained="timm")
