"""`decompose`: X (b d n) to bases, codes and their product, and the strategies by which a solve is differentiated.

A gradient strategy changes the gradient, never the value. It runs K steps from initial factors and decides which of
them autograd records. `readout` follows outside and always carries gradient.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from hamburger.errors import (
    InputError,
    OptionError,
    ShapeError,
    check_choice,
    check_count,
    check_positive,
    did_you_mean,
)
from hamburger.hams.base import COLUMNS, Columns, Factors, Ham, hams, takes_bfloat16
from hamburger.hams.grid import check_grid
from hamburger.hams.implicit import Implicit
from hamburger.kernels import dispatch
from hamburger.tensors import (
    check_finite,
    check_nonnegative,
    check_shapes,
    check_tensor,
    full_precision,
    is_exporting,
    widen,
)

# Names for editors and type checkers. Anyone can register hams, so signatures take `HamName | str`.
HamName = Literal["nmf", "vq", "cd", "hals", "robust", "local", "windowed", "learned"]
Backend = Literal["auto", "plain", "fused"]
# "truncated:m" and "phantom:m" work for every m; further ones typed code passes as `Truncated(m)` and `Phantom(m)`
# fmt: off
GradientName = Literal[
    "one-step", "bptt", "implicit",
    "truncated:1", "truncated:2", "truncated:3", "truncated:4", "truncated:5", "truncated:6",
    "truncated:7", "truncated:8", "phantom:1", "phantom:2", "phantom:3", "phantom:4", "phantom:5", "phantom:6",
]
# fmt: on

# -- gradient strategies -----------------------------------------------------------------------------------------------


class Gradient(Protocol):
    """A strategy. `start()` makes the initial factors from x; the strategy calls it inside or outside the graph."""

    def __call__(self, ham: Ham, x: Tensor, start: Callable[[], Factors], steps: int) -> Factors: ...


@dataclass(frozen=True)
class Truncated:
    """Keep the graph of the last `keep` steps; the initial factors and the earlier steps are constants.

    `keep=1` is Eq. 13 read literally on (D, C); `keep=0`, named `one_step`, is what the authors' code does: only the
    read-out of the codes carries gradient. Memory does not grow with the number of steps.

    >>> layer = hb.Hamburger(64, grad=hb.Truncated(2))                  # the same as grad="truncated:2"
    >>> out = hb.decompose(x, "vq", rank=4, grad=hb.one_step)           # the default
    """

    keep: int

    def __post_init__(self) -> None:
        check_count("Truncated", "keep", self.keep, least=0)

    def __call__(self, ham: Ham, x: Tensor, start: Callable[[], Factors], steps: int) -> Factors:
        keep = min(self.keep if ham.readout_updates else max(1, self.keep), steps)
        with torch.no_grad():
            factors = ham.solve(x, start(), steps - keep)
        return ham.after(steps - keep).solve(x, factors, keep) if keep else factors

    def __str__(self) -> str:
        return f"truncated:{self.keep}" if self.keep else "one-step"


@dataclass(frozen=True)
class Phantom:
    """The phantom gradient: back-propagation through `keep` damped steps h <- (1 - damping) h + damping F(h, x).

    >>> layer = hb.Hamburger(64, grad=hb.Phantom(3))                    # the same as grad="phantom:3"
    >>> out = hb.decompose(x, "vq", rank=4, grad=hb.Phantom(3, damping=0.8))

    The damped steps start where the last `keep` steps start. At a fixed point they give the damped Neumann series
    sum_{i < keep} damping ((1 - damping) I + damping J)^i of (I - J)^-1, with J = dF/dh, which also converges where
    eigenvalues of J are near -1. The value is that of the undamped steps; damping=1 is `Truncated(keep)`. Costs `keep`
    more steps. Source: Geng et al., "On training implicit models", NeurIPS 2021.
    """

    keep: int
    damping: float = 0.5

    def __post_init__(self) -> None:
        check_count("Phantom", "keep", self.keep, least=1)
        check_positive("Phantom", "damping", self.damping, most=1.0)

    def __call__(self, ham: Ham, x: Tensor, start: Callable[[], Factors], steps: int) -> Factors:
        keep = min(self.keep, steps)
        trained = torch.is_grad_enabled() and (x.requires_grad or ham.trainable)
        if keep == 0 or self.damping == 1 or not trained or is_exporting():
            return Truncated(keep)(ham, x, start, steps)
        with torch.no_grad():
            damped = ham.solve(x, start(), steps - keep)
            values = ham.after(steps - keep).solve(x, damped, keep)
        for k in range(steps - keep, steps):
            damped = self._damp(damped, ham.after(k).step(x, damped))
        bases = _replace_value(values.bases, damped.bases)
        if values.codes is None or damped.codes is None:
            return Factors(bases)
        return Factors(bases, _replace_value(values.codes, damped.codes))

    def _damp(self, before: Factors, after: Factors) -> Factors:
        bases = torch.lerp(before.bases, after.bases, self.damping)
        if before.codes is None or after.codes is None:  # hams that compute codes from the bases
            return Factors(bases, after.codes)
        return Factors(bases, torch.lerp(before.codes, after.codes, self.damping))

    def __str__(self) -> str:
        return f"phantom:{self.keep}" if self.damping == 0.5 else f"phantom:{self.keep}:{self.damping:g}"


def _replace_value(value: Tensor, recorded: Tensor) -> Tensor:
    """A tensor with this value and the gradient of the recorded one."""
    return value + (recorded - recorded.detach())


@dataclass(frozen=True)
class BPTT:
    """Back-propagation through all steps, including the initial codes and given bases (Eq. 12).

    >>> layer = hb.Hamburger(64, grad=hb.bptt)                          # the same as grad="bptt"
    >>> out = hb.decompose(x, "vq", rank=4, grad=hb.bptt)
    """

    def __call__(self, ham: Ham, x: Tensor, start: Callable[[], Factors], steps: int) -> Factors:
        return ham.solve(x, start(), steps)

    def __str__(self) -> str:
        return "bptt"


one_step = Truncated(keep=0)
bptt = BPTT()


def as_gradient(grad: str | Gradient) -> Gradient:
    """A strategy from its name, such as "one-step", "bptt", "truncated:2", "phantom:2" (with another damping than 0.5:
    "phantom:2:0.8") or "implicit"; a strategy is returned as it is.
    """
    if isinstance(grad, (Truncated, Phantom, BPTT, Implicit)) or (callable(grad) and not isinstance(grad, (str, type))):
        return grad
    if grad == "implicit":
        return Implicit()
    named: dict[str, Gradient] = {str(one_step): one_step, str(bptt): bptt}
    if grad in named:
        return named[grad]
    name, _, keep = str(grad).partition(":")
    if name == "truncated" and keep.isdecimal():
        return Truncated(int(keep))
    if name == "phantom" and (options := re.fullmatch(r"([0-9]+)(?::([0-9]*\.?[0-9]+))?", keep)):
        return Phantom(int(options[1]), *map(float, filter(None, options.groups()[1:])))
    raise OptionError(
        f"no gradient {grad!r}{did_you_mean(str(grad), [*named, 'implicit', 'truncated:1', 'phantom:1'])}"
    )


# -- the solve ---------------------------------------------------------------------------------------------------------


class Decomposition(NamedTuple):
    """X ~ D C. Factors are in the precision of the solve (float32 for half inputs), the product in that of x.

    >>> bases, codes, reconstruction = hb.decompose(x, "vq", rank=4)
    >>> error = (x - reconstruction).norm() / x.norm()
    """

    bases: Tensor  # b d r, the paper's D
    codes: Tensor  # b r n, the paper's C
    reconstruction: Tensor  # b d n, D C


def as_ham(ham: str | Ham, **options: Any) -> Ham:
    """A ham from its name and options; a ham value is returned as it is and takes no further options."""
    if isinstance(ham, str):
        return hams.create(ham, **options)
    if not isinstance(ham, Ham):
        raise OptionError(
            f"ham must be a name ({', '.join(hams)}) or a value such as hamburger.NMF(rank=8), got {ham!r}"
        )
    if options:
        raise OptionError(
            f"{', '.join(options)} cannot be combined with a ham value; pass it to {type(ham).__name__}(...)"
        )
    return ham


def decompose(
    x: Tensor,
    ham: HamName | str | Ham = "nmf",
    *,
    steps: int = 6,
    grad: GradientName | Gradient = one_step,
    bases: Tensor | Columns | None = None,
    grid: Sequence[int] | None = None,
    generator: torch.Generator | None = None,
    backend: Backend = "auto",
    **options: Any,
) -> Decomposition:
    """Low-rank factors of x: b d n, and their product D C.

    Runs `steps` steps of the ham's optimiser, then one read-out of the codes under the final bases. The initial bases
    are drawn from `generator` (default: torch's), or `bases` ((b or 1) d r), which makes the call deterministic. So
    does `bases="columns"`: r columns of x spread over its positions, from which fewer steps are enough.
    `grid` is the shape of the positions, such as (h, w), for hams that use neighbours: "local" and "windowed". Without
    it the positions are a line. `grad` sets what is differentiated and never changes the value. `backend` is "plain"
    (torch), "fused" (CUDA kernels with the one-step gradient; raises where they do not apply) or "auto", which the
    environment variable HAM_BACKEND can override. Other keywords are options of a ham given by name.

    >>> out = decompose(torch.rand(2, 32, 100), "nmf", rank=4, steps=6)
    >>> out.bases.shape, out.codes.shape, out.reconstruction.shape
    (torch.Size([2, 32, 4]), torch.Size([2, 4, 100]), torch.Size([2, 32, 100]))
    """
    ham = as_ham(ham, **options)
    grad = as_gradient(grad)
    check_count("decompose", "steps", steps, least=0)
    check_tensor("decompose", "x", x)
    check_shapes("decompose", x=(x, "b d n"))
    if generator is not None and not isinstance(generator, torch.Generator):
        raise OptionError(f"decompose: generator must be a torch.Generator, got {type(generator).__name__}")
    if 0 in x.shape:
        raise ShapeError(f"decompose: every axis of x (b d n) must have at least one entry, got {tuple(x.shape)}")
    if isinstance(bases, str):
        check_choice("decompose", "bases", bases, (COLUMNS,))
    elif bases is not None:
        _check_bases(x, bases, ham)
    if grid is not None:
        ham = ham.on_grid(check_grid("decompose", grid, x.shape[2]))
    ham.check(x.shape[1], x.shape[2])
    check_finite("decompose", "x", x)
    if isinstance(bases, Tensor):
        check_finite("decompose", "bases", bases)
    if ham.nonnegative:
        check_nonnegative("decompose", "x", x)
        if isinstance(bases, Tensor):
            check_nonnegative("decompose", "bases", bases)
    out = solve_ham(x, ham, steps=steps, grad=grad, bases=bases, generator=generator, backend=backend)
    # not _replace, which the compiler of torch 2.6 cannot follow
    return Decomposition(out.bases, ham.expand_codes(out.codes), out.reconstruction)


def solve_ham(
    x: Tensor,
    ham: Ham,
    *,
    steps: int,
    grad: Gradient,
    bases: Tensor | Columns | None,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Decomposition:
    """`decompose` without its checks and without `Ham.expand_codes`, for layers."""
    with full_precision(x.device.type):
        given = None if isinstance(bases, str) else bases
        spec = dispatch.choose_spec(backend, x, ham, grad, one_step=grad == one_step, bases=given)
        if spec is not None:
            with torch.no_grad():
                if isinstance(bases, str):
                    initial = ham.select_columns(x)
                elif bases is None:
                    initial = ham.draw(x.shape[0], x.shape[1], like=widen(x[:0]), generator=generator)
                else:
                    initial = bases.float().expand(x.shape[0], -1, -1)
            from hamburger.kernels import decompose as kernels  # imports Triton

            try:
                return Decomposition(*kernels.decompose(spec, x, initial, steps))
            except dispatch.LaunchError as error:
                dispatch.fall_back(error, backend)
        # Half precision has neither the range nor the digits for sums over thousands of positions. Our hams multiply a
        # bfloat16 X as it is where the CPU adds up in float32, and keep the factors in float32.
        mixed = ham.fused_spec() is not None and isinstance(grad, (Truncated, BPTT)) and takes_bfloat16(x, ham.rank)
        if ham.amplifies_rounding and torch.is_grad_enabled() and x.requires_grad:
            mixed = False
        data = x if mixed else widen(x)

        def start() -> Factors:
            if isinstance(bases, str):
                return ham.init(data, ham.select_columns(data))
            first = None if bases is None else bases.to(widen(data[:0])).expand(x.shape[0], -1, -1)
            return ham.init(data, first, generator)

        factors = grad(ham, data, start, steps)
        final, codes, output = ham.finish(data, factors)
        return Decomposition(final, codes, output.to(x.dtype))


def _check_bases(x: Tensor, bases: Tensor, ham: Ham) -> None:
    check_tensor("decompose", "bases", bases)
    want = (x.shape[0], x.shape[1], ham.rank)
    if bases.dim() != 3 or bases.shape[1:] != want[1:] or bases.shape[0] not in (1, want[0]):
        raise ShapeError(
            f"decompose: bases must be ({want[0]} or 1, {want[1]}, {want[2]}) '(b or 1) d r' for x "
            f"{tuple(x.shape)} and rank {ham.rank}, got {tuple(bases.shape)}"
        )
    if bases.device != x.device:
        raise InputError(f"decompose: bases are on {bases.device} but x on {x.device}; move one of them")
