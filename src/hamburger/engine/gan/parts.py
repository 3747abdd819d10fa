"""Running statistics of batch norm that move once for all accumulated parts of a batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class Running:
    """Every part moves them from where the batch found them; the last one leaves their mean over the parts.

    That is one move, by the usual momentum, towards the mean of the parts' means and variances. Moves one after another
    would follow `parts` times as fast, the last part most. With one part nothing is done.
    """

    def __init__(self, *nets: nn.Module, parts: int) -> None:
        self.left = self.parts = parts
        norms = [module for net in nets for module in net.modules() if isinstance(module, _BatchNorm)]
        held = [value for norm in norms for value in (norm.running_mean, norm.running_var) if value is not None]
        self.values: list[Tensor] = held if parts > 1 else []
        self.before = [value.clone() for value in self.values]
        self.sums = [torch.zeros_like(value) for value in self.values]

    @torch.no_grad()
    def part_done(self) -> None:
        """After the part's own gradients: what a backward pass may still read must not change."""
        self.left -= 1
        if not self.values:
            return
        torch._foreach_add_(self.sums, self.values)
        if not self.left:
            torch._foreach_div_(self.sums, self.parts)
        torch._foreach_copy_(self.values, self.before if self.left else self.sums)
