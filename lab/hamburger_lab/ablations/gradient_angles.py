"""Train a segmentation network and compare gradient strategies of its hams on the way, without effect on the weights.

`measure_angles` compares the gradients of one step, with the same weights, batch and draws.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from hamburger.errors import OptionError, check_count
from hamburger.hams import as_gradient
from hamburger.layers.ham import HamLayer
from hamburger.segmentation.data.batches import SegmentationBatch
from hamburger.segmentation.model import Segmenter
from hamburger.segmentation.recipe import SegmentationRecipe
from hamburger.segmentation.task import SegmentationSplits, SegmentationTask
from hamburger.tasks import find_training
from hamburger.training.run_folder import METRICS, RunFolder
from hamburger.training.trainer import Trainer

ANGLES = "angles"  # the key of the comparisons, in metrics.jsonl and result.json

REFERENCE = "bptt"
STRATEGIES = ("one-step", "truncated:1", "truncated:2", REFERENCE)
AngleRow = dict[str, float | None]


def measure_angles(net: nn.Module, loss: Callable[[], Tensor]) -> AngleRow:
    """Return norms of the gradients of `loss` for each strategy, and their cosines to BPTT; the network is unchanged.

    - `norm_weights_*`, `cosine_weights_*`: of the gradient of all weights together
    - `norm_input_*`, `cosine_input_*`: of the gradient of the ham's input X, if the network has one ham: Eq. 12 against
      Eq. 13, times dL/dY

    A value is None if it is not finite, or the cosine of a zero gradient.
    """
    weights = [parameter for parameter in net.parameters() if parameter.requires_grad]
    by_strategy: dict[str, dict[str, list[Tensor]]] = {}
    for strategy in STRATEGIES:
        with _use_strategy(net, strategy) as inputs:
            value = loss()  # records the inputs
            tensors = [*inputs, *weights]
            raw = torch.autograd.grad(value, tensors, allow_unused=True)
        gradients = [torch.zeros_like(x) if g is None else g for x, g in zip(tensors, raw, strict=True)]
        by_strategy[strategy] = {"weights": gradients[len(inputs) :]}
        if len(inputs) == 1:
            by_strategy[strategy]["input"] = gradients[:1]
    row: AngleRow = {}
    for place, reference in by_strategy[REFERENCE].items():
        length = math.sqrt(_dot(reference, reference))
        for strategy, by_place in by_strategy.items():
            key = f"{place}_{strategy.replace(':', '').replace('-', '_')}"
            norm = math.sqrt(_dot(by_place[place], by_place[place]))
            row[f"norm_{key}"] = _finite_or_none(norm)
            if strategy != REFERENCE:
                product = _dot(by_place[place], reference)
                row[f"cosine_{key}"] = _finite_or_none(product / (norm * length)) if norm * length > 0 else None
    return row


def _dot(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    return float(torch.stack([(a.double() * b.double()).sum() for a, b in zip(one, other, strict=True)]).sum())


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


@contextmanager
def _use_strategy(net: nn.Module, name: str) -> Iterator[list[Tensor]]:
    """Differentiate the hams by the named strategy; yield a list that records their inputs in the order of their calls.

    Hams solve in plain torch: the kernels support only one strategy and round differently. Everything is restored
    afterwards, also norm statistics, online dictionaries and random generators.
    """
    hams = [module for module in net.modules() if isinstance(module, HamLayer)]
    settings = [(ham.grad, ham.backend) for ham in hams]
    buffers = [(buffer, buffer.clone()) for buffer in net.buffers()]
    devices = {parameter.device for parameter in net.parameters() if parameter.device.type == "cuda"}
    inputs: list[Tensor] = []
    handles = [ham.register_forward_pre_hook(lambda _, args: inputs.append(args[0])) for ham in hams]
    try:
        for ham in hams:
            ham.grad, ham.backend = as_gradient(name), "plain"
        with torch.random.fork_rng(devices=list(devices)):
            yield inputs
    finally:
        for handle in handles:
            handle.remove()
        for ham, (grad, backend) in zip(hams, settings, strict=True):
            ham.grad, ham.backend = grad, backend
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


# -- the training ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AngleRecipe(SegmentationRecipe):
    """A segmentation recipe, with the number of steps between two comparisons."""

    angles_every: int = 50


class AngleTask(SegmentationTask):
    """Segmentation that also writes the comparisons to metrics.jsonl and result.json."""

    recipe = AngleRecipe

    def check(self, recipe: SegmentationRecipe, *, processes: int = 1) -> None:
        super().check(recipe, processes=processes)
        assert isinstance(recipe, AngleRecipe)
        check_count(f"recipe '{recipe.name}'", "angles_every", recipe.angles_every, least=1)

    def build(self, recipe: SegmentationRecipe, data: SegmentationSplits) -> Segmenter:
        net = super().build(recipe, data)
        if not any(isinstance(module, HamLayer) for module in net.modules()):
            raise OptionError("angles: needs a network with a ham (got none); --set model.context=nmf")
        return net

    def before_step(
        self, trainer: Trainer[SegmentationRecipe], step: int, micro_batches: Sequence[SegmentationBatch]
    ) -> None:
        """Compare the gradient strategies of the hams on the first micro-batch."""
        recipe = trainer.recipe
        assert isinstance(recipe, AngleRecipe)
        if step % recipe.angles_every:
            return
        trainer.end_interval()

        def loss() -> Tensor:  # of the bare network: its gradients must not be averaged over the processes
            with trainer.accelerator.autocast():
                return torch.stack(list(self.losses(trainer.net, micro_batches[0], recipe).values())).sum()

        angles = measure_angles(trainer.net, loss)
        if trainer.first:
            trainer.write({"step": step, ANGLES: angles})
        trainer.clock.start()

    def extra_results(self, recipe: SegmentationRecipe, folder: RunFolder) -> dict[str, Any]:
        lines = [json.loads(line) for line in (folder.path / METRICS).read_text().splitlines()]
        return {ANGLES: [{"step": line["step"], **line[ANGLES]} for line in lines if ANGLES in line]}


def find_angle_recipe(name: str) -> AngleRecipe:
    """The named segmentation recipe, with `angles_every`."""
    recipe = find_training(name)
    if not isinstance(recipe, SegmentationRecipe):
        raise OptionError(f"angles: needs a segmentation recipe (got '{name}')")
    return AngleRecipe(**{each.name: getattr(recipe, each.name) for each in fields(recipe)})
