"""A ham whose positions are in several processes, which exchange only their sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hamburger import distributed
from hamburger.errors import OptionError
from hamburger.hams.base import Factors, Ham
from hamburger.hams.nmf import NMF

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, kw_only=True)
class ShardedHam(Ham):
    """`ham`, with each sample's positions divided among the processes of a one-dimensional mesh.

    All processes start from the same bases. Each step computes codes and sums locally and adds the sums of all
    processes by one all-reduce. Every process receives the same bits, so the bases remain equal. Backward passes
    through a step add the gradients of the sums likewise; the read-out needs no communication.
    """

    ham: Ham
    mesh: DeviceMesh

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ham.check_parts()
        if isinstance(self.ham, NMF) and self.ham.codes_init == "uniform":
            raise OptionError(
                "shard_positions: codes_init='uniform' draws a number for every position, which cannot be the same in "
                "several processes as in one; take codes_init='softmax' or 'cosine'"
            )

    @property
    def group(self) -> Any:
        return self.mesh.get_group()

    @property
    def readout_updates(self) -> bool:
        return self.ham.readout_updates

    def check(self, d: int, n: int) -> None:
        # n counts the positions of this process alone, and the processes must agree whether to raise
        self.ham.check(d, max(n, self.rank))

    def sample(self, b: int, d: int, *, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.ham.sample(b, d, like=like, generator=generator)

    def draw(self, b: int, d: int, *, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.ham.draw(b, d, like=like, generator=generator)

    def init(self, x: Tensor, bases: Tensor | None = None, generator: torch.Generator | None = None) -> Factors:
        return self.ham.init(x, bases, generator)

    def step(self, x: Tensor, factors: Factors) -> Factors:
        codes = self.ham.update_codes(x, factors)
        sums = self.ham.sum_positions(x, codes)
        packed = torch.cat([each.flatten() for each in sums])  # one message: small ones cost latency, not bandwidth
        total = distributed.sum_over_ranks_with_gradient(packed, self.group)
        parts = total.split([each.numel() for each in sums])
        sums = tuple(part.view(each.shape) for part, each in zip(parts, sums, strict=True))
        return Factors(self.ham.update_bases(factors.bases, sums), codes)

    def readout(self, x: Tensor, factors: Factors) -> Tensor:
        return self.ham.readout(x, factors)
