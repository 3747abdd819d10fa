"""A compiled, exported, copied or saved layer has the same outputs."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from tiers import full_except
from tolerances import assert_close, relative_error
from torch.export import Dim

import hamburger as hb

NAMES = ["nmf", "vq", "cd"]
VARIANTS = {
    "nmf": {"ham": "nmf"},
    "vq": {"ham": "vq"},
    "cd": {"ham": "cd"},
    "uniform": {"ham": "nmf", "codes_init": "uniform"},
    "dual": {"ham": "nmf", "version": "v2+", "dual": True, "heads": 2},
    "columns": {"ham": "nmf", "init": "columns"},
}


def build(variant, steps=2, **more):  # six would be the same graph, three times as long
    layer = hb.Hamburger(16, rank=4, steps=steps, **VARIANTS[variant], **more)
    if hasattr(layer, "burger_scale"):
        layer.burger_scale.data.fill_(1.0)
    return layer


SIZES = (2, 16, 6, 7), (3, 16, 5, 5)


def compiled_equals_eager(layer, backend="aot_eager", sizes=SIZES):
    torch._dynamo.reset()
    fast = torch.compile(copy.deepcopy(layer), fullgraph=True, backend=backend)
    for size in sizes:
        a, b = (torch.linspace(-1, 1, 2520)[: torch.Size(size).numel()].view(size).requires_grad_() for _ in range(2))
        ours, theirs = fast(a), layer(b)
        assert_close(ours, theirs, slack=10)
        ours.square().mean().backward()
        theirs.square().mean().backward()
        assert_close(a.grad, b.grad, slack=10)


@pytest.mark.parametrize("variant", full_except(("nmf",), VARIANTS))
def test_compile_without_graph_breaks(variant):
    compiled_equals_eager(build(variant).eval())


@pytest.mark.parametrize("init", full_except(("online", "columns"), ("fixed", "learned", "online", "columns")))
def test_compile_in_training(init):
    compiled_equals_eager(build("nmf", init=init, norm="none").train())


def test_compile_in_training_draws_at_random():
    torch._dynamo.reset()
    layer = torch.compile(build("nmf", norm="none").train(), fullgraph=True, backend="aot_eager")
    z = torch.randn(2, 16, 6, 7)
    assert not torch.equal(layer(z), layer(z))


@pytest.mark.full
def test_compile_by_inductor():
    compiled_equals_eager(build("nmf", steps=1).eval(), backend="inductor", sizes=SIZES[:1])  # it takes long


@pytest.mark.parametrize("variant", full_except(("nmf", "columns"), VARIANTS))
def test_export_with_dynamic_batch_and_size(variant):
    layer = build(variant).eval()
    shapes = {"z": {0: Dim("b", min=1, max=64), 2: Dim("h", min=1, max=512), 3: Dim("w", min=1, max=512)}}
    program = torch.export.export(layer, (torch.randn(2, 16, 6, 7),), dynamic_shapes=shapes)
    for size in ((1, 16, 9, 4), (3, 16, 5, 20)):
        z = torch.randn(size)
        assert_close(program.module()(z), layer(z))


@pytest.mark.full  # other hams: contexts/test_deploy_contexts.py
@pytest.mark.parametrize("variant", ["nmf", "uniform", "dual", "columns"])
def test_onnx_matches_torch_and_repeats(variant, tmp_path):
    import onnxruntime

    layer = build(variant).eval()
    path = tmp_path / "layer.onnx"
    shapes = {"z": {0: Dim("b", min=1, max=64), 2: Dim("h", min=1, max=512), 3: Dim("w", min=1, max=512)}}
    torch.onnx.export(layer, (torch.randn(2, 16, 6, 7),), path, dynamo=True, dynamic_shapes=shapes, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    for size in ((1, 16, 9, 4), (3, 16, 12, 20)):
        z = torch.randn(size)
        first, second = (session.run(None, {name: z.numpy()})[0] for _ in range(2))
        assert np.array_equal(first, second)
        assert relative_error(torch.from_numpy(first), layer(z)) < 1e-5


@pytest.mark.parametrize(
    ("d", "r", "beta"), [(512, 64, 0.1), (512, 64, 0.01), (16, 64, 0.01), (64, 512, 0.1), (32, 32, 0.001)], ids=str
)
def test_onnx_inverse_is_as_accurate_as_torch_solve(d, r, beta):
    """Nearly parallel columns, and more of them than rows: the ridge alone keeps the matrix invertible."""
    from hamburger.linalg import solve_by_products

    bases = torch.nn.functional.normalize(torch.rand(2, d, r), dim=1)
    gram = bases.mT @ bases + beta * torch.eye(r)
    exact = bases.double() @ torch.linalg.solve(gram.double(), bases.double().mT)
    real = relative_error(bases @ torch.linalg.solve(gram, bases.mT), exact)
    assert relative_error(bases @ solve_by_products(gram, bases.mT), exact) < 2 * real + 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_copies_are_independent_and_equal(name):
    layer, z = hb.Hamburger(16, ham=name, rank=4, init="online").eval(), torch.randn(2, 16, 5, 5)
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(z), layer(z))
    twin.train()(z)
    assert not torch.equal(twin.ham.dictionary.bases, layer.ham.dictionary.bases)


@pytest.mark.parametrize("options", [{}, {"version": "v2+", "dual": True}, {"heads": 2, "init": "learned"}], ids=str)
def test_state_dicts_are_strict_and_complete_from_the_constructor_on(options):
    a, b = (hb.Hamburger(16, rank=4, seed=seed, **options) for seed in (0, 1))
    keys = set(a.state_dict())
    a.train()(torch.randn(2, 16, 5, 5))
    assert set(a.state_dict()) == keys
    result = b.load_state_dict(a.state_dict(), strict=True)
    assert not result.missing_keys and not result.unexpected_keys
    for key, value in a.state_dict().items():
        assert torch.equal(value, b.state_dict()[key]), key


def test_layer_can_be_cast_between_dtypes():
    layer = hb.Hamburger(16, rank=4).double().eval()
    assert layer(torch.randn(2, 16, 5, 5, dtype=torch.float64)).dtype == torch.float64
    assert layer.float()(torch.randn(2, 16, 5, 5)).dtype == torch.float32


def test_shapes_can_be_planned_on_the_meta_device():
    with torch.device("meta"):
        layer, z = build("cd"), torch.empty(2, 16, 128, 128)
    assert layer(z).shape == z.shape
