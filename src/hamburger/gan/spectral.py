"""Spectral normalisation (Miyato et al., ICLR 2018): a weight divided by its largest singular value."""

from __future__ import annotations

from collections.abc import Iterator
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
        self._iterate(matrix, WARM_UP)

    @torch.no_grad()
    def _iterate(self, matrix: Tensor, times: int) -> None:
        u, v = self.u, self.v
        for _ in range(times):
            u = F.normalize(matrix @ v.to(matrix), dim=0, eps=self.eps)
            v = F.normalize(matrix.mT @ u, dim=0, eps=self.eps)
        self.u.copy_(u)
        self.v.copy_(v)

    def follow(self, weight: Tensor) -> None:
        """Iterate as often as at the beginning."""
        with full_precision(weight.device.type):
            self._iterate(widen(weight.detach()).flatten(1), WARM_UP)

    def forward(self, weight: Tensor) -> Tensor:
        with full_precision(weight.device.type):
            matrix = widen(weight).flatten(1)
            if self.training and not self.resting:
                self._iterate(matrix.detach(), self.iterations)
            # clones: the next call moves the buffers before this one has been differentiated
            sigma = self.u.to(matrix, copy=True) @ (matrix @ self.v.to(matrix, copy=True))
            if self.convention == "inequality":
                sigma = sigma.clamp_min(1.0)
            return (widen(weight) / sigma).to(weight.dtype)

    def extra_repr(self) -> str:
        return f"{self.convention}, iterations={self.iterations}, eps={self.eps}"


@contextmanager
def resting(*nets: nn.Module) -> Iterator[None]:
    """The vectors of all spectral norms inside stay where they are, in training too.

    For the parts of one batch after the first: all of them, and their gradients, are then of the same weights.
    """
    norms = [module for net in nets for module in net.modules() if isinstance(module, SpectralNorm)]
    for norm in norms:
        norm.resting = True
    try:
        yield
    finally:
        for norm in norms:
            norm.resting = False


def settle(net: nn.Module) -> None:
    """The vectors of all spectral norms inside iterated on the weights as they are now, as if each had just begun.

    For weights that did not come by training steps, such as a mean over many: vectors of other weights would find a
    smaller value than the largest, and the weight divided by that is too large.
    """
    for module in net.modules():
        if parametrize.is_parametrized(module, "weight"):
            held: Any = module.parametrizations["weight"]  # type: ignore[index]
            for norm in held:
                if isinstance(norm, SpectralNorm):
                    norm.follow(held.original)


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
