"""Which Hamburgers run as one fused block, and that the others are left alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hamburger as hb
from hamburger.layers import fused_block
from hamburger.layers.norm import convert_sync
from hamburger.ops.block import Plan

X = torch.randn(2, 8, 15)


@pytest.fixture(autouse=True)
def fused(monkeypatch):
    """As if the kernels solved every ham here: what remains is the form of the layer."""
    monkeypatch.setattr(fused_block, "fuses", lambda *arguments: True)


def build(**options):
    return hb.Hamburger(8, **{"rank": 3, **options})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Plan("nmf", (1e-6,), 6, torch.float32)),
        ({"steps": 2, "eps": 1e-4}, Plan("nmf", (1e-4,), 2, torch.float32)),
        ({"ham": "vq", "temperature": 0.5}, Plan("vq", (0.5, 0.0), 6, torch.float32)),
        ({"ham": "vq", "constant_norms": True}, Plan("vq", (0.01, 1.0), 6, torch.float32)),
        ({"ham": "cd", "beta": 0.3}, Plan("cd", (0.01, 0.3), 6, torch.float32)),
        ({"version": "paper", "inner": 4}, Plan("nmf", (1e-6,), 6, torch.float32)),
        ({"norm": "none", "init": "online", "layout": "tokens"}, Plan("nmf", (1e-6,), 6, torch.float32)),
    ],
)
def test_what_fits(options, expected):
    assert fused_block.plan(build(**options), X) == expected


def test_steps_follow_the_mode():
    layer = build(steps=2, eval_steps=9)
    assert fused_block.plan(layer, X).steps == 2
    assert fused_block.plan(layer.eval(), X).steps == 9


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
def test_what_does_not_fit(options):
    assert fused_block.plan(build(**options), X) is None


def test_any_gradient_where_none_is_taken():
    layer = build(grad="bptt", init="learned").eval()
    with torch.no_grad():
        assert fused_block.plan(layer, X) is not None


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
def test_nobody_who_looks_on_is_passed_over(inner, watch):
    layer = build()
    watch(layer.get_submodule(inner))
    assert fused_block.plan(layer, X) is None


def test_somebody_who_looks_at_everything():
    layer = build()
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert fused_block.plan(layer, X) is None
    finally:
        handle.remove()
    assert fused_block.plan(layer, X) is not None


def test_parts_of_another_kind():
    layer = build()
    nn.utils.parametrizations.spectral_norm(layer.lower)
    assert fused_block.plan(layer, X) is None
    layer = build()
    layer.upper.bias = nn.Parameter(torch.zeros(8))
    assert fused_block.plan(layer, X) is None


def test_precisions():
    layer = build()
    assert fused_block.plan(build().double(), X) is None
    assert fused_block.plan(build().bfloat16(), X).dtype == torch.bfloat16
    for cast, expected in ((torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32)):
        with torch.autocast("cpu", dtype=cast):
            assert fused_block.plan(layer, X).dtype == fused_block.plan(layer, X.to(cast)).dtype == expected


@pytest.mark.filterwarnings("ignore")  # of the older tracer, about itself and about checks of shapes
def test_what_is_recorded_is_made_of_modules():
    layer, seen = build().eval(), []
    original = fused_block.plan
    try:
        fused_block.plan = lambda *arguments: seen.append(original(*arguments))
        torch.export.export(layer, (X,))
        torch.jit.trace(layer, X, check_trace=False)
    finally:
        fused_block.plan = original
    assert len(seen) >= 2 and not any(seen)


def test_what_joins_the_last_pass():
    layer = build().eval()
    assert not fused_block.finishes(layer)  # a graph is wanted
    with torch.no_grad():
        assert fused_block.finishes(layer)
        assert fused_block.finishes(build(norm="none"))
        assert fused_block.finishes(build(norm=nn.BatchNorm1d).eval())
        assert fused_block.finishes(build(norm=lambda c: nn.BatchNorm1d(c, affine=False)).eval())
        assert fused_block.finishes(convert_sync(build()).eval())
        assert not fused_block.finishes(build())  # the batch has statistics of its own
        assert not fused_block.finishes(build(norm=lambda c: nn.BatchNorm1d(c, track_running_stats=False)).eval())
        assert not fused_block.finishes(build(norm=lambda c: nn.GroupNorm(2, c)).eval())
        layer.norm.bias = None
        assert not fused_block.finishes(layer)
        layer = build().eval()
        layer.norm.register_forward_hook(lambda *_: None)
        assert not fused_block.finishes(layer)


def test_a_context_of_ones_own_is_called(monkeypatch):
    class Mine(hb.Hamburger):
        def context(self, z):
            return 0 * z

    monkeypatch.setattr(fused_block, "finished", lambda *arguments: pytest.fail("passed over"))
    with torch.no_grad():
        assert torch.equal(Mine(8, rank=3).eval()(X), X.relu())


def test_a_device_without_kernels_takes_the_modules(monkeypatch):
    monkeypatch.undo()
    monkeypatch.delenv("HAM_BACKEND", raising=False)
    assert fused_block.plan(build(), X) is None
    with pytest.raises(hb.OptionError, match="backend 'fused' cannot solve this"):
        build(backend="fused")(X)
    build(backend="plain")(X)
