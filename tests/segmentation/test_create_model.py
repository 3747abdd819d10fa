"""`create_model`: parameter counts, every context, any image size, errors."""

from __future__ import annotations

import pytest
import torch
from reference_layers import count
from tolerances import assert_close
from torch import nn

import hamburger as hb
from hamburger.errors import HamburgerError, InputError, OptionError, ShapeError, UnknownNameError

CLASSES = 3


def small(name="hamnet", **options):
    torch.manual_seed(0)
    if name in ("hamnet", "lightham"):
        options.setdefault("head_options", {"width": 32})
    options = {"backbone": "tiny", "output_stride": 4, "backbone_options": {"width": 16}, **options}
    return hb.create_model(name, num_classes=CLASSES, **options)


def test_exact_parameter_counts():
    with torch.device("meta"):
        baseline = hb.create_model("hamnet", backbone="resnet50", num_classes=21, context=None)
        for context in ("nmf", "vq", "cd"):
            net = hb.create_model("hamnet", backbone="resnet50", num_classes=21, context=context)
            assert count(net) == 34_255_573 + 525_824
    assert count(baseline) == 34_255_573
    assert sum(p.numel() for p in baseline.backbone.parameters()) == 23_631_808


@pytest.mark.parametrize("context", [None, *hb.list_contexts()])
def test_every_context_trains_in_the_same_place(context):
    net = small(context=context, context_options=None)
    for parameter in net.head.context.parameters():
        if not parameter.any():
            nn.init.uniform_(parameter, 0.1, 0.2)  # gates that start closed
    x, target = torch.randn(2, 3, 37, 29), torch.randint(0, CLASSES, (2, 37, 29))
    target[:, :5] = 255
    sum(net(x, target).values()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters() if p.requires_grad)
    assert net.backbone.layers[0][0].weight.grad.norm() > 0
    with torch.no_grad():
        assert net.eval()(x).shape == (2, CLASSES, 37, 29)


@pytest.mark.parametrize("name", ["hamnet", "lightham"])
def test_every_head_returns_logits_of_image_size(name):
    net = small(name).eval()
    with torch.no_grad():
        for size in ((37, 29), (20, 64)):
            assert net(torch.randn(1, 3, *size)).shape == (1, CLASSES, *size)
    assert net.config["name"] == name


def test_the_head_is_convolution_context_convolution_classifier():
    net = small(context="nmf", context_options={"rank": 4}).eval()
    head, x = net.head, torch.randn(2, 3, 33, 41)
    y = head.context(head.squeeze(net.backbone(x)[-1]))
    logits = nn.functional.conv2d(head.align(y), head.classifier[1].weight, head.classifier[1].bias)
    expected = nn.functional.interpolate(logits, size=(33, 41), mode="bilinear", align_corners=True)
    assert torch.equal(net(x), expected)
    assert_close(net(x)[:, :, -1, -1], logits[:, :, -1, -1])  # corners aligned
    assert [type(m).__name__ for m in head.classifier] == ["Dropout2d", "Conv2d"] and head.classifier[0].p == 0.1
    std = head.squeeze[0].weight.detach().std()
    assert abs(float(std) / (2 / (9 * 32)) ** 0.5 - 1) < 0.05


def test_a_module_can_be_the_context():
    net = small(context=nn.Conv2d(32, 32, 1))
    assert isinstance(net.head.context, nn.Conv2d)
    assert net.config["context"] == {"module": "Conv2d"}


def test_lightham_reads_the_last_three_maps():
    net = small("lightham").eval()
    maps = [m.detach().requires_grad_() for m in net.backbone(torch.randn(1, 3, 32, 32))]
    net.head(maps).logits.sum().backward()
    assert maps[0].grad is None and all(m.grad.norm() > 0 for m in maps[1:])
    assert net.head(maps).logits.shape[2:] == maps[1].shape[2:]


def test_options_reach_their_parts():
    net = small(context="vq", context_options={"rank": 5, "parts": {"ham"}}, head_options={"width": 32, "dropout": 0.0})
    assert net.head.context.ham.ham.rank == 5 and net.head.context.lower is None
    assert net.head.classifier[0].p == 0 and net.backbone.channels == (16, 16, 32, 32)
    assert net.config["context_options"] == {"rank": 5, "parts": ["ham"]}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": "hamnett"}, UnknownNameError, "did you mean 'hamnet'"),
        ({"context": "nmff"}, UnknownNameError, "did you mean 'nmf'"),
        ({"context": 3}, OptionError, "a name, a torch module or None"),
        ({"context": None, "context_options": {"rank": 3}}, OptionError, "need a context by name .got no context"),
        ({"context_options": {"rnk": 3}}, OptionError, "did you mean 'rank'"),
        ({"context_options": 3}, OptionError, "context_options must be a mapping"),
        ({"head_options": {"widht": 3}}, OptionError, "did you mean 'width'"),
        ({"head_options": {"context": "cd"}}, OptionError, "pass context directly"),
        ({"backbone_options": {"widht": 3}}, OptionError, "did you mean 'width'"),
        ({"name": "lightham", "context": "cd"}, OptionError, "has its own context"),
        ({"name": "lightham", "context_options": {"rank": 3}}, OptionError, "has its own context"),
        ({"output_stride": 16}, OptionError, "pass output_stride=4"),
    ],
    ids=str,
)
def test_invalid_options_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        small(**arguments)


def test_wrong_inputs_are_named():
    net = small()
    with pytest.raises(OptionError, match="num_classes"):
        hb.create_model("hamnet", num_classes=0)
    with pytest.raises(ShapeError, match=r"pass image\[None\]"):
        net(torch.randn(3, 32, 32))
    with pytest.raises(ShapeError, match=r"\(b, 3, h, w\)"):
        net(torch.randn(1, 4, 32, 32))
    with pytest.raises(ShapeError, match="Segmenter: "):
        net(torch.randn(1, 3, 32, 32), torch.zeros(1, 31, 32, dtype=torch.long))
    with pytest.raises(InputError, match=r"labels\.long"):
        net(torch.randn(1, 3, 32, 32), torch.zeros(1, 32, 32))
    with pytest.raises(HamburgerError):
        net([1, 2])
