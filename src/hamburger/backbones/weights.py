"""A local file of weights -> a backbone, and a report of everything that did not fit."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from hamburger.backbones.base import LoadReport
from hamburger.backbones.resnet import ResNet
from hamburger.backbones.timm_encoder import TimmBackbone
from hamburger.checkpoints.read import read_checkpoint
from hamburger.errors import CheckpointError, InputError

MIN_SHARE = 0.5  # of the backbone's entries: with fewer the file is of another network
SCALE = ".scale"
COUNTER = "num_batches_tracked"
CLASSIFIERS = ("fc.", "classifier.", "head.", "head_fc.", "last_linear.")
# where encoders stand in the files of whole networks, ours among them
PREFIXES = ("", "backbone.", "backbone.net.", "encoder.", "model.")


def load_backbone(backbone: nn.Module, path: str | os.PathLike[str]) -> LoadReport:
    """Fill a backbone from a .safetensors or .pth file of torchvision, timm or this library.

    Weights may be int8 with a factor per output channel beside them, `<name>.scale`. Classifiers are ignored. What else
    does not fit is a warning with the whole report; where less than half of the backbone would be filled it is a
    CheckpointError, and the backbone is as before. Nothing in the file is executed.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(
            f"pretrained: there is no file '{path}'; give the path of a .safetensors or .pth file, or 'timm'"
        )
    return load_backbone_state(backbone, read_checkpoint(path), source=str(path), metadata=_metadata(path))


def load_backbone_state(
    backbone: nn.Module, state: Mapping[str, Tensor], *, source: str, metadata: Mapping[str, str] | None = None
) -> LoadReport:
    """`load_backbone`, of weights that are in memory already."""
    net: nn.Module = backbone.net if isinstance(backbone, TimmBackbone) else backbone
    report, values = match_entries(net.state_dict(), dequantise(state), source)
    _explain(report, backbone, (metadata or {}).get("arch", ""))
    if report.share < MIN_SHARE:
        raise CheckpointError(
            f"pretrained: the file fills {report.share:.0%} of the {type(backbone).__name__} backbone, so it is of "
            f"another network; nothing was loaded\n{report}"
        )
    broken = [name for name, value in values.items() if not value.isfinite().all()]
    if broken:
        raise CheckpointError(f"pretrained: {source} has NaN or infinity in {broken[0]}; nothing was loaded")
    net.load_state_dict(values, strict=False)  # names and shapes were checked above
    if not report.complete:
        warnings.warn(f"pretrained weights do not fit the backbone in all\n{report}", stacklevel=2)
    return report


def dequantise(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """int8 entries times their `.scale`, one factor per output channel; others as they are."""
    found = {}
    for name, value in state.items():
        scale = state.get(name + SCALE)
        if scale is not None and not value.is_floating_point():
            if scale.shape != value.shape[:1]:
                raise CheckpointError(
                    f"pretrained: {name}{SCALE} must have one factor for each of the {value.shape[0]} output channels "
                    f"of {name}, got {tuple(scale.shape)}"
                )
            found[name] = value.float() * scale.float().reshape(-1, *[1] * (value.dim() - 1))
        elif not (name.endswith(SCALE) and name.removesuffix(SCALE) in state):
            found[name] = value
    return found


def match_entries(
    wanted: Mapping[str, Tensor], state: Mapping[str, Tensor], source: str
) -> tuple[LoadReport, dict[str, Tensor]]:
    """Sort every name of both into a report; with it what can be loaded, under the backbone's names."""
    prefix = max(PREFIXES, key=lambda p: sum(p + name in state for name in wanted))
    inside = {name.removeprefix(prefix): name for name in state if name.startswith(prefix)}
    # timm's feature extractors write stages_0 for what its files call stages.0
    spelled = {name.replace("_", "."): name for name in inside}
    report, values, used = LoadReport(source), {}, set()
    for name, value in wanted.items():
        theirs = name if name in inside else spelled.get(name.replace("_", "."))
        if theirs is None:
            if not name.endswith(COUNTER):
                report.missing.append(name)
            continue
        used.add(inside[theirs])
        entry = state[inside[theirs]]
        if entry.shape != value.shape:
            report.mismatched[name] = f"{tuple(entry.shape)} in the file, {tuple(value.shape)} in the network"
        elif entry.is_floating_point() != value.is_floating_point():
            report.mismatched[name] = f"{entry.dtype} without '{name}{SCALE}'"
        else:
            values[name] = entry
            report.loaded.append(name)
    for name in state:
        if name not in used:
            rest = name.removeprefix(prefix)
            ignored = not name.startswith(prefix) or rest.startswith(CLASSIFIERS) or rest.endswith(COUNTER)
            (report.ignored if ignored else report.unexpected).append(name)
    return report, values


def _explain(report: LoadReport, backbone: nn.Module, arch: str) -> None:
    """What names and shapes do not say. `arch` is what the file says of itself, if anything."""
    if arch:
        report.notes.append(f"the file says of itself: {arch}")
    if not isinstance(backbone, ResNet):
        return
    for name, theirs, ours in (("conv1.weight", "plain", "deep"), ("conv1.0.weight", "deep", "plain")):
        if name in report.unexpected:
            report.doubts.append(
                f"the stem was not loaded: the file's is {theirs}, the network's {ours}; pass stem='{theirs}'"
            )
    version = {"3x3": "v1.5", "1x1": "v1"}[backbone.stride_in]
    if (said := re.search(r"\bv1(\.5)?(?![\w.])", arch)) and said[0] != version:
        report.doubts.append(f"the file says it is {said[0]}, the network is {version}; change stride_in")
    report.notes.append(
        f"the network strides in its {backbone.stride_in} convolutions ({version}, stride_in='{backbone.stride_in}'); "
        f"weights do not tell which they were trained for: torchvision's and timm's are v1.5, the original ones v1"
    )


def _metadata(path: Path) -> dict[str, str]:
    if path.suffix != ".safetensors":
        return {}
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return file.metadata() or {}
