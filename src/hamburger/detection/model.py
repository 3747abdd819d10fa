"""torchvision's Mask R-CNN with a context in its encoder or on its feature pyramid."""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import resnet
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.models.detection.rpn import RPNHead
from torchvision.models.detection.transform import GeneralizedRCNNTransform, resize_boxes
from torchvision.ops import FrozenBatchNorm2d
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from hamburger.backbones import load_backbone
from hamburger.backbones.networks import STRIDES_IN
from hamburger.errors import InputError, OptionError, UnknownNameError, check_choice, check_count, check_mapping
from hamburger.insertion import Gate, insert_context
from hamburger.layers.norm import BatchNorm2d
from hamburger.registry import explain_errors

POOLED_SIDE = 7  # of the features of a box
ANCHOR_RATIOS = (0.5, 1.0, 2.0)  # of the anchors
EXAMPLE_SIDE = 128  # pixels: the image on which insert_context runs the network once
BACKBONE = "backbone."  # before the names of encoder and pyramid in the network
MASK_THRESHOLD = 0.5  # a pixel of at least this probability is in the mask
MAX_PASTED = 2**26  # mask probabilities, in pixels of the image, that are in memory at once

Objects = dict[str, Tensor]


class Detector(nn.Module):
    """Mask R-CNN for images 3 h w in [0, 1], of any sizes. `config` holds the keywords of `create_detector`.

    With targets (`boxes` m 4, `labels` m from 1 on, `masks` m h w) it returns the terms of the loss by name, to be
    summed. Without, in evaluation mode, it returns for each image `boxes`, `labels` 0 ... k - 1, `scores`, the highest
    first, and `masks` m h w, bool, in pixels of that image.
    """

    def __init__(self, net: MaskRCNN, config: dict[str, Any]) -> None:
        super().__init__()
        self.net, self.config = net, config

    def forward(self, images: Sequence[Tensor], targets: Sequence[Objects] | None = None) -> Any:
        if targets is not None:
            if wrong := [target for target in targets if not {"boxes", "labels", "masks"} <= target.keys()]:
                raise InputError(f"Detector: a target must have boxes, labels and masks, got {', '.join(wrong[0])}")
            terms: Objects = self.net(list(images), list(targets))
            return {name.removeprefix("loss_"): value for name, value in terms.items()}
        detections: list[Objects] = self.net(list(images))
        return [each | {"labels": each["labels"] - 1} for each in detections]


