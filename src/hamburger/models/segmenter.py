"""A segmentation network: backbone, head, and logits at the size of the image."""

from __future__ import annotations

import os
from typing import Any, overload

import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.backbones.base import Backbone
from hamburger.errors import InputError, ShapeError
from hamburger.heads.base import Head
from hamburger.losses.pixels import IGNORE, to_pixels
from hamburger.models.grid import Grid
from hamburger.models.info import Info
from hamburger.shapes import check_tensor


class Segmenter(nn.Module):
    """b 3 h w   ->   logits b k h w, for any h and w.

    With labels (b h w, 255 where unlabelled) the answer is the loss instead: its terms by name, to be summed. Loss and
    logits share one `forward`, so that DDP and `torch.compile` see both. Images are padded by a few pixels of zeros, to
    the right and below, so that feature maps meet the pixels they were made from: see `models.grid`.

    `config` holds the keywords of `create_model` that build this network again, `info` what its classes mean; networks
    put together by hand have neither.
    """

    config: dict[str, Any] | None
    info: Info | None

    def __init__(
        self, backbone: Backbone, head: Head, *, num_classes: int, config: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.backbone, self.head, self.num_classes = backbone, head, num_classes
        self.config, self.info = config, None

    @overload
    def forward(self, x: Tensor) -> Tensor: ...
    @overload
    def forward(self, x: Tensor, target: Tensor) -> dict[str, Tensor]: ...
    def forward(self, x: Tensor, target: Tensor | None = None) -> Tensor | dict[str, Tensor]:
        _check(x, target)
        h, w = x.shape[-2:]
        grid = Grid.of(self.backbone, h, w)
        outputs = self.head(self.backbone(grid.fit(x)))
        if target is not None:
            return self.head.loss(outputs, F.pad(target, (0, grid.width - w, 0, grid.height - h), value=IGNORE))
        return grid.cut(to_pixels(outputs.logits, (grid.height, grid.width)))

    def save_pretrained(self, folder: str | os.PathLike[str], *, info: Info | None = None) -> None:
        """Write `config.json`, `model.safetensors` and a `README.md`, which `from_pretrained` reads."""
        from hamburger.models.hub import save_pretrained

        save_pretrained(self, folder, info=info)

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], **options: Any) -> Segmenter:
        """The network in a folder, or in a repository on the hub, in evaluation mode; its `info` comes with it.

        `options` are those of huggingface_hub: revision, token, cache_dir, local_files_only, force_download.
        """
        from hamburger.models.hub import from_pretrained

        return from_pretrained(name, **options)

    def push_to_hub(self, repo_id: str, *, info: Info | None = None, **options: Any) -> str:
        """Upload what `save_pretrained` writes; the address of the commit. `options` are those of huggingface_hub."""
        from hamburger.models.hub import push_to_hub

        return push_to_hub(self, repo_id, info=info, **options)


def _check(x: Tensor, target: Tensor | None) -> None:
    check_tensor("Segmenter", "the images", x)
    if x.dim() != 4 or x.shape[1] != 3 or 0 in x.shape:
        raise ShapeError(f"Segmenter: the images must be (b, 3, h, w), got {tuple(x.shape)}; for one, pass image[None]")
    if target is None:
        return
    if target.shape != (x.shape[0], *x.shape[2:]):
        raise ShapeError(
            f"Segmenter: the labels must be (b, h, w) of the images {tuple(x.shape)}, got {tuple(target.shape)}"
        )
    if target.is_floating_point():
        raise InputError(f"Segmenter: the labels must be whole numbers, got {target.dtype}; pass labels.long()")
