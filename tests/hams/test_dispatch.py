"""The decision between fused kernels and plain torch, and the errors where the kernels cannot."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch

import hamburger as hb
from hamburger.kernels import dispatch

X = torch.rand(2, 8, 15)


@dataclass(frozen=True)
class Mine(hb.NMF):
    pass


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv(dispatch.BACKEND_VARIABLE, raising=False)


def test_auto_backend_is_plain_on_a_cpu():
    bases = torch.rand(2, 8, 3)
    auto, plain = (hb.decompose(X, "nmf", rank=3, bases=bases, backend=b) for b in ("auto", "plain"))
    assert torch.equal(auto.reconstruction, plain.reconstruction)


@pytest.mark.parametrize(
    ("ham", "x", "grad", "reason"),
    [
        (Mine(3), X, "one-step", "no kernel for Mine"),
        (hb.HALS(3), X, "one-step", "no kernel for HALS"),
        (hb.Robust(3), X, "one-step", "no kernel for Robust"),
        (hb.Local(3), X, "one-step", "no kernel for Local"),
        (hb.Windowed(3), X, "one-step", "no kernel for Windowed"),
        (hb.Learned(3), X, "one-step", "no kernel for Learned"),
        (hb.NMF(3, codes_init="cosine"), X, "one-step", "codes_init='softmax', not from 'cosine'"),
        (hb.VQ(513), X, "one-step", "a rank of at most 512, not 513"),
        (hb.NMF(3), X.double(), "one-step", "x is torch.float64"),
        (hb.NMF(3), X.clone().requires_grad_(), "bptt", "gradient 'one-step', not 'bptt'"),
        (hb.NMF(3), X.clone().requires_grad_(), "phantom:2", "gradient 'one-step', not 'phantom:2'"),
        (hb.NMF(3), X, "bptt", "x is on cpu|triton is not installed"),
    ],
    ids=[
        *("subclass", "hals", "robust", "local", "windowed", "learned", "first codes", "rank", "float64"),
        *("gradient", "phantom", "device"),
    ],
)
def test_fused_backend_raises_with_the_reason(ham, x, grad, reason):
    with pytest.raises(hb.OptionError, match=f"backend 'fused' cannot solve this: .*({reason}).*take backend='plain'"):
        hb.decompose(x, ham, grad=grad, backend="fused")


OTHER = {"codes_init": "cosine"}  # another value of the options that are neither numbers nor flags
FUSED = [name for name in hb.hams.names() if hb.hams.create(name).fused_spec() is not None]


@pytest.mark.parametrize("name, option", [(n, f.name) for n in FUSED for f in dataclasses.fields(hb.hams.create(n))])
def test_kernels_ignore_no_option(name, option):
    ham = hb.hams.create(name)
    old = getattr(ham, option)
    new = not old if isinstance(old, bool) else OTHER[option] if isinstance(old, str) else 2 * old + 1
    other = dataclasses.replace(ham, **{option: new})
    if other.fused_spec() == ham.fused_spec():  # allowed if the option has no effect while the others are the defaults
        x, bases = X.clone().requires_grad_(), torch.rand(2, 8, ham.rank)
        values = [hb.decompose(x, h, bases=bases).reconstruction for h in (ham, other)]
        slopes = [torch.autograd.grad(value.square().sum(), x)[0] for value in values]
        same = torch.equal(*values) and torch.equal(*slopes)
        assert same, f"a GPU ignores {option}={new!r} of {name}: add it to fused_spec's options or to `unsupported`"


def test_environment_variable_sets_the_auto_backend(monkeypatch):
    monkeypatch.setenv(dispatch.BACKEND_VARIABLE, "fused")
    with pytest.raises(hb.OptionError, match="'fused' cannot"):
        hb.decompose(X, "nmf", rank=3)
    hb.decompose(X, "nmf", rank=3, backend="plain")
    monkeypatch.setenv(dispatch.BACKEND_VARIABLE, "plane")
    with pytest.raises(hb.OptionError, match=r"HAM_BACKEND: no backend 'plane'; did you mean 'plain'\?"):
        hb.decompose(X, "nmf", rank=3)


def test_auto_backend_falls_back_without_a_warning(monkeypatch):
    monkeypatch.setattr(dispatch, "fused_by_default", lambda x: True)
    hb.decompose(X, "nmf", rank=3)


def test_wrong_backend_name_raises_at_construction():
    with pytest.raises(hb.OptionError, match=r"Hamburger: no backend 'fuse'; did you mean 'fused'\?"):
        hb.Hamburger(8, rank=2, backend="fuse")
    assert "backend=fused" in repr(hb.Hamburger(8, rank=2, backend="fused"))


def test_core_does_not_import_triton():
    code = (
        "import sys, torch\nbefore = 'triton' in sys.modules\nimport hamburger as hb\n"
        "hb.Hamburger(8, rank=2)(torch.rand(1, 8, 4, 4))\nprint(before or 'triton' not in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "True"


@pytest.mark.parametrize(
    ("shared", "most"), [(101_376, 0), (166_912, 256), (232_448, 512)], ids=["L40", "A100", "H200"]
)
def test_fused_needs_enough_shared_memory(shared, most):
    fits = [rank for rank in (8, 256, 257, 512) if dispatch.why_too_small(shared, rank) is None]
    assert fits == [rank for rank in (8, 256, 257, 512) if rank <= most]
    if most < 512:
        assert dispatch.why_too_small(shared, 512) == (
            f"a rank of 512 needs 170,000 bytes of shared memory per program, and this GPU has {shared:,}"
        )


def test_torch_func_and_forward_mode_run_plain_torch(monkeypatch):
    """As on a GPU: torch.func and forward mode run plain torch, and backend='fused' raises."""
    monkeypatch.setattr(dispatch, "TRITON", True)
    monkeypatch.setattr(dispatch, "fused_by_default", lambda x: True)
    monkeypatch.setattr(dispatch, "why_not_on_device", lambda device, rank: None)
    fused = []

    def ask(x, name="auto"):
        spec = dispatch.choose_spec(name, x, hb.NMF(3), hb.one_step, one_step=True)
        fused.append(spec is not None)
        return x.sum()

    ask(X)
    torch.func.grad(ask)(X)
    torch.func.vmap(ask)(X[None])
    with torch.autograd.forward_ad.dual_level():
        ask(torch.autograd.forward_ad.make_dual(X, X))
    assert fused == [True, False, False, False]
    with pytest.raises(hb.OptionError, match=r"do not support torch\.func"):
        torch.func.grad(lambda x: ask(x, "fused"))(X)
