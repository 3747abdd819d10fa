"""What section 2.3 of the paper assumes, measured on one decomposition: plain functions that return data.

The paper's model is h^{k+1} = F(h^k, x), y = G(h^t) (Eqs. 10, 11). Here h is exactly what a ham carries from sweep to
sweep (NMF: bases and codes; VQ and CD: bases), F is one sweep, and y is the reconstruction D C after the read-out, so
G sees x too: besides the terms of Eq. 12 the gradient has a direct term and, where h^0 is made from x, a start term.
Jacobians are dense: take small float64 inputs, one sample at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from hamburger.errors import OptionError, ShapeError, check_count
from hamburger.hams.base import Factors, Ham

# Below this fraction of |h|, a move is the round-off of float64 and its ratio to the last one means nothing.
ROUND_OFF = 1e-12
TAIL = 5  # moves that speak for the end of a path: few, since the start of it often moves differently


class FixedPointIteration:
    """One solve as Eqs. 10 and 11 write it, on flat vectors: h in R^m, y and x in R^dn.

    `unit_columns` takes out what bases and codes of a scale-free ham can trade: every state is rescaled so that the
    bases have unit columns. It changes neither D C nor any later sweep (up to NMF's eps).
    """

    def __init__(self, x: Tensor, ham: Ham, bases: Tensor, *, unit_columns: bool = False) -> None:
        if x.dim() != 3 or x.shape[0] != 1:
            raise ShapeError(f"propositions: x must be one sample, (1, d, n), got {tuple(x.shape)}")
        if unit_columns and not ham.scale_free:
            raise OptionError(f"propositions: {type(ham).__name__} has no scale to fix; leave unit_columns=False")
        self.x, self.ham, self.bases, self.unit_columns = x.detach(), ham, bases.detach(), unit_columns
        first = ham.init(self.x, self.bases)
        self._shapes = [t.shape for t in first if t is not None]

    def start(self, x: Tensor) -> Tensor:
        """h^0.   x: 1 d n   ->   m"""
        return self._join(self.ham.init(x, self.bases))

    def sweep(self, h: Tensor, x: Tensor) -> Tensor:
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
                states.append(self.sweep(states[-1], self.x))
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


@dataclass(frozen=True)
class Contraction:
    """How far each sweep moves the state."""

    moves: tuple[float, ...]  # |h^{k+1} - h^k|, k = 0 ... K-1
    size: float  # |h^K|

    @property
    def ratios(self) -> tuple[float, ...]:
        """|h^{k+2} - h^{k+1}| / |h^{k+1} - h^k|, up to round-off. Below 1 for every pair where F contracts."""
        kept = self._above_round_off()
        return tuple(b / a for a, b in pairwise(kept))

    @property
    def rate(self) -> float | None:
        """Geometric mean of the last few ratios: the factor of linear convergence, where there is one."""
        tail = self._above_round_off()[-TAIL:]
        return (tail[-1] / tail[0]) ** (1 / (len(tail) - 1)) if len(tail) > 1 else None

    def settled(self, tol: float) -> int | None:
        """First k with |h^{k+1} - h^k| <= tol |h^K|, None where there is none."""
        return next((k for k, move in enumerate(self.moves) if move <= tol * self.size), None)

    def _above_round_off(self) -> tuple[float, ...]:
        return self.moves[: self.settled(ROUND_OFF)]


def measure_contraction(x: Tensor, ham: Ham, bases: Tensor, steps: int, *, unit_columns: bool = False) -> Contraction:
    """Moves of `steps` sweeps from the given bases.   x: 1 d n   bases: 1 d r"""
    states = FixedPointIteration(x, ham, bases, unit_columns=unit_columns).path(steps)
    moves = tuple(float((b - a).norm()) for a, b in pairwise(states))
    return Contraction(moves, float(states[-1].norm()))


@dataclass(frozen=True)
class JacobianSpectrum:
    """dF/dh at h^K. The norm is the local Lipschitz constant L_h; the radius bounds L_h below in every norm."""

    eigenvalues: Tensor  # m, complex, largest modulus first
    singular_values: Tensor  # m, largest first

    @property
    def radius(self) -> float:
        return float(self.eigenvalues[0].abs())

    @property
    def operator_norm(self) -> float:
        return float(self.singular_values[0])

    def at_one(self, tol: float) -> int:
        """How many eigenvalues lie within tol of 1."""
        return int(((self.eigenvalues - 1).abs() <= tol).sum())


def jacobian_spectrum(
    x: Tensor, ham: Ham, bases: Tensor, steps: int, *, unit_columns: bool = False
) -> JacobianSpectrum:
    """Eigenvalues and singular values of dF/dh after `steps` sweeps.   x: 1 d n   bases: 1 d r"""
    flow = FixedPointIteration(x, ham, bases, unit_columns=unit_columns)
    by_state, _ = jacobians(flow.sweep, flow.path(steps)[-1], flow.x)
    eigenvalues = torch.linalg.eigvals(by_state)
    order = eigenvalues.abs().argsort(descending=True)
    return JacobianSpectrum(eigenvalues[order], torch.linalg.svdvals(by_state))


def jacobians(function: Callable[[Tensor, Tensor], Tensor], h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Dense Jacobians of function(h, x) by h and by x.   h: m   x: 1 d n   ->   q m,  q dn"""
    by_state, by_input = torch.func.jacrev(function, argnums=(0, 1))(h, x)
    return by_state.detach(), by_input.detach().flatten(1)


@dataclass(frozen=True)
class GradientTerms:
    """Operator norms of the parts of dy/dx = direct + sum_i term_i + start, and the constants of Proposition 3."""

    norms: tuple[float, ...]  # term i of Eq. 12, i = 0 (the last sweep) ... t-1 (the first)
    direct: float  # y by x inside the read-out
    start: float  # y by x through h^0; 0 where h^0 does not depend on x
    by_start: float  # dy/dh^0 of Proposition 3
    through_sweeps: float  # the sum of Eq. 12
    lipschitz: tuple[float, float, float]  # L_h, L_x, L_G: largest norms met on the path, so lower bounds of the true

    @property
    def envelope(self) -> float | None:
        """The least q with |term_i| <= q^i |term_0| for every i: below 1, the terms decay exponentially."""
        first, *rest = self.norms
        return max(((norm / first) ** (1 / i) for i, norm in enumerate(rest, 1)), default=None)

    @property
    def bound(self) -> float | None:
        """L_G L_x / (1 - L_h), which Proposition 3 says is above `through_sweeps`; None where L_h >= 1."""
        l_h, l_x, l_g = self.lipschitz
        return l_g * l_x / (1 - l_h) if l_h < 1 else None


def term_gradients(flow: FixedPointIteration, steps: int, cotangent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """u^T times each part of dy/dx.   cotangent u: d n   ->   direct: dn,  terms: t dn,  start: dn

    Row by row, without a Jacobian: also for the sizes of networks.
    """
    states = flow.path(steps)
    pulled, direct = _pulled(flow.output, states[-1], flow.x, cotangent.flatten())
    found = []
    for state in reversed(states[:-1]):
        pulled, by_input = _pulled(flow.sweep, state, flow.x, pulled)
        found.append(by_input)
    (start,) = torch.func.vjp(flow.start, flow.x)[1](pulled)
    return direct, torch.stack(found), start.flatten()


def _pulled(function: Callable[[Tensor, Tensor], Tensor], h: Tensor, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """u^T df/dh and u^T df/dx of function(h, x).   u: q   ->   m,  dn"""
    by_state, by_input = torch.func.vjp(function, h, x)[1](u)
    return by_state.detach(), by_input.detach().flatten()


def measure_gradient_terms(
    x: Tensor, ham: Ham, bases: Tensor, steps: int, *, unit_columns: bool = False
) -> GradientTerms:
    """Operator norm of each term of Eq. 12 after `steps` sweeps.   x: 1 d n   bases: 1 d r"""
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
        sweep_h, sweep_x = jacobians(flow.sweep, state, flow.x)
        term = rows @ sweep_x
        total += term
        norms.append(_norm(term))
        largest_h, largest_x = max(largest_h, _norm(sweep_h)), max(largest_x, _norm(sweep_x))
        rows = rows @ sweep_h
    return GradientTerms(
        norms=tuple(norms),
        direct=_norm(direct),
        start=_norm(rows @ _start_by_input(flow)),
        by_start=_norm(rows),
        through_sweeps=_norm(total),
        lipschitz=(largest_h, largest_x, output_norm),
    )


def _start_by_input(flow: FixedPointIteration) -> Tensor:
    by_input: Tensor = torch.func.jacrev(flow.start)(flow.x)
    return by_input.detach().flatten(1)


def _norm(matrix: Tensor) -> float:
    """Largest singular value, from the smaller Gram matrix: the largest is the one that squaring does not hurt."""
    gram = matrix @ matrix.mT if matrix.shape[0] <= matrix.shape[1] else matrix.mT @ matrix
    return float(torch.linalg.eigvalsh(gram)[-1].clamp_min(0).sqrt())
