"""The block and its one-step gradient: the definition, in plain torch and any precision."""

from __future__ import annotations

import torch
from torch import Tensor


def bread(x: Tensor, weight: Tensor, bias: Tensor | None, *, rectify: bool) -> Tensor:
    """W x + bias at every position, then a ReLU.   x: b c n   weight: d c   bias: d   ->   b d n"""
    z = torch.einsum("dc,bcn->bdn", weight, x)
    if bias is not None:
        z = z + bias[:, None]
    return z.relu() if rectify else z


def ratio(bases: Tensor, before: Tensor, eps: float) -> Tensor:
    """Q = C / (D^T D C + eps): NMF's read-out is C <- Q * D^T X.   bases: b d r   before: b n r   ->   b n r"""
    return before / (torch.einsum("bds,bdr,bns->bnr", bases, bases, before) + eps)


def context(
    x: Tensor, lower: Tensor, bias: Tensor | None, upper: Tensor, bases: Tensor, before: Tensor, eps: float
) -> Tensor:
    """W_u D C for NMF under given bases and codes before the read-out, which are constants (one-step).

    x: b c n   lower: d c   upper: c d   bases: b d r   before: b n r   ->   b c n
    """
    z = bread(x, lower, bias, rectify=True)
    codes = torch.einsum("bdn,bdr->bnr", z, bases) * ratio(bases, before, eps)
    return torch.einsum("cd,bdr,bnr->bcn", upper, bases, codes)


def finish(
    fold: Tensor,
    codes: Tensor,
    skip: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    *,
    rectify: bool = False,
) -> Tensor:
    """E C, times scale, + shift, + skip, then a ReLU.   fold: b c r   codes: b n r   scale, shift: c   ->   b c n"""
    y = torch.einsum("bcr,bnr->bcn", fold, codes)
    y = y if scale is None else y * scale[:, None]
    y = y if shift is None else y + shift[:, None]
    y = y if skip is None else y + skip
    return y.relu() if rectify else y


def pull_back(du: Tensor, fold: Tensor, bases: Tensor, q: Tensor | None, z: Tensor | None) -> Tensor:
    """D (E^T dU * Q), zero where z is.   du: b c n   fold: b c r   bases: b d r   q: b n r   z: b d n   ->   b d n"""
    dc = torch.einsum("bcr,bcn->bnr", fold, du)
    dz = torch.einsum("bdr,bnr->bdn", bases, dc if q is None else dc * q)
    return dz if z is None else dz.masked_fill(z <= 0, 0)
