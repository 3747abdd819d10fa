"""Spectral normalisation (Miyato et al., ICLR 2018): a weight divided by its largest singular value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from hamburger.errors import OptionError, check_choice, check_count, check_positive
from hamburger.layers.bread import Bread
from hamburger.precision import full_precision, widen

CONVENTIONS = ("none", "equality", "inequality")
WARM_UP = 15
NORMALISED = (nn.Conv1d, nn.Conv2d, nn.Linear, nn.Embedding, Bread)

M = TypeVar("M", bound=nn.Module)


class SpectralNorm(nn.Module):
    """W / s ("equality", SNGAN) or W / max(1, s) ("inequality", TF-GAN), s the largest singular value of W.

    W is flattened to its first axis against all others. Two vectors follow W by `iterations` power iterations a call,
    in training only: in evaluation the same weight gives the same bits. They are constants to the gradient, s is not.

    The vectors start at random and are then iterated 15 times, as torch does; the original code starts without that,
    so that its first few steps divide by less than s.
    """

    u: Tensor
    v: Tensor
    resting = False

    def __init__(
        self, weight: Tensor, convention: str = "equality", *, iterations: int = 1, eps: float = 1e-12
    ) -> None:
        super().__init__()
        check_choice("SpectralNorm", "convention", convention, CONVENTIONS[1:])
        check_count("SpectralNorm", "iterations", iterations, least=1)
        check_positive("SpectralNorm", "eps", eps)
        if weight.dim() < 2:
            raise OptionError(
                f"SpectralNorm: a weight needs two axes or more to have singular values, got {tuple(weight.shape)}"
            )
        self.convention, self.iterations, self.eps = convention, iterations, eps
        matrix = weight.detach().flatten(1)
        self.register_buffer("u", F.normalize(torch.randn_like(matrix[:, 0]), dim=0, eps=eps))
        self.register_buffer("v", F.normalize(torch.randn_like(matrix[0]), dim=0, eps=eps))
        _iterate([(self, matrix)], WARM_UP)

    def forward(self, weight: Tensor) -> Tensor:
        with full_precision(weight.device.type):
            matrix = widen(weight).flatten(1)
            if self.training and not self.resting:
                _iterate([(self, matrix.detach())], self.iterations)
            # clones: the next call moves the buffers before this one has been differentiated
            u, v = (vector.to(matrix, copy=not self.resting) for vector in (self.u, self.v))
            sigma = u @ (matrix @ v)
            if self.convention == "inequality":
                sigma = sigma.clamp_min(1.0)
            return (widen(weight) / sigma).to(weight.dtype)

    def extra_repr(self) -> str:
        return f"{self.convention}, iterations={self.iterations}, eps={self.eps}"


@torch.no_grad()
def _iterate(norms: Sequence[tuple[SpectralNorm, Tensor]], times: int) -> None:
    """Power iterations of several norms on their matrices, step by step for all of them: a card's time goes into the
    number of operations here, not into their size.
    """
    matrices, eps = [matrix for _, matrix in norms], [norm.eps for norm, _ in norms]
    u, v = ([], [norm.v.to(matrix) for norm, matrix in norms])
    for _ in range(times):
        u = _units([matrix @ right for matrix, right in zip(matrices, v, strict=True)], eps)
        v = _units([matrix.mT @ left for matrix, left in zip(matrices, u, strict=True)], eps)
    torch._foreach_copy_([norm.u for norm, _ in norms], u)
    torch._foreach_copy_([norm.v for norm, _ in norms], v)


def _units(vectors: list[Tensor], eps: list[float]) -> list[Tensor]:
    lengths = torch._foreach_norm(vectors)
    torch._foreach_clamp_min_(lengths, eps)
    return list(torch._foreach_div(vectors, lengths))


def _norms_of(nets: Iterable[nn.Module]) -> list[tuple[SpectralNorm, Tensor]]:
    """All spectral norms inside, each with its weight before it is divided."""
    found = []
    for module in (module for net in nets for module in net.modules()):
        if parametrize.is_parametrized(module, "weight"):
            held: Any = module.parametrizations["weight"]  # type: ignore[index]
            found += [(norm, held.original) for norm in held if isinstance(norm, SpectralNorm)]
    return found


def iterate(*nets: nn.Module) -> None:
    """The power iterations of a training step for all spectral norms inside at once; call the networks `resting` then.

    Each would make its own in its next call otherwise, with the same result up to rounding; in evaluation none does.
    """
    _move([(norm, weight, norm.iterations) for norm, weight in _norms_of(nets) if norm.training and not norm.resting])


@contextmanager
def resting(*nets: nn.Module) -> Iterator[None]:
    """The vectors of all spectral norms inside stay where they are, in training too.

    For the parts of one batch: all of them, and their gradients, are then of the same weights. What was computed inside
    must be differentiated before the vectors move again, else autograd complains.
    """
    before = [(norm, norm.resting) for norm, _ in _norms_of(nets)]
    for norm, _ in before:
        norm.resting = True
    try:
        yield
    finally:
        for norm, was in before:
            norm.resting = was


def settle(net: nn.Module) -> None:
    """The vectors of all spectral norms inside iterated on the weights as they are now, as if each had just begun.

    For weights that did not come by training steps, such as a mean over many: vectors of other weights would find a
    smaller value than the largest, and the weight divided by that is too large.
    """
    _move([(norm, weight, WARM_UP) for norm, weight in _norms_of([net])])


def _move(norms: Sequence[tuple[SpectralNorm, Tensor, int]]) -> None:
    """Each norm by its number of iterations, those of the same number together."""
    for times in sorted({times for _, _, times in norms}):
        own = [(norm, weight) for norm, weight, wanted in norms if wanted == times]
        with full_precision(own[0][1].device.type):
            _iterate([(norm, widen(weight.detach()).flatten(1)) for norm, weight in own], times)


def spectral_norm(module: M, convention: str = "equality", *, iterations: int = 1) -> M:
    """The module with a spectrally normalised `weight`; "none" leaves it as it is."""
    check_choice("spectral_norm", "convention", convention, CONVENTIONS)
    if convention == "none":
        return module
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor):
        raise OptionError(f"spectral_norm: {type(module).__name__} has no weight to normalise")
    parametrize.register_parametrization(module, "weight", SpectralNorm(weight, convention, iterations=iterations))
    return module


def spectral_norm_all(module: M, convention: str = "equality") -> M:
    """Every convolution, linear layer, embedding and bread inside the module, normalised; norms are left alone."""
    for child in list(module.modules()):
        if isinstance(child, NORMALISED) and not parametrize.is_parametrized(child):
            spectral_norm(child, convention)
    return module
