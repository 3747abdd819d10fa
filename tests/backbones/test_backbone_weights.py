"""Loading files into backbones: entries that fit, entries that do not, and the real ResNet-50 if present."""

from __future__ import annotations

import warnings

import pytest
import torch
from paths import SHARED
from tolerances import assert_close

from hamburger.backbones import create_backbone, load_backbone
from hamburger.backbones.create import dequantise_state
from hamburger.errors import CheckpointError, InputError

safetensors = pytest.importorskip("safetensors.torch")
# 26 MB, too large for the repository: used if the file is next to the checkout
REAL = SHARED / "data" / "weights" / "resnet50_v1_imagenet_int8.safetensors"


def plain(**options):
    return create_backbone("resnet18", stem="plain", **options)


def quantised(state):
    tensors = {}
    for name, value in state.items():
        if value.dim() < 2:
            tensors[name] = value
            continue
        scale = value.abs().amax(tuple(range(1, value.dim()))) / 127
        tensors[name] = (value / scale.reshape(-1, *[1] * (value.dim() - 1))).round().to(torch.int8)
        tensors[name + ".scale"] = scale
    return tensors


@pytest.mark.parametrize("kind", ["safetensors", "pth", "wrapped", "whole"])
def test_every_file_format_loads_completely(kind, tmp_path):
    source = plain()
    state = {**source.state_dict(), "fc.weight": torch.zeros(10, 512), "fc.bias": torch.zeros(10)}
    path = tmp_path / ("w.pth" if kind in ("pth", "wrapped") else "w.safetensors")
    if kind == "pth":
        torch.save(state, path)
    elif kind == "wrapped":
        torch.save({"state_dict": {f"module.{name}": value for name, value in state.items()}}, path)
    elif kind == "whole":
        whole = {f"backbone.{name}": value for name, value in source.state_dict().items()}
        safetensors.save_file({**whole, "head.classifier.weight": torch.zeros(2)}, path)
    else:
        safetensors.save_file(state, path)
    backbone = plain(pretrained=path)
    for name, value in source.state_dict().items():
        assert torch.equal(backbone.state_dict()[name], value), name
    report = backbone.report
    assert report.ok and report.loaded.keys() == source.state_dict().keys()
    assert sorted(report.skipped) == (["head.classifier.weight"] if kind == "whole" else ["fc.bias", "fc.weight"])


def test_int8_weights_with_a_factor_per_channel_are_dequantised(tmp_path):
    source = plain()
    safetensors.save_file(quantised(source.state_dict()), tmp_path / "w.safetensors")
    backbone = plain(pretrained=tmp_path / "w.safetensors")
    assert backbone.report.ok
    for name, value in source.state_dict().items():
        error = (backbone.state_dict()[name] - value).abs()
        half_a_step = value.abs().flatten(1).amax(1) / 254 if value.dim() > 1 else torch.zeros(())
        assert (error.flatten(1 if value.dim() > 1 else 0).amax(-1) <= half_a_step * 1.001).all(), name
    with pytest.raises(CheckpointError, match="one factor for each of the 2 output channels"):
        dequantise_state({"w": torch.ones(2, 3, dtype=torch.int8), "w.scale": torch.ones(3)})


def test_timm_names_map_to_its_feature_extractors(tmp_path):
    timm = pytest.importorskip("timm")
    source = timm.create_model("convnext_atto", num_classes=2)
    safetensors.save_file(source.state_dict(), tmp_path / "w.safetensors")
    backbone = create_backbone("timm:convnext_atto", pretrained=tmp_path / "w.safetensors")
    assert backbone.report.ok, str(backbone.report)
    assert torch.equal(backbone.net.stages_2.blocks[1].mlp.fc1.weight, source.stages[2].blocks[1].mlp.fc1.weight)


def test_plain_stem_weights_in_a_deep_stem_network_warn(tmp_path):
    torch.save(plain().state_dict(), tmp_path / "w.pth")
    backbone = create_backbone("resnet18")
    with pytest.warns(UserWarning, match=r"the stem was not loaded.*pass stem='plain'"):
        report = load_backbone(backbone, tmp_path / "w.pth")
    assert report.problems["conv1.weight"] == "unexpected in the file"
    assert report.problems["conv1.0.weight"] == "missing from the file" and "bn1.weight" in report.problems
    assert "(64,) in the file, (128,) in the network" in str(report)


def test_a_v1_file_in_a_v15_network_warns(tmp_path):
    metadata = {"arch": "ResNet-18 v1 (stride in the first 1x1)"}
    safetensors.save_file(plain().state_dict(), tmp_path / "w.safetensors", metadata=metadata)
    with pytest.warns(UserWarning, match=r"the file states v1, the network is v1\.5; change stride_in"):
        plain(pretrained=tmp_path / "w.safetensors")
    assert plain(stride_in="1x1", pretrained=tmp_path / "w.safetensors").report.ok


def test_a_refused_file_leaves_the_network_unchanged(tmp_path):
    backbone = plain()
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    torch.save({"a.weight": torch.zeros(3)}, tmp_path / "other.pth")
    with pytest.raises(CheckpointError, match=r"fills only 0% .* another network"):
        load_backbone(backbone, tmp_path / "other.pth")
    broken = {**before, "bn1.bias": torch.full((64,), float("nan"))}
    torch.save(broken, tmp_path / "nan.pth")
    with pytest.raises(CheckpointError, match=r"NaN or infinity in bn1\.bias"):
        load_backbone(backbone, tmp_path / "nan.pth")
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        load_backbone(backbone, tmp_path / "junk.safetensors")
    with pytest.raises(InputError, match="there is no file 'imagenet'"):
        plain(pretrained="imagenet")
    for name, value in backbone.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.skipif(not REAL.is_file(), reason="needs the ResNet-50 weights")
def test_the_real_weights_give_torchvisions_logits():
    """torchvision's network with its strides moved to the first 1x1, weights dequantised by hand."""
    torchvision = pytest.importorskip("torchvision")
    options = {"output_stride": 32, "multigrid": (1, 1, 1), "stem": "plain", "stride_in": "1x1"}
    backbone = create_backbone("resnet50", pretrained=REAL, **options).eval()
    assert backbone.report.ok and sorted(backbone.report.skipped) == ["fc.bias", "fc.weight"]
    stored = safetensors.load_file(REAL)
    state = {}
    for name, value in stored.items():
        if not name.endswith(".scale"):
            scale = stored.get(name + ".scale")
            pairs = zip(value, value if scale is None else scale, strict=True)
            state[name] = value if scale is None else torch.stack([v.float() * s for v, s in pairs])
    theirs = torchvision.models.resnet50(weights=None).eval()
    theirs.load_state_dict(state, strict=False)
    for stage in (theirs.layer2, theirs.layer3, theirs.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    x = torch.randn(2, 3, 129, 97)
    with torch.no_grad():
        logits = backbone(x)[-1].mean((2, 3)) @ state["fc.weight"].T + state["fc.bias"]
        assert_close(logits, theirs(x), slack=5)
    assert logits.softmax(1).amax() < 0.999 and logits.std() > 0.5


@pytest.mark.skipif(not REAL.is_file(), reason="needs the ResNet-50 weights")
def test_the_real_weights_in_hamnets_backbone_warn_about_stem_and_strides():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        create_backbone("resnet50", pretrained=REAL)
    text = "".join(str(one.message) for one in caught)
    assert "pass stem='plain'" in text and "change stride_in" in text
