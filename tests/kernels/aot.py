"""Compile a Gluon kernel without a GPU."""

from __future__ import annotations

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource


def compiled_for_hopper(kernel, constants, *, half=(), whole=(), divisible=(), more=None):
    """Pointers (p_...) are float32 unless in `half` (bfloat16), `whole` (int32) or `more`; all else is int32.

    divisible: what is known to be a multiple of 16
    """

    def kind(name):
        if name in constants:
            return "constexpr"
        if more and name in more:
            return more[name]
        if name.startswith("p_"):
            return "*bf16" if name in half else "*i32" if name in whole else "*fp32"
        return "fp32" if name in ("eps", "temperature", "beta") else "i32"

    signature = {name: kind(name) for name in kernel.arg_names}
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    known = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in divisible}
    source = GluonASTSource(kernel, signature, places, attrs=known)
    return triton.compile(
        source,
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": constants["num_warps"], "enable_fp_fusion": True},
    )
