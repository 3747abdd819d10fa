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


@dataclass(frozen=True)
class Implicit:
    """Gradient of the fixed point that the sweeps approach.

    - `tol`: largest relative residual of the linear system that is accepted.
    - `iterations`: GMRES steps, each one backward pass through one sweep.
    - `max_growth`: largest |v| / |g| that is accepted; the paper's bound on it is 1 / (1 - L_h).
    - `max_drift`: Proposition 2 holds at the fixed point, so this bounds how far the solve may be from it: the
      relative change of one more sweep, times the growth.
    """

    tol: float = 1e-3
    iterations: int = 64
    max_growth: float = 1e3
    max_drift: float = 2e-3

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

        g = _join(list(cotangents))
        v, residual = gmres(lambda v: v - _join(pull(v, state)), g, ctx.options.iterations, ctx.options.tol / 10)
        moved = torch.linalg.vector_norm(_join(after).detach() - _join(state).detach(), dim=1)
        moved = moved / torch.linalg.vector_norm(_join(state).detach(), dim=1).clamp_min(_tiny(g))
        _accept(ctx.options, type(ham).__name__, g, v, residual, moved)
        return pull(v, [x])[0], *([None] * (2 + len(saved)))


def _fix_scale(
    ham: Ham, state: list[Tensor], cotangents: tuple[Tensor, ...]
) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """Unit columns for scale-free hams, and what the cotangents become in those coordinates."""
    if not ham.scale_free:
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


def _tiny(like: Tensor) -> float:
    return torch.finfo(like.dtype).tiny


def _accept(options: Implicit, ham: str, g: Tensor, v: Tensor, residual: Tensor, moved: Tensor) -> None:
    """Raise unless every sample's system is solved, in proportion, and posed at a fixed point.   residual, moved: b"""
    growth = torch.linalg.vector_norm(v, dim=1) / torch.linalg.vector_norm(g, dim=1).clamp_min(_tiny(g))
    found = {"tol": residual, "max_growth": growth, "max_drift": moved * growth}
    # written so that NaN is refused too
    refused = ~torch.stack([value <= getattr(options, limit) for limit, value in found.items()]).all(0)
    if refused.any():
        broken = refused & ~torch.isfinite(moved)  # NaN in one sample stops the solve of all: name the one to blame
        sample = int((broken if broken.any() else refused).nonzero()[0])
        values = {limit: value[sample].item() for limit, value in found.items()}
        raise ImplicitGradientError(
            f"implicit gradient of {ham}, sample {sample} of {len(g)}: relative residual {values['tol']:.3g} "
            f"(tol={options.tol:g}), growth {values['max_growth']:.3g} (max_growth={options.max_growth:g}), distance "
            f"from the fixed point {values['max_drift']:.3g} (max_drift={options.max_drift:g}). The solve has not "
            f"converged well enough for Proposition 2: take more steps, a higher temperature, or grad='one-step'"
        )


def gmres(apply: Callable[[Tensor], Tensor], g: Tensor, iterations: int, tol: float) -> tuple[Tensor, Tensor]:
    """Solve apply(v) = g for each sample by GMRES from zero.   g: b m   ->   v: b m, relative residuals: b"""
    norm = torch.linalg.vector_norm(g, dim=1, keepdim=True)  # b 1
    safe = torch.where(norm == 0, 1.0, norm)
    krylov = [g / safe]
    hessenberg = g.new_zeros(g.shape[0], iterations + 1, iterations)
    target = g.new_zeros(g.shape[0], iterations + 1, 1)
    target[:, 0] = norm
    v, residual = torch.zeros_like(g), (norm != 0).to(g.dtype).squeeze(1)
    for k in range(iterations):
        w = apply(krylov[k])
        for _ in range(2):  # a second pass keeps the basis orthogonal in float32
            for i, q in enumerate(krylov):
                along = (q * w).sum(1)
                hessenberg[:, i, k] += along
                w = w - along[:, None] * q
        left = torch.linalg.vector_norm(w, dim=1, keepdim=True)
        hessenberg[:, k + 1, k] = left[:, 0]
        krylov.append(w / torch.where(left == 0, 1.0, left))
        small = hessenberg[:, : k + 2, : k + 1]
        if not bool(torch.isfinite(small).all()):
            break  # v stays zero and solves nothing: the residual says so
        y = torch.linalg.pinv(small) @ target[:, : k + 2]  # least squares that survives a singular system
        residual = torch.linalg.vector_norm(small @ y - target[:, : k + 2], dim=(1, 2)) / safe[:, 0]
        if bool((residual <= tol).all()) or k == iterations - 1:
            v = (torch.stack(krylov[: k + 1], dim=2) @ y).squeeze(2)
            break
    # the recurrence's residual drifts from the true one in low precision: report the true one
    true = torch.linalg.vector_norm(g - apply(v), dim=1) / safe[:, 0]
    return v, torch.where(norm[:, 0] == 0, 0.0, true)