class DetectorTransform(GeneralizedRCNNTransform):  # type: ignore[misc] # torchvision has no types
    """torchvision's transform, except that it pastes masks into the image a few at a time and keeps booleans.

    torchvision holds the probabilities of all masks twice at full size: 20 GB for 100 objects in an image of 24
    megapixels.
    """

    def resize(self, image: Tensor, target: Objects | None = None) -> tuple[Tensor, Objects | None]:
        shorter, longer = sorted(image.shape[-2:])
        if shorter * self.max_size <= longer:
            raise InputError(
                f"Detector: the image has {image.shape[-1]} x {image.shape[-2]} pixels; resized to at most "
                f"{self.max_size}, its shorter side would have none: crop it"
            )
        resized: tuple[Tensor, Objects | None] = super().resize(image, target)
        return resized

    def postprocess(
        self, result: list[Objects], image_shapes: list[tuple[int, int]], original_image_sizes: list[tuple[int, int]]
    ) -> list[Objects]:
        if not self.training:
            for objects, resized, (h, w) in zip(result, image_shapes, original_image_sizes, strict=True):
                objects["boxes"] = resize_boxes(objects["boxes"], resized, (h, w))
                parts = [each.split(max(1, MAX_PASTED // (h * w))) for each in (objects["masks"], objects["boxes"])]
                pasted = (
                    paste_masks_in_image(*part, (h, w))[:, 0] >= MASK_THRESHOLD for part in zip(*parts, strict=True)
                )
                objects["masks"] = torch.cat(list(pasted))
        return result


@explain_errors("create_detector")
def create_detector(
    backbone: str = "resnet50",
    *,
    num_classes: int,
    context: str | None = None,
    context_options: Mapping[str, Any] | None = None,
    after: str = "p3",
    gate: Gate | None = "zero",
    size: int = 800,
    max_size: int = 1333,
    anchor: int = 32,
    channels: int = 256,
    hidden: int = 1024,
    sampled: int = 512,
    proposals: int = 1000,
    norm: str = "batch",
    frozen: int = 0,
    stride_in: str = "3x3",
    pretrained: str | os.PathLike[str] | None = None,
) -> Detector:
    """Mask R-CNN for `num_classes` classes, not counting the background.

    >>> net = create_detector("resnet50", num_classes=80, context="nmf")
    >>> boxes = net.eval()([image])[0]["boxes"]                          # image: (3, h, w); boxes: (objects, 4)

    - `backbone`: a ResNet of torchvision, or "tiny", which two CPU cores can train
    - `context`, `context_options`, `gate`: the context that `insert_context` puts behind the module `after`
    - `after`: "layer1" ... "layer4" of the encoder, a level "p2" ... "p5" of the pyramid, or the full name of another
      submodule of "backbone."; several are comma-separated
    - `size`, `max_size`: images are resized until the shorter side has `size` pixels, or the longer one `max_size`
    - `anchor`: side of the smallest anchor, doubled from level to level
    - `channels`, `hidden`: width of the pyramid and the mask head, and of the box head
    - `sampled`, `proposals`: boxes of an image that the heads are trained on, and that they classify
    - `norm`: "batch" trains the norms of the encoder, "frozen" keeps those of the pretrained weights
    - `frozen`: the first so many parts of the encoder (stem, layer1, ...) are not trained
    - `stride_in`: the strided convolution of a bottleneck: "3x3" (v1.5: torchvision, timm) or "1x1" (v1 weights)
    - `pretrained`: a file of torchvision's weights for the encoder
    """
    config = dict(locals())
    options = check_mapping("create_detector", "context_options", context_options)
    config |= {"context_options": options, "pretrained": None}  # what was loaded is in the weights
    for option in ("num_classes", "size", "max_size", "anchor", "channels", "hidden", "sampled", "proposals"):
        check_count("create_detector", option, config[option], least=1)
    if max_size < size:
        raise OptionError(f"create_detector: max_size ({max_size}) must be at least size ({size})")
    encoder = create_pyramid(backbone, channels=channels, norm=norm, frozen=frozen, stride_in=stride_in)
    if pretrained is not None:
        encoder.report = load_backbone(encoder.body, pretrained)
    anchors = AnchorGenerator(tuple((anchor * 2**i,) for i in range(LEVELS)), (ANCHOR_RATIOS,) * LEVELS)
    net = MaskRCNN(
        encoder,
        min_size=size,
        max_size=max_size,
        rpn_anchor_generator=anchors,
        rpn_head=RPNHead(channels, len(ANCHOR_RATIOS)),
        rpn_pre_nms_top_n_train=2 * proposals,
        rpn_post_nms_top_n_train=proposals,
        rpn_pre_nms_top_n_test=proposals,
        rpn_post_nms_top_n_test=proposals,
        box_head=TwoMLPHead(channels * POOLED_SIDE**2, hidden),
        box_predictor=FastRCNNPredictor(hidden, num_classes + 1),
        box_batch_size_per_image=sampled,
        mask_head=MaskRCNNHeads(channels, (channels,) * 4, 1),
        mask_predictor=MaskRCNNPredictor(channels, channels, num_classes + 1),
    )
    net.transform = DetectorTransform(size, max_size, net.transform.image_mean, net.transform.image_std)
    for module in (net.backbone, net.rpn.head, net.roi_heads.box_predictor):
        module.register_forward_hook(cast_to_float32)
    if context is not None:
        # a small example image: at full size attention may need more than the main memory
        example = torch.zeros(1, 3, EXAMPLE_SIDE, EXAMPLE_SIDE)
        places = [place.removeprefix(BACKBONE) for place in resolve_places(after)]
        insert_context(encoder, dict.fromkeys(places, (context, options)), gate=gate, example=example)
    return Detector(net, config)


def resolve_places(after: str) -> list[str]:
    """Full names of the submodules that the comma-separated `after` means."""
    named = []
    for word in (part.strip() for part in after.split(",")):
        if word in STAGES:
            named.append(f"{BACKBONE}body.{word}")
        elif re.fullmatch("p[2-5]", word):
            named.append(f"{BACKBONE}fpn.layer_blocks.{int(word[1]) - 2}")
        elif word.startswith(BACKBONE):
            named.append(word)
        else:
            raise UnknownNameError(
                f"create_detector: there is no submodule '{word}' for after; use one of {', '.join(STAGES)}, "
                f"p2 ... p5, or a full name that starts with '{BACKBONE}'"
            )
    return named


def cast_to_float32(module: nn.Module, args: Any, output: Any) -> Any:
    """A forward hook that casts the output to float32.

    torchvision gives anchors and boxes the dtype of the feature maps. In bfloat16, which autocast produces, a corner
    beyond pixel 256 is off by up to a pixel.
    """
    if isinstance(output, Tensor):
        return output.float()
    if isinstance(output, dict):
        return OrderedDict((name, each.float()) for name, each in output.items())
    return type(output)(cast_to_float32(module, args, each) for each in output)


# -- encoder and feature pyramid ---------------------------------------------------------------------------------------

BOTTLENECKS = ("resnet50", "resnet101", "resnet152")
ENCODERS = ("resnet18", "resnet34", *BOTTLENECKS, "tiny")
NORMS: dict[str, Callable[[int], nn.Module]] = {"batch": BatchNorm2d, "frozen": FrozenBatchNorm2d}
STAGES = ("layer1", "layer2", "layer3", "layer4")
LEVELS = len(STAGES) + 1  # of the pyramid: max pooling adds one
TINY_WIDTHS = (16, 24, 32, 48)


def create_pyramid(
    backbone: str, *, channels: int, norm: str = "batch", frozen: int = 0, stride_in: str = "3x3"
) -> Any:
    """An encoder with a feature pyramid, maps of strides 4, 8, 16, 32 and 64, each of `channels`.

    `frozen`: number of parts of the encoder, of stem, layer1, ... layer4, that are not trained.
    b 3 h w   ->   {"0": b c h/4 w/4, ..., "pool": b c h/64 w/64}
    """
    check_choice("create_detector", "backbone", backbone, ENCODERS)
    check_choice("create_detector", "norm", norm, NORMS)
    check_choice("create_detector", "stride_in", stride_in, STRIDES_IN)
    if stride_in == "1x1" and backbone not in BOTTLENECKS:
        raise OptionError(
            f"create_detector: stride_in='1x1' needs resnet50, resnet101 or resnet152 (got {backbone}); "
            "leave stride_in at '3x3'"
        )
    if frozen not in range(LEVELS + 1):
        raise OptionError(
            f"create_detector: frozen must be 0 ... {LEVELS}, for the stem and four layers (got {frozen!r})"
        )
    if backbone == "tiny":
        encoder, widths = create_tiny_encoder(NORMS[norm]), list(TINY_WIDTHS)
    else:
        encoder = getattr(resnet, backbone)(weights=None, norm_layer=NORMS[norm])
        widths = [encoder.fc.in_features // 2**i for i in (3, 2, 1, 0)]
        if stride_in == "1x1":
            for stage in STAGES[1:]:
                first = encoder.get_submodule(stage)[0]
                first.conv1.stride, first.conv2.stride = (2, 2), (1, 1)
    for part in (("conv1", "bn1"), *((stage,) for stage in STAGES))[:frozen]:
        for name in part:
            encoder.get_submodule(name).requires_grad_(False)
    returned = {stage: str(i) for i, stage in enumerate(STAGES)}
    pyramid = BackboneWithFPN(encoder, returned, widths, channels, extra_blocks=LastLevelMaxPool())
    pyramid.body.stride_in = stride_in  # load_backbone compares it with what the file states
    return pyramid


def create_tiny_encoder(norm: Callable[[int], nn.Module]) -> nn.Sequential:
    """An encoder of one convolution per stage, with a ResNet's names: trains in seconds on a CPU."""

    def convolve(c: int, d: int) -> list[nn.Module]:
        return [nn.Conv2d(c, d, 3, stride=2, padding=1, bias=False), norm(d), nn.ReLU(inplace=True)]

    parts = dict(zip(("conv1", "bn1", "relu"), convolve(3, TINY_WIDTHS[0]), strict=True))
    for stage, c, d in zip(STAGES, (TINY_WIDTHS[0], *TINY_WIDTHS), TINY_WIDTHS, strict=False):
        parts[stage] = nn.Sequential(*convolve(c, d))
    encoder = nn.Sequential(OrderedDict(parts))
    for module in encoder.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return encoder
