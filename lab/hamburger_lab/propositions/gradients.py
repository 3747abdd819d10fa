"""Compare the library's gradients with each other and with Proposition 2 solved densely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from hamburger.errors import ImplicitGradientError, OptionError
from hamburger.hams.base import Ham
from hamburger.hams.decompose import GradientName, decompose
from hamburger.inspect.solves import ROUND_OFF
from hamburger_lab.propositions.fixed_point import FixedPointIteration, jacobians

REFERENCE: GradientName = "bptt"
DENSE = "proposition-2"  # the formula with a dense solver, which never refuses
STRATEGIES: tuple[GradientName, ...] = ("one-step", "truncated:1", REFERENCE, "implicit")


@dataclass(frozen=True)
class Refusal:
    """Why the implicit gradient raised instead of returning a value."""

    message: str
    residual: float  # relative residual of its linear system
    drift: float  # its distance from the fixed point


@dataclass(frozen=True)
class Gradients:
    """u^T dy/dx by each strategy at one K and T; without strategies that refused or gave values that are not finite."""

    steps: int
    temperature: float | None  # None for hams without one
    norms: dict[str, float]
    cosines: dict[str, float | None]  # of the angle to BPTT; None for a gradient that is zero up to round-off
    distances: dict[str, float]  # |g - g_bptt| / |g_bptt|
    refusal: Refusal | None


def compare_gradients(
    x: Tensor,
    ham: Ham,
    bases: Tensor,
    steps_list: Sequence[int],
    temperatures: Sequence[float] = (),
    *,
    cotangent: Tensor,
) -> list[Gradients]:
    """Return norms and angles for every K and T (by default the ham's own T).   x, cotangent u: 1 d n"""
    if temperatures and "temperature" not in {field.name for field in fields(ham)}:
        raise OptionError(f"compare_gradients: {type(ham).__name__} has no temperature; leave temperatures out")
    variants = [replace(ham, temperature=value) for value in temperatures] or [ham]  # type: ignore[call-arg]
    return [_compare(x, variant, bases, steps, cotangent) for variant in variants for steps in steps_list]


def _compare(x: Tensor, ham: Ham, bases: Tensor, steps: int, cotangent: Tensor) -> Gradients:
    gradients: dict[str, Tensor] = {}
    refusal = None
    for name in STRATEGIES:
        try:
            gradients[name] = input_gradient(x, ham, bases, steps, name, cotangent)
        except ImplicitGradientError as error:
            refusal = Refusal(str(error), error.findings["residual"], error.findings["drift"])
    gradients[DENSE] = fixed_point_gradient(x, ham, bases, steps, cotangent)
    gradients = {name: g for name, g in gradients.items() if torch.isfinite(g).all()}
    reference = gradients[REFERENCE]
    return Gradients(
        steps=steps,
        temperature=getattr(ham, "temperature", None),
        norms={name: float(g.norm()) for name, g in gradients.items()},
        cosines={name: _cosine(g, reference) for name, g in gradients.items()},
        distances={name: float((g - reference).norm() / reference.norm()) for name, g in gradients.items()},
        refusal=refusal,
    )


def input_gradient(x: Tensor, ham: Ham, bases: Tensor, steps: int, grad: GradientName, cotangent: Tensor) -> Tensor:
    """Return u^T dy/dx by `decompose`.   x, cotangent u: 1 d n   ->   dn"""
    x = x.detach().requires_grad_()
    y = decompose(x, ham, steps=steps, grad=grad, bases=bases).reconstruction
    if not y.requires_grad:  # one-step gradient of a read-out that does not depend on x
        return torch.zeros_like(x).flatten()
    return torch.autograd.grad(y, x, cotangent)[0].flatten()


def fixed_point_gradient(x: Tensor, ham: Ham, bases: Tensor, steps: int, cotangent: Tensor) -> Tensor:
    """Return u^T (G_x + G_h (I - F_h)^-1 F_x) at h^K, Proposition 2 plus the direct term.   x, cotangent: 1 d n -> dn

    For scale-free hams columns are fixed to unit length, else I - F_h has no inverse. Other free directions of a
    factorisation do not change y, so the least-norm solution is as good as any.
    """
    iteration = FixedPointIteration(x, ham, bases, unit_columns=ham.scale_free)
    h = iteration.path(steps)[-1]
    output_h, output_x = jacobians(iteration.output, h, iteration.x)
    step_h, step_x = jacobians(iteration.step, h, iteration.x)
    u = cotangent.flatten()
    system = torch.eye(len(h), dtype=h.dtype) - step_h.mT
    v = torch.linalg.lstsq(system, (u @ output_h)[:, None], driver="gelsd").solution.squeeze(1)
    return u @ output_x + v @ step_x


def _cosine(a: Tensor, b: Tensor) -> float | None:
    if a.norm() <= ROUND_OFF * b.norm():
        return None
    return float(a @ b / (a.norm() * b.norm()))
