"""Triton functions, kernels and launches that all fused hams share. X is b d n with any strides; D is stored as b d r,
C as b n r.

Names in all kernels: i_ program index or loop position, o_ offsets, m_ mask, p_ pointer, b_ block of values (its shape
is in the comment above a load), s_ stride. Capitals are sizes known at compile time. d, n, r, c are sizes, D and R are
padded sizes, BN, BD and the like are tile sizes (`tiling.TileSizes`). Offsets into d and n have 64 bits, because d n
may exceed 2^31.

Words such as program, tile, part and partial sum: docs/design/kernels.md. Programs of one launch are not ordered in
these kernels: a program reads what earlier launches wrote, and writes what no other program writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
import triton
import triton.language as tl
from torch import Tensor

from hamburger.errors import OptionError
from hamburger.kernels.launcher import launch
from hamburger.kernels.tiling import TARGET_PROGRAMS, TileSizes, cdiv, split_positions, tile_sizes


@triton.jit
def rounded_to_tf32(b_value):
    """Round to the nearest TF32: tensor cores truncate, which biases every product of every step."""
    b_value = b_value.to(tl.float32)
    b_bits = (b_value.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
    return tl.where(tl.abs(b_value) < float("inf"), b_bits.to(tl.float32, bitcast=True), b_value)


@triton.jit
def product(b_left, b_right, b_sum, KIND: tl.constexpr):
    """b_sum + b_left b_right, accumulated in float32. KIND: see `product_kind`.

    "x2" keeps the digits of a float32 factor on the right: as a bfloat16 plus the remainder, in two products. X is on
    the left, where half precision loses nothing.
    """
    if KIND == "bf16":
        b_sum = tl.dot(b_left.to(tl.bfloat16), b_right.to(tl.bfloat16), b_sum)
    elif KIND == "bf16x2":
        b_high = b_right.to(tl.bfloat16)
        b_low = (b_right - b_high.to(tl.float32)).to(tl.bfloat16)
        b_sum = tl.dot(b_left.to(tl.bfloat16), b_low, b_sum)
        b_sum = tl.dot(b_left.to(tl.bfloat16), b_high, b_sum)
    elif KIND == "tf32x2":
        b_high = b_right.to(tl.bfloat16).to(tl.float32)
        b_sum = tl.dot(b_left.to(tl.float32), b_right - b_high, b_sum, input_precision="tf32")
        b_sum = tl.dot(b_left.to(tl.float32), b_high, b_sum, input_precision="tf32")
    elif KIND == "tf32":
        b_sum = tl.dot(rounded_to_tf32(b_left), rounded_to_tf32(b_right), b_sum, input_precision="tf32")
    else:
        b_sum = tl.dot(b_left.to(tl.float32), b_right.to(tl.float32), b_sum, input_precision=KIND)
    return b_sum


@triton.jit
def own_part(n, length):
    """This program's part of the positions, where axis 0 of the grid is b * parts.

    ->   its index among all b * parts,  i_b,  its positions: begin <= position < end
    """
    i_bs, parts = tl.program_id(0).to(tl.int64), tl.cdiv(n, length)
    begin = tl.program_id(0) % parts * length
    return i_bs, i_bs // parts, begin, tl.minimum(begin + length, n)


@triton.jit
def own_columns(n, BN: tl.constexpr):
    """This program's image and columns, where axis 0 of the grid is b * tiles of n.   ->   i_b, o_n: BN"""
    i_b, i_n = tl.program_id(0) // tl.cdiv(n, BN), tl.program_id(0) % tl.cdiv(n, BN)
    return i_b.to(tl.int64), i_n.to(tl.int64) * BN + tl.arange(0, BN)


