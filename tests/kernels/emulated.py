"""Replaces `hamburger.kernels.launcher.launch`: compiles for a GPU that is not present, and emulates it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from unittest import mock

import ptx
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.experimental.gluon._runtime import GluonASTSource

POINTERS = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32", torch.int16: "*i16"}
HOPPER = GPUTarget("cuda", 90, 32)


class Emulated:
    """`launcher(kernel, grid, *args, **options)` on CPU tensors. The kernel sees copies with gaps between them.

    order: as in `ptx.launch`. edit: what to change in the text of PTX before.
    """

    def __init__(self, order=list, edit=lambda text: text):
        self.order, self.edit, self.compiled, self.shared = order, edit, None, 0
        self.copies_async = {}  # by kernel: whether each of its launches copied asynchronously

    def __call__(self, kernel, grid, *args, **options):
        self.compiled, taken = compile_as_triton_would(kernel, args, options)
        memory, addresses = ptx.Memory(), {}
        for tensor in (arg for arg in args if isinstance(arg, Tensor)):  # one that is given twice is there once
            if tensor.data_ptr() not in addresses:
                addresses[tensor.data_ptr()] = memory.put(span(tensor), aligned=tensor.data_ptr())
        values = [addresses[arg.data_ptr()] if isinstance(arg, Tensor) else arg for arg in taken]
        text, shared = self.edit(self.compiled.asm["ptx"]), self.compiled.metadata.shared
        self.copies_async.setdefault(kernel.__name__, []).append("cp.async" in text)
        self.shared = max(self.shared, shared)  # the most that any of its kernels has asked for
        ptx.launch(text, grid, values, memory, shared, self.order)


def span(tensor):
    """Return the bytes from a tensor's first number to its last, or to the end of its last row where rows are padded,
    as a numpy array on the same memory."""
    length = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.dim() == 3 and tensor.stride(2) == 1:
        length += max(0, tensor.stride(1) - tensor.shape[2])
    return tensor.detach().as_strided((length,), (1,)).view(torch.uint8).numpy()


def compile_as_triton_would(kernel, args, options):
    """-> the program, and those of the arguments that it takes: a one is compiled in, and so is alignment"""
    constants = {name: options[name] for name in kernel.arg_names if name in options}
    signature, aligned, taken = dict.fromkeys(kernel.arg_names, "constexpr"), {}, []
    for place, (parameter, value) in enumerate(zip(kernel.params, args, strict=False)):
        special = not parameter.do_not_specialize
        if special and isinstance(value, int) and value == 1:
            constants[parameter.name] = 1
            continue
        signature[parameter.name] = kind(value)
        taken.append(value)
        if special and divisible(value):
            aligned[(place,)] = [["tt.divisibility", 16]]
    constant = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = GluonASTSource(kernel, signature, constant, attrs=aligned)
    compile_options = {name: value for name, value in options.items() if name not in constants or name == "num_warps"}
    largest = constants.get("D") == 512  # what does not fit the GPU's registers is refused by its assembler
    with contextlib.nullcontext() if largest else down_to_ptx():
        return triton.compile(source, target=HOPPER, options=compile_options), taken


@contextlib.contextmanager
def down_to_ptx():
    """Skips machine code, which is not run here; such programs have their own cache."""
    kept = Path(triton.knobs.cache.dir).with_name("down_to_ptx")
    with triton.knobs.cache.scope(), mock.patch.object(CUDABackend, "make_cubin", lambda *_: b""):
        triton.knobs.cache.dir = str(kept)
        yield


def kind(value):
    if isinstance(value, Tensor):
        return POINTERS[value.dtype]
    return "fp32" if isinstance(value, float) else "i32" if -(2**31) <= value < 2**31 else "i64"


def divisible(value):
    if isinstance(value, float):
        return False
    return (value.data_ptr() if isinstance(value, Tensor) else value) % 16 == 0
