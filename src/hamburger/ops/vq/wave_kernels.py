"""The whole of soft VQ in one launch, in Gluon for Hopper. Steps of a sweep: `hamburger.ops.cosine_wave_kernels`."""

from __future__ import annotations

import triton.experimental.gluon.language as gl
from triton.experimental import gluon

from hamburger.ops.cosine_bases_kernels import inverse_norms, stage_rows, write_streamed_product
from hamburger.ops.cosine_wave_kernels import (
    assign,
    begin_with,
    exchange_of,
    move_bases,
    of_this_sweep,
    wait_for_bases,
)
from hamburger.ops.layouts import SWIZZLED, product_layout
from hamburger.ops.wave_kernels import load_columns, zero_of


@gluon.jit(do_not_specialize=["steps", "programs"])
def vq_kernel(
    p_x, p_initial, p_d, p_copy, p_c, p_y, p_shares, p_scratch, p_count,
    d, n, r, steps, programs, temperature, s_xb, s_xd, s_xn, s_yb, s_yd, s_yn, s_initial,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, OWNERS: gl.constexpr, MOST: gl.constexpr,
    N_FAST: gl.constexpr, Y: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """K sweeps, the codes under the last D, and where Y the product D C. Grid: programs of an image, b.

    A program owns BN columns, and one of the first OWNERS also D / OWNERS rows of D. In shared memory it holds its
    columns of X for all sweeps, and two stages of D or its codes in two halves; in registers its codes and 1 / |x|.
    What the programs exchange in global memory, and who waits for whom: `cosine_wave_kernels`.

    x, y: b d n in bfloat16, any strides. initial, d: b d r in float32; d is not written where steps = 0. c: b n r.
    The gradient makes the codes again from X and D: nothing is kept for it.
    """
    W: gl.constexpr = num_warps
    BD: gl.constexpr = stage_rows(R)
    mma: gl.constexpr = product_layout(BN, R, W)
    i_p, i_b = gl.program_id(0), gl.program_id(1).to(gl.int64)
    p_d += i_b * d * r
    at = exchange_of(p_copy, p_shares, p_scratch, p_count, i_b, programs, D, R)
    o_n = i_p * BN + gl.arange(0, BN, gl.SliceLayout(1, mma))
    o_r = gl.arange(0, R, gl.SliceLayout(0, mma))
    m_n, m_r = (o_n < n)[:, None], (o_r < r)[None, :]

    begin_with(p_initial, s_initial, at, d, r, i_p, i_b, D, R, OWNERS, W)
    b_x = gl.allocate_shared_memory(gl.bfloat16, [D // BD, BD, BN], SWIZZLED)
    b_xx = load_columns(p_x + i_b * s_xb, b_x, d, n, s_xd, s_xn, i_p, D, BD, BD, BN, N_FAST, W)
    b_scale = gl.convert_layout(inverse_norms(b_xx) / temperature, gl.SliceLayout(1, mma))
    b_codes = gl.zeros([BN, R], gl.float32, mma)
    for step in range(steps + 1):
        wait_for_bases(at, step, OWNERS)
        z = zero_of(step)
        b_codes = assign(of_this_sweep(at, z), b_x, b_scale, m_n, m_r, False, z, D, R, BN, W)
        if step < steps:
            move_bases(
                b_codes, b_scale, b_x, of_this_sweep(at, z), p_d + z, d, r, step, steps, programs, z, i_p,
                D, R, BN, OWNERS, MOST, W,
            )  # fmt: skip
    o_c = (i_b * n + o_n)[:, None] * r + o_r[None, :]
    gl.store(p_c + o_c, b_codes.to(p_c.dtype.element_ty), mask=m_n & m_r)
    if Y:
        p_y += i_b * s_yb
        write_streamed_product(b_codes.to(gl.bfloat16), at.p_copy, p_y, d, n, s_yd, s_yn, i_p, D, R, BN, N_FAST, W)