@triton.jit
def project(
    p_x, p_d, d, n, r, s_xd, s_xn, o_n,
    KIND: tl.constexpr, R: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """X^T D for a tile of columns.   x: d n   d: d r   ->   BN R"""
    o_r = tl.arange(0, R)
    b_sum = tl.zeros([BN, R], tl.float32)
    for i_d in range(0, d, BD):
        o_d = (i_d + tl.arange(0, BD)).to(tl.int64)
        # BN BD
        m_x = (o_n < n)[:, None] & (o_d < d)[None, :]
        b_x = tl.load(p_x + o_n[:, None] * s_xn + o_d[None, :] * s_xd, mask=m_x, other=0.0)
        # BD R
        m_d = (o_d < d)[:, None] & (o_r < r)[None, :]
        b_d = tl.load(p_d + o_d[:, None] * r + o_r[None, :], mask=m_d, other=0.0)
        b_sum = product(b_x, b_d, b_sum, KIND)
    return b_sum


@triton.jit
def expand(
    b_c, p_d, p_y, d, n, r, s_yd, s_yn, o_n,
    KIND: tl.constexpr, R: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Write Y = D C for a tile of columns.   b_c: BN R   d: d r   y: d n"""
    o_r = tl.arange(0, R)
    for i_d in range(0, d, BD):
        o_d = (i_d + tl.arange(0, BD)).to(tl.int64)
        # R BD
        m_d = (o_r < r)[:, None] & (o_d < d)[None, :]
        b_d = tl.load(p_d + o_r[:, None] + o_d[None, :] * r, mask=m_d, other=0.0)
        b_y = product(b_c, b_d, tl.zeros([BN, BD], tl.float32), KIND)
        m_y = (o_n < n)[:, None] & (o_d < d)[None, :]
        tl.store(p_y + o_n[:, None] * s_yn + o_d[None, :] * s_yd, b_y.to(p_y.dtype.element_ty), mask=m_y)


@triton.jit
def softmax(b_s, r, R: tl.constexpr):
    """Softmax over r, which is padded to R.   b_s: BN R   ->   BN R, zero in the padding"""
    m_r = (tl.arange(0, R) < r)[None, :]
    b_s = tl.where(m_r, b_s, float("-inf"))
    b_e = tl.where(m_r, tl.exp(b_s - tl.max(b_s, axis=1)[:, None]), 0.0)
    return b_e / tl.sum(b_e, axis=1)[:, None]


@triton.jit
def load_codes(p_c, n, r, o_n, R: tl.constexpr):
    """The codes of a tile of columns.   ->   BN R"""
    o_r = tl.arange(0, R)
    m_c = (o_n < n)[:, None] & (o_r < r)[None, :]
    return tl.load(p_c + o_n[:, None] * r + o_r[None, :], mask=m_c, other=0.0)


@triton.jit
def store_codes(b_c, p_c, n, r, o_n, R: tl.constexpr):
    """Write the codes of a tile of columns.   b_c: BN R"""
    o_r = tl.arange(0, R)
    m_c = (o_n < n)[:, None] & (o_r < r)[None, :]
    tl.store(p_c + o_n[:, None] * r + o_r[None, :], b_c, mask=m_c)


@triton.jit
def rows_times_codes(
    p_a, p_c, rows, r, o_a, o_r, s_a, s_n, begin, end,
    KIND: tl.constexpr, SD: tl.constexpr, SR: tl.constexpr, SN: tl.constexpr,
):  # fmt: skip
    """A C^T over the positions from begin to end, in their order.   a: rows n   ->   SD SR"""
    b_sum = tl.zeros([SD, SR], tl.float32)
    for i_n in range(begin, end, SN):
        o_n = (i_n + tl.arange(0, SN)).to(tl.int64)
        m_n = o_n < end
        # SD SN
        m_a = (o_a < rows)[:, None] & m_n[None, :]
        b_a = tl.load(p_a + o_a[:, None] * s_a + o_n[None, :] * s_n, mask=m_a, other=0.0)
        # SN SR
        m_c = m_n[:, None] & (o_r < r)[None, :]
        b_c = tl.load(p_c + o_n[:, None] * r + o_r[None, :], mask=m_c, other=0.0)
        b_sum = product(b_a, b_c, b_sum, KIND)
    return b_sum


@triton.jit
def sums_kernel(
    p_x, p_c, p_sums, d, n, r, length, s_xb, s_xd, s_xn,
    GRAM: tl.constexpr, KIND: tl.constexpr, SD: tl.constexpr, SR: tl.constexpr, SN: tl.constexpr,
):  # fmt: skip
    """Partial sums over parts of the positions. Grid: b * parts, tiles of rows, tiles of r.

    A program owns one tile of one partial sum: SD rows, SR columns, `length` positions.
    x: b d n   c: b n r   sums: b parts (d + e) r. The first d rows are X C^T; the e rows after them are C C^T (GRAM:
    e = r), or C 1 (e = 1).
    """
    i_bs, i_b, begin, end = own_part(n, length)
    o_r = tl.program_id(2) * SR + tl.arange(0, SR)
    p_c += i_b * n * r
    p_sums += i_bs * (d + (r if GRAM else 1)) * r

    i_a = tl.program_id(1) - tl.cdiv(d, SD)  # >= 0: a tile of the e extra rows
    if i_a < 0:
        o_a = (tl.program_id(1) * SD + tl.arange(0, SD)).to(tl.int64)
        b_sum = rows_times_codes(
            p_x + i_b * s_xb, p_c, d, r, o_a, o_r, s_xd, s_xn, begin, end, KIND, SD, SR, SN
        )  # fmt: skip
        m_sum = (o_a < d)[:, None] & (o_r < r)[None, :]
        tl.store(p_sums + o_a[:, None] * r + o_r[None, :], b_sum, mask=m_sum)
    elif GRAM:
        o_a = (i_a * SD + tl.arange(0, SD)).to(tl.int64)
        b_sum = rows_times_codes(p_c, p_c, r, r, o_a, o_r, 1, r, begin, end, KIND, SD, SR, SN)
        m_sum = (o_a < r)[:, None] & (o_r < r)[None, :]
        tl.store(p_sums + (d + o_a[:, None]) * r + o_r[None, :], b_sum, mask=m_sum)
    else:
        b_mass = tl.zeros([SR], tl.float32)
        for i_n in range(begin, end, SN):
            o_n = (i_n + tl.arange(0, SN)).to(tl.int64)
            # SN SR
            m_c = (o_n < end)[:, None] & (o_r < r)[None, :]
            b_c = tl.load(p_c + o_n[:, None] * r + o_r[None, :], mask=m_c, other=0.0)
            b_mass += tl.sum(b_c.to(tl.float32), axis=0)
        tl.store(p_sums + d * r + o_r, b_mass, mask=o_r < r)


@triton.jit
def add_parts(
    p_sums, parts, rows, o_a, below, o_r, r,
    FA: tl.constexpr, FR: tl.constexpr, FP: tl.constexpr,
):  # fmt: skip
    """Rows o_a (those < `below`) of the sums, added over the parts in order.   sums: parts rows r   ->   FA FR

    FP parts are loaded at once, to hide memory latency.
    """
    m_sum = (o_a < below)[None, :, None] & (o_r < r)[None, None, :]
    b_sum = tl.zeros([FA, FR], tl.float32)
    for i_s in range(0, parts, FP):
        o_s = i_s + tl.arange(0, FP)
        o_row = (o_s[:, None] * rows + o_a[None, :]).to(tl.int64)
        # FP FA FR
        m_part = (o_s < parts)[:, None, None] & m_sum
        b_part = tl.load(p_sums + o_row[:, :, None] * r + o_r[None, None, :], mask=m_part, other=0.0)
        b_sum += tl.sum(b_part, axis=0)
    return b_sum


@triton.jit
def partial_sums_kernel(p_sums, p_total, parts, size, FP: tl.constexpr, BLOCK: tl.constexpr):
    """Add partial sums, in a fixed order.   sums: b parts size   total: b size   Grid: b * tiles of size.

    Every FP-th part goes to the same of FP sums, which are added at the end: one reduction between threads.
    """
    tiles = tl.cdiv(size, BLOCK)
    i_b = (tl.program_id(0) // tiles).to(tl.int64)
    o = tl.program_id(0) % tiles * BLOCK + tl.arange(0, BLOCK)
    o_p = tl.arange(0, FP).to(tl.int64)
    p_sums += i_b * parts * size + o_p[:, None] * size + o[None, :]
    b_sum = tl.zeros([FP, BLOCK], tl.float32)
    for i_p in range(0, parts, FP):
        # FP BLOCK
        b_sum += tl.load(p_sums, mask=(i_p + o_p < parts)[:, None] & (o < size)[None, :], other=0.0)
        p_sums += FP * size
    tl.store(p_total + i_b * size + o, tl.sum(b_sum, axis=0).to(p_total.dtype.element_ty), mask=o < size)


@triton.jit
def clear_kernel(p_counts, size, BLOCK: tl.constexpr):
    """Set counters to zero.   counts: size   Grid: 1."""
    for i in range(0, size, BLOCK):
        o = i + tl.arange(0, BLOCK)
        tl.store(p_counts + o, tl.zeros([BLOCK], tl.int32), mask=o < size)


@triton.jit
def gram_kernel(p_d, p_g, d, r, KIND: tl.constexpr, FD: tl.constexpr, FR: tl.constexpr):
    """G = D^T D.   d: b d r   g: b r r   Grid: b, tiles of r, tiles of r."""
    i_b = tl.program_id(0).to(tl.int64)
    o_i = tl.program_id(1) * FR + tl.arange(0, FR)
    o_j = tl.program_id(2) * FR + tl.arange(0, FR)
    p_d += i_b * d * r
    b_g = tl.zeros([FR, FR], tl.float32)
    for i_d in range(0, d, FD):
        o_d = (i_d + tl.arange(0, FD)).to(tl.int64)
        # FR FD
        b_i = tl.load(p_d + o_i[:, None] + o_d[None, :] * r, mask=(o_i < r)[:, None] & (o_d < d)[None, :], other=0.0)
        # FD FR
        b_j = tl.load(p_d + o_d[:, None] * r + o_j[None, :], mask=(o_d < d)[:, None] & (o_j < r)[None, :], other=0.0)
        b_g = product(b_i, b_j, b_g, KIND)
    tl.store(p_g + i_b * r * r + o_i[:, None] * r + o_j[None, :], b_g, mask=(o_i < r)[:, None] & (o_j < r)[None, :])


@triton.jit
def readout_kernel(
    p_x, p_in, p_out, p_more, p_ratio, p_c, p_y, d, n, r, s_xb, s_xd, s_xn, s_yb, s_yd, s_yn,
    MORE: tl.constexpr, RATIO: tl.constexpr, STORE: tl.constexpr, EXPAND: tl.constexpr,
    KIND: tl.constexpr, COARSE: tl.constexpr, R: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """C = Q * (A^T X + more), with EXPAND also Y = B C, for two dictionaries A (in) and B (out). Grid: b * tiles of n.

    A program owns BN columns.   x, y: b d n   in, out: b d r   more (if MORE), ratio (Q, if RATIO), c: b n r
    CD's read-out has A = M^T (the ridge projector) and B = D; its derivative has them exchanged, the cotangent of Y in
    place of X and that of C added, with no codes to store. NMF's derivative has A = B = D, and Q.
    """
    i_b, o_n = own_columns(n, BN)
    b_c = project(p_x + i_b * s_xb, p_in + i_b * d * r, d, n, r, s_xd, s_xn, o_n, KIND, R, BN, BD)
    if MORE:
        b_c += load_codes(p_more + i_b * n * r, n, r, o_n, R)
    if RATIO:
        b_c *= load_codes(p_ratio + i_b * n * r, n, r, o_n, R).to(tl.float32)
    if STORE:
        store_codes(b_c, p_c + i_b * n * r, n, r, o_n, R)
    if EXPAND:
        expand(b_c, p_out + i_b * d * r, p_y + i_b * s_yb, d, n, r, s_yd, s_yn, o_n, COARSE, R, BN, BD)


# -- precision of products ---------------------------------------------------------------------------------------------


# Whether kernels run in Triton's interpreter, on the CPU (TRITON_INTERPRET=1 before triton is imported).
INTERPRETED = not isinstance(sums_kernel, triton.JITFunction)


def product_kind(dtype: torch.dtype, *, fine: bool = False) -> str:
    """How products with X (of that dtype) are computed. They always accumulate in float32.

    bfloat16 has the range of the factors, so they can be rounded to it. float16 does not: its products are TF32, which
    represents every float16. float32 is exact unless torch allows TF32. `fine` keeps more digits of the factor for half
    inputs: a softmax at a low temperature amplifies the ninth bit of a cosine into another cluster.
    """
    if dtype == torch.float32:
        return "tf32" if tf32_enabled() else "ieee"
    if dtype == torch.bfloat16 and not INTERPRETED:  # the interpreter cannot multiply bfloat16
        return "bf16x2" if fine else "bf16"
    if fine:
        return "tf32x2"
    return "ieee" if INTERPRETED else "tf32"  # the interpreter multiplies exactly


def factor_product_kind(dtype: torch.dtype) -> str:
    """How products of factors, without X, are computed."""
    return "ieee" if product_kind(dtype) == "ieee" else "tf32"


def saved_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of E, Q and codes that are saved for the backward pass: bfloat16 has their range, float16 does not."""
    return torch.bfloat16 if dtype == torch.bfloat16 else torch.float32


def tf32_enabled() -> bool:
    """Torch's own switch for matrix products of float32."""
    flags = torch.backends.cuda.matmul
    precision = getattr(flags, "fp32_precision", None)  # torch 2.9; the older name then raises where both were set
    return bool(flags.allow_tf32) if precision is None else bool(precision == "tf32")


# -- derivatives -------------------------------------------------------------------------------------------------------


Gradients = tuple[Tensor | None, ...]


def first_derivative(gradients: Callable[..., Gradients], *tensors: Tensor | None) -> Gradients:
    """`gradients(*tensors)`; with create_graph=True its results have a graph that refuses a second derivative."""
    return _FirstDerivative.apply(gradients, *tensors) if torch.is_grad_enabled() else gradients(*tensors)


def refuse_second_derivative(ctx: Any, *cotangents: Tensor) -> NoReturn:
    raise OptionError(
        "decompose: backend 'fused' can be differentiated once, and a second derivative was requested "
        "(create_graph=True); take backend='plain'"
    )


class _FirstDerivative(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradients: Callable[..., Gradients], *tensors: Tensor | None) -> Gradients:
        return gradients(*tensors)

    backward = staticmethod(refuse_second_derivative)


# -- launches ----------------------------------------------------------------------------------------------------------


COUNTERS_PER_IMAGE = 32
FEW_PARTS = 4  # so few partial sums are added where they are used


def sum_over_positions(x: Tensor, codes: Tensor, t: TileSizes, kind: str, *, gram: bool) -> Tensor:
    """Sums over positions, in few parts.   x: b d n   codes: b n r   ->   b parts (d + e) r   (see `sums_kernel`)"""
    (b, d, n), r = x.shape, codes.shape[2]
    extra = r if gram else 1
    tiles = (cdiv(d, t.SD) + cdiv(extra, t.SD), cdiv(r, t.SR))
    length, parts = split_positions(n, b * tiles[0] * tiles[1], t.SN)
    out = torch.empty(b, parts, d + extra, r, dtype=torch.float32, device=x.device)
    launch(
        sums_kernel, (b * parts, *tiles),
        x, codes, out, d, n, r, length, *x.stride(),
        GRAM=gram, KIND=kind, SD=t.SD, SR=t.SR, SN=t.SN, num_warps=t.sum_warps,
    )  # fmt: skip
    # later kernels read the parts tile by tile, several times: many parts are added first, by many programs
    return out if parts <= FEW_PARTS else add_partial_sums(out)[:, None]


def add_partial_sums(sums: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Add over the parts, in a fixed order.   b parts ... (float32)   ->   b ..., of that dtype"""
    out = sums.new_empty(sums.shape[0], *sums.shape[2:], dtype=dtype)
    size = out[0].numel()
    # few numbers in many parts, such as the gradient of a bias: narrow tiles, for more programs and shorter loops
    block = 64 if len(sums) * cdiv(size, 64) >= TARGET_PROGRAMS // 2 else 8
    launch(
        # all on the first axis: the others end at 65,535, and the gradient of a wide bread has more tiles
        partial_sums_kernel, (len(sums) * cdiv(size, block),),
        sums, out, sums.shape[1], size, FP=2048 // block, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return out


def zero_counters(b: int, device: torch.device) -> Tensor:
    """Zeros for each image, by which programs wait for each other.   ->   b COUNTERS_PER_IMAGE"""
    counters = torch.empty(b, COUNTERS_PER_IMAGE, dtype=torch.int32, device=device)
    launch(clear_kernel, (1,), counters, counters.numel(), BLOCK=1024, num_warps=4)
    return counters


def gram_matrix(bases: Tensor, dtype: torch.dtype, t: TileSizes) -> Tensor:
    """D^T D.   bases: b d r   ->   b r r   (`dtype`: of x)"""
    b, d, r = bases.shape
    out = torch.empty(b, r, r, dtype=torch.float32, device=bases.device)
    tiles = cdiv(r, t.FG)
    launch(
        gram_kernel, (b, tiles, tiles),
        bases, out, d, r, KIND=factor_product_kind(dtype), FD=t.GD, FR=t.FG, num_warps=4,
    )  # fmt: skip
    return out


def launch_readout(
    x: Tensor, into: Tensor, out: Tensor, more: Tensor | None, codes: Tensor | None, y: Tensor | None,
    *, ratio: Tensor | None = None, fine: bool = True,
) -> None:  # fmt: skip
    """Write C and Y of `readout_kernel`, those that are given.   into (A), out (B): b d r   fine: see `product_kind`"""
    (b, d, n), r = x.shape, into.shape[2]
    t = tile_sizes(d, n, r, x.dtype)
    of_y, of_codes = x if y is None else y, [into if tensor is None else tensor for tensor in (more, ratio, codes)]
    launch(
        readout_kernel, (b * cdiv(n, t.BN),),
        x, into, out, *of_codes, of_y, d, n, r, *x.stride(), *of_y.stride(),
        MORE=more is not None, RATIO=ratio is not None, STORE=codes is not None, EXPAND=y is not None,
        KIND=product_kind(x.dtype, fine=fine), COARSE=product_kind(x.dtype), R=t.R, BN=t.BN, BD=t.BD, num_warps=t.warps,
    )  # fmt: skip
