"""Classifiers: a timm network with a context inserted, or a hamformer, whose tokens a context mixes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hamburger.backbones.timm_encoder import check_timm_name, create_with_supported
from hamburger.checkpoints.weights_file import HAMFORMER
from hamburger.classification.hamformer import HAMFORMERS, Hamformer
from hamburger.errors import OptionError, UnknownNameError, check_choice, check_count, check_mapping, did_you_mean
from hamburger.insertion import Gate, insert_context
from hamburger.registry import explain_errors
from hamburger.tensors import check_images

STEMS = ("timm", "small")


class Classifier(nn.Module):
    """b 3 h w   ->   logits b k.   `config`: the keywords of `create_classifier` that rebuild it"""

    def __init__(self, net: nn.Module, config: dict[str, Any]) -> None:
        super().__init__()
        self.net, self.config = net, config

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        check_images("Classifier", "the images", images)
        logits: torch.Tensor = self.net(images)
        return logits


@explain_errors("create_classifier")
def create_classifier(
    backbone: str = "resnet18",
    *,
    num_classes: int,
    context: str | None = None,
    context_options: dict[str, Any] | None = None,
    after: str = "layer3",
    gate: Gate | None = "zero",
    stem: str = "timm",
    size: int = 32,
    backbone_options: dict[str, Any] | None = None,
    pretrained: bool = False,
) -> Classifier:
    """Return a timm network for images of `size` pixels, with a context inserted after its submodule `after`.

    >>> net = create_classifier("resnet18", num_classes=10, context="nmf", stem="small")
    >>> logits = net(images)                                            # (b, 3, h, w) -> (b, 10)

    stem="small" replaces the first layer of a ResNet by the usual one for images of 32 or 64 pixels: a 3 x 3
    convolution without stride or pooling.

    "hamformer_tiny" and "hamformer_small" are vision transformers in which the context mixes the tokens instead of
    attention; None leaves mixing out. `after`, `gate`, `stem` and `pretrained` do not apply to them.

    >>> net = create_classifier("hamformer_tiny", num_classes=10, context="nmf", backbone_options={"depth": 6})
    """
    config = dict(locals()) | {"pretrained": False}  # a network that is built again gets its weights from a file
    check_choice("create_classifier", "stem", stem, STEMS)
    check_count("create_classifier", "num_classes", num_classes, least=2)
    if isinstance(backbone, str) and backbone.startswith(HAMFORMER):
        changed = {"after": after != "layer3", "gate": gate != "zero", "stem": stem != "timm", "pretrained": pretrained}
        for option in (option for option, given in changed.items() if given):
            raise OptionError(f"create_classifier: '{backbone}' has no option '{option}'; leave it out")
        return Classifier(
            _create_hamformer(backbone, num_classes, size, context, context_options, backbone_options), config
        )
    check_timm_name(backbone)
    options = {"num_classes": num_classes, "pretrained": pretrained}
    options |= check_mapping("create_classifier", "backbone_options", backbone_options)
    net = create_with_supported({}, backbone, backbone, **options)
    if stem == "small":
        _shrink_stem(backbone, net)
    if context is not None:
        inserted = (context, check_mapping("create_classifier", "context_options", context_options))
        insert_context(net, {after: inserted}, gate=gate, example=torch.zeros(1, 3, size, size))
    return Classifier(net, config)


def _create_hamformer(
    name: str,
    num_classes: int,
    size: int,
    context: str | None,
    context_options: dict[str, Any] | None,
    backbone_options: dict[str, Any] | None,
) -> Hamformer:
    if name not in HAMFORMERS:
        raise UnknownNameError(f"no classifier '{name}'{did_you_mean(name, HAMFORMERS)}")
    options = check_mapping("create_classifier", "backbone_options", backbone_options)
    for option in options:
        if option not in HAMFORMERS[name]:
            raise OptionError(f"'{name}' has no option '{option}'{did_you_mean(option, HAMFORMERS[name])}")
    mixer = check_mapping("create_classifier", "context_options", context_options)
    shape = HAMFORMERS[name] | options
    return Hamformer(num_classes, size=size, context=context, context_options=mixer, **shape)


def _shrink_stem(backbone: str, net: nn.Module) -> None:
    first = net._modules.get("conv1")
    if not isinstance(first, nn.Conv2d) or "maxpool" not in net._modules:
        raise OptionError(
            f"create_classifier: stem='small' needs a ResNet whose stem is one convolution and a pool, such as "
            f"resnet18 (got '{backbone}'); leave it at 'timm'"
        )
    small = nn.Conv2d(first.in_channels, first.out_channels, 3, padding=1, bias=first.bias is not None)
    nn.init.kaiming_normal_(small.weight, mode="fan_out", nonlinearity="relu")
    net.conv1, net.maxpool = small, nn.Identity()
