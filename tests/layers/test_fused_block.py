"""Which Hamburgers run as one fused block, and that the others are unchanged."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hamburger as hb
from hamburger.kernels.dispatch import BlockPlan
from hamburger.layers import burger, fused_block
from hamburger.layers.norm import convert_sync

X = torch.randn(2, 8, 15)


@pytest.fixture(autouse=True)
def fused(monkeypatch):
    """As if the kernels ran on this device: what remains is the structure of the layer."""
    monkeypatch.setattr(burger, "resolve_backend", lambda *_: "auto")
    monkeypatch.setattr(fused_block, "select_spec", lambda requested, x, ham, *_, **__: ham.fused_spec())


def plan_of(layer, x):
    block = fused_block.plan_block(layer, x, "auto")
    return None if block is None else block.plan


def build(**options):
    return hb.Hamburger(8, **{"rank": 3, **options})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, BlockPlan("nmf", (1e-6,), 6, torch.float32)),
        ({"steps": 2, "eps": 1e-4}, BlockPlan("nmf", (1e-4,), 2, torch.float32)),
        ({"ham": "vq", "temperature": 0.5}, BlockPlan("vq", (0.5, 0.0), 6, torch.float32)),
        ({"ham": "vq", "constant_norms": True}, BlockPlan("vq", (0.01, 1.0), 6, torch.float32)),
        ({"ham": "cd", "beta": 0.3}, BlockPlan("cd", (0.01, 0.3), 6, torch.float32)),
        ({"version": "paper", "inner": 4}, BlockPlan("nmf", (1e-6,), 6, torch.float32)),
        ({"norm": "none", "init": "online", "layout": "tokens"}, BlockPlan("nmf", (1e-6,), 6, torch.float32)),
    ],
)
def test_supported_layers_use_the_fused_block(options, expected):
    assert plan_of(build(**options), X) == expected


def test_steps_depend_on_training_mode():
    layer = build(steps=2, eval_steps=9)
    assert plan_of(layer, X).steps == 2
    assert plan_of(layer.eval(), X).steps == 9


@pytest.mark.parametrize(
    "options",
    [
        {"version": "v2"},
        {"version": "v2+", "dual": True},
        {"heads": 2},
        {"parts": ("lower", "ham")},
        {"parts": ("ham", "upper")},
        {"parts": ("lower", "upper")},
        {"grad": "bptt"},
        {"grad": "truncated:1"},
    ],
    ids=str,
)
def test_unsupported_layers_use_torch(options):
    assert plan_of(build(**options), X) is None


def test_any_gradient_setting_is_fused_without_grad():
    layer = build(grad="bptt", init="learned").eval()
    with torch.no_grad():
        assert plan_of(layer, X) is not None


@pytest.mark.parametrize("inner", ["lower", "ham", "ham.dictionary", "upper"])
@pytest.mark.parametrize(
    "watch",
    [
        lambda m: m.register_forward_hook(lambda *_: None),
        lambda m: m.register_forward_pre_hook(lambda *_: None),
        lambda m: m.register_full_backward_hook(lambda *_: None),
        lambda m: m.register_full_backward_pre_hook(lambda *_: None),
        lambda m: setattr(m, "forward", m.forward),
    ],
    ids=["after", "before", "backward", "before backward", "replaced"],
)
def test_hooks_disable_the_fused_block(inner, watch):
    layer = build()
    watch(layer.get_submodule(inner))
    assert plan_of(layer, X) is None


def test_global_hooks_disable_the_fused_block():
    layer = build()
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert plan_of(layer, X) is None
    finally:
        handle.remove()
    assert plan_of(layer, X) is not None


def test_changed_submodules_disable_the_fused_block():
    layer = build()
    nn.utils.parametrizations.spectral_norm(layer.lower)
    assert plan_of(layer, X) is None
    layer = build()
    layer.upper.bias = nn.Parameter(torch.zeros(8))
    assert plan_of(layer, X) is None


def test_supported_dtypes_and_autocast():
    layer = build()
    assert plan_of(build().double(), X) is None
    assert plan_of(build().bfloat16(), X).dtype == torch.bfloat16
    assert plan_of(build().half(), X.half()).dtype == torch.float32
    for cast, expected in ((torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32)):
        with torch.autocast("cpu", dtype=cast):
            assert plan_of(layer, X).dtype == plan_of(layer, X.to(cast)).dtype == expected


@pytest.mark.filterwarnings("ignore")  # of the older tracer, about itself and about checks of shapes
def test_exported_and_traced_graphs_use_the_modules():
    layer, seen = build().eval(), []
    original = fused_block.make_plan
    try:
        fused_block.make_plan = lambda *arguments: seen.append(original(*arguments))
        torch.export.export(layer, (X,))
        torch.jit.trace(layer, X, check_trace=False)
    finally:
        fused_block.make_plan = original
    assert len(seen) >= 2 and not any(seen)


def test_norm_and_skip_fused_into_the_last_kernel():
    layer = build().eval()
    assert not fused_block.can_evaluate(layer.norm)  # a graph is wanted
    with torch.no_grad():
        assert fused_block.can_evaluate(layer.norm)
        assert fused_block.can_evaluate(build(norm="none").norm)
        assert fused_block.can_evaluate(build(norm=nn.BatchNorm1d).eval().norm)
        assert fused_block.can_evaluate(build(norm=lambda c: nn.BatchNorm1d(c, affine=False)).eval().norm)
        assert fused_block.can_evaluate(convert_sync(build()).eval().norm)
        assert not fused_block.can_evaluate(build().norm)  # the batch has statistics of its own
        assert not fused_block.can_evaluate(
            build(norm=lambda c: nn.BatchNorm1d(c, track_running_stats=False)).eval().norm
        )
        assert not fused_block.can_evaluate(build(norm=lambda c: nn.GroupNorm(2, c)).eval().norm)
        layer.norm.bias = None
        assert not fused_block.can_evaluate(layer.norm)
        layer = build().eval()
        layer.norm.register_forward_hook(lambda *_: None)
        assert not fused_block.can_evaluate(layer.norm)


def gaps(vector):
    """The same numbers, every other one of something larger."""
    return torch.stack([vector, torch.full_like(vector, 7)], -1)[..., 0]


def test_strided_vectors_use_torch():
    layer = build()
    layer.lower.bias.data = gaps(layer.lower.bias.data)
    assert fused_block.find_parts(layer) is None
    for name in ("weight", "bias", "running_mean", "running_var"):
        layer = build()
        assert fused_block.can_train(layer.norm, X)
        vector = getattr(layer.norm, name)
        vector.data = gaps(vector.data)
        assert not fused_block.can_train(layer.norm, X)
        with torch.no_grad():
            assert not fused_block.can_evaluate(layer.eval().norm)


def test_input_on_another_device_raises_torchs_error(monkeypatch):
    layer = build()
    assert plan_of(layer, X) is not None
    monkeypatch.setattr(torch.Tensor, "get_device", lambda t: 1 if t is X else 0)
    assert plan_of(layer, X) is None


def test_norm_fused_in_training(monkeypatch):
    def trains(x=X, **options):
        return fused_block.can_train(build(**options).norm, x)

    assert trains() and trains(norm=nn.BatchNorm1d)
    assert not trains(torch.randn(1, 8, 1))  # no variance
    assert not trains(X.half())  # whose sum with the skip may exceed its range
    for change in ({"momentum": None}, {"track_running_stats": False}, {"affine": False}):
        assert not trains(norm=lambda c, change=change: nn.BatchNorm1d(c, **change))
    assert not trains(norm="none") and not trains(norm=lambda c: nn.GroupNorm(2, c))
    synced = convert_sync(build()).norm
    assert fused_block.can_train(synced, X)  # alone it is a plain one
    monkeypatch.setattr(fused_block.distributed, "world_size", lambda: 2)
    assert trains() and not fused_block.can_train(synced, X)
    assert not fused_block.can_train(build().eval().norm, X)
    with torch.no_grad():
        assert not trains()


def test_user_subclass_is_called(monkeypatch):
    class Mine(hb.Hamburger):
        def context(self, z):
            return 0 * z

    monkeypatch.setattr(fused_block, "evaluate", lambda *arguments, **options: pytest.fail("passed over"))
    with torch.no_grad():
        assert torch.equal(Mine(8, rank=3, version="v1").eval()(X), X.relu())


def test_device_without_kernels_uses_the_modules(monkeypatch):
    monkeypatch.undo()
    monkeypatch.delenv("HAM_BACKEND", raising=False)
    assert plan_of(build(), X) is None
    with pytest.raises(hb.OptionError, match="backend 'fused' cannot solve this"):
        build(backend="fused")(X)
    build(backend="plain")(X)
