"""HamGAN (Geng et al., ICLR 2021, section 3.5): SAGAN with a Hamburger instead of its attention.

"hamgan-baby" and "hamgan-strong" are the same networks, trained with different batch sizes and numbers of steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hamburger import distributed
from hamburger.errors import OptionError, check_count, check_flag
from hamburger.generation.networks.context import GatedContext, gan_contexts
from hamburger.generation.networks.layers import GanStyle, LayerFactory, gan_styles
from hamburger.hams import Gradient
from hamburger.hams.base import Ham
from hamburger.hams.decompose import as_ham
from hamburger.hams.nmf import NMF
from hamburger.layers.ham import Dictionary, HamLayer
from hamburger.tensors import widen


class UniformDictionary(Dictionary):
    """Bases uniform on (0, 1) without normalised columns, as for NMF in the authors' GAN code.

    Longer columns make sharper first codes, which are a softmax of Dᵀ X. Training draws new bases for every sample;
    evaluation uses the stored ones. (The authors also draw in evaluation, so their images vary a little between calls.)
    """

    def __init__(self, ham: Ham, *, dim: int, seed: int) -> None:
        super().__init__(ham, heads=1, dim=dim, init="random", seed=seed, momentum=0.0)
        drawn = torch.rand(1, dim, ham.rank, generator=torch.Generator().manual_seed(seed), device="cpu")
        self.bases.copy_(drawn)

    def forward(self, x: Tensor) -> Tensor | None:
        if not self.training:
            return super().forward(x)
        like, shape = widen(x[:0]), self.bases.shape[1:]
        return distributed.draw_for_global_batch(
            lambda rows: torch.rand(rows, *shape, dtype=like.dtype, device=like.device), x.shape[0]
        )


@gan_contexts.register("hamgan")
class HamBlock(GatedContext):
    """f(x) = W_u M(ReLU(W_l x)), then class-conditional batch norm in a generator.   b c h w   ->   b c h w

    Breads have no bias, a discriminator has no norm, and no ReLU follows the sum.

    - `inner`: the paper's d, by default the channels; `rank`: by default d / 8
    - `ham`: "nmf", "vq", "cd" (with beta 0.01 here), or a ham, which has its own rank
    - `steps`, `eval_steps`, `grad`, `seed`, `backend`: as in `Hamburger`
    - `unit_bases`: start NMF from bases with unit columns, as the segmentation networks do; not by default here
    """

    def __init__(
        self,
        channels: int,
        *,
        size: int,
        layers: LayerFactory,
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
        value = _create_ham(call, ham, rank, inner)
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


def _create_ham(call: str, ham: str | Ham, rank: int | None, inner: int) -> Ham:
    if not isinstance(ham, str):
        if rank is not None:
            raise OptionError(f"{call}: a ready ham has its rank; give either rank={rank} or the ham")
        return as_ham(ham)
    rank = max(1, inner // 8) if rank is None else rank
    return as_ham(ham, rank=rank, beta=0.01) if ham == "cd" else as_ham(ham, rank=rank)


@gan_styles.register("hamgan")
@gan_styles.register("hamgan-baby")
@gan_styles.register("hamgan-strong")
def hamgan() -> GanStyle:
    return GanStyle(context="hamgan")
