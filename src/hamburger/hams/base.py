"""The base class of hams: a decomposition as a frozen value with the methods init, step and readout.

Then what hams share: positions of columns, Weyl sequences, and matrix products.
"""

from __future__ import annotations

import functools
import platform
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from hamburger.errors import InputError, OptionError, check_count
from hamburger.kernels.dispatch import FusedSpec
from hamburger.linalg import EPS
from hamburger.registry import Registry
from hamburger.tensors import HALF, autocast_dtype, check_shapes, is_exporting, is_transformed, widen

Columns = Literal["columns"]
COLUMNS: Columns = "columns"  # in place of a tensor of bases: columns of X
# What a non-negative ham adds to the unit columns it starts from, relative to their root mean square. Multiplicative
# updates cannot leave zero: without it, the zeros of a ReLU would stay in the bases, and a zero column a dead basis.
FLOOR = 0.1


class Factors(NamedTuple):
    """The state between steps. A ham that recomputes its codes from the bases carries none.

    >>> ham = hb.VQ(rank=4)
    >>> bases, codes = ham.step(x, ham.init(x))
    """

    bases: Tensor  # b d r, the paper's D
    codes: Tensor | None = None  # b r n, the paper's C


@dataclass(frozen=True)
class Ham(ABC):
    """Base of all hams: X (b d n) ~ D C. It holds no tensors and knows nothing of heads, images or gradients.

    A new ham defines `step` and `readout`, and `init` if its steps start from codes. In place of `step` it may define
    `update_codes`, `sum_positions` and `update_bases`: then its positions may be in several tiles or processes.
    `nonnegative` hams need x >= 0 and start from bases >= 0; in `scale_free` hams (D S, S^-1 C) is as good a solution
    as (D, C). Hams that `need_grid` use which positions are neighbours, and define `on_grid`. The final bases of a ham
    with `growing_bases` are more than its rank. A `trainable` ham defines `initial_parameters` and `bind`.

    >>> class Projection(hb.Ham):                      # with @hb.hams.register("projection") it also has a name
    ...     def step(self, x, factors):
    ...         return hb.Factors(torch.linalg.qr(x @ (x.mT @ factors.bases)).Q)
    ...     def readout(self, x, factors):
    ...         return factors.bases.mT @ x
    >>> out = hb.decompose(x, Projection(rank=4))
    """

    rank: int = 64

    nonnegative: ClassVar[bool] = False
    scale_free: ClassVar[bool] = False
    needs_grid: ClassVar[bool] = False
    trainable: ClassVar[bool] = False
    growing_bases: ClassVar[bool] = False
    amplifies_rounding: ClassVar[bool] = False  # its gradient needs products in float32, also of a bfloat16 x

    def __post_init__(self) -> None:
        check_count(type(self).__name__, "rank", self.rank, least=1)

    @property
    def readout_updates(self) -> bool:
        """Whether `readout` computes new codes from x. If not, a one-step gradient has to keep the last step."""
        return True

    def check(self, d: int, n: int) -> None:  # noqa: B027 - most hams accept every size
        """Raise where the maths does not allow this rank for a d x n matrix."""

    def fused_spec(self) -> FusedSpec | None:
        """How the fused kernels solve this ham; None for a ham without a kernel, which plain torch solves."""
        return None

    def draw(self, b: int, d: int, *, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Random bases with unit columns: uniform(0, 1) where non-negative, else normal.   ->   b d r"""
        return torch.nn.functional.normalize(self.sample(b, d, like=like, generator=generator), dim=1, eps=EPS)

    def sample(self, b: int, d: int, *, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Random bases before `draw` normalises them.   ->   b d r"""
        uniform_or_normal = torch.rand if self.nonnegative else torch.randn
        # a generator belongs to one device; its numbers may be needed on another
        device = like.device if generator is None else generator.device
        return uniform_or_normal(b, d, self.rank, generator=generator, dtype=like.dtype, device=device).to(like.device)

    def select_columns(self, x: Tensor) -> Tensor:
        """Bases from columns of X that are spread over its positions: nothing random.   x: b d n   ->   b d r"""
        return self.bases_from_columns(x.index_select(2, spread_positions(x.shape[2], self.rank, x.device)))

    def bases_from_columns(self, columns: Tensor) -> Tensor:
        """Unit columns, positive in a non-negative ham.   b d r   ->   b d r"""
        unit = torch.nn.functional.normalize(widen(columns), dim=1, eps=EPS)
        if not self.nonnegative:
            return unit
        return torch.nn.functional.normalize(unit + FLOOR / columns.shape[1] ** 0.5, dim=1, eps=EPS)

    def init(self, x: Tensor, bases: Tensor | None = None, generator: torch.Generator | None = None) -> Factors:
        """Start from the given bases, or from random ones.   x: b d n   bases: b d r"""
        if bases is None:
            bases = self.draw(x.shape[0], x.shape[1], like=widen(x[:0]), generator=generator)
        return Factors(bases)

    def step(self, x: Tensor, factors: Factors) -> Factors:
        """Run one step: update the codes and, with the new codes, the bases."""
        codes = self.update_codes(x, factors)
        return Factors(self.update_bases(factors.bases, self.sum_positions(x, codes)), codes)

    @abstractmethod
    def readout(self, x: Tensor, factors: Factors) -> Tensor:
        """The codes of x under the final bases.   ->   b r n"""

    def solve(self, x: Tensor, factors: Factors, steps: int) -> Factors:
        """Run K steps. Hams override it to share work between steps; the value is that of K calls of `step`."""
        for k in range(steps):
            factors = self.after(k).step(x, factors)
            if not isinstance(factors, Factors):
                raise InputError(f"{type(self).__name__}.step must return Factors, got {type(factors).__name__}")
        return factors

    def finish(self, x: Tensor, factors: Factors) -> tuple[Tensor, Tensor, Tensor]:
        """The final bases, codes and output D C.   ->   b d r, b r n, b d n"""
        codes = self.readout(x, factors)
        shapes = {"x": (x, "b d n"), "bases": (factors.bases, "b d r"), "codes": (codes, "b r n")}
        check_shapes(f"{type(self).__name__}.readout", **shapes)
        rounded = x.dtype if x.dtype == torch.bfloat16 else None
        return factors.bases, codes, product(factors.bases, codes, rounded)

    def expand_codes(self, codes: Tensor) -> Tensor:
        """The codes of `finish` with a row for every final basis; layers do without.   ->   b r n"""
        return codes

    def objective(self, x: Tensor, factors: Factors) -> Tensor:
        """What the steps minimise: |X - D C|^2 / 2, with the codes of `readout` if there are none.   ->   b

        >>> ham = hb.NMF(rank=4)
        >>> value = ham.objective(x, ham.solve(x, ham.init(x), steps=6))
        """
        codes = self.readout(x, factors) if factors.codes is None else factors.codes
        return (x - product(factors.bases, codes)).square().sum((1, 2)) / 2

    # What a ham may need besides x. Each method returns a ham: a copy that knows it, or the ham itself.

    def on_grid(self, grid: tuple[int, ...]) -> Ham:
        """The ham for n positions that form a grid of this shape, such as (h, w), row by row."""
        return self

    def initial_parameters(self, steps: int) -> dict[str, Tensor]:
        """What a layer of that many steps trains, by name: it registers them and passes them to `bind` in each call."""
        return {}

    def bind(self, parameters: Mapping[str, Tensor]) -> Ham:
        """The ham with these values of its parameters."""
        return self

    def after(self, steps: int) -> Ham:
        """The ham whose next `step` or `solve` comes after that many steps, where steps differ."""
        return self

    # Positions interact only through sums over them. If X is in parts, each part updates its codes, the sums of all
    # parts are added, and every part updates the bases alike.

    def update_codes(self, x: Tensor, factors: Factors) -> Tensor:
        """The codes after the next step, position by position.   x: b d n   ->   b r n"""
        raise self._no_parts()

    def sum_positions(self, x: Tensor, codes: Tensor) -> tuple[Tensor, ...]:
        """Sums over positions; those of several parts are added.   x: b d n   codes: b r n   ->   for `update_bases`"""
        raise self._no_parts()

    def update_bases(self, bases: Tensor, sums: tuple[Tensor, ...]) -> Tensor:
        """The bases after the next step. May overwrite `sums`.   bases: b d r   ->   b d r"""
        raise self._no_parts()

    def check_parts(self) -> None:
        """Raise unless this ham says what its parts do: the methods above, and no other `step` or `solve`."""
        for kind in type(self).__mro__:
            if "update_codes" in vars(kind) and kind is not Ham:
                return
            if kind is Ham or "step" in vars(kind) or "solve" in vars(kind):
                raise self._no_parts()

    def _no_parts(self) -> OptionError:
        name = type(self).__name__
        return OptionError(
            f"{name} does not define update_codes, sum_positions and update_bases, without which it needs a step() and "
            "cannot decompose positions in parts; define them, or use NMF, HALS, VQ or CD"
        )


hams: Registry[Ham] = Registry("ham")


# -- positions of columns ----------------------------------------------------------------------------------------------

GOLDEN, TURN = 40503, 2**16  # their quotient is the golden section: multiples, modulo 1, fill every interval evenly


def spread_positions(n: int, r: int, device: torch.device) -> Tensor:
    """r of n positions in ascending order, one in each of r equal stretches; all differ if n >= r.   ->   r (int64)

    Position k is floor((k n + u_k (n - r)) / r), with u_k = k times the golden section, modulo 1. A constant stride
    would often be a multiple of the width of an image, and all columns would come from one vertical line of it.
    With n < r every position is repeated r / n times, rounded up or down.
    """
    k = torch.arange(r, device=device)
    offset = ((k * GOLDEN + TURN // 2) % TURN * (n - r)).clamp(min=0)  # no `if`: n may be symbolic in an exported graph
    return (k * (n * TURN) + offset) // (r * TURN)


# -- Weyl sequences ----------------------------------------------------------------------------------------------------
# Numbers that look uniform and are a pure function of their indices: equal on every device and in every call.


MODULUS = 2**24  # the integers that float32 holds exactly


def weyl_multipliers(r: int, seed: int = 0) -> list[list[int]]:
    """A multiplier and an offset below 2^24 for each of r sequences: two rows of r.

    Plain integers mixed by the splitmix64 finaliser: a generator object cannot be traced into an exported graph.
    """

    def mix(i: int) -> int:
        z = ((seed * 2 * r + i + 1) * 0x9E3779B97F4A7C15) % 2**64
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        return (z ^ (z >> 31)) % MODULUS

    return [[mix(k) | 1 for k in range(r)], [mix(r + k) for k in range(r)]]  # odd multipliers have the full period


def weyl_uniform(multipliers: Tensor, n: int, *, dtype: torch.dtype) -> Tensor:
    """r sequences of length n, equidistributed on (0, 1).   multipliers: 2 r (int64)   ->   r n

    The Weyl sequence v = j a_k + b_k, then v (2 v + 1), which permutes the integers modulo a power of two and breaks
    the lattice that two Weyl sequences form together. Any n without a stored table, no random number generator in an
    exported graph, and integer arithmetic, so that two devices agree to the bit.
    """
    a, b = multipliers[:, :, None]
    v = (a * torch.arange(n, device=multipliers.device) + b).remainder(MODULUS)
    return ((v * (2 * v + 1)).remainder(MODULUS).to(dtype) + 0.5) / MODULUS


# -- products ----------------------------------------------------------------------------------------------------------
# float32: torch multiplies by MKL. On AMD's CPUs it takes twice as long as oneDNN, which torch also brings, for the
# products of a ham: one operand with few rows or columns, the other with thousands. Both add up in float32 but in
# another order: relative errors are 1e-7 (MKL) and 3e-7 (oneDNN) where the common axis is d = 512.
# bfloat16: CPUs with AVX512-BF16 do it twice as fast as float32. Sums are float32; each entry of the result is rounded.
# Which library and dtype a product takes depends on the CPU and on the sizes of one matrix, never on a clock or on the
# batch: a run can be repeated to the bit on the same kind of CPU.


MIN_PRODUCTS = 2**20  # multiply-adds of one matrix product; smaller ones are faster in a batch
MAX_ERROR = {torch.float32: 1e-6, torch.bfloat16: 2**-8}  # relative, of the product that checks the library


def product(a: Tensor, b: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A B for each sample, as `torch.bmm`.   b m k, b k p   ->   b m p

    With one operand in half precision, the other is rounded to it and the result is float32. With a `dtype` both are
    rounded and the result has it; gradients do not round them: a softmax may leave little of the codes' gradient.
    In float32 the result lies in memory along the longer one of m and p where oneDNN multiplies.
    """
    if dtype not in (None, a.dtype):
        rounded: Tensor = _Product.apply(a, b, dtype)
        return rounded
    if a.dtype != b.dtype and (a.dtype in HALF or b.dtype in HALF):
        half = a.dtype if a.dtype in HALF else b.dtype
        return product(a.to(half), b.to(half)).float()
    if not takes_onednn(a, b):
        return torch.bmm(a, b)
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        result: Tensor = _Product.apply(a, b, a.dtype)
        return result
    return _multiply(a, b)


def softmax(x: Tensor) -> Tensor:
    """Softmax over the last axis, without a copy of an x that lies transposed in memory.   b n r   ->   b n r"""
    return x.mT.softmax(dim=1).mT if x.stride(1) < x.stride(2) else x.softmax(dim=2)


def project(x: Tensor, bases: Tensor) -> Tensor:
    """X^T D for a softmax over r.   x: b d n   bases: b d r   ->   b n r

    For a bfloat16 X the mean of the bases is subtracted: the softmax ignores it, but it would cost digits in rounding.
    """
    if x.dtype == torch.bfloat16:
        bases = bases - bases.mean(dim=2, keepdim=True)
    return product(x.mT, bases)


def takes_bfloat16(x: Tensor, rank: int) -> bool:
    """Whether products of X (b d n) with factors of this rank are fast in bfloat16: X need not become float32."""
    return x.dtype == torch.bfloat16 and takes_onednn(x, x.new_empty(0, x.shape[2], rank))


class _Product(torch.autograd.Function):
    """A product whose gradients are products; it can be differentiated any number of times."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(a, b)
        return _multiply(a.to(dtype), b.to(dtype))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        a, b = ctx.saved_tensors
        dy, (needs_a, needs_b, _) = dy.to(a.dtype), ctx.needs_input_grad
        return _product_like(a, dy, b.mT) if needs_a else None, _product_like(b, a.mT, dy) if needs_b else None, None


def _product_like(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """A B, in memory as x where the caller decides: adding up gradients of two layouts costs more than a product."""
    return product(b.mT, a.mT).mT if x.stride(1) < x.stride(2) else product(a, b)


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype == torch.bfloat16:
        products = [torch.mm(x, y) for x, y in zip(a.unbind(), b.unbind(), strict=True)]
        return products[0][None] if len(products) == 1 else torch.stack(products)
    if a.shape[1] > b.shape[2]:
        return _multiply(b.mT, a.mT).mT
    # inputs (m k) are copied unless contiguous, weights (p k) may lie transposed: the smaller operand is the input
    linear = torch.ops.mkldnn._linear_pointwise
    b = _as_matrices(b)
    products = [linear(x, y.mT, None, "none", [], "") for x, y in zip(a.unbind(), b.unbind(), strict=True)]
    return products[0][None] if len(products) == 1 else torch.stack(products)


def _as_matrices(x: Tensor) -> Tensor:
    """A copy unless rows or columns are contiguous: for other strides oneDNN has only code that is 50 times slower."""
    _, down, across = x.stride()
    _, rows, columns = x.shape
    return x if (across == 1 and down >= columns) or (down == 1 and across >= rows) else x.contiguous()


def takes_onednn(a: Tensor, b: Tensor) -> bool:
    """Whether oneDNN multiplies; never where calls are traced or transformed, or where the user chose otherwise."""
    if a.device.type != "cpu" or torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return False
    if type(a) is not Tensor or type(b) is not Tensor or a.dtype != b.dtype or a.dtype not in MAX_ERROR:
        return False
    if a.shape[1] * a.shape[2] * b.shape[2] < MIN_PRODUCTS or not has_fast_onednn(a.dtype):
        return False
    traced = is_exporting() or torch._C._len_torch_dispatch_stack() > 0
    allowed = torch.backends.mkldnn.enabled and autocast_dtype("cpu") is None
    return bool(allowed) and not is_transformed() and not traced


@functools.cache
def has_fast_onednn(dtype: torch.dtype) -> bool:
    """Whether this CPU is of a kind on which oneDNN is the faster library, and it multiplies exactly."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        fast = _has_bfloat16()
    else:
        measured = torch.backends.cpu.get_cpu_capability() == "AVX512" and _is_amd()
        fast = measured and torch.backends.mkl.is_available() and hasattr(torch.ops.mkldnn, OPERATOR)
    try:
        return fast and _find_error(dtype) <= MAX_ERROR[dtype]
    except RuntimeError:  # another signature in this version of torch
        return False


OPERATOR = "_linear_pointwise"


def _is_amd() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(errors="replace") if cpuinfo.exists() else platform.processor()
    return "AuthenticAMD" in text


def _has_bfloat16() -> bool:
    """Whether the CPU has AVX512-BF16, as all with AMX have: without it oneDNN emulates bfloat16."""
    ask = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return ask is not None and bool(ask())


def _find_error(dtype: torch.dtype) -> float:
    """The relative error of a product with operands of both layouts, against float64."""
    generator = torch.Generator("cpu").manual_seed(0)
    a, b = (torch.randn(1, rows, 256, generator=generator, device="cpu").to(dtype) for rows in (64, 256))
    errors = []
    with torch.no_grad():
        for right in (b, b.mT):
            exact = a.double() @ right.double()
            errors.append(float((_multiply(a, right) - exact).norm() / exact.norm()))
    return max(errors)
