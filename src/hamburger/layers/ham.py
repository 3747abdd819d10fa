"""The parts of a Hamburger: bread (a linear map), ham (a decomposition as a layer) and the initial dictionary."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hamburger import distributed
from hamburger.errors import OptionError, ShapeError, check_choice, check_count, check_positive, check_seed
from hamburger.hams.base import COLUMNS, Columns, Ham, product, takes_onednn, weyl_multipliers, weyl_uniform
from hamburger.hams.decompose import BPTT, Gradient, as_gradient, as_ham, bptt, one_step, solve_ham
from hamburger.hams.implicit import Implicit
from hamburger.hams.sharded import ShardedHam
from hamburger.kernels.dispatch import BACKENDS
from hamburger.layers.recompute import RecentBases
from hamburger.linalg import EPS, normalize_columns
from hamburger.tensors import HALF, autocast_dtype, full_precision, is_exporting, is_recomputing, widen

AXES = ("spatial", "channel")
# the four of the paper's Table 8, columns of the input, and one for video
INITS = ("random", "fixed", "learned", "online", COLUMNS, "carry")


class Bread(nn.Module):
    """W x (+ bias) at every position.   b c n   ->   b d n

    Under float16 autocast, and with float16 weights, it runs in float32 and returns float32: feature maps at scale 1e4
    are ordinary inputs to a context layer, and their products overflow float16. bfloat16 stays bfloat16.
    """

    def __init__(self, in_channels: int, out_channels: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels))
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight from N(0, 2 / out) as in the authors' code, and the bias as torch's convolutions do."""
        out_channels, in_channels = self.weight.shape
        nn.init.normal_(self.weight, std=math.sqrt(2 / out_channels))
        if self.bias is not None:
            nn.init.uniform_(self.bias, -1 / math.sqrt(in_channels), 1 / math.sqrt(in_channels))

    def forward(self, x: Tensor) -> Tensor:
        cast = autocast_dtype(x.device.type)
        weight, bias = self.weight, self.bias  # read once: under spectral norm each access is a power iteration
        if torch.float16 in (cast, weight.dtype):
            with full_precision(x.device.type):
                return self._product(x.float(), weight.float(), None if bias is None else bias.float())
        return self._product(x if cast else x.to(weight.dtype), weight, bias)

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        weight = weight.expand(x.shape[0], -1, -1)
        if x.dtype != torch.float32 or not takes_onednn(weight, x):
            return torch.bmm(weight, x) if bias is None else torch.baddbmm(bias[None, :, None], weight, x)
        y = product(weight, x).contiguous()
        return y if bias is None else y + bias[None, :, None]

    def extra_repr(self) -> str:
        out_channels, in_channels = self.weight.shape
        return f"{in_channels}, {out_channels}, bias={self.bias is not None}"


