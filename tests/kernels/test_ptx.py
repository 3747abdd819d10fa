"""The emulator of PTX alone, on programs of a few lines."""

from __future__ import annotations

import numpy as np
import pytest
from ptx import Fault, Hang, Memory, Race, Unknown, launch

pytestmark = pytest.mark.kernels

KERNEL = """
.visible .entry kernel(
    .param .u64 .ptr .global .align 1 kernel_param_0,
    .param .u32 kernel_param_1
)
.reqntid 64
{
    .reg .pred %p<9>;
    .reg .b16 %rs<9>;
    .reg .b32 %r<9>;
    .reg .b64 %rd<9>;
    ld.param.b64 %rd0, [kernel_param_0];
    ld.param.b32 %r0, [kernel_param_1];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mul.wide.u32 %rd1, %r1, 4;
    add.s64 %rd1, %rd0, %rd1;  // of each thread
    shl.b32 %r3, %r1, 2;
    setp.eq.s32 %p0, %r1, 0;
    setp.eq.s32 %p1, %r2, 0;
    BODY
    ret;
}
"""


def run(body, programs=1, order=list, number=7):
    """-> 64 numbers, which were 100, 101, 102 and so on, and a counter behind them"""
    array, memory = np.append(np.arange(100, 164, dtype=np.int32), np.int32(0)), Memory()
    at = memory.put(array.view(np.uint8))
    launch(KERNEL.replace("BODY", body), (programs,), [at, number], memory, 256, order)
    return array


THROUGH_SHARED = """
    st.shared.b32 [%r3], %r1;
    bar.sync 0;
    xor.b32 %r4, %r3, 128;
    ld.shared.b32 %r5, [%r4];
    st.global.b32 [%rd1], %r5;
"""
MEET = """
    bar.sync 0;
    @%p0 red.global.gpu.release.add.u32 [%rd0 + 256], 1;
$LOOP:
    ld.acquire.gpu.global.b32 %r7, [%rd0 + 256];
    setp.lt.s32 %p2, %r7, 2;
    @%p2 bra $LOOP;
"""
ONE_WARP_ASKS = """
    bar.sync 0;
    @%p0 red.global.gpu.release.add.u32 [%rd0 + 256], 1;
$LOOP:
    {
    .reg .pred first, less;
    .reg .b32 seen;
    setp.lt.u32 first, %r1, 32;
    mov.b32 seen, 2;
    @first ld.acquire.gpu.global.b32 seen, [%rd0 + 256];
    setp.lt.s32 less, seen, 2;
    bar.red.or.pred %p2, 0, less;
    }
    @%p2 bra $LOOP;
"""
FIRST_WRITES = """
    @!%p1 bra $BEHIND;
    st.global.b32 [%rd1], %r0;
$BEHIND:
"""
ALL_READ = "ld.global.b32 %r5, [%rd1];\n"


def test_emulator_synchronises_warps_in_shared_memory():
    assert (run(THROUGH_SHARED)[:64] == np.arange(64) ^ 32).all()
    with pytest.raises(Race, match=r"read after another warp wrote it.*program 0, line \d+: ld.shared.b32 %r5"):
        run(THROUGH_SHARED.replace("bar.sync 0;", ""))


def test_emulator_synchronises_warps_in_global_memory():
    with pytest.raises(Race, match="written after another warp read it"):
        run("xor.b32 %r4, %r1, 32; mul.wide.u32 %rd2, %r4, 4; add.s64 %rd2, %rd0, %rd2;"
            "ld.global.b32 %r5, [%rd2]; st.global.b32 [%rd1], %r5;")  # fmt: skip


@pytest.mark.parametrize("order", [list, lambda left: left[::-1]], ids=["in order", "reversed"])
@pytest.mark.parametrize("first, then", [(FIRST_WRITES, ALL_READ), (ALL_READ, FIRST_WRITES)], ids=["write", "read"])
def test_emulator_runs_grid_barriers(first, then, order):
    assert (run(first + MEET + then, 2, order)[:64] == 7).all()
    assert (run(first + ONE_WARP_ASKS + then, 2, order)[:64] == 7).all()
    unmet = ONE_WARP_ASKS.replace("bar.red.or.pred %p2, 0, less;", "setp.lt.u32 %p2, %r0, 0;")
    for spoiled in (first + then, first + MEET.replace("release", "relaxed") + then, first + unmet + then):
        with pytest.raises(Race, match="with no barrier after"):
            run(spoiled, 2, order)
    with pytest.raises(Race, match=r"since the last bar\.sync"):
        run(first + MEET.replace("bar.sync 0;", "") + then, 2, order)


def test_emulator_reports_barriers_that_hang():
    with pytest.raises(Hang, match=r"programs \[0\] wait for ever.*ld.acquire"):
        run(MEET)


