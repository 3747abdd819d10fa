"""The Hamburger: bread, ham, bread, a norm and a skip (Eq. 5 and 6), in the versions that were published."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from hamburger.errors import (
    OptionError,
    ShapeError,
    check_choice,
    check_count,
    check_flag,
    check_positive,
    did_you_mean,
)
from hamburger.hams.base import Ham, hams
from hamburger.hams.decompose import as_ham
from hamburger.hams.gradients import Gradient
from hamburger.layers import fused_block
from hamburger.layers.bread import Bread, make_norm
from hamburger.layers.ham import HamLayer
from hamburger.precision import widen
from hamburger.registry import options_of
from hamburger.shapes import check_finite, check_tensor

VERSIONS = ("paper", "v1", "v2", "v2+")
LAYOUTS = ("channels", "tokens")
PARTS = frozenset({"lower", "ham", "upper"})
HALF_MAX = torch.finfo(torch.float16).max
DEFAULT_VERSION = "paper"


def default_rank(inner: int) -> int:
    """The rank where none is given, d = 8 r with r at least 8 (section 3.2): 64 at the 512 channels of Table 3."""
    return max(8, inner // 8)


class Hamburger(nn.Module):
    """Global context by matrix decomposition: a layer that keeps the shape of its input.

        (b, c, *spatial) -> (b, c, *spatial)      one, two or three spatial axes
        (b, n, c)        -> (b, n, c)             with layout="tokens"

    >>> layer = Hamburger(64, ham="nmf", rank=8)
    >>> layer(torch.randn(2, 64, 16, 16)).shape
    torch.Size([2, 64, 16, 16])

    Two defaults follow the paper's text, here and wherever a Hamburger is built by name (`create_context`,
    `insert_context`, `replace_attention`): the rank is `max(8, inner // 8)`, and the version is "paper", Eq. 6 without a
    final ReLU. Networks that follow the authors' code (HamNet, LightHam, the GANs) pass `version="v1"` themselves. A
    rank that is not below `inner` compresses nothing; it is allowed, with a warning.

    - `ham`: "nmf", "vq", "cd", a registered name, or a ready value such as `VQ(rank=32, temperature=0.1)`. For a name,
      `rank` and further keywords (`temperature`, `beta`, `eps`, `codes_init`) are its options.
    - `version`: "paper" Z + BN(W_u M(W_l Z)); "v1", the authors' code, ReLU of that; "v2" with a slice of cheese
      (linear, BN, ReLU) after the ham and no BN after the upper bread; "v2+" adds two learned scalars, the one on the
      burger zero at first, and allows `dual`: half of a doubled width decomposed along channels.
    - `inner`: the paper's d, by default the channels. `heads` cut it into sections with a dictionary each.
    - `steps`: the paper's K, in training; `eval_steps` in evaluation, the same by default.
    - `init`: "random", "fixed", "learned" (differentiated by BPTT) or "online": see `layers.dictionary`.
    - `grad`: "one-step" (default), "truncated:m", "bptt" (default where init="learned"), "implicit", or a strategy.
    - `parts`: which of {"lower", "ham", "upper"} are there, for the ablations of Table 2. The norm stays.
    - `seed`: of the dictionary that evaluation starts from. It is in the state dict: loading weights loads it too.
    - `backend`: what solves: "auto", "plain" or "fused", as in `decompose`. It changes no value beyond rounding.
    """

    def __init__(
        self,
        channels: int,
        *,
        ham: str | Ham = "nmf",
        inner: int | None = None,
        rank: int | None = None,
        steps: int = 6,
        eval_steps: int | None = None,
        init: str = "random",
        grad: str | Gradient | None = None,
        heads: int = 1,
        version: str = DEFAULT_VERSION,
        dual: bool = False,
        parts: Iterable[str] = PARTS,
        layout: str = "channels",
        norm: str | Callable[[int], nn.Module] = "batch",
        norm_momentum: float = 0.1,
        cheese_factor: int | None = None,
        online_momentum: float = 0.9,
        seed: int = 0,
        backend: str = "auto",
        **ham_options: Any,
    ) -> None:
        super().__init__()
        check_count("Hamburger", "channels", channels, least=1)
        inner = channels if inner is None else inner
        check_count("Hamburger", "inner", inner, least=1)
        check_choice("Hamburger", "version", version, VERSIONS)
        check_choice("Hamburger", "layout", layout, LAYOUTS)
        if not isinstance(parts, (str, Iterable)):
            raise OptionError(f"Hamburger: parts must be some of {sorted(PARTS)}, got {parts!r}")
        parts = frozenset({parts} if isinstance(parts, str) else parts)
        check_flag("Hamburger", "dual", dual)
        check_positive("Hamburger", "norm_momentum", norm_momentum, zero=True, most=1.0)
        for part in parts:
            check_choice("Hamburger", "part", part, PARTS)
        _check_version(version, dual, cheese_factor, parts)
        if not parts:
            raise OptionError(f"Hamburger: parts must name at least one of {sorted(PARTS)}")
        missing = sorted(PARTS - parts - {"ham"})
        if missing and inner != channels:
            raise OptionError(
                f"Hamburger: without the {' and '.join(missing)} bread the inner width must be that of the input, "
                f"got inner={inner} for channels={channels}"
            )
        if rank is not None:
            ham_options["rank"] = rank
        elif isinstance(ham, str) and "rank" in options_of(hams[ham]):
            ham_options["rank"] = default_rank(inner)
        if isinstance(ham, str):
            known = options_of(Hamburger) | options_of(hams[ham])
            for option in set(ham_options) - options_of(hams[ham]):
                raise OptionError(f"Hamburger with ham '{ham}' has no option '{option}'{did_you_mean(option, known)}")
        value = as_ham(ham, **ham_options)

        self.channels, self.version, self.layout, self.parts = channels, version, layout, parts
        self.rectify = value.nonnegative
        width = inner * 2 if dual else inner
        self.lower = Bread(channels, width, bias=True) if "lower" in parts else None

        def slice_of_ham(axis: str, seed: int) -> HamLayer:
            return HamLayer(
                value,
                inner,
                heads=heads,
                axis=axis,
                steps=steps,
                eval_steps=eval_steps,
                init=init,
                grad=grad,
                seed=seed,
                online_momentum=online_momentum,
                backend=backend,
            )

        self.ham = slice_of_ham("spatial", seed) if "ham" in parts else None
        self.channel_ham = slice_of_ham("channel", seed + 1) if dual else None
        self.cheese: nn.Module | None = None
        if version in ("v2", "v2+"):
            factor = (heads if version == "v2+" else 1) if cheese_factor is None else cheese_factor
            check_count("Hamburger", "cheese_factor", factor, least=1)
            if inner % factor:
                raise OptionError(f"Hamburger: cheese_factor {factor} does not divide the inner width {inner}")
            slim = inner // factor
            self.cheese = nn.Sequential(Bread(width, slim, bias=False), make_norm(norm, slim, norm_momentum), nn.ReLU())
            width = slim
        self.upper = Bread(width, channels, bias=False) if "upper" in parts else None
        self.norm = make_norm(norm, channels, norm_momentum) if self.cheese is None else nn.Identity()
        if version == "v2+":
            self.burger_scale = nn.Parameter(torch.zeros(()))
            self.skip_scale = nn.Parameter(torch.ones(()))
        if "ham" in parts and value.rank >= inner:
            warnings.warn(
                f"Hamburger: rank {value.rank} is not below the inner width {inner}, so the ham compresses nothing; "
                f"pass a rank below {inner} or a larger inner",
                UserWarning,
                stacklevel=2,
            )

    def forward(self, z: Tensor) -> Tensor:
        self._check(z)
        if type(self).context is Hamburger.context:
            whole = fused_block.whole(self, z.mT if self.layout == "tokens" else z)
            if whole is not None:
                return whole.mT if self.layout == "tokens" else whole
        flat = z.mT if self.layout == "tokens" else z.flatten(2)  # b c n
        y = self.context(flat)
        y = y.mT if self.layout == "tokens" else y.unflatten(2, z.shape[2:])
        if self.version == "v2+":  # in float32: the gradient of a scalar is a sum over the whole map
            y = self.skip_scale * widen(z) + self.burger_scale * widen(y)
        else:
            y = z + y
        if self.version != "paper":
            y = y.relu_()  # in place: the sum is nobody else's
        if z.dtype == torch.float16:  # the sum of two large halves may not be one
            y = y.clamp(-HALF_MAX, HALF_MAX)
        return y.to(z.dtype)

    def context(self, z: Tensor) -> Tensor:
        """The layer without its skip.   b c n   ->   b c n"""
        fused = fused_block.up_to_the_norm(self, z)
        if fused is not None:
            return self.norm(fused)
        x = z if self.lower is None else self.lower(z)
        if self.rectify:
            x = torch.relu(x)
        if self.channel_ham is not None and self.ham is not None:
            along_positions, along_channels = x.chunk(2, dim=1)
            x = torch.cat([self.ham(along_positions), self.channel_ham(along_channels)], dim=1)
        elif self.ham is not None:
            x = self.ham(x)
        if self.cheese is not None:
            x = self.cheese(x)
        if self.upper is not None:
            x = self.upper(x)
        return self.norm(x)

    def _check(self, z: Tensor) -> None:
        check_tensor("Hamburger", "the input", z)
        tokens = self.layout == "tokens"
        shape = tuple(z.shape)
        axes = "(b, n, c)" if tokens else "(b, c, *spatial) with 1, 2 or 3 spatial axes"
        if (z.dim() != 3) if tokens else (z.dim() not in (3, 4, 5)):
            raise ShapeError(f"Hamburger: the input must be {axes}, got {shape}")
        if shape[-1 if tokens else 1] != self.channels:
            hint = ""
            if shape[1 if tokens else -1] == self.channels:
                hint = f"; for that layout build it with layout='{LAYOUTS[not tokens]}'"
            raise ShapeError(f"Hamburger: built for {self.channels} channels, got {shape} as {axes}{hint}")
        if 0 in shape:
            raise ShapeError(f"Hamburger: every axis of the input must have at least one entry, got {shape}")
        check_finite("Hamburger", "the input", z)

    def extra_repr(self) -> str:
        parts = "" if self.parts == PARTS else f", parts={sorted(self.parts)}"
        return f"{self.channels}, version={self.version}, layout={self.layout}{parts}"


def _check_version(version: str, dual: bool, cheese_factor: int | None, parts: frozenset[str]) -> None:
    if dual and version != "v2+":
        raise OptionError(f"Hamburger: dual=True belongs to version='v2+', got version='{version}'")
    if cheese_factor is not None and version not in ("v2", "v2+"):
        raise OptionError(f"Hamburger: cheese_factor belongs to versions 'v2' and 'v2+', got version='{version}'")
    if version in ("v2", "v2+") and parts != PARTS:
        raise OptionError(f"Hamburger: parts can be left out of versions 'paper' and 'v1', not of '{version}'")
