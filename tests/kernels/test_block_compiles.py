"""The block's launches at real sizes, compiled without a GPU: they fit into shared memory and use tensor cores."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from hamburger.kernels import block_kernels, block_launches, block_norm, common  # noqa: E402
from hamburger.kernels.dispatch import (  # noqa: E402
    BatchNormState,
    NormParameters,
)

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(common.INTERPRETED, reason="an interpreted kernel is not compiled"),
    pytest.mark.filterwarnings("ignore"),  # Triton's own news
]
SHARED = 232_448  # bytes that one program can have on an H200
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}
COUNTS = {torch.int32: "*i32", torch.int64: "*i64"}


class Compiler:
    """Replaces a kernel; a launch compiles it as Triton would for these arguments."""

    def __init__(self, kernel):
        self.kernel, self.compiled = kernel, None

    def __getitem__(self, grid):
        return self.launch

    def launch(self, *arguments, num_warps, num_stages=3, **constants):
        values = dict(zip(self.kernel.arg_names, arguments, strict=False)) | constants
        signature, constant, divisible = {}, {}, {}
        for i, name in enumerate(self.kernel.arg_names):
            value = values[name]
            if name in constants or (isinstance(value, int) and value == 1):
                signature[name], constant[name] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                signature[name] = (POINTERS | COUNTS)[value.dtype]
            else:
                signature[name] = "fp32" if isinstance(value, float) else "i32" if value < 2**31 else "i64"
            if signature[name][0] in "*i" and (signature[name][0] == "*" or value % 16 == 0):
                divisible[(i,)] = [["tt.divisibility", 16]]
        source = ASTSource(self.kernel, signature, constexprs=constant, attrs=divisible)
        options = {"num_warps": num_warps, "num_stages": num_stages}
        self.compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.fixture
def compiled_kernel(monkeypatch):
    """Compile instead of launching; return kernel -> its assembly, checked against the GPU's shared memory."""
    modules = block_kernels, block_kernels, block_norm, common
    taught = {name: module for module in modules for name in vars(module) if name.endswith("_kernel")}
    for name, module in taught.items():
        monkeypatch.setattr(module, name, Compiler(getattr(module, name)))

    def assembly(name):
        compiled = getattr(taught[name], name).compiled
        assert compiled.metadata.shared <= SHARED
        return compiled.asm["ptx"]

    return assembly


def empty(*shape, dtype=torch.float32, channels_last=False):
    if channels_last:
        b, c, n = shape
        return torch.empty(b, n, c, dtype=dtype, device="meta").mT
    return torch.empty(*shape, dtype=dtype, device="meta")


# what x is, what the weights are, what the products are
PRECISIONS = {
    "autocast": (torch.bfloat16, torch.float32, torch.bfloat16),
    "autocast of float32": (torch.float32, torch.float32, torch.bfloat16),
    "bfloat16": (torch.bfloat16, torch.bfloat16, torch.bfloat16),
    "float16": (torch.float16, torch.float16, torch.float16),
    "float32": (torch.float32, torch.float32, torch.float32),
}


@pytest.mark.parametrize("n, channels_last", [(1_024, False), (16_384, True)])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_bread_compiles(precision, n, channels_last, compiled_kernel, monkeypatch):
    has, holds, dtype = PRECISIONS[precision]
    if dtype == torch.float32:
        monkeypatch.setattr(common, "product_kind", lambda dtype, **_: "tf32")  # exact products are torch's
    x = empty(1, 512, n, dtype=has, channels_last=channels_last)
    block_launches.apply_bread(x, empty(512, 512, dtype=holds), empty(512, dtype=holds), dtype, out=dtype, rectify=True)
    assert "wgmma" in compiled_kernel("bread_kernel")


@pytest.mark.parametrize("last, channels_last", [(False, False), (True, True)], ids=["u", "y"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_finish_compiles(precision, channels_last, last, compiled_kernel):
    has, holds, dtype = PRECISIONS[precision]
    kept = common.saved_dtype(dtype)
    skip = empty(1, 512, 16_384, dtype=has, channels_last=channels_last)
    statistics = [empty(512, dtype=holds) for _ in range(4)]
    more = {"skip": skip, "norm": NormParameters(*statistics, 1e-5), "rectify": True} if last else {}
    block_launches.finish_block(
        empty(1, 512, 64, dtype=kept), empty(1, 16_384, 64), torch.empty_like(skip), dtype, **more
    )
    assert ("wgmma" in compiled_kernel("finish_kernel")) == (dtype != torch.float32)


@pytest.mark.parametrize("dtype, r", [(torch.float32, 64), (torch.bfloat16, 64), (torch.float32, 512)])
def test_backward_compiles(dtype, r, compiled_kernel):
    kept = common.saved_dtype(dtype)
    du, z, fold, ratio = (
        empty(1, 512, 4_096, dtype=dtype),
        empty(1, 256, 4_096, dtype=dtype),
        empty(1, 512, r, dtype=kept),
        empty(1, 4_096, r, dtype=kept),
    )
    taken = block_launches.NormCorrection(ratio, empty(1, r + 1, r))
    for behind in (None, taken):
        block_launches.pull_back(du, fold, empty(1, 256, r), ratio, z, torch.empty_like(z), dtype, behind)
        assert ("mma" in compiled_kernel("pull_back_kernel")) == (dtype != torch.float32)
        block_launches.codes_cotangent(du, fold, behind, dtype)
        compiled_kernel("codes_gradient_kernel")


@pytest.mark.parametrize("r", [64, 512])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_batch_norm_in_training(dtype, r, compiled_kernel):
    kept = common.saved_dtype(dtype)
    fold, codes, y = empty(2, 512, r, dtype=kept), empty(2, 4_096, r, dtype=kept), empty(2, 512, 4_096, dtype=dtype)
    norm = NormParameters(empty(512), empty(512), empty(512), empty(512), 1e-5)
    statistics = block_norm.batch_statistics(fold, codes, BatchNormState(norm, 0.1, empty(1, dtype=torch.int64)), dtype)
    block_norm.norm_backward(y, y, fold, codes, statistics, norm, dtype)
    block_launches.weight_backward(empty(2, 512, r), empty(2, 256, r), dtype, common.factor_product_kind(dtype))
    block_launches.prepare_inputs(empty(512, 512), empty(2, 1_024, r), 2, dtype, unit=True)
    for name in ("sums", "partial_sums", "statistics", "relu_backward", "norm_backward", "weight_gradient", "prepare"):
        compiled_kernel(f"{name}_kernel")


def test_backward_of_the_lower_bread_compiles(compiled_kernel):
    z, x = empty(2, 256, 4_096, dtype=torch.bfloat16), empty(2, 512, 4_096, dtype=torch.bfloat16)
    block_launches.weight_backward(z, x, torch.float32, "bf16")
    block_launches.bread_backward(x, z, empty(256, 512, dtype=torch.bfloat16), x, torch.bfloat16)
    assert "wgmma" in compiled_kernel("weight_gradient_kernel") and "wgmma" in compiled_kernel("bread_kernel")
