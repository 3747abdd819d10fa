"""Any encoder of timm that gives feature maps, as `timm:<name>`."""

from __future__ import annotations

import difflib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from hamburger.backbones.base import Backbone
from hamburger.errors import CheckpointError, OptionError, ShapeError, UnknownNameError, did_you_mean

PREFIX = "timm:"
MAPS = 4  # the deepest ones; where there are more, the shallowest is of stride 2 and no head wants it
# how Swin and ViT take images of other sizes than they were made for
ANY_SIZE = {"strict_img_size": False, "dynamic_img_size": True}
# our ResNets -> the weights in timm of the same network
SAME_NETWORK = {
    **{(name, "plain"): f"{name}.tv_in1k" for name in ("resnet18", "resnet34", "resnet50", "resnet101")},
    ("resnet50", "deep"): "resnet50s.gluon_in1k",
    ("resnet101", "deep"): "resnet101s.gluon_in1k",
}


class TimmBackbone(Backbone):
    """b 3 h w   ->   the deepest feature maps of a timm encoder, four or as many as it has.

    `options` go to `timm.create_model`. `output_stride` must be one that the encoder has or can be dilated to.
    """

    def __init__(self, name: str, *, output_stride: int, pretrained: bool = False, **options: Any) -> None:
        super().__init__()
        call = f"{PREFIX}{name}"
        check_timm_name(name)
        # without output_stride it has one stride only; whether that is the one asked for: below
        wishes = {"output_stride": output_stride, **ANY_SIZE}
        self.net = create_with_supported(
            {name: value for name, value in wishes.items() if name not in options},
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
                f"backbone '{call}' has an output stride of {self.strides[-1]} and cannot be dilated to "
                f"{output_stride}; pass output_stride={self.strides[-1]}"
            )
        layout = getattr(self.net, "output_fmt", "NCHW")
        self.channels_first = str(getattr(layout, "value", layout)) == "NCHW"
        self.corners = self._corners()

    @torch.no_grad()
    def _corners(self) -> bool | None:
        """Found by trying: 2 s + 1 pixels are three corners of stride s, but two patches and a rest.

        Transformers refuse the rest, but take whole patches of any number, or are of one size.
        """
        stride = max(self.strides)
        last = self._positions(2 * stride + 1)
        if last is not None:
            return last == 3
        return False if (self._positions(2 * stride), self._positions(3 * stride)) == (2, 3) else None

    def _positions(self, side: int) -> int | None:
        """On a side of the deepest map of an image of that side; None where it is not taken."""
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
        except AssertionError as error:  # how encoders of a fixed image size refuse another
            raise ShapeError(
                f"backbone '{type(self.net).__name__}' of timm does not take images of {tuple(x.shape[2:])}: {error}; "
                f"crop to its size, or pass backbone_options={{'img_size': ...}} where it has that option"
            ) from error
        return list(maps) if self.channels_first else [y.movedim(-1, 1) for y in maps]


def require_timm(call: str) -> ModuleType:
    try:
        import timm
    except ImportError as error:
        raise OptionError(f"{call} needs the package timm: pip install 'hamburger[train]'") from error
    module: ModuleType = timm
    return module


def check_timm_name(name: str) -> None:
    timm = require_timm(f"backbone '{PREFIX}{name}'")
    if name.startswith(("hf-hub:", "hf_hub:")) or timm.is_model(name):
        return
    near = difflib.get_close_matches(name, timm.list_models(), n=3, cutoff=0.4)
    hint = did_you_mean(name, near) if near else ""
    raise UnknownNameError(f"timm has no model '{name}'{hint}; `timm.list_models()` has them all")


def create_with_supported(wishes: dict[str, Any], call: str, name: str, **options: Any) -> Any:
    """`create` with those wishes that the encoder takes."""
    try:
        return create_timm_model(call, name, **wishes, **options)
    except TypeError as error:
        refused = next((wish for wish in wishes if wish in str(error)), None)
        if refused is None:
            raise OptionError(f"backbone '{call}': {error}; its options are those of timm.create_model") from error
    return create_with_supported(
        {wish: value for wish, value in wishes.items() if wish != refused}, call, name, **options
    )


def create_timm_model(call: str, name: str, *, pretrained: bool, **options: Any) -> Any:
    """`timm.create_model`, with what a user can do about its failures."""
    timm = require_timm(call)
    try:
        return timm.create_model(name, pretrained=pretrained, **options)
    except TypeError:
        raise
    except Exception as error:  # a download fails in as many ways as there are networks
        why = (str(error).strip().splitlines() or [""])[0]
        if "features_only" in why:
            raise OptionError(f"backbone '{call}' gives no feature maps: {why}; choose another encoder") from error
        if not pretrained:
            raise OptionError(f"backbone '{call}' could not be built: {type(error).__name__}: {why}") from error
        raise CheckpointError(
            f"pretrained='timm': the weights of '{name}' could not be had: {type(error).__name__}: {why}; without a "
            f"network, pass the path of a .safetensors or .pth file instead"
        ) from error


def load_timm_state(name: str, *, stem: str, stride_in: str) -> tuple[str, dict[str, Tensor]]:
    """The name in timm of one of our ResNets, and the weights of it."""
    tag = SAME_NETWORK.get((name, stem))
    if tag is None:
        raise OptionError(f"pretrained='timm': timm has no {name} with stem='{stem}'; pass stem='plain', or a file")
    if stride_in != "3x3":
        raise OptionError(
            f"pretrained='timm': the weights in timm have their strides in the 3x3 convolutions, and the network was "
            f"asked for stride_in='{stride_in}'; leave stride_in at '3x3', or pass a file of v1 weights"
        )
    return tag, create_timm_model(name, tag, pretrained=True).state_dict()
