"""The Hamburger layer: bread, ham, bread, norm and skip (Eq. 5 and 6), in all published versions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from hamburger.errors import (
    OptionError,
    ShapeError,
    check_choice,
    check_count,
    check_flag,
    check_mapping,
    check_positive,
    did_you_mean,
)
from hamburger.hams.base import Ham, hams
from hamburger.hams.decompose import Backend, Gradient, GradientName, HamName, as_ham
from hamburger.kernels.dispatch import LaunchError, fall_back, resolve_backend
from hamburger.layers import fused_block
from hamburger.layers.ham import Bread, HamLayer
from hamburger.layers.norm import Norm, make_norm, run_in_dtype_of
from hamburger.registry import explain_errors, options_of
from hamburger.tensors import HALF_MAX, check_finite, check_tensor, widen

Version = Literal["paper", "v1", "v2", "v2+"]
Part = Literal["lower", "ham", "upper"]
Layout = Literal["channels", "tokens"]
Init = Literal["random", "fixed", "learned", "online", "columns", "carry"]
CodesInit = Literal["softmax", "cosine", "uniform"]
Component = Literal["low-rank", "sparse"]
VERSIONS = get_args(Version)
LAYOUTS = get_args(Layout)
PARTS: frozenset[Part] = frozenset(get_args(Part))
DEFAULT_VERSION: Version = "paper"


def default_rank(inner: int) -> int:
    """Return the rank where none is given: d = 8 r, r at least 8 (section 3.1), so 64 for Table 3's 512 channels."""
    return max(8, inner // 8)


class Hamburger(nn.Module):
    """Global context by matrix decomposition. The output has the shape of the input.

        (b, c, *spatial) -> (b, c, *spatial)      one, two or three spatial axes
        (b, n, c)        -> (b, n, c)             with layout="tokens"

    >>> layer = Hamburger(64, ham="nmf", rank=8)
    >>> layer(torch.randn(2, 64, 16, 16)).shape
    torch.Size([2, 64, 16, 16])

    Two defaults follow the paper's text, here and wherever a Hamburger is built by name (`create_context`,
    `insert_context`, `replace_attention`): the rank is `max(8, inner // 8)`, and the version is "paper", Eq. 6 without
    a final ReLU. Networks that follow the authors' code (HamNet, LightHam, GANs) pass `version="v1"` themselves. A rank
    that is not below `inner` compresses nothing; it is allowed, with a warning where you chose it.

    - `ham`: "nmf", "vq", "cd", "hals", "robust", "local", "windowed", "learned", a registered name, or a ham such as
      `VQ(rank=32, temperature=0.1)`. With `layout="tokens"` the positions of "local" and "windowed" are a line.
    - `rank`, `temperature` (VQ, CD), `constant_norms` (VQ), `beta` (CD), `eps`, `codes_init`, `codes_temperature` (NMF
      and the hams after "cd"), `final_update` (all but CD), `threshold`, `component` (robust), `smoothness` (local),
      `window`, `local_rank` (windowed) and `relaxation` (learned): options of a ham given by name; None is the ham's
      default. `ham_options` holds further options of a ham that you registered.
    - `version`: "paper" Z + BN(W_u M(W_l Z)); "v1", the authors' code, ReLU of that; "v2" with a slice of cheese
      (linear, BN, ReLU) after the ham and no BN after the upper bread; "v2+" adds two learned scalars, the one on the
      burger zero at first, and allows `dual`: half of a doubled width decomposed along channels.
    - `inner`: the paper's d, by default the channels. `heads` splits it into sections with one dictionary each.
    - `steps`: the paper's K, in training; `eval_steps` in evaluation, the same by default.
    - `init`: "random", "fixed", "learned" (differentiated by BPTT), "online", "columns" of the input, from which fewer
      steps are enough, or "carry": see `layers.ham.Dictionary`. "carry" is for video: in evaluation a frame starts from
      the bases of the previous call and runs `eval_steps`; the first frame runs `steps`. `eval()` begins a new video.
    - `grad`: "one-step" (default), "truncated:m", "phantom:m", "bptt" (default with init="learned" and ham="learned"),
      "implicit", or a strategy.
    - `parts`: which of {"lower", "ham", "upper"} to build, for the ablations of Table 2. The norm is always built.
    - `seed`: of the dictionary that evaluation starts from. It is in the state dict: loading weights loads it too.
    - `backend`: "auto", "plain" or "fused", as in `decompose`. It changes no value beyond rounding.
    """

    @explain_errors("Hamburger")
    def __init__(
        self,
        channels: int,
        *,
        ham: HamName | str | Ham = "nmf",
        inner: int | None = None,
        rank: int | None = None,
        steps: int = 6,
        eval_steps: int | None = None,
        init: Init = "random",
        grad: GradientName | Gradient | None = None,
        heads: int = 1,
        version: Version = DEFAULT_VERSION,
        dual: bool = False,
        parts: Part | Iterable[Part] = PARTS,
        layout: Layout = "channels",
        norm: Norm | Callable[[int], nn.Module] = "batch",
        norm_momentum: float = 0.1,
        cheese_factor: int | None = None,
        online_momentum: float = 0.9,
        seed: int = 0,
        backend: Backend = "auto",
        temperature: float | None = None,
        constant_norms: bool | None = None,
        beta: float | None = None,
        eps: float | None = None,
        codes_init: CodesInit | None = None,
        codes_temperature: float | None = None,
        final_update: bool | None = None,
        threshold: float | None = None,
        component: Component | None = None,
        smoothness: float | None = None,
        window: int | None = None,
        local_rank: int | None = None,
        relaxation: float | None = None,
        ham_options: Mapping[str, Any] | None = None,
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
        requested: dict[str, Any] = {"rank": rank, "temperature": temperature, "beta": beta, "eps": eps}
        requested |= {"constant_norms": constant_norms, "final_update": final_update}
        requested |= {"codes_init": codes_init, "codes_temperature": codes_temperature}
        requested |= {"threshold": threshold, "component": component, "smoothness": smoothness, "window": window}
        requested |= {"local_rank": local_rank, "relaxation": relaxation}
        requested = {name: option for name, option in requested.items() if option is not None}
        value = _build_ham(ham, inner, requested, ham_options)

        self.channels, self.version, self.layout, self.parts = channels, version, layout, parts
        self.rectify = value.nonnegative
        width = inner * 2 if dual else inner
        self.lower = Bread(channels, width, bias=True) if "lower" in parts else None

        shared: dict[str, Any] = {"heads": heads, "steps": steps, "eval_steps": eval_steps, "init": init, "grad": grad}
        shared |= {"online_momentum": online_momentum, "backend": backend}
        self.ham = HamLayer(value, inner, axis="spatial", seed=seed, **shared) if "ham" in parts else None
        self.channel_ham = HamLayer(value, inner, axis="channel", seed=seed + 1, **shared) if dual else None
        self.cheese: nn.Sequential | None = None
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
        # not where it is this module's default
        chosen = not isinstance(ham, str) or "rank" in {**requested, **(ham_options or {})}
        if chosen and "ham" in parts and value.rank >= inner:
            warnings.warn(
                f"Hamburger: rank {value.rank} is not below the inner width {inner}, so the ham compresses nothing; "
                f"pass a rank below {inner} or a larger inner",
                UserWarning,
                stacklevel=3,  # the decorator is a frame of its own
            )

    def forward(self, z: Tensor) -> Tensor:
        self._check(z)
        x = z.mT if self.layout == "tokens" else z
        if type(self).context is Hamburger.context:
            block = self._plan_fused_block(x)
            if block is not None:
                try:
                    whole = fused_block.run_whole(self, block, x)
                    if whole is not None:
                        return whole.mT if self.layout == "tokens" else whole
                except LaunchError as error:
                    fall_back(error, block.parts.ham.backend)
                    block = None
            y = self._context(x.flatten(2), block, x.shape[2:])  # b c n
        else:
            y = self.context(x if self.needs_grid else x.flatten(2)).flatten(2)
        y = y.mT if self.layout == "tokens" else y.unflatten(2, z.shape[2:])
        if self.version == "v2+":  # in float32: the gradient of a scalar is a sum over the whole map
            y = self.skip_scale * widen(z) + self.burger_scale * widen(y)
        else:
            y = z + y
        if self.version != "paper":
            y = y.relu_()  # in place: no other tensor shares this memory
        if z.dtype == torch.float16:  # the sum of two large halves may not be one
            y = y.clamp(-HALF_MAX, HALF_MAX)
        return y.to(z.dtype)

    def context(self, z: Tensor) -> Tensor:
        """Apply the layer without its skip; hams that use neighbours need the grid.   b c n or b c *grid -> the same"""
        return self._context(z.flatten(2), self._plan_fused_block(z), z.shape[2:]).reshape(z.shape)

    @property
    def needs_grid(self) -> bool:
        """Whether the ham uses which positions are neighbours."""
        return isinstance(self.ham, HamLayer) and self.ham.ham.needs_grid

    def _plan_fused_block(self, x: Tensor) -> fused_block.FusedBlock | None:
        """The fused block that runs this layer for x (b c ...); None on a CPU and wherever the kernels do not apply."""
        if not isinstance(self.ham, HamLayer) or self.ham.sharded is not None:
            return None
        requested = resolve_backend(self.ham.backend, x)
        return None if requested == "plain" else fused_block.plan_block(self, x, requested)

    @property
    def lacks_grid(self) -> bool:
        """Whether the ham needs a grid and was not built with one, as it may be for tokens of a map."""
        return self.needs_grid and getattr(self.ham.ham, "grid", None) is None  # type: ignore[union-attr]

    def _context(self, z: Tensor, block: fused_block.FusedBlock | None, grid: Sequence[int]) -> Tensor:
        if block is not None:
            try:
                return run_in_dtype_of(fused_block.context(block, z), self.norm)
            except LaunchError as error:
                fall_back(error, block.parts.ham.backend)
        x = z if self.lower is None else self.lower(z)
        if self.rectify:
            x = torch.relu(x)
        if self.channel_ham is not None and self.ham is not None:
            along_positions, along_channels = x.chunk(2, dim=1)
            x = torch.cat([self.ham(along_positions), self.channel_ham(along_channels)], dim=1)
        elif self.ham is not None:
            x = self.ham(x.unflatten(2, grid)).flatten(2) if self.needs_grid else self.ham(x)
        if self.cheese is not None:
            x = run_in_dtype_of(x, self.cheese)
        if self.upper is not None:
            x = self.upper(x)
        return run_in_dtype_of(x, self.norm)

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
        # of a sharded map a process may have no positions; raising there would leave the others waiting
        sharded = isinstance(self.ham, HamLayer) and self.ham.sharded is not None
        if 0 in shape[:1] if sharded else 0 in shape:
            raise ShapeError(f"Hamburger: every axis of the input must have at least one entry, got {shape}")
        check_finite("Hamburger", "the input", z)

    def __repr__(self) -> str:
        """Return one line with the main options, others that differ from their defaults, and the parameter count."""
        layer, norm = self.ham, self.norm if self.cheese is None else self.cheese[1]
        shown: dict[str, object] = {"ham": None if layer is None else type(layer).__name__}
        if isinstance(layer, HamLayer):
            shown = {"ham": _describe_ham(layer.ham), "steps": layer.steps}
            shown |= {"eval_steps": layer.eval_steps} if layer.eval_steps != layer.steps else {}
            shown |= {"grad": layer.grad, "init": layer.dictionary.init}
            shown |= {"inner": layer.dim} if layer.dim != self.channels else {}
            shown |= {"heads": layer.heads} if layer.heads != 1 else {}
            shown |= {"backend": layer.backend} if layer.backend != "auto" else {}
        shown |= {"version": self.version}
        shown |= {"dual": True} if self.channel_ham is not None else {}
        shown |= {"parts": sorted(self.parts)} if self.parts != PARTS else {}
        shown |= {"layout": self.layout} if self.layout != "channels" else {}
        shown |= {"norm": type(norm).__name__} if not isinstance(norm, nn.BatchNorm1d) else {}
        shown |= {"parameters": f"{sum(p.numel() for p in self.parameters()):,}"}
        return f"{type(self).__name__}({self.channels}, {', '.join(f'{k}={v}' for k, v in shown.items())})"


def _describe_ham(ham: Ham) -> str:
    """Return the constructor call of a ham: its rank, and the options that differ from their defaults."""
    options = {field.name: getattr(ham, field.name) for field in fields(ham) if field.repr}
    defaults = {field.name: field.default for field in fields(ham)}
    shown = [f"{name}={value!r}" for name, value in options.items() if name == "rank" or value != defaults[name]]
    return f"{type(ham).__name__}({', '.join(shown)})"


def _build_ham(ham: str | Ham, inner: int, requested: dict[str, Any], more: Mapping[str, Any] | None) -> Ham:
    """Return the ham of a layer. `requested`: options that were passed by keyword; `more`: those of `ham_options`."""
    more = check_mapping("Hamburger", "ham_options", more)
    for name in more:
        if name in requested:
            raise OptionError(f"Hamburger: '{name}' is given twice; leave it out of ham_options")
    options = requested | more
    if isinstance(ham, str):
        known = options_of(hams[ham])
        for name in options:
            if name not in known:
                raise OptionError(f"Hamburger with ham '{ham}' has no option '{name}'{did_you_mean(name, known)}")
        if "rank" in known:
            options = {"rank": default_rank(inner), **options}
    return as_ham(ham, **options)


def _check_version(version: str, dual: bool, cheese_factor: int | None, parts: frozenset[str]) -> None:
    if dual and version != "v2+":
        raise OptionError(f"Hamburger: dual=True belongs to version='v2+', got version='{version}'")
    if cheese_factor is not None and version not in ("v2", "v2+"):
        raise OptionError(f"Hamburger: cheese_factor belongs to versions 'v2' and 'v2+', got version='{version}'")
    if version in ("v2", "v2+") and parts != PARTS:
        raise OptionError(f"Hamburger: parts can be left out of versions 'paper' and 'v1', not of '{version}'")
