"""`ham bench profile`: GPU time by kernel."""

from __future__ import annotations

import pytest

from hamburger.errors import HamburgerError, OptionError
from hamburger_lab.bench import profile as bench
from hamburger_lab.bench.common import WrongResultError
from hamburger_lab.pages.hams import profile_markdown as page


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("nmf_kernel", "nmf_kernel"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD"),
        ("void at::native::vectorized_elementwise_kernel<4, f<float>>(int, f<float>)", "vectorized_elementwise_kernel"),
        ("void at::native::(anonymous namespace)::foo<float>(int)", "foo"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int>(gemv<int>)", "internal::gemvx::kernel"),
        ("void cutlass::Kernel2<cutlass_80_gemm_64x64>(cutlass_80::Params)", "cutlass_80_gemm_64x64"),
        ("void cutlass__5x_cudnn::Kernel<cutlass_fprop>(cutlass_fprop::Params)", "cutlass_fprop"),
        ("decltype(auto) foo<int>(int)", "foo"),
        ("Memset (Device)", "Memset"),
        ("sm90_xmma_gemm_bf16bf16_tilesize64x64x64", "sm90_xmma_gemm_bf16bf16_tilesize64x64x64"),
    ],
)  # fmt: skip
def test_kernel_names_are_shortened(kernel, expected):
    assert bench.short_kernel_name(kernel) == expected


def test_kernel_events_are_summed_longest_first():
    events = [("a<1>()", 1.0), ("b", 5.0), ("a<2>()", 2.5)]
    assert bench.sum_by_kernel(iter(events)) == {"b": (1, 5.0), "a": (2, 3.5)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modules": ("nmff",)}, "no module 'nmff'; did you mean 'nmf'"),
        ({"modules": ()}, "give at least one module"),
        ({"modes": ("eval",)}, "no mode 'eval'"),
        ({"sizes": ()}, "give at least one size"),
        ({"sizes": (4,)}, "a size must be a whole number of at least 16, got 4"),
        ({"calls": 0}, "calls must be a whole number of at least 1, got 0"),
        ({"dtype": "fp8"}, "no dtype 'fp8'"),
    ],
)
def test_invalid_plans_raise(options, message):
    with pytest.raises(HamburgerError, match=message):
        bench.ProfilePlan(**options)


def test_profile_without_a_gpu_raises(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(OptionError, match="bench profile: needs a CUDA device"):
        next(bench.measure(bench.ProfilePlan()))


def test_wrong_results_are_not_timed(monkeypatch):
    """The correctness check comes before anything that needs a GPU."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(bench, "describe_environment", lambda device: {})
    monkeypatch.setattr(bench.ModuleUnderTest, "refusal", lambda self, setting, formats: "refused: it is wrong")
    with pytest.raises(WrongResultError, match="bench profile: nmf in bfloat16: refused: it is wrong"):
        next(bench.measure(bench.ProfilePlan()))


def row(kernel, us, launches, n, **more):
    about = {"module": "nmf", "mode": "infer", "dtype": "bfloat16", "batch": 1, "channels": 512, "calls": 20, "seed": 0}
    environment = {"hardware": "a GPU", "torch": "2.11", "commit": "abc"}
    return {**about, **environment, "kernel": kernel, "us": us, "launches": launches, "n": n, "ms": 0.02, **more}


def test_profile_table_has_kernels_their_sum_and_wall_time():
    text = page([row("a", 2.0, 1.0, 64), row("b", 12.5, 2.0, 64), row("a", 30.0, 1.0, 256, ms=0.06)])
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "|" in line]
    assert cells[0] == ["module", "kernel", "infer, n = 64", "infer, n = 256"]
    assert cells[2:] == [
        ["nmf", "a", "2.0 (1)", "30.0 (1)"],
        ["nmf", "b", "12.5 (2)", ""],
        ["nmf", "all kernels", "14.5 (3)", "30.0 (1)"],
        ["nmf", "wall time", "20.0", "60.0"],
    ]
    assert "a GPU, bfloat16, b = 1, c = 512" in text and "commit abc" in text


@pytest.mark.gpu
def test_profile_shows_our_kernels():
    plan = bench.ProfilePlan(sizes=(1024,), modes=("infer",), calls=3)
    rows = list(bench.measure(plan))
    assert any("nmf" in row.kernel for row in rows)
    assert all(row.us > 0 and row.launches > 0 for row in rows)
    assert sum(row.us for row in rows) / 1000 < 3 * rows[0].ms
