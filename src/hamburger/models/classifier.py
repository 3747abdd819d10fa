"""A classifier of timm with a context put into it, and its weights in a file that says how to build it again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hamburger.errors import CheckpointError, InputError, OptionError, check_choice, check_count
from hamburger.files import write_durably
from hamburger.insertion import insert_context
from hamburger.models.info import Info

KEY = "hamburger"  # of the metadata
STEMS = ("timm", "small")
# images are in [-1, 1]
MEAN = STD = (0.5, 0.5, 0.5)


class Classifier(nn.Module):
    """b 3 h w   ->   logits b k.   `config` holds the keywords of `create_classifier`."""

    def __init__(self, net: nn.Module, config: dict[str, Any]) -> None:
        super().__init__()
        self.net, self.config = net, config

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.net(images)
        return logits


def create_classifier(
    backbone: str = "resnet18",
    *,
    num_classes: int,
    context: str | None = None,
    context_options: dict[str, Any] | None = None,
    after: str = "layer3",
    gate: str | None = "zero",
    stem: str = "timm",
    size: int = 32,
    backbone_options: dict[str, Any] | None = None,
    pretrained: bool = False,
) -> Classifier:
    """The named network of timm for images of `size`, with a context behind its submodule `after`.

    `stem="small"` gives a ResNet the first layer that is usual for images of 32 or 64 pixels: 3 x 3, without stride or
    pool.
    """
    import timm

    config = {key: value for key, value in locals().items() if key != "timm"}
    check_choice("create_classifier", "stem", stem, STEMS)
    check_count("create_classifier", "num_classes", num_classes, least=2)
    try:
        net = timm.create_model(backbone, num_classes=num_classes, pretrained=pretrained, **(backbone_options or {}))
    except (RuntimeError, TypeError) as error:
        raise OptionError(f"create_classifier: timm cannot build '{backbone}': {error}") from error
    if stem == "small":
        _shrink_stem(backbone, net)
    if context is not None:
        chosen = (context, dict(context_options or {}))
        insert_context(net, {after: chosen}, gate=gate, example=torch.zeros(1, 3, size, size))
    return Classifier(net, config)


def _shrink_stem(backbone: str, net: nn.Module) -> None:
    first = net._modules.get("conv1")
    if not isinstance(first, nn.Conv2d) or "maxpool" not in net._modules:
        raise OptionError(
            f"create_classifier: stem='small' is for ResNets with one convolution and a pool, such as resnet18, not "
            f"for '{backbone}'; leave it at 'timm'"
        )
    small = nn.Conv2d(first.in_channels, first.out_channels, 3, padding=1, bias=first.bias is not None)
    nn.init.kaiming_normal_(small.weight, mode="fan_out", nonlinearity="relu")
    net.conv1, net.maxpool = small, nn.Identity()


def save_classifier(path: str | os.PathLike[str], net: Classifier, info: Info) -> None:
    """Write the network to a file that is either complete or not there."""
    from dataclasses import replace

    from safetensors.torch import save

    tensors = {name: value.detach().cpu().contiguous() for name, value in net.state_dict().items()}
    described = replace(info, model={"task": "classes", **net.config, "pretrained": False}, mean=MEAN, std=STD)
    write_durably(Path(path), save(tensors, metadata={KEY: described.as_json()}))


def is_classifier(path: str | os.PathLike[str]) -> bool:
    """Whether a weights file says that it is of a classifier; False where it cannot be read, which loading will say."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            said = json.loads((file.metadata() or {}).get(KEY, "{}"))
    except (SafetensorError, OSError, ValueError):
        return False
    model = said.get("model") if isinstance(said, dict) else None
    return isinstance(model, dict) and model.get("task") == "classes"


def load_classifier(path: str | os.PathLike[str]) -> tuple[Classifier, Info]:
    """The classifier of a file, on the CPU and in evaluation mode, and what its classes are called."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise InputError(f"load_classifier: there is no file {path}")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"load_classifier: {path} is not a readable .safetensors file: {error}") from error
    info = Info.from_json(metadata.get(KEY, "{}"), f"load_classifier: {path}")
    options = dict(info.model)
    if options.pop("task", None) != "classes":
        raise CheckpointError(f"load_classifier: {path} is of another kind of network; load_weights reads those")
    with torch.random.fork_rng(devices=[]):  # what is drawn here is overwritten: leave the caller's draws alone
        net = create_classifier(**options)
    net.load_state_dict(tensors)
    return net.eval(), info
