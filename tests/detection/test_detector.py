"""Mask R-CNN with a context: equal to torchvision without one; losses, outputs and weights files."""

from __future__ import annotations

import pytest
import torch
from torchvision.models.detection.roi_heads import paste_masks_in_image

from hamburger.backbones import create_backbone, load_backbone
from hamburger.detection.data import SceneBatches
from hamburger.detection.data.shapes import ShapesSet
from hamburger.detection.model import create_detector, resolve_places
from hamburger.errors import OptionError, UnknownNameError
from hamburger.insertion import InsertedContext

SMALL = {"size": 64, "max_size": 64, "anchor": 12, "channels": 16, "hidden": 32, "sampled": 32, "proposals": 60}


def small(**options):
    return create_detector("tiny", **{"num_classes": 10, **SMALL, **options})


@pytest.fixture(scope="module")
def batch():
    return SceneBatches(ShapesSet("train", size=64, length=4), batch=2, crop=64).at(0)[0]


def test_without_a_context_it_matches_torchvision():
    from torchvision.models.detection import MaskRCNN
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

    name = "resnet18"
    ours = create_detector(name, num_classes=4, size=64, max_size=64, proposals=20)
    ours.net.roi_heads.detections_per_img = 5  # to be quick
    theirs = MaskRCNN(
        resnet_fpn_backbone(backbone_name=name, weights=None, norm_layer=torch.nn.BatchNorm2d),
        num_classes=5,
        min_size=64,
        max_size=64,
        box_detections_per_img=5,
        rpn_pre_nms_top_n_test=20,
        rpn_post_nms_top_n_test=20,
    )
    theirs.load_state_dict(ours.net.state_dict())
    images = [torch.rand(3, 64, 48), torch.rand(3, 50, 64)]
    with torch.no_grad():
        for mine, other in zip(ours.eval()(images), theirs.eval()(images), strict=True):
            assert torch.equal(mine["boxes"], other["boxes"]) and torch.equal(mine["scores"], other["scores"])
            assert torch.equal(mine["labels"], other["labels"] - 1)
            assert torch.equal(mine["masks"], other["masks"][:, 0] >= 0.5)


def test_large_masks_are_pasted_a_few_at_a_time(monkeypatch):
    net, image = small().eval(), torch.rand(3, 48, 64)
    net.net.roi_heads.score_thresh = 0.0
    batch_sizes: list[int] = []

    def paste(masks, boxes, size):
        batch_sizes.append(len(masks))
        return paste_masks_in_image(masks, boxes, size)

    monkeypatch.setattr("hamburger.detection.model.paste_masks_in_image", paste)
    with torch.no_grad():
        (expected,) = net([image])
        monkeypatch.setattr("hamburger.detection.model.MAX_PASTED", 2 * 48 * 64)
        (parts,) = net([image])
        net.net.roi_heads.score_thresh = 2.0
        (nothing,) = net([image])
    assert len(expected["masks"]) > 2 and batch_sizes[0] == len(expected["masks"]) and max(batch_sizes[1:]) == 2
    assert all(torch.equal(expected[name], parts[name]) for name in expected)
    assert nothing["masks"].shape == (0, 48, 64) and nothing["masks"].dtype == torch.bool


def test_losses_and_outputs(batch):
    net = small(context="efficient").train()
    terms = net(batch.images, batch.targets)
    assert set(terms) == {"classifier", "box_reg", "mask", "objectness", "rpn_box_reg"}
    torch.stack(list(terms.values())).sum().backward()
    assert all(parameter.grad is not None for name, parameter in net.named_parameters())
    with torch.no_grad():
        outputs = net.eval()([torch.rand(3, 40, 64)])
    assert outputs[0]["masks"].shape[1:] == (40, 64) and outputs[0]["masks"].dtype == torch.bool
    assert outputs[0]["labels"].min() >= 0 and outputs[0]["labels"].max() < 10


