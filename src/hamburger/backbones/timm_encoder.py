"""Any timm encoder with feature maps as a backbone, `timm:<name>`."""

from __future__ import annotations

import difflib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from hamburger.backbones.networks import Backbone
from hamburger.errors import CheckpointError, OptionError, ShapeError, UnknownNameError, did_you_mean, install_extra

PREFIX = "timm:"
MAPS = 4  # keep the deepest maps; encoders with five also have one of stride 2, which no head uses
# options that make Swin and ViT accept images of any size
ANY_SIZE = {"strict_img_size": False, "dynamic_img_size": True}
# our ResNets (name, stem) -> the timm weights of the same network
SAME_NETWORK = {
    **{(name, "plain"): f"{name}.tv_in1k" for name in ("resnet18", "resnet34", "resnet50", "resnet101")},
    ("resnet50", "deep"): "resnet50s.gluon_in1k",
    ("resnet101", "deep"): "resnet101s.gluon_in1k",
}


class TimmBackbone(Backbone):
    """b 3 h w   ->   the deepest feature maps of a timm encoder, four or as many as it has.

    `options` are passed to `timm.create_model`. The encoder must have `output_stride` or support dilation to it.
    """

    def __init__(self, name: str, *, output_stride: int, pretrained: bool = False, **options: Any) -> None:
        super().__init__()
        call = f"{PREFIX}{name}"
        check_timm_name(name)
        # an encoder that does not take output_stride has a fixed stride, which is checked below
        optional = {"output_stride": output_stride, **ANY_SIZE}
        self.net = create_with_supported(
            {name: value for name, value in optional.items() if name not in options},
            call,
            name,
            features_only=True,
            pretrained=pretrained,
            **options,
        )
        info = self.net.feature_info
        self.channels, self.strides = tuple(info.channels()[-MAPS:]), tuple(info.reduction()[-MAPS:])
        if self.strides[-1] != output_stride:
            raise OptionError(
                f"backbone '{call}': the output stride is {self.strides[-1]} and cannot be dilated to "
                f"{output_stride}; pass output_stride={self.strides[-1]}"
            )
        layout = getattr(self.net, "output_fmt", "NCHW")
        self.channels_first = str(getattr(layout, "value", layout)) == "NCHW"
        self.corners = self._find_corners()

    @torch.no_grad()
    def _find_corners(self) -> bool | None:
        """Return `corners` (see `Backbone`), found by running the encoder on small images.

        2 s + 1 pixels give three positions for padded convolutions of stride s, but two patches and a remainder.
        Transformers refuse the remainder; they take any whole number of patches, or images of one size only.
        """
        stride = max(self.strides)
        positions = self._count_positions(2 * stride + 1)
        if positions is not None:
            return positions == 3
        patches = (self._count_positions(2 * stride), self._count_positions(3 * stride))
        return False if patches == (2, 3) else None

    def _count_positions(self, side: int) -> int | None:
        """Return the width of the deepest map for an image of that side, None if the encoder refuses the image."""
        training = self.training
        try:
            return int(self.eval().forward(torch.zeros(1, 3, side, side))[-1].shape[-1])
        except (ShapeError, RuntimeError):
            return None
        finally:
            self.train(training)

    def forward(self, x: Tensor) -> list[Tensor]:
        try:
            maps = self.net(x)[-MAPS:]
        except AssertionError as error:  # raised by encoders of a fixed image size
            raise ShapeError(
                f"timm backbone '{type(self.net).__name__}': does not accept images of {tuple(x.shape[2:])}: {error}; "
                f"crop to its size, or pass backbone_options={{'img_size': ...}} if it has that option"
            ) from error
        return list(maps) if self.channels_first else [y.movedim(-1, 1) for y in maps]


def import_timm(call: str) -> ModuleType:
    try:
        import timm
    except ImportError as error:
        raise OptionError(f"{call} needs the package timm; {install_extra('train')}") from error
    module: ModuleType = timm
    return module


def check_timm_name(name: str) -> None:
    timm = import_timm(f"backbone '{PREFIX}{name}'")
    if not isinstance(name, str):
        raise OptionError(f"backbone: the name must be a string such as 'resnet18', got {name!r}")
    if name.startswith(("hf-hub:", "hf_hub:")) or timm.is_model(name):
        return
    near = difflib.get_close_matches(name, timm.list_models(), n=3, cutoff=0.4)
    hint = did_you_mean(name, near) if near else ""
    raise UnknownNameError(f"timm has no model '{name}'{hint}; `timm.list_models()` lists them all")


def create_with_supported(optional: dict[str, Any], call: str, name: str, **options: Any) -> Any:
    """Create the timm model with those of the `optional` options that it accepts."""
    try:
        return create_timm_model(call, name, **optional, **options)
    except TypeError as error:
        refused = next((option for option in optional if option in str(error)), None)
        if refused is None:
            raise OptionError(f"backbone '{call}': {error}; its options are those of timm.create_model") from error
    accepted = {option: value for option, value in optional.items() if option != refused}
    return create_with_supported(accepted, call, name, **options)


def create_timm_model(call: str, name: str, *, pretrained: bool, **options: Any) -> Any:
    """Call `timm.create_model`; its failures become errors that say what to do."""
    timm = import_timm(call)
    try:
        return timm.create_model(name, pretrained=pretrained, **options)
    except TypeError:
        raise
    except Exception as error:  # a download can fail with any exception
        why = (str(error).strip().splitlines() or [""])[0]
        if "features_only" in why:
            raise OptionError(f"backbone '{call}': has no feature maps: {why}; choose another encoder") from error
        if not pretrained:
            raise OptionError(f"backbone '{call}': could not be built: {type(error).__name__}: {why}") from error
        raise CheckpointError(
            f"pretrained='timm': the weights of '{name}' could not be downloaded: {type(error).__name__}: {why}; "
            f"offline, pass the path of a .safetensors or .pth file instead"
        ) from error


def load_timm_state(name: str, *, stem: str, stride_in: str) -> tuple[str, dict[str, Tensor]]:
    """Return the timm name and the state dict of the weights for one of our ResNets."""
    tag = SAME_NETWORK.get((name, stem))
    if tag is None:
        raise OptionError(f"pretrained='timm': timm has no {name} with stem='{stem}'; pass stem='plain', or a file")
    if stride_in != "3x3":
        raise OptionError(
            f"pretrained='timm': timm's weights stride in the 3x3 convolutions (got stride_in='{stride_in}'); leave "
            f"stride_in at '3x3', or pass a file of v1 weights"
        )
    return tag, create_timm_model(name, tag, pretrained=True).state_dict()
