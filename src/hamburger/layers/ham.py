"""A decomposition inside a network: heads, a dictionary to start from, and what is differentiated."""

from __future__ import annotations

from torch import Tensor, nn

from hamburger import distributed
from hamburger.errors import OptionError, ShapeError, check_choice, check_count, check_seed
from hamburger.hams.base import Ham
from hamburger.hams.decompose import as_ham, run
from hamburger.hams.gradients import BPTT, Gradient, as_gradient, bptt, one_step
from hamburger.kernels.dispatch import BACKENDS
from hamburger.layers.dictionary import Dictionary, PositionDictionary
from hamburger.precision import widen

AXES = ("spatial", "channel")


class HamLayer(nn.Module):
    """x -> D C.   b d n   ->   b d n

    `heads` splits the d channels into sections that are decomposed apart. `axis="spatial"` factorises each section as
    it is, one column per position; `axis="channel"` factorises its transpose, one column per channel. A
    non-negative ham expects x >= 0, as `Hamburger` sees to; nothing checks it here. `backend` as in `decompose`.
    """

    def __init__(
        self,
        ham: str | Ham,
        dim: int,
        *,
        heads: int = 1,
        axis: str = "spatial",
        steps: int = 6,
        eval_steps: int | None = None,
        init: str = "random",
        grad: str | Gradient | None = None,
        seed: int = 0,
        online_momentum: float = 0.9,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        ham = as_ham(ham)
        grad = as_gradient(grad) if grad is not None else bptt if init == "learned" else one_step
        check_count("Hamburger", "dim", dim, least=1)
        check_seed("Hamburger", seed)
        check_count("Hamburger", "heads", heads, least=1)
        check_count("Hamburger", "steps", steps, least=0)
        check_choice("Hamburger", "axis", axis, AXES)
        check_choice("Hamburger", "backend", backend, BACKENDS)
        if eval_steps is not None:
            check_count("Hamburger", "eval_steps", eval_steps, least=0)
        if dim % heads:
            raise OptionError(f"Hamburger: {heads} heads do not divide the inner width {dim}; choose a divisor")
        if init == "learned" and not isinstance(grad, BPTT):
            raise OptionError(
                f"Hamburger: init='learned' needs grad='bptt', got '{grad}': no other reaches the first dictionary"
            )
        self.ham, self.dim, self.heads, self.axis, self.grad = ham, dim, heads, axis, grad
        self.backend = backend
        self.steps, self.eval_steps = steps, steps if eval_steps is None else eval_steps
        self.dictionary: Dictionary | PositionDictionary = (
            Dictionary(ham, heads=heads, dim=dim // heads, init=init, seed=seed, momentum=online_momentum)
            if axis == "spatial"
            else PositionDictionary(ham, init=init, seed=seed)
        )

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 3 or x.shape[1] != self.dim:
            raise ShapeError(f"HamLayer: built for b d n with d = {self.dim}, got {tuple(x.shape)}")
        folded = x.unflatten(1, (self.heads, -1)).flatten(0, 1)  # (b s) d n
        data = folded if self.axis == "spatial" else folded.mT
        self.ham.check(data.shape[1], data.shape[2])
        bases = self.dictionary(data)
        if bases is None and distributed.world_size() > 1:
            # each process takes its rows of what one process would have drawn for the joined batch
            like, d = widen(data[:0]), data.shape[1]
            bases = distributed.draw_for_global_batch(lambda rows: self.ham.draw(rows, d, like=like), data.shape[0])
        out = run(
            data,
            self.ham,
            steps=self.steps if self.training else self.eval_steps,
            grad=self.grad,
            bases=bases,
            backend=self.backend,
        )
        self.dictionary.update(out.bases)
        y = out.reconstruction if self.axis == "spatial" else out.reconstruction.mT
        return y.unflatten(0, (-1, self.heads)).flatten(1, 2)

    def extra_repr(self) -> str:
        steps = f"{self.steps}" if self.steps == self.eval_steps else f"{self.steps}, eval_steps={self.eval_steps}"
        backend = "" if self.backend == "auto" else f", backend={self.backend}"
        return f"{self.ham}, steps={steps}, grad={self.grad}, heads={self.heads}, axis={self.axis}{backend}"