def test_emulator_reports_races():
    assert run("st.global.b32 [%rd0], %r0;")[0] == 7
    with pytest.raises(Race, match="different values"):
        run("st.global.b32 [%rd0], %r1;")


@pytest.mark.parametrize("body", ["st.global.b32 [%rd0 + 260], %r0;", "ld.global.b32 %r4, [%rd0 + -4];",
                                  "st.shared.b32 [%r3 + 4], %r0;", "ld.global.b32 %r4, [%rd0 + 2];"])  # fmt: skip
def test_emulator_reports_out_of_bounds_and_misaligned_access(body):
    with pytest.raises(Fault, match=r"outside of|no multiple of 4"):
        run(body)


def test_emulator_reports_divergent_branches():
    with pytest.raises(Fault, match="part ways"):
        run("@%p0 bra $OUT;\n$OUT:\n")


def test_emulator_integer_arithmetic_matches_a_gpu():
    actual = run("shl.b32 %r4, %r1, 30; shr.s32 %r4, %r4, 30; mad.wide.s32 %rd2, %r4, %r0, %rd0;"
                "sub.s64 %rd2, %rd2, %rd0; cvt.u32.u64 %r5, %rd2; st.global.b32 [%rd1], %r5;", number=-3)  # fmt: skip
    assert (actual[:4] == [0, -3, 6, 3]).all()


def test_emulator_divides_integers_towards_zero():
    actual = run("mul.lo.s32 %r4, %r1, 5; sub.s32 %r4, %r4, 7; div.s32 %r4, %r4, %r0; max.s32 %r4, %r4, -1;"
                "min.s32 %r4, %r4, 2; st.global.b32 [%rd1], %r4;", number=3)  # fmt: skip
    assert (actual[:5] == [-1, 0, 1, 2, 2]).all()


def test_emulator_min_and_relu():
    actual = run("sub.s32 %r4, %r1, 1; min.relu.s32 %r4, %r4, %r0; st.global.b32 [%rd1], %r4;", number=2)
    assert (actual[:5] == [0, 0, 1, 2, 2]).all()


def test_emulator_loads_transposed_matrices():
    """Rows of 16 bytes, 0 to 63 in halves: a lane has two rows of a column, those of lanes 0 to 3 the first one."""
    actual = run("shl.b32 %r4, %r1, 1; add.s32 %r5, %r4, 1; shl.b32 %r5, %r5, 16; or.b32 %r4, %r4, %r5;"
                "st.shared.b32 [%r3], %r4; bar.sync 0; shl.b32 %r6, %r1, 4; and.b32 %r6, %r6, 127;"
                "ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r7}, [%r6]; st.global.b32 [%rd1], %r7;")  # fmt: skip
    low, high = actual[:32] & 0xFFFF, actual[:32] >> 16
    assert (low == [i % 4 * 16 + i // 4 for i in range(32)]).all() and (high == low + 8).all()


def test_emulator_rounds_bfloat16_to_even_and_packs_pairs():
    # 1 + 2^-8 is halfway between 1 and 1 + 2^-7; 1 + 3 2^-8 between that and 1 + 2^-6
    actual = run("cvt.rn.bf16x2.f32 %r4, 0f3F808000, 0f3F818000; mov.b32 {%rs0, %rs1}, %r4; mov.b32 %r5, {%rs1, %rs0};"
                "@%p0 st.global.b32 [%rd1], %r4; @!%p0 st.global.b32 [%rd1], %r5;")  # fmt: skip
    assert [hex(value) for value in actual[:2]] == ["0x3f803f82", "0x3f823f80"]


@pytest.mark.parametrize(
    "body",
    [
        "frobnicate.b32 %r4, %r1;",
        "add.sat.s32 %r4, %r1, %r1;",
        "ld.volatile.global.b32 %r4, [%rd0];",
        "add.s32 %r4, %r1, %rd0;",
        "add.s32 %r4, %r1;",
        "mov.u32 %r4, %clusterid.x;",
        "shl.b32 %r4, %r1, %r0;",
        "shfl.sync.bfly.b32 %r4|%p2, %r1, 1, 31, -1;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r4, %r5, %r6, %r7}, %rd1, %rd2, %p0, 1, 1, 0, 0;",
        "bra $NOWHERE;",
        "bar.sync 1;",
        "@%p0 bar.sync 0;",
        "ld.global.v2.b32 %r4, [%rd0];",
    ],
)
def test_emulator_names_unknown_instructions_first(body):
    opcode = body.removeprefix("@%p0 ").split()[0]
    with pytest.raises(Unknown, match=rf"{opcode}.*line \d+"):
        run(f"bra $OUT; {body}\n$OUT:\n")


def test_emulator_rejects_invalid_text():
    with pytest.raises(Unknown, match=r"\{"):
        run("{ .reg .b32 %t; }")
    with pytest.raises(Unknown, match="%x1 was not declared"):
        run("add.s32 %r4, %r1, %x1;")