class HamLayer(nn.Module):
    """The ham of a `Hamburger`, without breads, norm and skip: x -> D C.   b d n or b d *grid   ->   the same

    >>> layer = hb.HamLayer(hb.VQ(rank=4), 32, steps=6)
    >>> y = layer(x)                                                    # b 32 n -> b 32 n

    `heads` splits the d channels into sections that are decomposed separately. `axis="spatial"` factorises each section
    as it is, one column per position; `axis="channel"` factorises its transpose, one column per channel. A non-negative
    ham expects x >= 0, which `Hamburger` ensures and this layer does not check. `backend` is that of `decompose`.
    A map (b d h w) or volume tells hams that use neighbours the grid of the positions; with b d n they are a line.
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
        check_count("Hamburger", "steps", steps, least=0)
        parameters = ham.initial_parameters(steps)
        grad = as_gradient(grad) if grad is not None else bptt if init == "learned" or ham.trainable else one_step
        check_count("Hamburger", "dim", dim, least=1)
        check_seed("Hamburger", seed)
        check_count("Hamburger", "heads", heads, least=1)
        check_choice("Hamburger", "axis", axis, AXES)
        check_choice("Hamburger", "backend", backend, BACKENDS)
        if eval_steps is not None:
            check_count("Hamburger", "eval_steps", eval_steps, least=0)
        if dim % heads:
            raise OptionError(f"Hamburger: {heads} heads do not divide the inner width {dim}; choose a divisor")
        if init == "learned" and not isinstance(grad, BPTT):
            raise OptionError(
                f"Hamburger: init='learned' needs grad='bptt', got '{grad}'; no other trains the dictionary"
            )
        if ham.needs_grid and axis == "channel":
            raise OptionError(
                f"Hamburger: {type(ham).__name__} needs axis='spatial': channels have no neighbours; drop dual=True"
            )
        if ham.growing_bases and init in ("online", "carry"):
            raise OptionError(
                f"Hamburger: init={init!r} needs final bases of a fixed number, and those of {type(ham).__name__} grow "
                "with the map; take init='random', 'fixed', 'learned' or 'columns'"
            )
        if ham.trainable and isinstance(grad, Implicit):
            raise OptionError(
                f"Hamburger: grad='implicit' does not train the step sizes of {type(ham).__name__}; take grad='bptt' "
                "or 'truncated:m'"
            )
        self.ham, self.dim, self.heads, self.axis, self.grad = ham, dim, heads, axis, grad
        self._trained = tuple(parameters)
        for name, value in parameters.items():
            self.register_parameter(name, nn.Parameter(value))
        self.backend = backend
        self.sharded: ShardedHam | None = None  # set by `hb.shard_positions`
        self.steps, self.eval_steps = steps, steps if eval_steps is None else eval_steps
        self.dictionary: Dictionary | PositionDictionary = (
            Dictionary(ham, heads=heads, dim=dim // heads, init=init, seed=seed, momentum=online_momentum)
            if axis == "spatial"
            else PositionDictionary(ham, init=init, seed=seed)
        )

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() not in (3, 4, 5) or x.shape[1] != self.dim:
            raise ShapeError(
                f"HamLayer: built for b d n with d = {self.dim}, got {tuple(x.shape)}; positions may also be a map, "
                "(b, d, h, w), or a volume"
            )
        grid = x.shape[2:]
        data = self.fold(x)
        ham = self.bind_ham(grid)
        ham.check(data.shape[1], data.shape[2])
        # the first frame of a video is solved as in training, the others start where it ended
        full = self.training or (isinstance(self.dictionary, Dictionary) and self.dictionary.is_first_frame(data))
        bases = self.dictionary(data)
        if bases is None and dist.is_available() and dist.is_initialized():
            # each process takes its rows of what a single process draws for the global batch
            like, b, d = widen(data[:0]), data.shape[0], data.shape[1]
            bases = (
                distributed.draw_for_global_batch(lambda rows: ham.draw(rows, d, like=like), b)
                if self.sharded is None
                else distributed.draw_for_shards(lambda rows: ham.draw(rows, d, like=like), b, self.sharded.group)
            )
        out = solve_ham(
            data,
            ham,
            steps=self.steps if full else self.eval_steps,
            grad=self.grad,
            bases=bases,
            backend=self.backend,
        )
        self.dictionary.update(out.bases)
        y = out.reconstruction if self.axis == "spatial" else out.reconstruction.mT
        y = y.unflatten(0, (-1, self.heads)).flatten(1, 2)
        return y if len(grid) == 1 else y.unflatten(2, grid)

    def fold(self, x: Tensor) -> Tensor:
        """The matrices the ham decomposes: heads in the batch, transposed for channels.   b d *grid   ->   (b s) d n"""
        folded = x.flatten(2).unflatten(1, (self.heads, -1)).flatten(0, 1)
        return folded if self.axis == "spatial" else folded.mT

    def bind_ham(self, grid: Sequence[int]) -> Ham:
        """The ham of a call on positions of that grid, with the parameters of this layer."""
        ham = self.ham if self.sharded is None else self.sharded
        if self._trained:
            ham = ham.bind({name: getattr(self, name) for name in self._trained})
        return ham.on_grid(tuple(grid)) if ham.needs_grid else ham

    def extra_repr(self) -> str:
        steps = f"{self.steps}" if self.steps == self.eval_steps else f"{self.steps}, eval_steps={self.eval_steps}"
        backend = "" if self.backend == "auto" else f", backend={self.backend}"
        shards = "" if self.sharded is None else f", processes={self.sharded.mesh.size()}"
        return f"{self.ham}, steps={steps}, grad={self.grad}, heads={self.heads}, axis={self.axis}{backend}{shards}"


class Dictionary(nn.Module):
    """Initial bases for a batch of folded heads: s dictionaries of d x r, in the state dict from the constructor on.

    - "random": drawn for every sample in training; the stored one in evaluation.
    - "fixed": always the stored one.
    - "learned": a parameter, which only back-propagation through all steps can train.
    - "online": a running average of the final bases of the training batches, over all processes. A recomputation by
      gradient checkpointing starts from the bases of the first pass and does not count as a further batch.
    - "columns": columns of the input itself (`Ham.select_columns`). Nothing is stored or drawn.
    - "carry", for video: in training drawn for every sample; in evaluation the final bases of the previous call, with
      unit columns. A first call, one with another batch size, and one after `eval()` start from the stored bases.
    """

    bases: Tensor  # not with "columns"

    def __init__(self, ham: Ham, *, heads: int, dim: int, init: str, seed: int, momentum: float) -> None:
        super().__init__()
        check_choice("Hamburger", "init", init, INITS)
        check_positive("Hamburger", "online_momentum", momentum, zero=True, most=1.0)
        self.init, self.heads, self.momentum, self.nonnegative = init, heads, momentum, ham.nonnegative
        self._recent = RecentBases()
        self._carried: Tensor | None = None  # (b s) d r
        if init == COLUMNS:
            return
        # own generator: building a layer leaves torch's untouched, and every process starts from the same bases
        bases = ham.draw(heads, dim, like=torch.empty(0), generator=torch.Generator().manual_seed(seed))
        if init == "learned":
            self.bases = nn.Parameter(bases)
        else:
            self.register_buffer("bases", bases)

    def train(self, mode: bool = True) -> Dictionary:
        self._carried = None
        return super().train(mode)

    def is_first_frame(self, x: Tensor) -> bool:
        """Whether a call on x ((b s) d n) is the first of a video, which has no previous bases."""
        if self.init != "carry" or self.training:
            return False
        known = self._carried
        return is_exporting() or known is None or known.shape[0] != x.shape[0] or known.device != x.device

    def forward(self, x: Tensor) -> Tensor | Columns | None:
        """Bases for x ((b s) d n), "columns" where `decompose` takes those of x, or None where it draws them."""
        if self.init == COLUMNS:
            return COLUMNS
        if self.init in ("random", "carry") and self.training:
            return None
        if self.init == "carry" and not self.is_first_frame(x):
            return self._carried
        # an optimiser may learn negative entries; NMF has to start from non-negative bases
        bases = self.bases.abs() if self.init == "learned" and self.nonnegative else self.stored(x)
        return bases.repeat(x.shape[0] // self.heads, 1, 1)

    def stored(self, x: Tensor) -> Tensor:
        """The stored bases; in a recomputation those that the first pass on x (b d n) started from.   ->   s d r"""
        if self.init != "online" or not self.training:
            return self.bases
        return self._recent.select("Hamburger", self.bases, x)

    @torch.no_grad()
    def update(self, bases: Tensor) -> None:
        """Move an online dictionary towards the mean of these bases ((b s) d r), in training; or carry them."""
        if self.init == "carry" and not self.training and not is_exporting():
            self._carried = self._restart_lost(bases)
        if self.init != "online" or not self.training or is_recomputing():
            return
        per_sample = bases.detach().unflatten(0, (-1, self.heads))  # b s d r
        mean = distributed.mean_over_samples(per_sample).to(self.bases.dtype)
        moved = normalize_columns(torch.lerp(self.bases, mean, self.momentum))
        # a batch with NaN must not spoil the average; decided on the device, without synchronising
        self.bases.copy_(torch.where(torch.isfinite(moved).all(), moved, self.bases))

    def _restart_lost(self, bases: Tensor) -> Tensor:
        """Unit columns, and stored ones for zero columns, as a black frame leaves them, and for those with NaN."""
        norms = torch.linalg.vector_norm(bases, dim=1, keepdim=True)
        stored = self.bases.to(bases).repeat(bases.shape[0] // self.heads, 1, 1)
        return torch.where(torch.isfinite(norms) & (norms > EPS), bases / norms, stored)

    def extra_repr(self) -> str:
        return f"init={self.init}, heads={self.heads}"


class PositionDictionary(nn.Module):
    """Initial bases for the transposed problem, whose dictionary has one row per position.

    Its size depends on the image, so it cannot be stored. Evaluation computes it from stored Weyl multipliers.
    """

    multipliers: Tensor  # not with "columns"

    def __init__(self, ham: Ham, *, init: str, seed: int) -> None:
        super().__init__()
        if init not in ("random", "fixed", COLUMNS):
            raise OptionError(
                f"Hamburger: the channel decomposition takes init='random', 'fixed' or 'columns', got {init!r}: its "
                f"dictionary has one row per position, so there is nothing of a fixed size to learn or to average"
            )
        self.init, self.ham = init, ham
        if init == COLUMNS:
            return
        self.register_buffer("multipliers", torch.tensor(weyl_multipliers(ham.rank, seed)))

    def forward(self, x: Tensor) -> Tensor | Columns | None:
        """Bases for x ((b s) n c), "columns" where `decompose` takes those of x, or None where it draws them."""
        if self.init == COLUMNS:
            return COLUMNS
        if self.init == "random" and self.training:
            return None
        dtype = torch.float32 if x.dtype in HALF else x.dtype
        u = weyl_uniform(self.multipliers, x.shape[1], dtype=dtype)
        return normalize_columns((u if self.ham.nonnegative else u - 0.5).mT[None])

    def update(self, bases: Tensor) -> None:
        """Do nothing: this dictionary is never trained."""
