"""Implicit differentiation of a solve (Proposition 2), with a residual check before anything is returned.

At a fixed point h = F(h, x) the gradient is v^T dF/dx with (I - dF/dh)^T v = g, where g is the gradient that arrives
at h. The series v = g + J^T g + ... that defines v diverges as soon as J has an eigenvalue outside the unit circle,
and NMF's J has r of them at 1: bases and codes trade scale. So the state is normalised to unit columns, the system is
solved by GMRES, one system per sample, and an inaccurate or implausibly large solution raises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hamburger.errors import ImplicitGradientError, OptionError, check_count, check_positive
from hamburger.hams.base import Factors, Ham


@dataclass(frozen=True)
class Implicit:
    """Gradient of the fixed point that the steps approach.

    >>> layer = hb.Hamburger(64, steps=60, grad=hb.Implicit(max_drift=0.1))
    >>> layer = hb.Hamburger(64, steps=60, grad="implicit")             # with the defaults

    - `tol`: largest relative residual of the linear system that is accepted.
    - `iterations`: GMRES iterations; each is one backward pass through one step.
    - `max_growth`: largest |v| / |g| that is accepted; the paper's bound on it is 1 / (1 - L_h).
    - `max_drift`: Proposition 2 holds at a fixed point, so this bounds the relative distance to it, as one Newton step
      estimates it. It must also be stable: updates that grow from step to step are rejected.
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
        if ham.trainable:
            raise OptionError(
                f"Implicit: step sizes do not change a fixed point, so this gradient does not train those of "
                f"{type(ham).__name__}; take grad='bptt' or 'truncated:m'"
            )
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
            after_step = [t for t in ham.step(x, Factors(*state)) if t is not None]
            after, _ = _fix_scale(ham, after_step, cotangents)

        def pull(v: Tensor, to: list[Tensor]) -> list[Tensor]:
            """v^T times the Jacobian of one step.   v: b m"""
            pulled = torch.autograd.grad(after, to, _split(v, after), retain_graph=True, allow_unused=True)
            return [torch.zeros_like(t) if p is None else p for p, t in zip(pulled, to, strict=True)]

        def push(w: Tensor) -> Tensor:
            """The Jacobian of one step times w, as the derivative of `pull` in its cotangent."""
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
        # one Newton step from here: the best estimate of the distance to the fixed point
        newton, newton_residual = gmres(lambda w: w - push(w), next_ - here, options.iterations, tol=0.01)
        with torch.no_grad():
            again, _ = _fix_scale(ham, [t for t in ham.step(x, Factors(*after)) if t is not None], cotangents)
        diagnostics = _diagnose(g, v, residual, here, next_, _join(again), newton, newton_residual)
        _check_accepted(options, type(ham).__name__, diagnostics)
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


def _diagnose(
    g: Tensor, v: Tensor, residual: Tensor, h0: Tensor, h1: Tensor, h2: Tensor, newton: Tensor, unsolved: Tensor
) -> dict[str, Tensor]:
    """The quantities that decide whether a gradient is accepted, one value per sample."""

    def norm(t: Tensor) -> Tensor:
        return torch.linalg.vector_norm(t, dim=1)

    tiny = torch.finfo(g.dtype).tiny
    first, second = norm(h1 - h0), norm(h2 - h1)
    converged = first <= 1e4 * torch.finfo(g.dtype).eps * norm(h0)  # both updates are round-off
    distance = torch.where(converged, first, norm(newton) / (1 - unsolved).clamp_min(tiny))
    return {
        "residual": residual,  # of the linear system, relative
        "growth": norm(v) / norm(g).clamp_min(tiny),
        "drift": distance / norm(h0).clamp_min(tiny),  # distance to the fixed point, relative
        "expansion": torch.where(converged, 0.0, second / first.clamp_min(tiny)),  # below 1 near a stable point
    }


def _check_accepted(options: Implicit, ham: str, diagnostics: dict[str, Tensor]) -> None:
    """Raise unless every sample is near a stable fixed point and its system is solved with moderate growth."""
    limits = {"residual": options.tol, "growth": options.max_growth, "drift": options.max_drift, "expansion": 1.0}
    # written so that NaN is rejected too
    rejected = ~torch.stack([diagnostics[name] <= limit for name, limit in limits.items()]).all(0)
    if rejected.any():
        # NaN in one sample stops the solve of all samples: report that one
        broken = rejected & ~torch.isfinite(diagnostics["drift"])
        sample = int((broken if broken.any() else rejected).nonzero()[0])
        measured = {name: diagnostics[name][sample].item() for name in limits}
        values = ", ".join(f"{name} {measured[name]:.3g} (at most {limit:g})" for name, limit in limits.items())
        raise ImplicitGradientError(
            f"implicit gradient of {ham}, sample {sample} of {len(rejected)}: {values}. Proposition 2 needs a stable "
            f"fixed point, and this solve is not near one: take more steps, a higher temperature, or grad='one-step'",
            measured,
        )


# -- linear solver -----------------------------------------------------------------------------------------------------
# GMRES for a batch of independent linear systems, each given as a function that applies its matrix.


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
