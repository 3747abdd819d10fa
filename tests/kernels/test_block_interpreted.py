"""The block's kernels in Triton's interpreter, each against reference.py in float64.

Collected only with TRITON_INTERPRET=1: Triton reads it when it is imported.
"""

from __future__ import annotations

import block_reference as reference
import pytest
import torch
from tolerances import assert_close

import hamburger as hb
from hamburger.hams.nmf import NMF
from hamburger.kernels import block, block_launches, common
from hamburger.kernels.decompose import KERNELS
from hamburger.kernels.dispatch import BlockPlan, BreadWeights, NormParameters

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
#         b  c   d   n    r
SHAPES = [
    (2, 24, 24, 37, 5),
    (1, 40, 24, 130, 20),  # more than one tile of each
    (3, 8, 100, 1, 8),
    (1, 17, 33, 65, 70),
    (2, 1, 1, 5, 1),
]
WAYS = [  # every layout once, every dtype once
    (torch.float32, "contiguous"),
    (torch.float32, "channels last"),
    (torch.bfloat16, "channels last"),
    (torch.float16, "contiguous"),
]
HAMS = {
    "nmf": (1e-6,),
    "vq": (0.1, 0.0),
    "cd": (0.1, 0.1),
}


@pytest.fixture(autouse=True)
def poisoned():
    """Fill uninitialised memory with NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def strided(x, kind):
    """Return the same values in another memory layout."""
    if kind == "channels last":
        return x.mT.contiguous().mT
    if kind == "every second":
        return torch.stack([x, x * 0], dim=-1)[..., 0]
    return x


def problem(shape, dtype=torch.float32):
    b, c, d, n, r = shape
    x = torch.randn(b, c, n).to(dtype)
    weights = BreadWeights(torch.randn(d, c) / c**0.5, torch.randn(d), torch.randn(c, d) / d**0.5)
    return x, weights, torch.rand(b, d, r), torch.rand(b, n, r)


@pytest.mark.parametrize("dtype, layout", [*WAYS, (torch.bfloat16, "every second")], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bread_compiles(shape, dtype, layout):
    x, (weight, bias, _), _, _ = problem(shape, dtype)
    x = strided(x, layout)
    for b, rectify in ((bias, True), (None, False)):
        expected = reference.bread(x.double(), weight.double(), None if b is None else b.double(), rectify=rectify)
        actual = block_launches.apply_bread(x, weight, b, dtype, out=dtype, rectify=rectify)
        assert_close(actual, expected)
        assert actual.dtype == dtype


def test_rows_of_z_are_padded_with_zeros():
    x, (weight, bias, _), _, _ = problem(SHAPES[0])
    for layout in ("contiguous", "channels last"):
        z = block_launches.apply_bread(
            strided(x, layout), weight, bias, x.dtype, out=x.dtype, rectify=True, padded=True
        )
        assert z.shape == (2, 24, 48) and z.is_contiguous() and not z[..., 37:].any()
        assert_close(z[..., :37], reference.bread(x.double(), weight.double(), bias.double(), rectify=True))


@pytest.mark.filterwarnings("ignore:invalid value")  # numpy, by which the interpreter computes
def test_nan_is_propagated():
    x, weights, start, _ = problem(SHAPES[0])
    x[1, 0, 3] = torch.nan
    y, _ = block.evaluate_block(x, weights, start, BlockPlan("nmf", HAMS["nmf"], 1, torch.float32), None, rectify=True)
    assert y[1].isnan().all() and y[0].isfinite().all()


def test_bread_rounds_as_it_loads():
    """float32 input and weights, products in bfloat16: nothing is copied."""
    x, (weight, bias, _), _, _ = problem(SHAPES[0])
    actual = block_launches.apply_bread(x, weight, bias, torch.bfloat16, out=torch.bfloat16, rectify=True)
    assert_close(actual, reference.bread(x.double(), weight.double(), bias.double(), rectify=True))


@pytest.mark.parametrize("dtype, layout", WAYS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_finish_compiles(shape, dtype, layout):
    b, c, _, _, r = shape
    skip, _, _, codes = problem(shape, dtype)
    skip, fold = strided(skip, layout), torch.randn(b, c, r)
    mean, var, weight, bias = torch.randn(c), torch.rand(c) + 0.1, torch.randn(c), torch.randn(c)
    scale = weight.double() / (var.double() + 1e-5).sqrt()
    shift = bias.double() - mean.double() * scale
    bare = 1 / (var.double() + 1e-5).sqrt()
    cases = [
        ({}, {}),
        ({"skip": skip}, {"skip": skip.double()}),
        (
            {"skip": skip, "norm": NormParameters(mean, var, weight, bias, 1e-5), "rectify": True},
            {"skip": skip.double(), "scale": scale, "shift": shift, "rectify": True},
        ),
        ({"norm": NormParameters(mean, var, None, None, 1e-5)}, {"scale": bare, "shift": -mean.double() * bare}),
    ]
    for options, same in cases:
        y = torch.empty_like(skip)
        actual = block_launches.finish_block(fold, codes, y, dtype, **options)
        assert actual is y
        assert_close(actual, reference.finish(fold.double(), codes.double(), **same))


def test_finish_saturates_in_float16():
    fold, codes = torch.tensor([[[1.0], [-1.0]]]), torch.full((1, 3, 1), 5e4)
    skip = (fold.expand(1, 2, 3) * 6e4).half()
    y = block_launches.finish_block(fold, codes, torch.empty_like(skip), torch.float16, skip=skip)
    assert torch.equal(y, (fold.expand(1, 2, 3) * 65504).half())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_codes_kernel_matches_the_reference(shape, dtype):
    x, _, _, _ = problem(shape, dtype)
    factor = torch.randn(shape[0], shape[1], shape[4])
    expected = torch.einsum("bdn,bdr->bnr", x.double(), factor.double())
    assert_close(block_launches.codes_cotangent(strided(x, "channels last"), factor, None, dtype), expected)


@pytest.mark.parametrize("dtype, layout", WAYS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pull_back_kernel_matches_the_reference(shape, dtype, layout):
    b, c, d, n, r = shape
    du, _, bases, q = problem(shape, dtype)
    z, fold = strided(torch.randn(b, d, n).relu().to(dtype), layout), torch.randn(b, c, r)
    for ratio, mask in ((q, z), (None, None)):
        dz = torch.empty_like(z)
        sums = block_launches.pull_back(du, fold, bases, ratio, mask, dz, dtype)
        wide = (None if t is None else t.double() for t in (ratio, mask))
        expected = reference.pull_back(du.double(), fold.double(), bases.double(), *wide)
        assert_close(dz, expected)
        total = sums.sum(0) - expected.sum((0, 2))
        assert total.norm() <= 2e-5 * expected.abs().sum()


def run(x, weights, start, plan):
    leaves = [x.detach().requires_grad_(), *(w.detach().requires_grad_() for w in weights)]
    u, bases = block.block_context(leaves[0], BreadWeights(*leaves[1:]), start, plan)
    return leaves, u, bases


@pytest.mark.parametrize("dtype, layout", WAYS, ids=str)
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_block_gradient_matches_the_reference(shape, dtype, layout):
    """NMF, from the bases that the kernels found and the codes of plain float64: x and every weight."""
    x, weights, start, _ = problem(shape, dtype)
    x, weights = strided(x, layout), BreadWeights(*(w.to(dtype) for w in weights))
    plan = BlockPlan("nmf", HAMS["nmf"], 1, dtype)
    leaves, u, bases = run(x, weights, start, plan)
    z = block_launches.apply_bread(x, weights.lower, weights.bias, dtype, out=dtype, rectify=True)
    wide_z, wide_start = z.double(), start.double()
    ham = NMF(rank=wide_start.shape[2], eps=1e-6)
    before = ham.step(wide_z, ham.init(wide_z, wide_start)).codes.mT
    wide = [t.detach().double().requires_grad_() for t in leaves]
    expected = reference.context(*wide, bases.double(), before.double(), 1e-6)
    assert_close(u, expected, slack=2)
    cotangent = torch.randn(u.shape).to(dtype)
    slopes = torch.autograd.grad(expected, wide, cotangent.double())
    for actual, slope, leaf in zip(torch.autograd.grad(u, leaves, cotangent), slopes, leaves, strict=True):
        assert actual.dtype == leaf.dtype
        assert_close(actual, slope, slack=3)  # a chain of roundings to dtype: u, dz, and each product


@pytest.mark.parametrize("ham", HAMS)
def test_only_needed_gradients_are_computed(ham):
    """A frozen bread has no gradient, and nothing is kept where nothing is differentiated."""
    x, weights, start, _ = problem(SHAPES[0])
    plan = BlockPlan(ham, HAMS[ham], 1, torch.float32)
    for trained in range(4):
        tensors = [x, *weights]
        leaf = tensors[trained] = tensors[trained].detach().requires_grad_()
        u, _ = block.block_context(tensors[0], BreadWeights(*tensors[1:]), start, plan)
        assert torch.autograd.grad(u.sum(), leaf)[0].shape == leaf.shape
    assert block.block_context(x, weights, start, plan)[0].grad_fn is None
    with torch.no_grad():
        assert block.block_context(x.requires_grad_(), weights, start, plan)[0].grad_fn is None


@pytest.mark.parametrize("ham", HAMS)
def test_outputs_never_alias_inputs(ham):
    x, weights, start, _ = problem(SHAPES[0])
    bases = block.block_context(x, weights, start, BlockPlan(ham, HAMS[ham], 0, torch.float32))[1]
    assert torch.equal(bases, start) and bases.data_ptr() != start.data_ptr()


@pytest.mark.parametrize("ham", HAMS)
def test_one_dictionary_is_shared_by_all_samples(ham):
    x, weights, start, _ = problem(SHAPES[0])
    plan = BlockPlan(ham, HAMS[ham], 1, torch.float32)
    one, each = (block.block_context(x, weights, s, plan) for s in (start[:1], start[:1].repeat(2, 1, 1)))
    assert all(torch.equal(a, b) for a, b in zip(one, each, strict=True))


@pytest.mark.parametrize("ham", HAMS)
def test_the_same_bits_twice(ham):
    x, weights, start, _ = problem(SHAPES[1])
    plan = BlockPlan(ham, HAMS[ham], 1, torch.float32)
    first, again = (
        (u, *torch.autograd.grad(u.square().sum(), leaves))
        for leaves, u, _ in (run(x, weights, start, plan) for _ in range(2))
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("ham", HAMS)
def test_a_second_derivative_is_refused(ham):
    x, weights, start, _ = problem(SHAPES[0])
    leaves, u, _ = run(x, weights, start, BlockPlan(ham, HAMS[ham], 0, torch.float32))
    (slope,) = torch.autograd.grad(u.square().sum(), leaves[0], create_graph=True)
    with pytest.raises(hb.OptionError, match=r"differentiated once.*backend='plain'"):
        slope.square().sum().backward()


def test_memory_saved_for_backward():
    """x, z, C and Q, and what does not grow with n: neither D C nor u."""
    x, weights, start, _ = problem((1, 24, 24, 200, 5), torch.bfloat16)
    kept = []

    def record(t):
        kept.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(record, lambda t: t):
        run(x, BreadWeights(*(w.bfloat16() for w in weights)), start, BlockPlan("nmf", HAMS["nmf"], 1, torch.bfloat16))
    large = [t for t in kept if not {200, 208}.isdisjoint(t.shape)]
    assert sorted(tuple(t.shape) for t in large) == [(1, 24, 200), (1, 24, 208), (1, 200, 5), (1, 200, 5)]
    assert all(t.dtype == torch.bfloat16 for t in large)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own check asks for it
@pytest.mark.parametrize("ham", HAMS)
def test_custom_operator_passes_opcheck(ham):
    x, weights, start, _ = problem((1, 24, 16, 20, 5))
    names = BlockPlan(ham, HAMS[ham], 1, torch.float32)
    torch.library.opcheck(block.block_op, (x, *weights, start, *names, False))
    leaves = [x.requires_grad_(), *(w.requires_grad_() for w in weights)]
    torch.library.opcheck(block.block_op, (*leaves, start, *names, True))
    several = strided(x.detach().repeat(2, 1, 1), "channels last").requires_grad_()
    torch.library.opcheck(block.block_op, (several, leaves[1], None, leaves[3], start, *names, True))


@pytest.mark.parametrize("ham", HAMS)
def test_custom_operator_matches_the_eager_call(ham):
    x, weights, start, _ = problem(SHAPES[0])
    plan = BlockPlan(ham, HAMS[ham], 1, torch.float32)
    leaves, u, _ = run(x, weights, start, plan)
    slopes = torch.autograd.grad(u.square().sum(), leaves)
    again = block.block_op(*leaves, start, *plan, True)[0]
    assert torch.equal(again, u)
    for a, b in zip(torch.autograd.grad(again.square().sum(), leaves), slopes, strict=True):
        assert torch.equal(a, b)


def test_every_ham_declares_if_backward_needs_its_input():
    assert [block.saves_input(name) for name in HAMS] == [True, True, False]
    assert [KERNELS[name].rectify for name in HAMS] == [True, False, False]


@pytest.mark.parametrize("b", [1, 3, 132])  # as many as a GPU has multiprocessors
def test_prepare_clears_counters_and_copies_the_dictionary(b, monkeypatch):
    made = torch.empty

    def poisoned(*shape, **options):
        return made(*shape, **options).fill_(-7)

    monkeypatch.setattr(torch, "empty", poisoned)
    start = torch.rand(1, 8, 11)
    ready = block_launches.prepare_inputs(torch.randn(8, 8), start, b, torch.float32, unit=False)
    assert ready.counters.shape[0] == b and not ready.counters.any()
    assert torch.equal(ready.initial, start.expand(b, -1, -1))
    unit = block_launches.prepare_inputs(torch.randn(8, 8), start, b, torch.float32, unit=True).initial
    assert_close(unit, (start.double() / start.double().norm(dim=1, keepdim=True)).expand(b, -1, -1))


@pytest.mark.parametrize("shape", [(1, 3, 7), (2, 5, 70, 3), (3, 300, 20), (1, 70, 8500)])
def test_partial_sums_match_torch(shape):
    sums = torch.randn(shape)
    assert_close(common.add_partial_sums(sums), sums.double().sum(1))
