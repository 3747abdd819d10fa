"""Contexts of GANs, each behind a gate that starts at zero: SAGAN's, YLG's, HamGAN's, any of `list_contexts()`."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hamburger import distributed
from hamburger.contexts import contexts, create_context, with_authors_version
from hamburger.contexts.common import attend
from hamburger.errors import (
    OptionError,
    ShapeError,
    UnknownNameError,
    check_choice,
    check_count,
    did_you_mean,
)
from hamburger.generation.networks.layers import LayerFactory
from hamburger.generation.networks.spectral import spectral_norm_all
from hamburger.hams import Gradient
from hamburger.hams.base import Columns, Ham
from hamburger.hams.decompose import as_ham
from hamburger.hams.nmf import NMF
from hamburger.layers.ham import Dictionary, HamLayer
from hamburger.registry import Registry
from hamburger.tensors import autocast_dtype, full_precision, widen

SET_BY_NETWORK = ("size", "layers", "num_classes")  # arguments that the network passes, not its user


class GatedContext(nn.Module):
    """x + gate f(x) with a scalar gate that starts at zero, where it is exactly the identity.   b c h w   ->   b c h w

    While the gate is zero, it receives a gradient but f does not. `y` (b) holds the classes in a generator.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return x + self.gate.to(x.dtype) * self.branch(x, y).to(x.dtype)

    @abstractmethod
    def branch(self, x: Tensor, y: Tensor | None) -> Tensor:
        """f(x).   b c h w   ->   b c h w"""


gan_contexts: Registry[GatedContext] = Registry("GAN context")


def create_gan_context(
    name: str | None,
    channels: int,
    *,
    size: int,
    layers: LayerFactory,
    num_classes: int | None = None,
    options: Mapping[str, Any],
) -> GatedContext | None:
    """The named context for maps of `channels` channels and `size` x `size` positions; None for no name.

    Names are "sagan", "ylg", "hamgan" and all of `list_contexts()`. `num_classes` is None in a discriminator, whose
    contexts do not use classes.
    """
    if name is None:
        return None
    for option in options:
        if option in SET_BY_NETWORK:
            raise OptionError(
                f"create_gan with context '{name}': '{option}' is set by the network; leave it out of context_options"
            )
    if name in gan_contexts:
        return gan_contexts.create(name, channels, size=size, layers=layers, num_classes=num_classes, **options)
    if name in contexts:
        return ZooContext(channels, name=name, layers=layers, options=options)
    raise UnknownNameError(f"create_gan: no context '{name}'{did_you_mean(name, [*gan_contexts, *contexts])}")


class ZooContext(GatedContext):
    """Any module of `create_context`.   x + gate (module(x) - x)

    These modules have their own skip connection, so the gate interpolates between the input (0) and the module's output
    (1). Gates inside the module start open. Convolutions and linear layers are spectrally normalised if the network is;
    the papers do not cover such combinations.
    """

    def __init__(self, channels: int, *, name: str, layers: LayerFactory, options: Mapping[str, Any]) -> None:
        super().__init__()
        module = open_inner_gates(create_context(name, channels, **with_authors_version(name, options)))
        self.module = spectral_norm_all(module, layers.context_spectral)

    def branch(self, x: Tensor, y: Tensor | None) -> Tensor:
        if autocast_dtype(x.device.type) is not None:
            x = widen(x)  # module(x) - x is small compared with x: half precision would lose most of its digits
        out: Tensor = self.module(x) - x
        return out


def open_inner_gates(module: nn.Module) -> nn.Module:
    """The module with its zero-initialised scales set to one and its zero-initialised weights drawn at random.

    Behind a second gate at zero they would stay zero: in a product of two zeros neither factor receives a gradient.
    """
    for name, parameter in module.named_parameters():
        if parameter.is_meta or name.endswith("bias") or parameter.any():
            continue
        if parameter.dim() < 2:
            nn.init.ones_(parameter)
        else:
            nn.init.xavier_uniform_(parameter)
    return module


# -- SAGAN (Zhang et al., "Self-attention generative adversarial networks", ICML 2019), as in TF-GAN -------------------


