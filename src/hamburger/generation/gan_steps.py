"""Parts of a GAN training step: networks, optimizers, losses, batch-norm statistics, weight average, CUDA graph."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hamburger import distributed
from hamburger.classification.data.batches import ImageBatch
from hamburger.generation.model import Gan, Generator, create_gan
from hamburger.generation.networks.layers import is_channels_last
from hamburger.generation.networks.spectral import restart_power_iterations
from hamburger.generation.recipe import GanOptim, GanRecipe
from hamburger.layers.norm import convert_sync
from hamburger.tensors import check_shapes, widen

if TYPE_CHECKING:
    from hamburger.training.accelerator import Accelerator

DiscriminatorCall = Callable[[Tensor, Tensor], Tensor]  # images and classes to scores
StepBatches = Sequence[list[ImageBatch]]  # micro-batches of real images for each discriminator update of a step


class GanNetwork(NamedTuple):
    """A network and its optimizer. `plain` is `net`, compiled if the recipe says so; `model` is called in steps."""

    net: Any
    plain: Any
    model: Any
    optimizer: torch.optim.Adam


def build_gan(recipe: GanRecipe, k: int) -> Gan:
    """Generator and discriminator of a recipe for k classes, on the CPU, initialised from its seed."""
    torch.manual_seed(recipe.seed)
    fields = {name: value for name, value in vars(recipe.model).items() if name != "options"}
    return create_gan(num_classes=k, **fields, **recipe.model.options)


def set_up_network(recipe: GanRecipe, accelerator: Accelerator, net: Any, rate: float) -> GanNetwork:
    """The network with its optimizer on the device, the same on every rank."""
    if recipe.sync_bn and distributed.world_size() > 1:
        convert_sync(net)
    if recipe.channels_last:
        net.to(memory_format=torch.channels_last)
    net.to(accelerator.device)
    optimizer = create_adam(net, recipe.optim, rate, capturable=recipe.graph)
    plain: Any = torch.compile(net) if recipe.compile else net
    return GanNetwork(net, plain, accelerator.prepare(plain), optimizer)


def create_adam(net: torch.nn.Module, optim: GanOptim, rate: float, *, capturable: bool = False) -> torch.optim.Adam:
    """Adam as the recipe sets it. `capturable`: learning rate and step count are on the GPU, for CUDA graphs."""
    device = next(net.parameters()).device
    on_gpu = device.type == "cuda"  # fused there: one launch for all weights
    capturable = capturable and on_gpu
    lr: float | Tensor = torch.tensor(rate, device=device) if capturable else rate
    betas = (optim.beta1, optim.beta2)
    optimizer = torch.optim.Adam(net.parameters(), lr=lr, betas=betas, fused=on_gpu, capturable=capturable)
    # the eager steps before the capture are intended, but torch warns about them
    optimizer._warned_capturable_if_run_uncaptured = True
    return optimizer


def compute_rate_factor(optim: GanOptim, step: int, steps: int) -> float:
    """Factor of both learning rates at a step: 1, and from `decay_from` on linearly down to 0."""
    if optim.decay_from is None or step < optim.decay_from:
        return 1.0
    return (steps - step) / (steps - optim.decay_from)


# -- losses: the hinge (Lim & Ye, 2017), used by all these papers ------------------------------------------------------


def discriminator_hinge(real: Tensor, made: Tensor) -> Tensor:
    """mean of max(0, 1 - D(real)) + mean of max(0, 1 + D(made)).   real: b, made: m   ->   scalar"""
    check_shapes("discriminator_hinge", real=(real, "b"), made=(made, "m"))
    return torch.relu(1 - widen(real)).mean() + torch.relu(1 + widen(made)).mean()


def generator_hinge(made: Tensor) -> Tensor:
    """-mean of D(made).   b   ->   scalar"""
    check_shapes("generator_hinge", made=(made, "b"))
    return -widen(made).mean()


def compute_discriminator_terms(
    discriminator: DiscriminatorCall, real: ImageBatch, made: Tensor, classes: Tensor
) -> dict[str, Tensor]:
    """The hinge loss (`discriminator`), mean scores (`real`, `made`) and the relative `spread` of generated images.

    Real and generated images are interleaved in one call: half the launches and one power iteration. It also keeps the
    order of samples the same for any number of ranks.
    """
    shape = (2 * len(made), *made.shape[1:])
    images = real.images
    layout = torch.channels_last if is_channels_last(images) else torch.contiguous_format
    pairs = torch.empty(shape, dtype=images.dtype, device=images.device, memory_format=layout)
    pairs[0::2], pairs[1::2] = images, made
    scores = discriminator(pairs, torch.stack([real.labels, classes], 1).flatten()).unflatten(0, (-1, 2)).unbind(1)
    with torch.no_grad():
        spread = made.float().std(0).mean() / real.images.std(0).mean().clamp_min(1e-6)
    return {
        "discriminator": discriminator_hinge(*scores),
        "real": scores[0].detach().float().mean(),
        "made": scores[1].detach().float().mean(),
        "spread": spread,
    }


def draw_latents(b: int, latent: int, k: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """z (b latent) and y (b): this rank's rows of what a single process would draw for the global batch."""
    z = distributed.draw_for_global_batch(lambda rows: torch.randn(rows, latent, device=device), b)
    return z, distributed.draw_for_global_batch(lambda rows: torch.randint(k, (rows,), device=device), b)


