"""A compact cost-volume network: shared features, a cost volume, 3-D aggregation, soft-argmin.

The parts are those of GC-Net (soft-argmin), PSMNet (hourglass) and GwcNet (group-wise correlation), each in its
smallest form. Disparities are found at a quarter of the resolution; then each pixel is a weighted mean of its coarse
neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.checkpoints.weights_file import to_plain_json
from hamburger.distributed import global_mean
from hamburger.errors import OptionError, check_choice, check_count, check_mapping
from hamburger.insertion import Gate, insert_context
from hamburger.layers.norm import BatchNorm2d
from hamburger.registry import explain_errors
from hamburger.tensors import check_images, check_shapes, widen

VOLUMES = ("correlation", "concatenation")
PLACES = {"features": "features.body", "volume": "aggregation.coarse"}
STRIDE = 4  # of the features and the volume
COARSEST = 16  # stride at the bottom of the hourglass: sizes and disparities are multiples of it
DILATIONS = (1, 1, 2, 4)
CONCATENATED_WIDTH = 8  # channels of each side in a concatenation volume
EXAMPLE_SIZE = (64, 128)  # of the images on which insert_context runs the network once


# -- network -----------------------------------------------------------------------------------------------------------


class ResidualBlock2d(nn.Module):
    """Two dilated convolutions with a skip connection."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *conv2d_layers(width, width, dilation=dilation), *conv2d_layers(width, width, dilation=dilation)[:-1]
        )

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.body(x)).relu()


def conv2d_layers(c: int, d: int, *, stride: int = 1, dilation: int = 1) -> list[nn.Module]:
    """3 x 3 convolution, norm, ReLU."""
    conv = nn.Conv2d(c, d, 3, stride=stride, padding=dilation, dilation=dilation, bias=False)
    return [conv, BatchNorm2d(d), nn.ReLU()]


def conv3d_layers(c: int, d: int, *, stride: int = 1) -> nn.Sequential:
    """3 x 3 x 3 convolution, norm, ReLU."""
    return nn.Sequential(nn.Conv3d(c, d, 3, stride=stride, padding=1, bias=False), nn.BatchNorm3d(d), nn.ReLU())


def upsample3d_layers(c: int, d: int) -> nn.Sequential:
    """Transposed convolution that doubles all three sides, norm."""
    return nn.Sequential(
        nn.ConvTranspose3d(c, d, 3, stride=2, padding=1, output_padding=1, bias=False), nn.BatchNorm3d(d)
    )