@gan_contexts.register("sagan")
class SelfAttention(GatedContext):
    """Unscaled attention of all positions to max-pooled keys.   b c h w   ->   b c h w

        Q: c/8 n    K: c/8 n/4    V: c/2 n/4    A = softmax over keys of Qᵀ K    f(x) = W_o V Aᵀ

    It has 5 c²/4 weights and the gate. Scores are float32: without a scale they overflow half precision.
    """

    heads = 1

    def __init__(self, channels: int, *, size: int, layers: LayerFactory, num_classes: int | None = None) -> None:
        super().__init__()
        if channels % (8 * self.heads):
            raise OptionError(
                f"create_gan: {self.heads} heads of an eighth of the channels need a multiple of {8 * self.heads} "
                f"channels, got {channels}; change width, the multipliers or context_at"
            )
        if size % 2:
            raise OptionError(f"create_gan: this context needs an even map size, got {size}; change context_at")
        self.queries = layers.pointwise(channels, channels // 8)
        self.keys = layers.pointwise(channels, channels // 8)
        self.values = layers.pointwise(channels, channels // 2)
        self.out = layers.pointwise(channels // 2, channels)

    def branch(self, x: Tensor, y: Tensor | None) -> Tensor:
        queries = self.queries(x).flatten(2)
        keys, values = (F.max_pool2d(layer(x), 2).flatten(2) for layer in (self.keys, self.values))
        mixed = attend(queries.mT, keys.mT, values.mT, scale=1.0, materialise=True).mT
        out: Tensor = self.out(mixed.unflatten(2, x.shape[2:]))
        return out


# -- YLG (Daras et al., "Your local GAN", CVPR 2020): SAGAN's attention with eight heads and sparse masks --------------

SCORES = ("dense", "fused")
MASK_PENALTY = -1000.0  # as in the authors' code: low enough, and no row becomes NaN


@gan_contexts.register("ylg")
class SparseAttention(SelfAttention):
    """SAGAN's attention in eight heads, each with its own mask.   b c h w   ->   b c h w

    Heads are consecutive groups of channels; in the output the head index runs fastest. `scores` selects an
    implementation; the values are the same: "dense" (all scores, then masked: the authors' code) or "fused" (torch's
    attention with a mask).
    """

    heads = 8
    mask: Tensor

    def __init__(
        self,
        channels: int,
        *,
        size: int,
        layers: LayerFactory,
        num_classes: int | None = None,
        scores: str = "dense",
    ) -> None:
        check_choice("create_gan with context 'ylg'", "scores", scores, SCORES)
        super().__init__(channels, size=size, layers=layers)
        self.size, self.scores = size, scores
        self.register_buffer("mask", build_masks(size, size), persistent=False)

    def branch(self, x: Tensor, y: Tensor | None) -> Tensor:
        if x.shape[2:] != (self.size, self.size):
            raise ShapeError(
                f"SparseAttention: its masks are for maps of {self.size} x {self.size}, got {tuple(x.shape)}"
            )
        queries = _split_heads(self.queries(x))
        keys, values = (_split_heads(F.max_pool2d(layer(x), 2)) for layer in (self.keys, self.values))
        attended = self._attend(queries, keys, values)  # b 8 n e
        merged = attended.movedim(1, 3).flatten(2).mT  # b (e 8) n
        out: Tensor = self.out(merged.unflatten(2, x.shape[2:]))
        return out

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        if self.scores == "fused":
            # kernels need a multiple of eight channels; zeros do not change the products
            queries, keys = (F.pad(part, (0, -part.shape[-1] % 8)) for part in (queries, keys))
            return F.scaled_dot_product_attention(queries, keys, values, attn_mask=self.mask, scale=1.0)
        with full_precision(queries.device.type):
            scores = widen(queries) @ widen(keys).mT
            attention = torch.where(self.mask, scores, scores + MASK_PENALTY).softmax(dim=-1)
        return attention.to(values.dtype) @ values

    def extra_repr(self) -> str:
        return f"size={self.size}, scores={self.scores}"


def _split_heads(x: Tensor) -> Tensor:
    """b (8 e) h w   ->   b 8 n e"""
    return x.flatten(2).unflatten(1, (len(HEADS), -1)).mT


HEADS = ("rtl-1", "rtl-2", "rtl-1", "rtl-2", "ltr-1", "ltr-2", "ltr-1", "ltr-2")


def rank_cells(height: int, width: int) -> Tensor:
    """Rank of each cell by Manhattan distance from the top left, ties by row (the paper's ESA).   ->   (h w)"""
    rows, columns = torch.arange(height)[:, None], torch.arange(width)[None]
    order = ((rows + columns) * height + rows).flatten().argsort()
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(height * width)
    return ranks


def attention_pattern(name: str, n: int) -> Tensor:
    """One step of the information flow over ranks 0 ... n-1: entry [a, b] is True if a attends to b.   ->   n n

    Ranks are cut into segments of s = floor(sqrt(n)). "ltr-1" attends back to the start of its segment, "ltr-2" to
    itself and the last rank of every segment. "rtl-1" attends on to the end of its segment, "rtl-2" to itself and the
    first rank of every segment.
    """
    s = math.isqrt(n)
    a, b = torch.arange(n)[:, None], torch.arange(n)[None]
    if name == "ltr-1":
        return (b <= a) & (b >= a - a % s)
    if name == "rtl-1":
        return (a <= b) & (a >= b - b % s)
    return (a == b) | (b % s == (s - 1 if name == "ltr-2" else 0))


def build_masks(height: int, width: int) -> Tensor:
    """One mask per head: True where a query of the map attends to a key of the pooled map.   ->   8 (h w) (h w / 4)

    The paper defines masks on one grid, but there are four queries per key. As in the authors' code, the mask of the
    grid of keys is repeated four times down the queries in raster order, so that a query uses the row of a key
    elsewhere in the image.
    """
    ranks = rank_cells(height // 2, width // 2)
    return torch.stack([attention_pattern(name, len(ranks))[ranks][:, ranks] for name in HEADS]).repeat(1, 4, 1)


# -- HamGAN (Geng et al., ICLR 2021, section 3.5) ----------------------------------------------------------------------


class UniformDictionary(Dictionary):
    """Bases uniform on (0, 1) without normalised columns, as for NMF in the authors' GAN code.

    Longer columns make sharper first codes, which are a softmax of Dᵀ X. Training draws new bases for every sample;
    evaluation uses the stored ones. (The authors also draw in evaluation, so their images vary a little between calls.)
    """

    def __init__(self, ham: Ham, *, dim: int, seed: int) -> None:
        super().__init__(ham, heads=1, dim=dim, init="random", seed=seed, momentum=0.0)
        drawn = torch.rand(1, dim, ham.rank, generator=torch.Generator().manual_seed(seed), device="cpu")
        self.bases.copy_(drawn)

    def forward(self, x: Tensor) -> Tensor | Columns | None:
        if not self.training:
            return super().forward(x)
        like, shape = widen(x[:0]), self.bases.shape[1:]
        return distributed.draw_for_global_batch(
            lambda rows: torch.rand(rows, *shape, dtype=like.dtype, device=like.device), x.shape[0]
        )


@gan_contexts.register("hamgan")
class HamBlock(GatedContext):
    """f(x) = W_u M(ReLU(W_l x)), then class-conditional batch norm in a generator.   b c h w   ->   b c h w

    Breads have no bias, a discriminator has no norm, and no ReLU follows the sum.

    - `inner`: the paper's d, by default the channels; `rank`: by default d / 8
    - `ham`: "nmf", "vq" or "cd" (with beta 0.01 here)
    - `steps`, `eval_steps`, `grad`, `seed`, `backend`: as in `Hamburger`
    """

    def __init__(
        self,
        channels: int,
        *,
        size: int,
        layers: LayerFactory,
        num_classes: int | None = None,
        ham: str = "nmf",
        inner: int | None = None,
        rank: int | None = None,
        steps: int = 6,
        eval_steps: int | None = None,
        grad: str | Gradient | None = None,
        seed: int = 0,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        inner = channels if inner is None else inner
        check_count("create_gan with context 'hamgan'", "inner", inner, least=1)
        rank = max(1, inner // 8) if rank is None else rank
        value = as_ham(ham, rank=rank, beta=0.01) if ham == "cd" else as_ham(ham, rank=rank)
        self.rectify = value.nonnegative
        self.lower = layers.pointwise(channels, inner)
        self.ham = HamLayer(value, inner, steps=steps, eval_steps=eval_steps, grad=grad, seed=seed, backend=backend)
        if isinstance(value, NMF):
            self.ham.dictionary = UniformDictionary(value, dim=inner, seed=seed)
        self.upper = layers.pointwise(inner, channels)
        self.norm = None if num_classes is None else layers.conditional_norm(channels, num_classes)

    def branch(self, x: Tensor, y: Tensor | None) -> Tensor:
        z = self.lower(x)
        if self.rectify:
            z = torch.relu(z)
        z = self.ham(z if self.ham.ham.needs_grid else z.flatten(2)).reshape(z.shape)
        out: Tensor = self.upper(z)
        if self.norm is not None:
            assert y is not None
            out = self.norm(out, y)
        return out
