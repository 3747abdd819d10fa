"""Implicit differentiation of a solve (Proposition 2), with a residual that is checked before anything is returned.

At a fixed point h = F(h, x) the gradient is v^T dF/dx with (I - dF/dh)^T v = g, g being what arrives at h. The series
v = g + J^T g + ... that defines v diverges as soon as J has an eigenvalue outside the unit circle, and NMF's J has r
of them at 1: bases and codes trade scale. So the trade is taken out of the state (unit columns), the system is solved
by GMRES, one system per sample, and a solution that does not solve it, or is out of all proportion, raises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hamburger.errors import ImplicitGradientError, check_count, check_positive
from hamburger.solvers.base import Factors, Ham
from hamburger.solvers.gmres import gmres


@dataclass(frozen=True)
class Implicit:
    """Gradient of the fixed point that the sweeps approach.

    - `tol`: largest relative residual of the linear system that is accepted.
    - `iterations`: GMRES steps, each one backward pass through one sweep.
    - `max_growth`: largest |v| / |g| that is accepted; the paper's bound on it is 1 / (1 - L_h).
    - `max_drift`: Proposition 2 holds at a fixed point, so this bounds the relative distance to it, as one Newton step
      estimates it. It must also be stable: moves that get longer from sweep to sweep are refused.
    """

    tol: float = 1e-3
    iterations: int = 64
    max_growth: float = 1e3
    max_drift: float = 1e-2

    def __post_init__(self) -> None:
        check_positive("Implicit", "tol", self.tol)
        check_positive("Implicit", "max_growth", self.max_growth)
        check_positive("Implicit", "max_drift", self.max_drift)
        check_count("Implicit", "iterations", self.iterations, least=1)

    def __call__(self, ham: Ham, x: Tensor, start: Callable[[], Factors], steps: int) -> Factors:
        with torch.no_grad():
            factors = ham.solve(x, start(), steps)
        if steps == 0 or not (torch.is_grad_enabled() and x.requires_grad):
            return factors
        state = tuple(t for t in factors if t is not None)
        return Factors(*_FixedPoint.apply(x, ham, self, *state))

    def __str__(self) -> str:
        return "implicit"


class _FixedPoint(torch.autograd.Function):
    """The identity on the factors; backward sends their gradient through the fixed-point equation to x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ham: Ham, options: Implicit, *state: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, *state)
        ctx.ham, ctx.options = ham, options
        return tuple(t.clone() for t in state)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        x, *saved = ctx.saved_tensors
        ham: Ham = ctx.ham
        state, cotangents = _fix_scale(ham, saved, cotangents)
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            state = [t.detach().requires_grad_() for t in state]
            swept = [t for t in ham.step(x, Factors(*state)) if t is not None]
            after, _ = _fix_scale(ham, swept, cotangents)

        def pull(v: Tensor, to: list[Tensor]) -> list[Tensor]:
            """v^T times the Jacobian of one sweep.   v: b m"""
            pulled = torch.autograd.grad(after, to, _split(v, after), retain_graph=True, allow_unused=True)
            return [torch.zeros_like(t) if p is None else p for p, t in zip(pulled, to, strict=True)]

        def push(w: Tensor) -> Tensor:
            """The Jacobian of one sweep times w: what pulling back a cotangent does, seen from the other side."""
            return _join(list(torch.autograd.grad(pulled, probe, _split(w, state), retain_graph=True)))

        options: Implicit = ctx.options
        g = _join(list(cotangents))
        v, residual = gmres(lambda v: v - _join(pull(v, state)), g, options.iterations, options.tol / 10)
        here, next_ = _join(state).detach(), _join(after).detach()
        with torch.enable_grad():
            probe = [torch.zeros_like(t, requires_grad=True) for t in after]
            pulled = torch.autograd.grad(
                after, state, probe, create_graph=True, allow_unused=True, materialize_grads=True
            )
        # one Newton step from here: the best estimate of how far away the fixed point is
        newton, newton_residual = gmres(lambda w: w - push(w), next_ - here, options.iterations, tol=0.01)
        with torch.no_grad():
            again, _ = _fix_scale(ham, [t for t in ham.step(x, Factors(*after)) if t is not None], cotangents)
        _accept(
            options,
            type(ham).__name__,
            _Findings.of(g, v, residual, here, next_, _join(again), newton, newton_residual),
        )
        return pull(v, [x])[0], *([None] * (2 + len(saved)))


def _fix_scale(
    ham: Ham, state: list[Tensor], cotangents: tuple[Tensor, ...]
) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """Unit columns for scale-free hams, and what the cotangents become in those coordinates."""
    if not ham.scale_free or len(state) < 2:
        return state, cotangents
    bases, codes = state
    norms = torch.linalg.vector_norm(bases, dim=1, keepdim=True)  # b 1 r
    norms = torch.where(norms == 0, 1.0, norms)
    return [bases / norms, codes * norms.mT], (cotangents[0] * norms, cotangents[1] / norms.mT)


def _join(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.flatten(1) for t in tensors], dim=1)


def _split(v: Tensor, like: list[Tensor]) -> list[Tensor]:
    parts = v.split([t[0].numel() for t in like], dim=1)
    return [p.reshape(t.shape) for p, t in zip(parts, like, strict=True)]


@dataclass(frozen=True)
class _Findings:
    """What decides whether a gradient is trusted, one value per sample."""

    residual: Tensor  # of the linear system, relative
    growth: Tensor  # |v| / |g|
    drift: Tensor  # distance to the fixed point, relative
    expansion: Tensor  # how much longer the next move is than this one; below 1 on the way to a stable point

    @staticmethod
    def of(
        g: Tensor, v: Tensor, residual: Tensor, h0: Tensor, h1: Tensor, h2: Tensor, newton: Tensor, unsolved: Tensor
    ) -> _Findings:
        def norm(t: Tensor) -> Tensor:
            return torch.linalg.vector_norm(t, dim=1)

        tiny = torch.finfo(g.dtype).tiny
        first, second = norm(h1 - h0), norm(h2 - h1)
        settled = first <= 1e4 * torch.finfo(g.dtype).eps * norm(h0)  # both moves are round-off
        drift = torch.where(settled, first, norm(newton) / (1 - unsolved).clamp_min(tiny)) / norm(h0).clamp_min(tiny)
        expansion = torch.where(settled, 0.0, second / first.clamp_min(tiny))
        return _Findings(residual, norm(v) / norm(g).clamp_min(tiny), drift, expansion)


def _accept(options: Implicit, ham: str, found: _Findings) -> None:
    """Raise unless every sample's system is solved, in proportion, and posed near a stable fixed point."""
    limits = {"residual": options.tol, "growth": options.max_growth, "drift": options.max_drift, "expansion": 1.0}
    # written so that NaN is refused too
    refused = ~torch.stack([getattr(found, name) <= limit for name, limit in limits.items()]).all(0)
    if refused.any():
        broken = refused & ~torch.isfinite(found.drift)  # NaN in one sample stops the solve of all: name that one
        sample = int((broken if broken.any() else refused).nonzero()[0])
        measured = {name: getattr(found, name)[sample].item() for name in limits}
        values = ", ".join(f"{name} {measured[name]:.3g} (at most {limit:g})" for name, limit in limits.items())
        raise ImplicitGradientError(
            f"implicit gradient of {ham}, sample {sample} of {len(refused)}: {values}. Proposition 2 needs a stable "
            f"fixed point, and this solve is not near one: take more steps, a higher temperature, or grad='one-step'",
            measured,
        )
