"""Who may look at whom in YLG's sparse attention (Daras et al., "Your local GAN", CVPR 2020)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hamburger.errors import check_choice, check_count

ALIGNS = ("tile", "nearest")
HEADS = ("rtl-1", "rtl-2", "rtl-1", "rtl-2", "ltr-1", "ltr-2", "ltr-1", "ltr-2")


def enumeration(height: int, width: int) -> Tensor:
    """ESA: ranks of cells by Manhattan distance from the top left, ties by row.   ->   h w, in raster order"""
    rows, columns = torch.arange(height)[:, None], torch.arange(width)[None]
    order = ((rows + columns) * height + rows).flatten().argsort()
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(height * width)
    return ranks


def pattern(name: str, n: int) -> Tensor:
    """One step of the information flow over ranks 0 ... n-1: [a, b] says that a sees b.   ->   n n

    With s = floor(sqrt(n)): "ltr-1" sees back to the start of its stretch of s; "ltr-2" itself and the last of every
    stretch. "rtl-1" sees on to the end of its stretch, "rtl-2" itself and the first of every stretch.
    """
    s = math.isqrt(n)
    a, b = torch.arange(n)[:, None], torch.arange(n)[None]
    if name == "ltr-1":
        return (b <= a) & (b >= a - a % s)
    if name == "rtl-1":
        return (a <= b) & (a >= b - b % s)
    return (a == b) | (b % s == (s - 1 if name == "ltr-2" else 0))


def masks(height: int, width: int, *, align: str = "tile") -> Tensor:
    """One mask per head: True where a query of a map may see a key of the map halved.   ->   8 (h w) (h w / 4)

    The paper defines masks on one grid, but there are four queries to a key. `align="tile"` is what the authors' code
    does: the mask of the keys' grid is repeated four times down the queries in raster order, so that a query uses the
    row of a key elsewhere in the image. `align="nearest"` takes the row of the key that the query was pooled into.
    """
    ranks = enumeration(height // 2, width // 2)
    square = torch.stack([pattern(name, len(ranks))[ranks][:, ranks] for name in HEADS])
    return square[:, query_cells(height, width, align=align)]


def query_cells(height: int, width: int, *, align: str) -> Tensor:
    """The cell of the halved grid whose row each query uses, both in raster order.   ->   h w"""
    check_count("masks", "height", height, least=2)
    check_count("masks", "width", width, least=2)
    check_choice("masks", "align", align, ALIGNS)
    if align == "tile":
        return torch.arange(height * width) % ((height // 2) * (width // 2))
    return (torch.arange(height)[:, None] // 2 * (width // 2) + torch.arange(width)[None] // 2).flatten()
