"""The contenders of `ham bench core`: the library, the authors' code, scikit-learn and self-attention.

All contenders get the same `DecompositionInputs`. "hamburger" is `hams.decompose.solve_ham`, which the layer calls. The
rivals get every advantage: scikit-learn gets transposed arrays and first codes and computes no read-out; attention gets
contiguous heads and computes no projections.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hamburger.hams import CD, NMF, VQ, Ham, one_step
from hamburger.hams.decompose import solve_ham
from hamburger_lab.bench import authors_reference
from hamburger_lab.bench.timing import Contender

HEADS = 8  # of the self-attention


class DecompositionInputs(NamedTuple):
    x: Tensor  # b d n
    bases: Tensor  # b d r
    grad: Tensor  # b d n


Solver = Callable[[Tensor, Tensor], Tensor]  # x, bases -> D C


def authors_ham(name: str, rank: int) -> Ham:
    """Return the ham with the authors' settings; their VQ treats |x| as a constant in the gradient."""
    builders: dict[str, Callable[[], Ham]] = {
        "cd": lambda: CD(rank=rank, temperature=1 / authors_reference.INVERSE_TEMPERATURE, beta=authors_reference.BETA),
        "nmf": lambda: NMF(rank=rank, eps=authors_reference.EPS),
        "vq": lambda: VQ(rank=rank, temperature=1 / authors_reference.INVERSE_TEMPERATURE, constant_norms=True),
    }
    return builders[name]()


def library_solver(name: str, rank: int, steps: int) -> Solver:
    ham = authors_ham(name, rank)
    return lambda x, bases: solve_ham(x, ham, steps=steps, grad=one_step, bases=bases).reconstruction


def authors_solver(name: str, steps: int) -> Solver:
    solve = authors_reference.SOLVERS[name]
    return lambda x, bases: solve(x, bases, steps).reconstruction


def run_inference(problem: DecompositionInputs, solver: Solver) -> Tensor:
    with torch.no_grad():
        return solver(problem.x, problem.bases)


def run_training(problem: DecompositionInputs, solver: Solver) -> Tensor:
    """Run forward and backward; return the gradient with respect to x."""
    x = problem.x.detach().requires_grad_()
    return torch.autograd.grad(solver(x, problem.bases), x, problem.grad)[0]


MODES: dict[str, Callable[[DecompositionInputs, Solver], Tensor]] = {"infer": run_inference, "train": run_training}


def solver_contender(solver: Solver, mode: str) -> Contender:
    return Contender(lambda problem: (problem, solver), MODES[mode])


def attention_contender() -> Contender:
    """Return self-attention softmax(Q^T K) V with Q = K = V = X and `HEADS` heads on the same d."""

    def prepare(problem: DecompositionInputs) -> tuple[Any, ...]:
        return (problem.x.unflatten(1, (HEADS, -1)).mT.contiguous(),)  # b heads n d/heads

    def attend(tokens: Tensor) -> Tensor:
        with torch.no_grad():
            return F.scaled_dot_product_attention(tokens, tokens, tokens)

    return Contender(prepare, attend)


def sklearn_contender(steps: int) -> Contender:
    """Return `steps` multiplicative updates by scikit-learn from the same initial factors, one sample at a time."""

    def prepare(problem: DecompositionInputs) -> tuple[Any, ...]:
        codes = (problem.x.mT @ problem.bases).softmax(dim=2)
        transposed = (problem.x.mT, codes, problem.bases.mT)
        # copies: scikit-learn updates the factors in place
        return ([t.clone(memory_format=torch.contiguous_format).numpy() for t in transposed],)

    def factorise(arrays: list[Any]) -> list[Any]:
        from sklearn.decomposition import non_negative_factorization

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns that it has not converged, as intended
            return [
                non_negative_factorization(
                    x, w, h, n_components=h.shape[0], init="custom", solver="mu", max_iter=steps, tol=0
                )[1]
                for x, w, h in zip(*arrays, strict=True)
            ]

    return Contender(prepare, factorise)