@pytest.mark.parametrize(("after", "count"), [("layer3", 1), ("p2,p4", 2), ("backbone.fpn.inner_blocks.1", 1)])
def test_a_context_behind_a_zero_gate_changes_nothing(after, count):
    torch.manual_seed(3)
    bare = small().eval()
    torch.manual_seed(3)
    net = small(context="nmf", context_options={"rank": 4}, after=after).eval()
    inserted = {name: each for name, each in net.net.named_modules() if isinstance(each, InsertedContext)}
    assert list(inserted) == [f"{place}.inserted_context" for place in resolve_places(after)] and len(inserted) == count
    net.load_state_dict(bare.state_dict(), strict=False)
    image = [torch.rand(3, 64, 64)]
    with torch.no_grad():
        before, now = bare(image)[0], net(image)[0]
    assert all(torch.equal(before[name], now[name]) for name in before)


def test_boxes_are_float32_under_autocast(batch):
    """In bfloat16 numbers beyond 256 are even: proposals must not be."""
    net = small(size=512, max_size=512).train()
    seen = []
    net.net.rpn.register_forward_hook(lambda module, args, output: seen.extend(output[0]))
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        net(batch.images, batch.targets)
    assert all(boxes.dtype == torch.float32 for boxes in seen)
    large = torch.cat([boxes[boxes > 256] for boxes in seen])
    assert len(large) and (large.bfloat16().float() != large).float().mean() > 0.5


def test_pretrained_weights_and_frozen_parts(tmp_path):
    from safetensors.torch import save_file
    from torchvision.models import resnet18

    torch.manual_seed(5)
    source = resnet18(weights=None)
    save_file(source.state_dict(), tmp_path / "r18.safetensors")
    net = create_detector(
        "resnet18", num_classes=2, norm="frozen", frozen=2, pretrained=tmp_path / "r18.safetensors", size=64
    )
    body = net.net.backbone.body.state_dict()
    for name, value in source.state_dict().items():
        if not name.startswith("fc.") and not name.endswith("num_batches_tracked"):
            assert torch.equal(body[name], value), name
    still = {name.split(".")[3] for name, each in net.named_parameters() if not each.requires_grad}
    assert still == {"conv1", "layer1"}  # frozen norms have no parameters
    assert net.config["pretrained"] is None


def test_v1_weights_need_the_stride_in_the_first_convolution(tmp_path):
    from safetensors.torch import save_file
    from torchvision.models import resnet50

    state = resnet50(weights=None).state_dict()
    save_file(state, tmp_path / "v1.safetensors", {"arch": "ResNet-50 v1"})
    options = {"num_classes": 2, "size": 64, "pretrained": tmp_path / "v1.safetensors"}
    with pytest.warns(UserWarning, match="the file states v1, the network is v1.5; change stride_in"):
        create_detector("resnet50", **options)
    net = create_detector("resnet50", stride_in="1x1", **options)  # a warning would be an error
    reference = create_backbone("resnet50", stem="plain", stride_in="1x1", output_stride=32, multigrid=(1, 1, 1)).eval()
    load_backbone(reference, tmp_path / "v1.safetensors")
    image = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        ours = net.eval().net.backbone.body(image)
        for mine, expected in zip(ours.values(), reference(image), strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-4)
    assert net.config["stride_in"] == "1x1"


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"stride_in": "1x1"}, OptionError, "stride_in='1x1' needs resnet50, resnet101 or resnet152"),
        ({"stride_in": "5x5"}, OptionError, "stride_in"),
        ({"context": "efficient", "after": "layer9"}, UnknownNameError, "no submodule 'layer9'.*layer4, p2"),
        ({"context": "efficient", "after": "p6"}, UnknownNameError, "no submodule 'p6'.*layer4, p2"),
        ({"context": "eficient"}, UnknownNameError, "did you mean 'efficient'"),
        ({"norm": "group"}, OptionError, "norm"),
        ({"frozen": 9}, OptionError, "0 ... 5"),
        ({"max_size": 32}, OptionError, "at least size"),
        ({"num_classes": 0}, OptionError, "num_classes"),
    ],
    ids=str,
)
def test_invalid_options_raise(options, kind, message):
    with pytest.raises(kind, match=message):
        small(**options)
    with pytest.raises(OptionError, match="did you mean 'resnet18'"):
        create_detector("resnet81", num_classes=2)


def test_insertion_runs_on_a_small_image():
    """At 4,096 pixels the matrix of attention on p2 would hold 2^40 numbers."""
    net = small(context="sa", context_options={"materialise": True}, after="p2", size=4096, max_size=4096)
    assert (net.net.transform.min_size, net.net.transform.max_size) == ((4096,), 4096)
