"""HamGAN (Geng et al., ICLR 2021, section 3.5): SAGAN with a Hamburger in the place of its attention.

"hamgan-baby" and "hamgan-strong" are the same networks; they differ in the batch and the steps of their training.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hamburger import distributed
from hamburger.errors import OptionError, check_count, check_flag
from hamburger.generation.networks.context import Gated, blocks
from hamburger.generation.networks.layers import Layers, Style, gans
from hamburger.hams.base import Ham
from hamburger.hams.decompose import as_ham
from hamburger.hams.gradients import Gradient
from hamburger.hams.nmf import NMF
from hamburger.layers.dictionary import Dictionary
from hamburger.layers.ham import HamLayer
from hamburger.precision import widen


class UniformDictionary(Dictionary):
    """Bases uniform on (0, 1) with columns as long as they come: those of NMF in the authors' GAN code.

    Longer columns make sharper first codes: a softmax of Dᵀ X. Training draws anew for every sample, evaluation takes
    the stored ones. (The authors draw in evaluation too, so their images differ a little from call to call.)
    """

    def __init__(self, ham: Ham, *, dim: int, seed: int) -> None:
        super().__init__(ham, heads=1, dim=dim, init="random", seed=seed, momentum=0.0)
        drawn = torch.rand(1, dim, ham.rank, generator=torch.Generator().manual_seed(seed), device="cpu")
        self.bases.copy_(drawn)

    def forward(self, x: Tensor) -> Tensor | None:
        if not self.training:
            return super().forward(x)
        like, shape = widen(x[:0]), self.bases.shape[1:]
        return distributed.joined_draw(
            lambda rows: torch.rand(rows, *shape, dtype=like.dtype, device=like.device), x.shape[0]
        )


@blocks.register("hamgan")
class HamBlock(Gated):
    """f(x) = W_u M(ReLU(W_l x)), then class-conditional batch norm in a generator.   b c h w   ->   b c h w

    Breads without bias, no norm in a discriminator, no ReLU after the sum.

    - `inner`: the paper's d, by default the channels; `rank`: by default d / 8
    - `ham`: "nmf", "vq", "cd" (whose beta is 0.01 here), or a ready value, which has its rank
    - `steps`, `eval_steps`, `grad`, `seed`, `backend`: as in `Hamburger`
    - `unit_bases`: start NMF from bases with unit columns, as the segmentation networks do. They do not here.
    """

    def __init__(
        self,
        channels: int,
        *,
        size: int,
        layers: Layers,
        num_classes: int | None = None,
        ham: str | Ham = "nmf",
        inner: int | None = None,
        rank: int | None = None,
        steps: int = 6,
        eval_steps: int | None = None,
        grad: str | Gradient | None = None,
        seed: int = 0,
        backend: str = "auto",
        unit_bases: bool = False,
    ) -> None:
        super().__init__()
        call = "create_gan with context 'hamgan'"
        inner = channels if inner is None else inner
        check_count(call, "inner", inner, least=1)
        check_flag(call, "unit_bases", unit_bases)
        value = _ham(call, ham, rank, inner)
        self.rectify = value.nonnegative
        self.lower = layers.pointwise(channels, inner)
        self.ham = HamLayer(value, inner, steps=steps, eval_steps=eval_steps, grad=grad, seed=seed, backend=backend)
        if isinstance(value, NMF) and not unit_bases:
            self.ham.dictionary = UniformDictionary(value, dim=inner, seed=seed)
        self.upper = layers.pointwise(inner, channels)
        self.norm = None if num_classes is None else layers.conditional_norm(channels, num_classes)

    def branch(self, x: Tensor, y: Tensor | None) -> Tensor:
        z = self.lower(x)
        if self.rectify:
            z = torch.relu(z)
        z = self.ham(z.flatten(2)).unflatten(2, x.shape[2:])
        out: Tensor = self.upper(z)
        if self.norm is not None:
            assert y is not None
            out = self.norm(out, y)
        return out


def _ham(call: str, ham: str | Ham, rank: int | None, inner: int) -> Ham:
    if not isinstance(ham, str):
        if rank is not None:
            raise OptionError(f"{call}: a ready ham has its rank; give either rank={rank} or the ham")
        return as_ham(ham)
    rank = max(1, inner // 8) if rank is None else rank
    return as_ham(ham, rank=rank, beta=0.01) if ham == "cd" else as_ham(ham, rank=rank)


@gans.register("hamgan")
@gans.register("hamgan-baby")
@gans.register("hamgan-strong")
def hamgan() -> Style:
    return Style(context="hamgan")
