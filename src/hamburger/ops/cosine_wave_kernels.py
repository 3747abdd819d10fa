"""Soft k-means by cosine in one launch, in Gluon: the steps of a sweep that VQ and CD share.

Letters: `hamburger.ops.wave_kernels`. A program holds BN columns of X in shared memory from the first sweep to the
read-out, as in NMF, and makes codes of them anew in each sweep. What a step is made of: `cosine_bases_kernels` has D
and products with it, `cosine_shares_kernels` the exchange of sums.

The first OWNERS programs own an equal number of rows of D each. After a sweep they alone add up the shares and write D;
the others wait for it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton.experimental.gluon.language as gl
from triton.experimental import gluon

from hamburger.ops.cosine_bases_kernels import project_fine, share_initial_bases, unit_scales, unit_scales_again
from hamburger.ops.cosine_shares_kernels import update_centroids, write_fine_sums
from hamburger.ops.wave_kernels import arrive, softmax, wait

COUNTERS = gl.constexpr(32)  # from one image to the next: `launch.COUNTS`
NEW_D = gl.constexpr(16)  # where the second counter lies: not in the sector of the first


class Exchange(NamedTuple):
    """Where the programs of one image find what they write for each other, in global memory."""

    p_copy: Any  # 2 D R, bfloat16: the two halves of D
    p_shares: Any  # programs D R, int16 or float32: of X C^T
    p_mass: Any  # programs R, float32: shares of C 1
    p_top: Any  # programs D, float32: the scales of a share's rows, where it is of int16
    p_squares: Any  # D/4 R, float32: |d|^2 over four rows each
    p_count: Any  # int32: programs that have written their shares; NEW_D further on, owners that have written D


@gluon.jit
def exchange_of(p_copy, p_shares, p_scratch, p_count, i_b, programs, D: gl.constexpr, R: gl.constexpr):
    """Of image i_b. scratch holds one after another what is of float32: mass, top, squares."""
    p_copy += i_b * (2 * D * R)
    p_shares += i_b * programs * (D * R)
    p_mass = p_scratch + i_b * (programs * (R + D) + D // 4 * R)
    p_top = p_mass + programs * R
    return Exchange(p_copy, p_shares, p_mass, p_top, p_top + programs * D, p_count + i_b * COUNTERS)


@gluon.jit
def of_this_sweep(at, z):
    """The same addresses, by a zero of this sweep: see `zero_of`."""
    return Exchange(
        at.p_copy + z, at.p_shares + z, at.p_mass + z, at.p_top + z, at.p_squares + z, at.p_count
    )  # fmt: skip


@gluon.jit
def wait_for_bases(at, step, OWNERS: gl.constexpr):
    """Until all rows of D are those of this step; the first D is step 0."""
    wait(at.p_count + NEW_D, OWNERS * (step + 1))


@gluon.jit
def begin_with(
    p_initial, s_initial, at, d, r, i_p, i_b,
    D: gl.constexpr, R: gl.constexpr, OWNERS: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """The first D, of step 0, from its owners.   initial: b d r in float32"""
    if i_p < OWNERS:
        share_initial_bases(p_initial + i_b * s_initial, at.p_copy, at.p_squares, d, r, i_p, D, R, OWNERS, W)
        arrive(at.p_count + NEW_D)


@gluon.jit
def assign(
    at, b_x, b_scale, m_n, m_r, centroids, z,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """Codes: softmax over r of cosine(D, X) / T, zero beyond n and r.   scale: BN, 1 / (|x| T)   ->   BN R

    centroids: whether D is CD's, before it is brought to unit length: see `unit_scales_again`.
    """
    b_xd, _, b_norm = project_fine(at.p_copy, at.p_squares, b_x, z, False, D, R, BN, W)
    b_unit = unit_scales(b_norm)
    b_unit = gl.where(centroids, unit_scales_again(b_norm, b_unit), b_unit)
    b_unit = gl.convert_layout(b_unit, gl.SliceLayout(0, b_xd.type.layout))
    b_c = softmax(b_xd * b_unit[None, :] * b_scale[:, None], m_r)
    return gl.where(m_n & m_r, b_c, 0.0)


@gluon.jit
def move_bases(
    b_codes, b_scale, b_x, at, p_d, d, r, step, steps, programs, z, i_p,
    D: gl.constexpr, R: gl.constexpr, BN: gl.constexpr, OWNERS: gl.constexpr, MOST: gl.constexpr, W: gl.constexpr,
):  # fmt: skip
    """Each basis to the mean of its columns. An owner returns when its own rows are written, others sooner.

    Owners wait for all shares, which are then theirs to read. Nobody else does: the shares of the next sweep can only
    be written behind `wait_for_bases`, when all owners have read these.
    """
    write_fine_sums(b_codes, b_scale, b_x, at.p_shares, at.p_mass, at.p_top, z, i_p, D, R, BN, W)
    arrive(at.p_count)
    if i_p < OWNERS:
        wait(at.p_count, programs * (step + 1))
        update_centroids(
            at.p_shares, at.p_mass, at.p_top, p_d, at.p_copy, at.p_squares, d, r, programs, i_p, step == steps - 1,
            D, R, OWNERS, MOST, W,
        )  # fmt: skip
        arrive(at.p_count + NEW_D)
