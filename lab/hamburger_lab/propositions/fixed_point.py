"""Contraction, Jacobians and gradient terms of one decomposition: what section 2.3 of the paper assumes, measured.

The paper's model is h^{k+1} = F(h^k, x), y = G(h^t) (Eqs. 10, 11). Here h is what a ham carries from step to step (NMF:
bases and codes; VQ and CD: bases), F is one step, and y is the reconstruction D C after the read-out. G therefore sees
x too: besides the terms of Eq. 12, the gradient has a direct term and, if h^0 is computed from x, a start term.
Jacobians are dense: use small float64 inputs, one sample at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from hamburger.errors import OptionError, ShapeError, check_count
from hamburger.hams.base import Factors, Ham
from hamburger.inspect import Contraction


class FixedPointIteration:
    """One solve as in Eqs. 10 and 11, on flat vectors: h in R^m, y and x in R^dn.

    `unit_columns` removes the scale that bases and codes of a scale-free ham can exchange: every state is rescaled so
    that the bases have unit columns. That changes neither D C nor any later step (up to NMF's eps).
    """

    def __init__(self, x: Tensor, ham: Ham, bases: Tensor, *, unit_columns: bool = False) -> None:
        if x.dim() != 3 or x.shape[0] != 1:
            raise ShapeError(f"propositions: x must be one sample, (1, d, n) (got {tuple(x.shape)})")
        if unit_columns and not ham.scale_free:
            raise OptionError(f"propositions: {type(ham).__name__} has no scale to fix; leave unit_columns=False")
        self.x, self.ham, self.bases, self.unit_columns = x.detach(), ham, bases.detach(), unit_columns
        first = ham.init(self.x, self.bases)
        self._shapes = [t.shape for t in first if t is not None]

    def start(self, x: Tensor) -> Tensor:
        """h^0.   x: 1 d n   ->   m"""
        return self._join(self.ham.init(x, self.bases))

    def step(self, h: Tensor, x: Tensor) -> Tensor:
        """F.   h: m   x: 1 d n   ->   m"""
        return self._join(self.ham.step(x, self._split(h)))

    def output(self, h: Tensor, x: Tensor) -> Tensor:
        """G.   h: m   x: 1 d n   ->   d n, flat"""
        factors = self._split(h)
        return (factors.bases @ self.ham.readout(x, factors)).flatten()

    def path(self, steps: int) -> list[Tensor]:
        """h^0 ... h^steps."""
        check_count("propositions", "steps", steps, least=1)
        with torch.no_grad():
            states = [self.start(self.x)]
            for _ in range(steps):
                states.append(self.step(states[-1], self.x))
        return states

    def _join(self, factors: Factors) -> Tensor:
        bases, codes = factors
        if self.unit_columns and codes is not None:
            norms = torch.linalg.vector_norm(bases, dim=1, keepdim=True)
            bases, codes = bases / norms, codes * norms.mT
        return torch.cat([t.flatten() for t in (bases, codes) if t is not None])

    def _split(self, h: Tensor) -> Factors:
        parts = h.split([shape.numel() for shape in self._shapes])
        return Factors(*(part.reshape(shape) for part, shape in zip(parts, self._shapes, strict=True)))


def measure_contraction(x: Tensor, ham: Ham, bases: Tensor, steps: int, *, unit_columns: bool = False) -> Contraction:
    """The moves of `steps` steps from the given bases.   x: 1 d n   bases: 1 d r"""
    states = FixedPointIteration(x, ham, bases, unit_columns=unit_columns).path(steps)
    moves = tuple(float((b - a).norm()) for a, b in pairwise(states))
    return Contraction(moves, float(states[-1].norm()))


@dataclass(frozen=True)
class JacobianSpectrum:
    """Spectrum of dF/dh at h^K. Its norm is the local Lipschitz constant L_h, its radius a lower bound in any norm."""

    eigenvalues: Tensor  # m, complex, largest modulus first
    singular_values: Tensor  # m, largest first

    @property
    def radius(self) -> float:
        return float(self.eigenvalues[0].abs())

    @property
    def operator_norm(self) -> float:
        return float(self.singular_values[0])

    def at_one(self, tol: float) -> int:
        """The number of eigenvalues within tol of 1."""
        return int(((self.eigenvalues - 1).abs() <= tol).sum())


def jacobian_spectrum(
    x: Tensor, ham: Ham, bases: Tensor, steps: int, *, unit_columns: bool = False
) -> JacobianSpectrum:
    """Eigenvalues and singular values of dF/dh after `steps` steps.   x: 1 d n   bases: 1 d r"""
    flow = FixedPointIteration(x, ham, bases, unit_columns=unit_columns)
    by_state, _ = jacobians(flow.step, flow.path(steps)[-1], flow.x)
    eigenvalues = torch.linalg.eigvals(by_state)
    order = eigenvalues.abs().argsort(descending=True)
    return JacobianSpectrum(eigenvalues[order], torch.linalg.svdvals(by_state))


def jacobians(function: Callable[[Tensor, Tensor], Tensor], h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Dense Jacobians of function(h, x) with respect to h and x.   h: m   x: 1 d n   ->   q m,  q dn"""
    by_state, by_input = torch.func.jacrev(function, argnums=(0, 1))(h, x)
    return by_state.detach(), by_input.detach().flatten(1)


@dataclass(frozen=True)
class GradientTerms:
    """Operator norms of the parts of dy/dx = direct + sum_i term_i + start, and the constants of Proposition 3."""

    norms: tuple[float, ...]  # term i of Eq. 12, i = 0 (the last step) ... t-1 (the first)
    direct: float  # dy/dx inside the read-out
    start: float  # dy/dx through h^0; 0 if h^0 does not depend on x
    by_start: float  # dy/dh^0 of Proposition 3
    through_steps: float  # the sum of Eq. 12
    lipschitz: tuple[float, float, float]  # L_h, L_x, L_G: largest norms on the path, so lower bounds of the constants

    @property
    def envelope(self) -> float | None:
        """The smallest q with |term_i| <= q^i |term_0| for every i; if below 1, the terms decay exponentially."""
        first, *rest = self.norms
        return max(((norm / first) ** (1 / i) for i, norm in enumerate(rest, 1)), default=None)

    @property
    def bound(self) -> float | None:
        """L_G L_x / (1 - L_h), the bound of Proposition 3 on `through_steps`; None if L_h >= 1."""
        l_h, l_x, l_g = self.lipschitz
        return l_g * l_x / (1 - l_h) if l_h < 1 else None


def measure_gradient_terms(
    x: Tensor, ham: Ham, bases: Tensor, steps: int, *, unit_columns: bool = False
) -> GradientTerms:
    """Operator norm of each term of Eq. 12 after `steps` steps.   x: 1 d n   bases: 1 d r"""
    flow = FixedPointIteration(x, ham, bases, unit_columns=unit_columns)
    states = flow.path(steps)
    by_state, direct = jacobians(flow.output, states[-1], flow.x)
    # R of G_h = Q R has the singular values of G_h, in m rows instead of dn
    rows = torch.linalg.qr(by_state, mode="r").R
    largest_h = largest_x = 0.0
    output_norm = _norm(rows)
    total = torch.zeros(rows.shape[0], flow.x.numel(), dtype=x.dtype)
    norms = []
    for state in reversed(states[:-1]):
        step_h, step_x = jacobians(flow.step, state, flow.x)
        term = rows @ step_x
        total += term
        norms.append(_norm(term))
        largest_h, largest_x = max(largest_h, _norm(step_h)), max(largest_x, _norm(step_x))
        rows = rows @ step_h
    return GradientTerms(
        norms=tuple(norms),
        direct=_norm(direct),
        start=_norm(rows @ _start_by_input(flow)),
        by_start=_norm(rows),
        through_steps=_norm(total),
        lipschitz=(largest_h, largest_x, output_norm),
    )


def _start_by_input(flow: FixedPointIteration) -> Tensor:
    by_input: Tensor = torch.func.jacrev(flow.start)(flow.x)
    return by_input.detach().flatten(1)


def _norm(matrix: Tensor) -> float:
    """The largest singular value, from the smaller Gram matrix; squaring costs accuracy only for small ones."""
    gram = matrix @ matrix.mT if matrix.shape[0] <= matrix.shape[1] else matrix.mT @ matrix
    return float(torch.linalg.eigvalsh(gram)[-1].clamp_min(0).sqrt())
