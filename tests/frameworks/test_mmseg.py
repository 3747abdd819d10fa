"""Our heads and contexts in configs of mmsegmentation.

mmcv without its compiled operators is enough. mmsegmentation imports them all, and none is used here: where they are
missing, a stub takes their place, which raises when called.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import warnings
from pathlib import Path

import pytest
import torch
from missing_operators import MissingOperators

if None in map(importlib.util.find_spec, ("mmseg", "mmcv", "mmengine")):
    pytest.skip("mmsegmentation is not installed; make test-examples", allow_module_level=True)

if importlib.util.find_spec("mmcv._ext") is None:
    sys.modules["mmcv._ext"] = MissingOperators("mmcv._ext")

from mmengine.config import Config
from mmengine.structures import PixelData
from mmseg.registry import MODELS
from mmseg.structures import SegDataSample
from mmseg.utils import register_all_modules

from hamburger.segmentation.heads import heads

with warnings.catch_warnings(action="ignore"):
    register_all_modules()

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]
PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"
CONFIG = """
custom_imports = dict(imports=["hamburger.mmseg"])
norm = dict(type="BN", requires_grad=True)
model = dict(
    type="EncoderDecoder",
    data_preprocessor=dict(type="SegDataPreProcessor", mean=[0.0] * 3, std=[1.0] * 3, size=(64, 96)),
    backbone=dict(type="ResNet", depth=50, base_channels=8, stem_channels=8, norm_cfg=norm),
    decode_head=dict(
        type="HamburgerHead", in_channels=256, in_index=3, channels=32, num_classes=3, head_options=dict(context="vq")
    ),
    train_cfg=dict(),
    test_cfg=dict(mode="whole"),
)
"""


def build(tmp_path, **changes):
    path = tmp_path / "config.py"
    path.write_text(CONFIG)
    config = Config.fromfile(path)  # runs the custom imports
    config.merge_from_dict(changes)
    torch.manual_seed(0)
    model = MODELS.build(config.model)
    model.init_weights()
    return model


def batch():
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, 3, 64, 96, generator=generator)
    samples = []
    for _ in images:
        labels = torch.randint(3, (1, 64, 96), generator=generator)
        sample = SegDataSample(metainfo={"ori_shape": (64, 96), "img_shape": (64, 96), "pad_shape": (64, 96)})
        sample.set_data({"gt_sem_seg": PixelData(data=labels)})
        samples.append(sample)
    return images, samples


LIGHTHAM = {
    "model.decode_head.head": "lightham",
    "model.decode_head.in_channels": [64, 128, 256],
    "model.decode_head.in_index": [1, 2, 3],
    "model.decode_head.head_options": {"_delete_": True, "inner": 32, "rank": 4},
}


@pytest.mark.parametrize("changes", [{}, LIGHTHAM], ids=["hamnet", "lightham"])
def test_heads_are_trained_by_their_segmentor(tmp_path, changes):
    model = build(tmp_path, **changes)
    images, samples = batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(4):
        loss = model.loss(images, samples)["decode.loss_ce"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(p.grad is not None for p in model.decode_head.parameters())
    model.eval()
    first, second = (model.predict(images)[0].seg_logits.data for _ in range(2))
    assert first.shape == (3, 64, 96) and torch.equal(first, second)


def test_head_has_the_values_of_create_model(tmp_path):
    head = build(tmp_path).decode_head.eval()
    ours = heads.create("hamnet", (256,), 3, width=32, context="vq").eval()
    state = {key.removeprefix("decoder.head."): value for key, value in head.state_dict().items()}
    state |= {"classifier.1.weight": head.conv_seg.weight, "classifier.1.bias": head.conv_seg.bias}
    ours.load_state_dict({key: state[key] for key in ours.state_dict()})
    maps = [torch.rand(1, width, 4, 6) for width in (32, 64, 128, 256)]
    torch.testing.assert_close(head(maps), ours(maps[-1:]).logits)


def test_contexts_are_plugins_of_a_backbone(tmp_path):
    plugin = {"type": "HamburgerContext", "context": "efficient"}
    stages = (False, False, True, True)
    plugins = [{"cfg": plugin, "stages": stages, "position": "after_conv3"}]
    backbone = build(tmp_path, **{"model.backbone.plugins": plugins}).backbone
    contexts = {name for name, module in backbone.named_modules() if type(module).__name__ == "HamburgerContext"}
    assert {name.split(".")[0] for name in contexts} == {"layer3", "layer4"} and len(contexts) == 6 + 3
    x = torch.rand(1, 3, 64, 96, requires_grad=True)
    backbone(x)[-1].square().mean().backward()
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.decode_head.head": "pspnet"}, "HamburgerHead: no head .pspnet."),
        ({"model.decode_head.head_options": {"rnk": 3}}, "rnk"),
        ({"model.decode_head.head_options": {"context": "nnf"}}, "did you mean 'nmf'"),
    ],
)
def test_invalid_options_are_named(tmp_path, changes, message):
    with pytest.raises(Exception, match=message):  # mmengine raises our error again, as its own type
        build(tmp_path, **changes)


def test_the_config_of_the_page_builds(tmp_path):
    blocks = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (block,) = [block for block in blocks if "hamburger.mmseg" in block]
    path = tmp_path / "config.py"
    path.write_text(block)
    changes = Config.fromfile(path)
    parts = {"backbone": {"type": "ResNet", "depth": 50}, "type": "EncoderDecoder"}
    config = Config({"model": parts})
    config.merge_from_dict({"model": changes.model})
    model = MODELS.build(config.model).eval()
    with torch.no_grad():
        assert model.encode_decode(torch.rand(1, 3, 64, 64), [{"img_shape": (64, 64)}]).shape == (1, 19, 64, 64)
