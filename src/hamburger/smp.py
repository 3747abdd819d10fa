"""HamNet and LightHam as models of segmentation_models_pytorch, with any of its encoders.

>>> import hamburger.smp                                            # adds them to smp
>>> model = smp.create_model("hamnet", encoder_name="resnet50", encoder_weights="imagenet", classes=21)
>>> model = hamburger.smp.LightHam("mit_b0", classes=21)            # the same kind of model, by its class

`encoder`, `decoder`, `segmentation_head`, `predict`, `freeze_encoder`, `save_pretrained`, and smp's losses and metrics
work as for its own models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from hamburger.errors import OptionError, install_extra
from hamburger.segmentation.heads import base
from hamburger.segmentation.heads.base import Decoder

try:
    import segmentation_models_pytorch as smp
    from segmentation_models_pytorch.base import ClassificationHead, SegmentationHead, SegmentationModel
    from segmentation_models_pytorch.base.hub_mixin import supports_config_loading
except ImportError as missing:
    raise ImportError(f"hamburger.smp needs segmentation-models-pytorch; {install_extra('smp')}") from missing

__all__ = ["HamNet", "LightHam"]


class HamModel(SegmentationModel):
    """What both models share: an encoder of smp, a head of this library as decoder, and smp's segmentation head."""

    def build(
        self,
        name: str,
        encoder: nn.Module,
        decoder_options: Mapping[str, Any],
        *,
        maps: int,
        stride: int,
        classes: int,
        activation: str | Callable[..., Any] | None,
        aux_params: Mapping[str, Any] | None,
    ) -> None:
        widths: Sequence[int] = encoder.out_channels  # type: ignore[assignment]
        head = base.heads.create(name, widths[-maps:], classes, **decoder_options)
        self.encoder, self.decoder = encoder, Decoder(head, maps=maps)
        self.segmentation_head = SegmentationHead(
            self.decoder.width, classes, kernel_size=1, activation=activation, upsampling=stride
        )
        self.classification_head = ClassificationHead(widths[-1], **aux_params) if aux_params else None


class HamNet(HamModel):
    """HamNet (Geng et al., ICLR 2021) on an encoder of smp.   b c h w   ->   b `classes` h w

    The arguments are those of smp's DeepLabV3. `context`, `context_options` and `decoder_channels` (the width) are
    passed to the head "hamnet" of `hb.create_model`. The encoder is dilated to `encoder_output_stride`, 8 or 16; 32
    leaves it as it is, for encoders that cannot be dilated.
    """

    @supports_config_loading
    def __init__(
        self,
        encoder_name: str = "resnet50",
        encoder_depth: int = 5,
        encoder_weights: str | None = "imagenet",
        encoder_output_stride: int = 8,
        decoder_channels: int = 512,
        context: str | None = "nmf",
        context_options: Mapping[str, Any] | None = None,
        in_channels: int = 3,
        classes: int = 1,
        activation: str | Callable[..., Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if encoder_output_stride not in (8, 16, 32):
            raise OptionError(f"smp.HamNet: encoder_output_stride must be 8, 16 or 32 (got {encoder_output_stride!r})")
        encoder = smp.encoders.get_encoder(
            encoder_name,
            in_channels=in_channels,
            depth=encoder_depth,
            weights=encoder_weights,
            output_stride=encoder_output_stride,
            **options,
        )
        self.build(
            "hamnet",
            encoder,
            {"width": decoder_channels, "context": context, "context_options": context_options},
            maps=1,
            stride=min(encoder_output_stride, 2**encoder_depth),
            classes=classes,
            activation=activation,
            aux_params=aux_params,
        )
        self.name = f"hamnet-{encoder_name}"


class LightHam(HamModel):
    """LightHam (SegNeXt: Guo et al., NeurIPS 2022) on an encoder of smp.   b c h w   ->   b `classes` h w

    The arguments are those of smp's other models. `decoder_channels` is the width, and `decoder_options` (`inner`,
    `rank`, `steps`, ...) are those of the head "lightham" of `hb.create_model`.
    """

    @supports_config_loading
    def __init__(
        self,
        encoder_name: str = "resnet34",
        encoder_depth: int = 5,
        encoder_weights: str | None = "imagenet",
        decoder_channels: int = 256,
        decoder_options: Mapping[str, Any] | None = None,
        in_channels: int = 3,
        classes: int = 1,
        activation: str | Callable[..., Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if encoder_depth not in (4, 5):
            raise OptionError(f"smp.LightHam: encoder_depth must be 4 or 5, for three maps (got {encoder_depth!r})")
        encoder = smp.encoders.get_encoder(
            encoder_name, in_channels=in_channels, depth=encoder_depth, weights=encoder_weights, **options
        )
        self.build(
            "lightham",
            encoder,
            {"width": decoder_channels, **(decoder_options or {})},
            maps=3,
            stride=2 ** (encoder_depth - 2),
            classes=classes,
            activation=activation,
            aux_params=aux_params,
        )
        self.name = f"lightham-{encoder_name}"


for model in (HamNet, LightHam):
    setattr(smp, model.__name__, model)  # smp.from_pretrained looks for the class here
    smp.MODEL_ARCHITECTURES_MAPPING[model.__name__.lower()] = model  # smp.create_model