class StereoFeatures(nn.Module):
    """Features of one image; a context with place="features" is inserted after `body`.   b 3 h w   ->   b c h/4 w/4"""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = max(8, width // 2)
        self.stem = nn.Sequential(
            *conv2d_layers(3, half, stride=2), *conv2d_layers(half, half), *conv2d_layers(half, width, stride=2)
        )
        self.body = nn.Sequential(*(ResidualBlock2d(width, dilation) for dilation in DILATIONS))
        self.out = nn.Conv2d(width, width, 1, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features to match, and those before the last layer."""
        y = self.body(self.stem(x))
        return self.out(y), y


class CostAggregation(nn.Module):
    """A small hourglass over the volume; a context with place="volume" is inserted after `coarse`.

    b c d h w   ->   costs b d h w
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.first = nn.Sequential(conv3d_layers(channels, width), conv3d_layers(width, width))
        self.coarse = nn.Sequential(conv3d_layers(width, 2 * width, stride=2), conv3d_layers(2 * width, 2 * width))
        self.coarsest = nn.Sequential(
            conv3d_layers(2 * width, 2 * width, stride=2), conv3d_layers(2 * width, 2 * width)
        )
        self.to_coarse, self.to_fine = upsample3d_layers(2 * width, 2 * width), upsample3d_layers(2 * width, width)
        self.out = nn.Sequential(conv3d_layers(width, width), nn.Conv3d(width, 1, 3, padding=1, bias=False))

    def forward(self, volume: Tensor) -> Tensor:
        fine = self.first(volume)
        coarse = self.coarse(fine)
        coarse = (coarse + self.to_coarse(self.coarsest(coarse))).relu()
        return self.out((fine + self.to_fine(coarse)).relu()).squeeze(1)


class StereoNet(nn.Module):
    """left b 3 h w, right b 3 h w   ->   disparity b h w in pixels, for any h and w.

    With the true disparity (b h w, 0 where unknown) it returns the loss by name instead. Images are padded on the right
    and at the bottom. `config` holds the keywords of `create_stereo`.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config, width, groups = config, config["width"], config["groups"]
        self.groups, self.max_disparity = groups, config["max_disparity"]
        self.features = StereoFeatures(width)
        stacked = config["volume"] == "concatenation"
        self.compress = nn.Conv2d(width, CONCATENATED_WIDTH, 1, bias=False) if stacked else None
        self.aggregation = CostAggregation(2 * CONCATENATED_WIDTH if stacked else groups, config["volume_width"])
        self.upsample_scores = nn.Sequential(*conv2d_layers(width, width), nn.Conv2d(width, 9 * STRIDE**2, 1))

    def forward(self, left: Tensor, right: Tensor, target: Tensor | None = None) -> Tensor | dict[str, Tensor]:
        _check_inputs(left, right, target)
        h, w = left.shape[-2:]
        # as one batch, so that a context in the features gets both images in one call
        matched, unprojected = self.features(F.pad(torch.cat([left, right]), (0, -w % COARSEST, 0, -h % COARSEST)))
        # not by chunk(), for which an exporter would have to know that the batch is even and not empty
        costs = self.aggregation(self._volume(*matched.unflatten(0, (2, -1))))
        scores = self.upsample_scores(unprojected.unflatten(0, (2, -1))[0])
        disparity = upsample_disparity(STRIDE * soft_argmin(costs), scores, STRIDE)[..., :h, :w]
        if target is None:
            return disparity
        return {"smooth_l1": smooth_l1_loss(disparity, target, most=self.max_disparity)}

    def _volume(self, left: Tensor, right: Tensor) -> Tensor:
        steps = self.max_disparity // STRIDE
        if self.compress is None:
            return correlation_volume(left, right, disparities=steps, groups=self.groups)
        return concatenation_volume(self.compress(left), self.compress(right), disparities=steps)


def _check_inputs(left: Tensor, right: Tensor, target: Tensor | None) -> None:
    check_images("StereoNet", "the left images", left)
    check_images("StereoNet", "the right images", right)
    target_shape = {} if target is None else {"target": (target, "b h w")}
    check_shapes("StereoNet", left=(left, "b c h w"), right=(right, "b c h w"), **target_shape)


# -- cost volume and disparity -----------------------------------------------------------------------------------------


def shift_by_disparities(right: Tensor, disparities: int) -> Tensor:
    """Right features at x - d, zeros outside the frame, the largest d first.   b c h w   ->   b c d h w, a view

    Callers flip the disparities when the result is small.
    """
    return F.pad(right, (disparities - 1, 0)).unfold(3, right.shape[-1], 1).movedim(3, 2)


def correlation_volume(left: Tensor, right: Tensor, *, disparities: int, groups: int) -> Tensor:
    """Mean products of left and right features in each group of channels.   b c h w, b c h w   ->   b groups d h w"""
    products = left.unsqueeze(2) * shift_by_disparities(right, disparities)
    return products.unflatten(1, (groups, -1)).mean(2).flip(2)


def concatenation_volume(left: Tensor, right: Tensor, *, disparities: int) -> Tensor:
    """Left and right features stacked; both are zero where x - d lies outside the frame.

    b c h w, b c h w   ->   b 2c d h w
    """
    inside = torch.arange(disparities, device=left.device)[:, None] <= torch.arange(left.shape[-1], device=left.device)
    lefts = left.unsqueeze(2) * inside.to(left.dtype)[:, None]
    return torch.cat([lefts, shift_by_disparities(right, disparities).flip(2)], dim=1)


def soft_argmin(costs: Tensor) -> Tensor:
    """The expected disparity under softmax(-costs), in steps of the volume.   b d h w   ->   b h w, at least float32"""
    weights = (-widen(costs)).softmax(1)
    steps = torch.arange(weights.shape[1], device=weights.device, dtype=weights.dtype)
    return (weights * steps[:, None, None]).sum(1)


def upsample_disparity(disparity: Tensor, scores: Tensor, factor: int) -> Tensor:
    """Upsampling with learned weights: each fine pixel is a weighted mean of 3 x 3 coarse ones, so edges stay sharp.

    disparity: b h w    scores: b 9 * factor^2 h w, before the softmax over the nine    ->    b factor*h factor*w
    """
    neighbours = F.unfold(F.pad(disparity.unsqueeze(1), (1, 1, 1, 1), mode="replicate"), 3)
    neighbours = neighbours.unflatten(2, disparity.shape[1:]).unsqueeze(2)  # b 9 1 h w
    weights = widen(scores).unflatten(1, (9, factor * factor)).softmax(1)
    return F.pixel_shuffle((weights * neighbours).sum(1), factor).squeeze(1)


# -- loss --------------------------------------------------------------------------------------------------------------


def select_known(target: Tensor, most: float) -> Tensor:
    """Pixels to train on: those with a known disparity below `most`.   b h w   ->   b h w, bool"""
    return (target > 0) & (target < most)


def smooth_l1_loss(disparity: Tensor, target: Tensor, *, most: float) -> Tensor:
    """Smooth L1 loss, averaged over the known pixels of all processes.   disparity: b h w   target: b h w, 0: unknown

    A batch without a known pixel gives zero rather than NaN.
    """
    check_shapes("smooth_l1_loss", disparity=(disparity, "b h w"), target=(target, "b h w"))
    known = select_known(target, most)
    losses = F.smooth_l1_loss(widen(disparity), target, reduction="none")
    return global_mean((losses * known).sum(), known.sum())


# -- creating ----------------------------------------------------------------------------------------------------------


@explain_errors("create_stereo")
def create_stereo(
    *,
    width: int = 32,
    volume: str = "correlation",
    groups: int = 8,
    volume_width: int = 16,
    max_disparity: int = 128,
    context: str | None = None,
    context_options: Mapping[str, Any] | None = None,
    place: str = "features",
    gate: Gate | None = "zero",
) -> StereoNet:
    """A stereo network.   left b 3 h w, right b 3 h w   ->   disparity b h w in pixels, for any h and w

    >>> net = create_stereo(context="nmf")
    >>> disparity = net(left, right)

    - `width`: channels of the features; both images share the weights
    - `volume`: "correlation" of `groups` groups of channels, or "concatenation"; `volume_width` channels are aggregated
    - `max_disparity`: a multiple of 16; larger disparities are neither predicted nor trained on
    - `context`, `context_options`, `gate`: a context by name, inserted by `insert_context`
    - `place`: "features", a map at a quarter of the resolution, for any context; or "volume", where every (disparity,
      y, x) of the volume at an eighth of the resolution is one position, for contexts that do not use neighbours
    """
    config = {key: to_plain_json(value) for key, value in locals().items()}
    options = check_mapping("create_stereo", "context_options", context_options)
    check_stereo_options("create_stereo", **config)
    net = StereoNet(config)
    if context is not None:
        example = tuple(torch.zeros(1, 3, *EXAMPLE_SIZE) for _ in range(2))
        inserted = (context, {**options, "layout": "channels"})
        insert_context(net, {PLACES[place]: inserted}, gate=gate, example=example)
    return net


def check_stereo_options(
    call: str, *, width: int, volume: str, groups: int, volume_width: int, max_disparity: int, place: str, **others: Any
) -> None:
    """Raise OptionError on the first invalid option; `others` are those of the context, which it checks itself."""
    check_choice(call, "volume", volume, VOLUMES)
    check_choice(call, "place", place, PLACES)
    for option, value in (("width", width), ("groups", groups), ("volume_width", volume_width)):
        check_count(call, option, value, least=1)
    check_count(call, "max_disparity", max_disparity, least=COARSEST)
    if max_disparity % COARSEST:
        raise OptionError(
            f"{call}: max_disparity must be a multiple of {COARSEST} (got {max_disparity}); use "
            f"{-(-max_disparity // COARSEST) * COARSEST}"
        )
    if width % groups:
        raise OptionError(f"{call}: width {width} must be divisible by groups {groups}; change one of them")
