"""Pyramid pooling: PSPNet (Zhao, Shi, Qi, Wang, Jia, CVPR 2017).

Checked against an independent implementation. CBR: a 1 x 1 convolution, batch norm, ReLU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from hamburger.contexts.common import check_counts, check_map, contexts, conv_norm_relu
from hamburger.errors import OptionError, check_choice, check_count

Join = Literal["residual", "bottleneck"]


@contexts.register("psp")
class PSP(nn.Module):
    """Means over several grids, resized to the map and added to it.   b c h w   ->   b c h w

        p_s = bilinear(CBR(grid(x, s)))                  b c/4 h w, for each s of `scales`; grid: means over s x s cells
        out = x + (p_1, p_2, p_3, p_6)                   c/4 channels each

    The paper concatenates x and the p_s and reduces the 2c channels by a 3 x 3 convolution of its segmentation head,
    about eighteen times the parameters of the pyramid. The p_s together have the c channels of x, so this layer adds
    them instead. This join is the library's choice; the head that follows still has its 3 x 3 convolution.

    - `join`: "residual" as above, or "bottleneck": CBR 3 x 3 of (x, p_1, ...) to c channels, as in the paper's head.
    """

    def __init__(self, channels: int, *, scales: Sequence[int] = (1, 2, 3, 6), join: Join = "residual") -> None:
        super().__init__()
        check_count("PSP", "channels", channels, least=1)
        check_counts("PSP", "scales", scales, example=(1, 2, 3, 6))
        if channels % len(scales):
            raise OptionError(
                f"PSP: {len(scales)} scales do not divide the channels {channels}; "
                f"choose a multiple of {len(scales)}, or other scales"
            )
        self.channels = channels
        self.scales = tuple(scales)
        self.branches = nn.ModuleList(conv_norm_relu(channels, channels // len(scales)) for _ in scales)
        self.bottleneck = build_bottleneck("PSP", join, channels, len(scales), channels // len(scales))

    def forward(self, x: Tensor) -> Tensor:
        check_map("PSP", x, self.channels)
        pyramid = [
            resize_from_grid(branch(pool_to_grid(x, scale)), x.shape[2:])
            for scale, branch in zip(self.scales, self.branches, strict=True)
        ]
        return join_branches(x, pyramid, self.bottleneck)


# -- pyramids, also of other contexts ----------------------------------------------------------------------------------


def build_bottleneck(call: str, join: Join, channels: int, count: int, width: int) -> nn.Sequential | None:
    """Return the convolution that joins x and `count` branches; None for the residual join."""
    check_choice(call, "join", join, get_args(Join))
    if join == "bottleneck":
        return conv_norm_relu(channels + count * width, channels, 3)
    if count * width % channels:
        raise OptionError(
            f"{call}: {count} branches of width {width} do not fold onto {channels} channels; choose a width that "
            "makes a multiple of them, or join='bottleneck'"
        )
    return None


def join_branches(x: Tensor, branches: list[Tensor], bottleneck: nn.Module | None) -> Tensor:
    """Return x + the folded branches, or the bottleneck of all where there is one.   b c h w, b d h w   ->   b c h w"""
    if bottleneck is not None:
        return bottleneck(torch.cat([x, *branches], dim=1))
    return x + fold_branches(branches, x.shape[1])


def fold_branches(branches: list[Tensor], channels: int) -> Tensor:
    """Concatenate branches of d channels, split them into pieces of c, and average.   b d h w   ->   b c h w"""
    width = branches[0].shape[1]
    if channels % width:
        return torch.cat(branches, dim=1).unflatten(1, (-1, channels)).mean(1)
    # piece by piece: concatenating would copy all branches
    size = channels // width  # branches in a piece
    pieces = [torch.cat(branches[i : i + size], dim=1) for i in range(0, len(branches), size)] if size > 1 else branches
    return sum(pieces[1:], start=pieces[0]) / len(pieces) if len(pieces) > 1 else pieces[0]


def pool_to_grid(x: Tensor, size: int) -> Tensor:
    """Adaptive average pooling to size x size, as two matrix products.   b c h w   ->   b c size size

    The cells are those of torch's pooling; they overlap where `size` does not divide h or w. torch's ONNX export is
    correct only for the traced size, and its CUDA gradient is not deterministic. Matrix products have neither problem.
    """
    if size == 1:
        return x.mean((2, 3), keepdim=True)
    rows, row_counts = _grid_matrix(_cell_matrix, size, x.shape[2], x)
    columns, column_counts = _grid_matrix(_cell_matrix, size, x.shape[3], x)
    # products with ones and zeros first, which are exact in any precision, then one division
    return rows @ (x @ columns.mT) / (row_counts * column_counts.mT).to(x.dtype)


def _cell_matrix(size: int, length: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row i has ones from floor(i length / size) up to ceil((i + 1) length / size).   ->   size length, size 1"""
    cell = torch.arange(size, device=device)[:, None]
    position = torch.arange(length, device=device)
    first, end = cell * length // size, ((cell + 1) * length + size - 1) // size
    inside = (position >= first) & (position < end)
    return inside.to(dtype), inside.sum(1, keepdim=True).to(torch.float32)


def _grid_matrix(make: Callable[..., Any], size: int, length: int, like: Tensor) -> Any:
    """Return the matrices of a grid and a length, cached: making them takes a dozen small kernel launches."""
    if torch.compiler.is_compiling():  # in a graph they are constants, or depend on sizes known at run time
        return make(size, length, like.dtype, like.device)
    return _cached_grid_matrix(make, size, length, like.dtype, like.device)


@lru_cache(maxsize=256)
def _cached_grid_matrix(
    make: Callable[..., Any], size: int, length: int, dtype: torch.dtype, device: torch.device
) -> Any:
    with torch.inference_mode(False):  # tensors cached under inference_mode could not be used in training
        return make(size, length, dtype, device)


def resize_from_grid(x: Tensor, size: Sequence[int]) -> Tensor:
    """Bilinear resize with aligned corners, as two matrix products.   b c s t   ->   b c *size

    The values are those of torch's interpolation. Its CUDA gradient adds h w values into s t cells one after another,
    which takes longer than the rest of a pyramid; a matrix product adds them as a tree.
    """
    rows, columns = (
        _grid_matrix(_interpolation_matrix, x.shape[axis], length, x) for axis, length in zip((2, 3), size, strict=True)
    )
    return rows @ x @ columns.mT


def _interpolation_matrix(size: int, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return rows i with the weights of the cells at position i (size - 1) / (length - 1).   ->   length size"""
    # integers until the last division: position i is i (size - 1) steps of 1 / (length - 1) from the first cell
    steps = max(length - 1, 1)
    positions = torch.arange(length, device=device)[:, None] * (size - 1)
    distances = (positions - torch.arange(size, device=device) * steps).abs()
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return ((steps - distances).clamp_min(0).to(wide) / steps).to(dtype)
