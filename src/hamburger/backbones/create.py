"""Create a backbone by name, and load weights files into backbones: what did not fit is reported."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hamburger.backbones.networks import Backbone, ResNet, backbones
from hamburger.backbones.timm_encoder import PREFIX, TimmBackbone, load_timm_state
from hamburger.checkpoints.read import COUNTER, Report, read_checkpoint
from hamburger.checkpoints.weights_file import SCALE, dequantise, read_metadata
from hamburger.errors import CheckpointError, InputError, OptionError, UnknownNameError, check_path

DOWNLOAD = "timm"  # the value of `pretrained` that downloads weights
MIN_SHARE = 0.5  # of the backbone's entries; a file that fills fewer belongs to another network
CLASSIFIERS = ("fc.", "classifier.", "head.", "head_fc.", "last_linear.")
# prefixes of the backbone in files of whole networks, including ours
PREFIXES = ("", "backbone.", "backbone.net.", "encoder.", "model.")


def create_backbone(
    name: str,
    *,
    output_stride: int = 16,
    pretrained: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Backbone:
    """Return a registered backbone, or any timm encoder as `timm:<name>`.

    `pretrained` is the path of a weights file, or "timm" to download the weights. `backbone.report` says what was
    loaded; entries that do not fit also raise a warning.
    """
    if not isinstance(name, str):
        raise OptionError(f"backbone: the name must be a string such as 'resnet50', got {name!r}")
    download = pretrained == DOWNLOAD
    if name.startswith(PREFIX):
        backbone: Backbone = TimmBackbone(
            name.removeprefix(PREFIX), output_stride=output_stride, pretrained=download, **options
        )
    else:
        try:
            backbone = backbones.create(name, output_stride=output_stride, **options)
        except UnknownNameError as error:
            raise UnknownNameError(f"{error}, and {PREFIX}<name> for any timm encoder") from None
        if download:
            if not isinstance(backbone, ResNet):
                raise OptionError(
                    f"create_backbone: timm has no weights for '{name}' (got pretrained='timm'); omit pretrained"
                )
            source, state = load_timm_state(name, stem=backbone.stem, stride_in=backbone.stride_in)
            backbone.report = load_backbone_state(backbone, state, source=f"{PREFIX}{source}")
    if pretrained is not None and not download:
        backbone.report = load_backbone(backbone, pretrained)
    return backbone


def load_backbone(backbone: nn.Module, path: str | os.PathLike[str]) -> Report:
    """Load a .safetensors or .pth file of torchvision, timm or this library into a backbone; return a report.

    Weights may be int8 with one factor per output channel as `<name>.scale`. Classifiers are ignored. A warning with
    the whole report lists other entries that do not fit. If less than half of the backbone would be filled, a
    CheckpointError is raised and the backbone stays unchanged. Nothing in the file is executed.
    """
    check_path("create_backbone", "pretrained, unless it is 'timm',", path)
    path = Path(path)
    if not path.is_file():
        raise InputError(
            f"pretrained: there is no file '{path}'; pass the path of a .safetensors or .pth file, or 'timm'"
        )
    state = read_checkpoint(path)
    architecture = read_metadata(path).get("arch", "") if path.suffix == ".safetensors" else ""
    return load_backbone_state(backbone, state, source=str(path), architecture=architecture)


def load_backbone_state(
    backbone: nn.Module, state: Mapping[str, Tensor], *, source: str, architecture: str = ""
) -> Report:
    """Load a state dict into a backbone like `load_backbone`. `architecture`: what its file states, or ""."""
    net: nn.Module = backbone.net if isinstance(backbone, TimmBackbone) else backbone
    net_state = net.state_dict()
    report = Report(source, problems=_compare_versions(backbone, state, architecture))
    values = match_entries(net_state, dequantise_state(state), report)
    share = len(values) / max(len(net_state) - len(report.kept), 1)
    if share < MIN_SHARE:
        raise CheckpointError(
            f"pretrained: the file fills only {share:.0%} of the {type(backbone).__name__}, so it belongs to "
            f"another network; nothing was loaded\n{report}"
        )
    broken = [name for name, value in values.items() if not value.isfinite().all()]
    if broken:
        raise CheckpointError(f"pretrained: {source} has NaN or infinity in {broken[0]}; nothing was loaded")
    net.load_state_dict(values, strict=False)  # names and shapes were checked above
    if not report.ok:
        warnings.warn(f"pretrained weights do not fit the backbone completely\n{report}", stacklevel=2)
    return report


def dequantise_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state with int8 entries multiplied by their `.scale`, one factor per output channel."""
    values = {}
    for name, value in state.items():
        scale = state.get(name + SCALE)
        if scale is not None and not value.is_floating_point():
            values[name] = dequantise(name, value, scale)
        elif not (name.endswith(SCALE) and name.removesuffix(SCALE) in state):
            values[name] = value
    return values


def match_entries(net_state: Mapping[str, Tensor], state: Mapping[str, Tensor], report: Report) -> dict[str, Tensor]:
    """Return the values that can be loaded, under the backbone's names; file every name of both sides in the report."""
    prefix = max(PREFIXES, key=lambda p: sum(p + name in state for name in net_state))
    inside = {name.removeprefix(prefix): name for name in state if name.startswith(prefix)}
    # timm's feature extractors say stages_0 for what its files call stages.0
    respelled = {name.replace("_", "."): source for name, source in inside.items()}
    values, used = {}, set()
    for name, value in net_state.items():
        theirs = inside.get(name) or respelled.get(name.replace("_", "."))
        if theirs is None and name.endswith(COUNTER):
            report.kept[name] = "a counter without effect on the output"
        elif theirs is None:
            report.problems[name] = "missing from the file"
        elif state[theirs].shape != value.shape:
            report.problems[name] = f"{tuple(state[theirs].shape)} in the file, {tuple(value.shape)} in the network"
        elif state[theirs].is_floating_point() != value.is_floating_point():
            report.problems[name] = f"{state[theirs].dtype} without '{name}{SCALE}'"
        else:
            values[name] = state[theirs]
            report.loaded[name] = theirs
        used.add(theirs)
    for name in sorted(state.keys() - used):
        rest = name.removeprefix(prefix)
        if not name.startswith(prefix) or rest.startswith(CLASSIFIERS) or rest.endswith(COUNTER):
            report.skipped[name] = "not part of a backbone"
        else:
            report.problems[name] = "unexpected in the file"
    return values


def _compare_versions(backbone: nn.Module, state: Mapping[str, Tensor], architecture: str) -> dict[str, str]:
    """Return differences of two ResNets that names and shapes do not explain."""
    problems: dict[str, str] = {}
    if isinstance(backbone, ResNet):
        other, first = ("plain", "conv1.weight") if backbone.stem == "deep" else ("deep", "conv1.0.weight")
        if any(prefix + first in state for prefix in PREFIXES):
            problems["stem"] = (
                f"the stem was not loaded: {other} in the file, {backbone.stem} in the network; pass stem='{other}'"
            )
    version = {"3x3": "v1.5", "1x1": "v1"}.get(getattr(backbone, "stride_in", ""))  # also of a detector's encoder
    if version and (stated := re.search(r"\bv1(\.5)?(?![\w.])", architecture)) and stated[0] != version:
        problems["stride_in"] = f"the file states {stated[0]}, the network is {version}; change stride_in"
    return problems
