"""Logits line up with their pixels at every image size."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hamburger.backbones import Backbone, create_backbone
from hamburger.segmentation.heads.base import Head, HeadOutputs
from hamburger.segmentation.model import PixelGrid, Segmenter, create_model

SIZES = [(360, 480), (375, 500), (33, 47), (64, 64), (321, 513), (1, 1), (2, 17)]


class Means(Backbone):
    """A map whose position j is pixel s j of the image (corners), or the mean of patch j."""

    def __init__(self, stride: int, *, corners: bool) -> None:
        super().__init__()
        self.channels, self.strides, self.corners = (3,), (stride,), corners

    def forward(self, x):
        stride = self.strides[0]
        return [x[..., ::stride, ::stride] if self.corners else nn.functional.avg_pool2d(x, stride)]


class First(Head):
    def forward(self, features):
        return HeadOutputs(features[-1][:, :1], {})


def ramp(h, w):
    """An image whose values are the positions of its pixels."""
    return torch.arange(w, dtype=torch.float32).expand(1, 3, h, w).contiguous()


@pytest.mark.parametrize("stride", [4, 16])
@pytest.mark.parametrize("size", SIZES)
def test_a_ramp_stays_where_it_is(size, stride):
    net = Segmenter(Means(stride, corners=True), First(), num_classes=1)
    actual = net(ramp(*size))[0, 0, 0]
    whole = (size[1] - 1) // stride * stride + 1  # beyond it lies a position in the padding
    torch.testing.assert_close(actual[:whole], torch.arange(whole, dtype=torch.float32))


@pytest.mark.parametrize("size", [(360, 480), (375, 500), (64, 64)])
def test_patches_are_within_half_a_pixel(size):
    net = Segmenter(Means(16, corners=False), First(), num_classes=1)
    actual = net(ramp(*size))[0, 0, size[0] // 2]
    expected = torch.arange(size[1], dtype=torch.float32)
    middle = slice(16, size[1] - 32)
    assert (actual[middle] - expected[middle]).abs().max() <= 0.5 + 1e-4


@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_the_padded_size_fits_and_is_the_next_one(size, corners):
    grid = PixelGrid.of(Means(16, corners=corners), *size)
    x = grid.pad(torch.ones(1, 3, *size))
    assert (grid.height - 1) % 16 == 0 and 0 <= grid.height - size[0] < 16
    assert (grid.width - 1) % 16 == 0 and 0 <= grid.width - size[1] < 16
    assert Means(16, corners=corners)(x)[0].shape[2:] == ((grid.height - 1) // 16 + 1, (grid.width - 1) // 16 + 1)


def test_images_of_a_fitting_size_are_not_padded():
    x = torch.randn(1, 3, 321, 33)
    assert PixelGrid.of(Means(16, corners=True), 321, 33).pad(x) is x


def test_padding_is_not_labelled():
    """The loss of an image does not depend on its padding."""
    net = create_model(
        "hamnet", backbone="tiny", output_stride=4, num_classes=3, context=None, head_options={"width": 8}
    )
    net.eval()
    x, labels = torch.randn(2, 3, 30, 35), torch.randint(0, 3, (2, 30, 35))
    expected = nn.functional.cross_entropy(net(x), labels)
    torch.testing.assert_close(net(x, labels)["ce"], expected)


@pytest.mark.parametrize(
    ("name", "stride", "corners"),
    [("resnet18", 16, True), ("timm:resnet18", 16, True), ("timm:convnext_atto", 32, False)],
)
def test_backbones_know_the_alignment_of_their_maps(name, stride, corners):
    backbone = create_backbone(name, output_stride=stride).eval()
    assert backbone.corners is corners
    grid = PixelGrid.of(backbone, 70, 90)
    deepest = backbone(grid.pad(torch.zeros(1, 3, 70, 90)))[-1]
    assert deepest.shape[2:] == ((grid.height - 1) // stride + 1, (grid.width - 1) // stride + 1)


def test_half_precision_logits_are_widened_before_they_are_resized():
    """On a GPU the gradient of a resize is summed in the type of its input, over a thousand pixels a position."""
    from hamburger.segmentation.losses import resize_logits

    assert resize_logits(torch.zeros(1, 2, 5, 5, dtype=torch.bfloat16), (65, 65)).dtype == torch.float32
    assert resize_logits(torch.zeros(1, 2, 5, 5, dtype=torch.float64), (65, 65)).dtype == torch.float64


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(353, 353), (65, 90)], ids=str)
def test_resizing_logits_on_a_gpu_matches_interpolate_and_repeats_its_gradient(size):
    import torch.nn.functional as F

    from hamburger.segmentation.losses import resize_logits

    logits = torch.randn(2, 21, 23, 23, device="cuda", requires_grad=True)
    weights = torch.randn(2, 21, *size, device="cuda")
    reference = logits.detach().double().requires_grad_()
    expected = F.interpolate(reference, size=size, mode="bilinear", align_corners=True)
    (expected * weights).sum().backward()
    gradients = []
    for _ in range(2):
        with torch.autocast("cuda", torch.bfloat16):
            resized = resize_logits(logits, size)
        gradients.append(torch.autograd.grad((resized * weights).sum(), logits)[0])
        torch.testing.assert_close(resized.double(), expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(gradients[-1].double(), reference.grad, rtol=1e-4, atol=1e-4)
    assert torch.equal(*gradients)
