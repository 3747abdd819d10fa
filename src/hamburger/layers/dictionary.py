"""Where the first dictionary of a solve comes from: the four initialisations of the paper's Table 8."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hamburger.errors import OptionError, check_choice, check_positive
from hamburger.hams.base import Ham, weyl_multipliers, weyl_uniform
from hamburger.linalg import normalize_columns
from hamburger.precision import HALF

INITS = ("random", "fixed", "learned", "online")


class Dictionary(nn.Module):
    """Initial bases for a batch of folded heads: s dictionaries of d x r, in the state dict from the constructor on.

    - "random": drawn anew for every sample in training; in evaluation always the stored one.
    - "fixed": always the stored one.
    - "learned": a parameter, which only back-propagation through all sweeps can train.
    - "online": a running average of what the solves of the training batches end with, over all processes.
    """

    bases: Tensor

    def __init__(self, ham: Ham, *, heads: int, dim: int, init: str, seed: int, momentum: float) -> None:
        super().__init__()
        check_choice("Hamburger", "init", init, INITS)
        check_positive("Hamburger", "online_momentum", momentum, zero=True, most=1.0)
        self.init, self.heads, self.momentum, self.nonnegative = init, heads, momentum, ham.nonnegative
        # its own generator: building a layer does not disturb torch's, and every process starts from the same bases
        bases = ham.draw(heads, dim, like=torch.empty(0), generator=torch.Generator().manual_seed(seed))
        if init == "learned":
            self.bases = nn.Parameter(bases)
        else:
            self.register_buffer("bases", bases)

    def forward(self, x: Tensor) -> Tensor | None:
        """Bases for x ((b s) d n), or None where they are to be drawn."""
        if self.init == "random" and self.training:
            return None
        # an optimiser knows nothing of signs: what it has learned is folded back to where NMF may start
        bases = self.bases.abs() if self.init == "learned" and self.nonnegative else self.bases
        return bases.repeat(x.shape[0] // self.heads, 1, 1)

    @torch.no_grad()
    def update(self, bases: Tensor) -> None:
        """Move an online dictionary towards the mean of these bases ((b s) d r). Nothing in evaluation."""
        if self.init != "online" or not self.training:
            return
        found = bases.detach().unflatten(0, (-1, self.heads))  # b s d r
        total, count = found.sum(0), bases.new_tensor(float(found.shape[0]))
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            # sums and counts, not means: processes may hold batches of different sizes
            packed = torch.cat([total.flatten(), count[None]])
            dist.all_reduce(packed)
            total, count = packed[:-1].view_as(total), packed[-1]
        mean = (total / count).to(self.bases.dtype)
        moved = normalize_columns(torch.lerp(self.bases, mean, self.momentum))
        # one batch with NaN must not poison the average for good; decided on the device, without waiting for it
        self.bases.copy_(torch.where(torch.isfinite(moved).all(), moved, self.bases))

    def extra_repr(self) -> str:
        return f"init={self.init}, heads={self.heads}"


class PositionDictionary(nn.Module):
    """Initial bases for the transposed problem, whose dictionary has one row per position.

    Its size is that of the image, so no table can be stored: evaluation uses Weyl sequences whose multipliers are.
    """

    multipliers: Tensor

    def __init__(self, ham: Ham, *, init: str, seed: int) -> None:
        super().__init__()
        if init not in ("random", "fixed"):
            raise OptionError(
                f"Hamburger: the channel decomposition takes init='random' or 'fixed', got {init!r}: its dictionary "
                f"has one row per position, so there is nothing of a fixed size to learn or to average"
            )
        self.init, self.ham = init, ham
        self.register_buffer("multipliers", torch.tensor(weyl_multipliers(ham.rank, seed)))

    def forward(self, x: Tensor) -> Tensor | None:
        """Bases for x ((b s) n c), or None where they are to be drawn."""
        if self.init == "random" and self.training:
            return None
        dtype = torch.float32 if x.dtype in HALF else x.dtype
        u = weyl_uniform(self.multipliers, x.shape[1], dtype=dtype)
        return normalize_columns((u if self.ham.nonnegative else u - 0.5).mT[None])

    def update(self, bases: Tensor) -> None:
        """Nothing to keep."""