# -- batch norm with gradient accumulation -----------------------------------------------------------------------------


class BatchNormAccumulator:
    """Updates running statistics once for all micro-batches of a batch.

    Each micro-batch updates them from their values before the batch; in the end they are the mean of the results. That
    is one update, with the usual momentum, towards the mean of the micro-batch means and variances. Successive updates
    would move `parts` times as fast and weight the last micro-batch most. With one micro-batch nothing is done.
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
        """Call after the backward pass of a micro-batch, which may still read the statistics."""
        self.left -= 1
        if not self.values:
            return
        torch._foreach_add_(self.sums, self.values)
        if not self.left:
            torch._foreach_div_(self.sums, self.parts)
        torch._foreach_copy_(self.values, self.before if self.left else self.sums)


# -- weight average ----------------------------------------------------------------------------------------------------


RUNNING_STATISTICS = ("running_mean", "running_var")


class WeightAverage:
    """Exponential moving average of a generator's weights and running statistics; other buffers are copied.

    It makes steadier images than the weights of a single step. Until step `start` it is a copy of the generator. The
    vectors of spectral norms belong to particular weights: `generator` computes those of the average.
    """

    def __init__(self, live: Generator, decay: float, start: int) -> None:
        self.decay, self.start = decay, start
        self.net = copy.deepcopy(live).eval().requires_grad_(False)
        self._averaged, self._copied = _split_tensors(self.net)
        self._averaged_from, self._copied_from = _split_tensors(live)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Call after the optimizer step of training step `step`."""
        weight = 1.0 if step < self.start else 1.0 - self.decay
        torch._foreach_lerp_(self._averaged, self._averaged_from, weight)
        torch._foreach_copy_(self._copied, self._copied_from)

    @torch.no_grad()
    def generator(self) -> Generator:
        """The network to sample from. Equal weights give equal spectral norms, however often this is called."""
        torch._foreach_copy_(self._copied, self._copied_from)
        restart_power_iterations(self.net)
        return self.net


def _split_tensors(net: Generator) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors that are averaged, and those that are copied."""
    buffers = [(name.endswith(RUNNING_STATISTICS), value) for name, value in net.named_buffers()]
    averaged = [parameter.detach() for parameter in net.parameters()] + [value for running, value in buffers if running]
    return averaged, [value for running, value in buffers if not running]


# -- CUDA graph --------------------------------------------------------------------------------------------------------

EAGER_STEPS = 11  # before the capture: kernels are selected and compiled, and their workspaces allocated


class GraphedStep:
    """Runs a training step as a replayed CUDA graph: hundreds of small launches become one.

    At 32 pixels a step is launch-bound. The graph reads real images from buffers that each call fills, draws latents
    from the device's own random generator, and leaves its terms in place. The first calls run `step` eagerly; every
    call is a training step.
    """

    def __init__(self, step: Callable[[StepBatches], dict[str, Tensor]]) -> None:
        self.step = step
        self.calls = 0
        self.stream = torch.cuda.Stream()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: list[list[ImageBatch]] = []
        self.terms: dict[str, Tensor] = {}

    def __call__(self, batches: StepBatches) -> dict[str, Tensor]:
        self.calls += 1
        if self.calls <= EAGER_STEPS:  # on the stream of the capture: what its first use sets up must not be captured
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                terms = self.step(batches)
            torch.cuda.current_stream().wait_stream(self.stream)
            return terms
        if self.graph is None:
            self.graph = self._capture(batches)
        for parts, buffers in zip(batches, self.inputs, strict=True):
            for part, buffer in zip(parts, buffers, strict=True):
                buffer.images.copy_(part.images)
                buffer.labels.copy_(part.labels)
        self.graph.replay()
        return {name: value.clone() for name, value in self.terms.items()}

    def _capture(self, batches: StepBatches) -> torch.cuda.CUDAGraph:
        self.inputs = [[ImageBatch(part.images.clone(), part.labels.clone()) for part in parts] for parts in batches]
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # prefetching threads may pin memory during the capture
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            self.terms = self.step(self.inputs)
        return graph
