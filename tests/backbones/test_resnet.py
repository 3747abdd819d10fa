"""The dilated ResNets: sizes, strides, dilations of the authors' code, and values against torchvision's."""

from __future__ import annotations

import pytest
import torch
from tolerances import assert_close

from hamburger.backbones import backbones, create_backbone
from hamburger.errors import OptionError, UnknownNameError


def strides_of(name):
    return {"tiny": [4], "resnet101": [8], "resnet34": [16]}.get(name, [8, 16, 32])


@pytest.mark.parametrize("name", backbones.names())
def test_maps_have_the_declared_channels_and_sizes_for_odd_images(name):
    for stride in strides_of(name):
        with torch.device("meta"):  # shapes without the arithmetic
            backbone = create_backbone(name, output_stride=stride)
            maps = backbone(torch.empty(2, 3, 37, 50))
        assert tuple(m.shape[1] for m in maps) == backbone.channels
        assert [tuple(m.shape[2:]) for m in maps] == [(-(-37 // s), -(-50 // s)) for s in backbone.strides]
        assert backbone.strides[-1] == stride


def dilations(stage):
    return [unit.conv2.dilation[0] for unit in stage]


def test_the_last_stages_dilate_as_in_the_authors_code():
    """First unit of a dilated stage: half the dilation. Last stage: times (1, 2, 4)."""
    with torch.device("meta"):
        at16, at8, at32 = (create_backbone("resnet50", output_stride=s) for s in (16, 8, 32))
        plain = create_backbone("resnet50", multigrid=(1, 1, 1))
    assert dilations(at16.layer3) == [1] * 6 and dilations(at16.layer4) == [1, 4, 8]
    assert dilations(at8.layer3) == [1, 2, 2, 2, 2, 2] and dilations(at8.layer4) == [2, 8, 16]
    assert dilations(at32.layer4) == [1, 2, 4]
    assert dilations(plain.layer4) == [1, 2, 2]


def test_stride_is_in_the_3x3_for_v15_and_the_1x1_for_v1():
    for stride_in, expected in (("3x3", [(1, 1), (2, 2), (1, 1)]), ("1x1", [(2, 2), (1, 1), (1, 1)])):
        with torch.device("meta"):
            unit = create_backbone("resnet50", stride_in=stride_in).layer2[0]
        assert [c.stride for c in (unit.conv1, unit.conv2, unit.conv3)] == expected
        assert unit.downsample[0].stride == (2, 2)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
@pytest.mark.parametrize("stride", [8, 32])
def test_values_match_torchvision(name, stride):
    """With a plain stem and no multigrid it is torchvision's network; its dilated form halves the first unit too."""
    if name == "resnet18" and stride == 8:
        pytest.skip("torchvision does not dilate basic blocks")
    torchvision = pytest.importorskip("torchvision")
    options = {"replace_stride_with_dilation": [False, True, True]} if stride == 8 else {}
    theirs = getattr(torchvision.models, name)(weights=None, **options).eval()
    for module in theirs.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
            torch.nn.init.normal_(module.running_mean, std=0.1)
    ours = create_backbone(name, output_stride=stride, stem="plain", multigrid=(1, 1, 1)).eval()
    left, extra = ours.load_state_dict(theirs.state_dict(), strict=False)
    assert left == [] and extra == ["fc.weight", "fc.bias"]
    x = torch.randn(1, 3, 65, 47)
    with torch.no_grad():
        y = theirs.maxpool(theirs.relu(theirs.bn1(theirs.conv1(x))))
        for actual, stage in zip(ours(x), (theirs.layer1, theirs.layer2, theirs.layer3, theirs.layer4), strict=True):
            y = stage(y)
            assert_close(actual, y)


def test_training_survives_one_image_of_one_position():
    backbone = create_backbone("resnet18", output_stride=32)
    maps = backbone(torch.randn(1, 3, 20, 20))
    maps[-1].sum().backward()
    assert maps[-1].shape[2:] == (1, 1) and maps[-1].isfinite().all()


def test_convolutions_start_as_in_the_authors_code():
    backbone = create_backbone("resnet50")
    for convolution, k in ((backbone.conv1[0], 3), (backbone.layer3[1].conv2, 3), (backbone.layer4[0].conv3, 1)):
        weight = convolution.weight.detach()
        assert abs(float(weight.std()) / (2 / (k * k * weight.shape[0])) ** 0.5 - 1) < 0.05


def test_tiny_has_a_receptive_field_of_19_pixels():
    backbone = create_backbone("tiny", output_stride=4, width=4).eval()
    x = torch.randn(1, 3, 64, 64, requires_grad=True)
    backbone(x)[-1][0, :, 8, 8].sum().backward()
    seen = x.grad.abs().sum((0, 1)).nonzero()
    assert (seen.amax(0) - seen.amin(0) + 1).tolist() == [19, 19]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet50", {"output_stride": 4}, "8, 16 or 32"),
        ("resnet50", {"multigrid": (1, 2)}, "each of the 3 units"),
        ("resnet50", {"multigrid": (1, 0, 2)}, "at least 1"),
        ("resnet50", {"stem": "deeep"}, "did you mean 'deep'"),
        ("resnet50", {"stride_in": "7x7"}, "known: 1x1, 3x3"),
        ("resnet50", {"dilation": 2}, "has no option 'dilation'"),
        ("tiny", {"output_stride": 16}, "pass output_stride=4"),
        ("tiny", {"output_stride": 4, "width": 0}, "at least 1"),
    ],
)
def test_invalid_options_are_named(name, options, message):
    with pytest.raises(OptionError, match=message):
        create_backbone(name, **options)


def test_unknown_names_suggest_the_nearest_and_timm():
    with pytest.raises(UnknownNameError, match=r"did you mean 'resnet50'.*timm:<name>"):
        create_backbone("resnet5o")
