"""EfficientNet-Lite0 as a feature extractor of `ham gan grid`."""

from __future__ import annotations

import pytest
import torch
from paths import SHARED
from tolerances import assert_close

from hamburger.errors import OptionError
from hamburger_lab.efficientnet import EfficientNetLite0, efficientnet_lite0
from hamburger_lab.gan_grid import open_extractor
from hamburger_lab.gan_metrics.extractors import distance_name

LITE0 = SHARED / "data" / "weights" / "efficientnet_lite0_imagenet_fp16.safetensors"
needs_lite0 = pytest.mark.skipif(not LITE0.is_file(), reason="the weights of EfficientNet-Lite0 are not available")


def test_lite0_reads_the_names_of_efficientnet_lite_pytorch():
    """Its names of layers, as in that package; timm's network pads as TensorFlow does and has the same eps."""
    net = EfficientNetLite0().eval()
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    names = [f"{layer}.{field}" for layer in ("_bn0", "_bn1") for field in norm]
    names += ["_conv_stem.weight", "_conv_head.weight", "_fc.weight", "_fc.bias"]
    for block in range(16):
        convs = ("_expand_conv", "_depthwise_conv", "_project_conv")[block == 0 :]  # the first one does not expand
        names += [f"_blocks.{block}.{conv}.weight" for conv in convs]
        names += [f"_blocks.{block}._bn{i}.{field}" for i in range(block == 0, 3) for field in norm]
    renamed = net.rename(dict.fromkeys(names, torch.zeros(())))
    assert set(renamed) == set(net.state_dict()) and len(renamed) == len(names)
    x = torch.rand(2, 3, 75, 75)
    with torch.no_grad():
        expected = net.net.forward_head(net.net.forward_features((255 * x - 127) / 128), pre_logits=True)
        assert_close(net(x), expected)


@needs_lite0
def test_lite0_with_its_pretrained_weights():
    pytest.importorskip("safetensors")
    lite = efficientnet_lite0(LITE0)
    assert lite.label.startswith("efficientnet_lite0@224 bilinear-antialias sha256:")
    assert distance_name(lite.label) == "frechet[efficientnet_lite0@224]"
    x = torch.randint(256, (3, 3, 64, 64), dtype=torch.uint8)
    out = lite(x)
    assert out.shape == (3, 1280)
    assert torch.equal(out, lite(x))
    assert out.min() >= 0  # after a ReLU6
    assert out.max() <= 6
    assert_close(torch.cat([lite(x[:1]), lite(x[1:])]), out)
    assert efficientnet_lite0(LITE0, size=128).label != lite.label


def test_weights_are_required(tmp_path):
    for weights in (None, tmp_path / "none.pth"):
        with pytest.raises(OptionError, match="needs the file of its weights"):
            open_extractor("efficientnet-lite0", weights, None)
