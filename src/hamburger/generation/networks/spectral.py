"""Spectral normalisation (Miyato et al., ICLR 2018): weights divided by their largest singular value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from hamburger.errors import check_choice
from hamburger.layers.ham import Bread
from hamburger.tensors import full_precision, is_recomputing, widen

CONVENTIONS = ("none", "equality", "inequality")
WARM_UP_ITERATIONS = 15
EPS = 1e-12  # the least length of a vector before it is normalised
NORMALISED = (nn.Conv1d, nn.Conv2d, nn.Linear, nn.Embedding, Bread)

M = TypeVar("M", bound=nn.Module)


class SpectralNorm(nn.Module):
    """W / s ("equality", SNGAN) or W / max(1, s) ("inequality", TF-GAN), s the largest singular value of W.

    W is flattened to a matrix, its first axis against all others. In training each call runs one power iteration on
    the two singular vectors; in evaluation none, so that the same weight gives the same bits. The vectors are constants
    to the gradient, s is not.

    The vectors start at random, followed by 15 iterations, as in torch. The original code has no such start, so its
    first few steps divide by less than s. `frozen`: see `freeze_power_iterations`.
    """

    u: Tensor
    v: Tensor
    frozen = False

    def __init__(self, weight: Tensor, convention: str = "equality") -> None:
        super().__init__()
        self.convention = convention
        matrix = weight.detach().flatten(1)
        self.register_buffer("u", F.normalize(torch.randn_like(matrix[:, 0]), dim=0, eps=EPS))
        self.register_buffer("v", F.normalize(torch.randn_like(matrix[0]), dim=0, eps=EPS))
        _power_iterate([(self, matrix)], WARM_UP_ITERATIONS)

    def forward(self, weight: Tensor) -> Tensor:
        with full_precision(weight.device.type):
            matrix = widen(weight).flatten(1)
            if self.training and not self.frozen and not is_recomputing():
                _power_iterate([(self, matrix.detach())], 1)
            # copies: the next call changes the buffers before the backward pass of this one
            u, v = (vector.to(matrix, copy=not self.frozen) for vector in (self.u, self.v))
            sigma = u @ (matrix @ v)
            if self.convention == "inequality":
                sigma = sigma.clamp_min(1.0)
            return (widen(weight) / sigma).to(weight.dtype)

    def extra_repr(self) -> str:
        return self.convention


def spectral_norm(module: M, convention: str = "equality") -> M:
    """The module with a spectrally normalised `weight`; unchanged for "none"."""
    check_choice("spectral_norm", "convention", convention, CONVENTIONS)
    if convention == "none":
        return module
    weight: Any = module.weight
    parametrize.register_parametrization(module, "weight", SpectralNorm(weight, convention))
    return module


def spectral_norm_all(module: M, convention: str = "equality") -> M:
    """The module with every convolution, linear layer, embedding and bread in it spectrally normalised."""
    for child in list(module.modules()):
        if isinstance(child, NORMALISED) and not parametrize.is_parametrized(child):
            spectral_norm(child, convention)
    return module


# -- power iterations of whole networks --------------------------------------------------------------------------------


def run_power_iterations(*nets: nn.Module) -> None:
    """Run the power iteration of a training step for all spectral norms of the networks at once.

    Then call the networks under `freeze_power_iterations`. Otherwise each norm would iterate in its next call, with the
    same result up to rounding. Norms in evaluation mode are skipped.
    """
    _iterate_all([(norm, weight) for norm, weight in _find_norms(nets) if norm.training and not norm.frozen], 1)


def restart_power_iterations(net: nn.Module) -> None:
    """Run the initial number of power iterations of all spectral norms on the current weights.

    It is for weights that do not come from training steps, such as an average over many: vectors of other weights would
    underestimate the largest singular value, and the normalised weight would be too large.
    """
    _iterate_all(_find_norms([net]), WARM_UP_ITERATIONS)


@contextmanager
def freeze_power_iterations(*nets: nn.Module) -> Iterator[None]:
    """Context in which no spectral norm of the networks runs power iterations, even in training.

    It makes all micro-batches of a batch, and their gradients, use the same normalised weights. Run the backward pass
    before the next power iteration, otherwise autograd raises an error.
    """
    before = [(norm, norm.frozen) for norm, _ in _find_norms(nets)]
    for norm, _ in before:
        norm.frozen = True
    try:
        yield
    finally:
        for norm, frozen in before:
            norm.frozen = frozen


def _find_norms(nets: Iterable[nn.Module]) -> list[tuple[SpectralNorm, Tensor]]:
    """All spectral norms of the networks, each with its weight before normalisation."""
    norms = []
    for module in (module for net in nets for module in net.modules()):
        if parametrize.is_parametrized(module, "weight"):
            parametrizations: Any = module.parametrizations["weight"]  # type: ignore[index]
            norms += [(norm, parametrizations.original) for norm in parametrizations if isinstance(norm, SpectralNorm)]
    return norms


def _iterate_all(norms: Sequence[tuple[SpectralNorm, Tensor]], times: int) -> None:
    if norms:
        with full_precision(norms[0][1].device.type):
            _power_iterate([(norm, widen(weight.detach()).flatten(1)) for norm, weight in norms], times)


@torch.no_grad()
def _power_iterate(norms: Sequence[tuple[SpectralNorm, Tensor]], times: int) -> None:
    """Run power iterations of several norms on their matrices, all norms together in each operation.

    On a GPU they are launch-bound: their number costs time, not their size.
    """
    matrices = [matrix for _, matrix in norms]
    u, v = ([], [norm.v.to(matrix) for norm, matrix in norms])
    for _ in range(times):
        u = _normalize_all([matrix @ right for matrix, right in zip(matrices, v, strict=True)])
        v = _normalize_all([matrix.mT @ left for matrix, left in zip(matrices, u, strict=True)])
    torch._foreach_copy_([norm.u for norm, _ in norms], u)
    torch._foreach_copy_([norm.v for norm, _ in norms], v)


def _normalize_all(vectors: list[Tensor]) -> list[Tensor]:
    lengths = torch._foreach_norm(vectors)
    torch._foreach_clamp_min_(lengths, EPS)
    return list(torch._foreach_div(vectors, lengths))
