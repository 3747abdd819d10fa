"""Evaluate trained weights with other solver settings, and measure their context; no weight changes.

`solver_variants`: the same network with other step counts or other dictionaries.
`evaluate_settings`: a row of scores for each of them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hamburger.errors import OptionError, check_count, check_seed
from hamburger.inspect.solves import list_ham_layers
from hamburger.layers.ham import Dictionary, HamLayer
from hamburger.tasks.evaluate import Evaluation, open_evaluation
from hamburger.training.image_files import normalise
from hamburger_lab.ablations.context_statistics import CONTEXT, Measurements, measure_context


def evaluate_settings(
    path: Path,
    *,
    steps: Sequence[int | None] = (None,),
    dictionary_seeds: Sequence[int | None] = (None,),
    statistics_images: int = 0,
    progress: Callable[[int, int], object] = lambda done, total: None,
    **options: Any,
) -> tuple[list[dict[str, Any]], Measurements]:
    """Evaluate a weights file: a row for each combination, and statistics of the context on some images.

    `options` are those of `open_evaluation`.
    """
    check_count("eval-solver", "statistics-images", statistics_images, least=0)
    opened = open_evaluation(path, **options)
    variants = solver_variants(opened.net, steps=steps, dictionary_seeds=dictionary_seeds)
    start = time.perf_counter()
    scores = []
    for switch in variants:
        switch()
        scores.append(
            opened.task.evaluate(opened.net, opened.images, opened.info, device=opened.device, progress=progress)
        )
    measured = _measure_context(opened, statistics_images) if statistics_images else {}
    seconds = (time.perf_counter() - start) / len(scores)
    rows = []
    for (count, seed), score in zip(itertools.product(steps, dictionary_seeds), scores, strict=True):
        rows.append({**opened.row(score, seconds), **measured, "eval_steps": count, "draws": seed})
    return rows, measured


def _measure_context(opened: Evaluation, count: int) -> Measurements:
    if getattr(getattr(opened.net, "head", None), "context", None) is None:
        raise OptionError(
            f"eval-solver: --statistics-images needs the layer '{CONTEXT}', which this network does not have; "
            "leave it out"
        )
    device, info = opened.device, opened.info
    samples = (opened.images[index] for index in range(min(count, len(opened.images))))
    batches = ((normalise(x.to(device), info.mean, info.std)[None], y.long()[None].to(device)) for x, y in samples)
    return measure_context(opened.net, batches)


class RedrawnDictionary(nn.Module):
    """First bases drawn anew for every sample, in evaluation too, as in the authors' code.   (b s) d n -> (b s) d r

    It has its own generator: the same images in the same order get the same draws on every device.
    """

    init, heads = "random", 1

    def __init__(self, layer: HamLayer, seed: int) -> None:
        super().__init__()
        self.ham = layer.ham
        self.generator = torch.Generator().manual_seed(seed)

    def forward(self, x: Tensor) -> Tensor:
        like = x.new_empty(0, dtype=torch.float32)
        return self.ham.draw(x.shape[0], x.shape[1], like=like, generator=self.generator)

    def update(self, bases: Tensor) -> None:
        """Do nothing: drawn bases are not updated."""


def solver_variants(
    net: nn.Module, *, steps: Sequence[int | None] = (None,), dictionary_seeds: Sequence[int | None] = (None,)
) -> list[Callable[[], None]]:
    """Functions that switch the hams of `net` to each combination of step counts and seeds of drawn dictionaries.

    None leaves a setting as trained. Each function keeps the state of its draws. A network without a ham is an error.
    """
    layers = list(list_ham_layers(net).values())
    step_counts, seeds = ([value for value in values if value is not None] for values in (steps, dictionary_seeds))
    if not layers and (step_counts or seeds):
        raise OptionError(
            "eval-solver: --steps and --dictionary-seeds need a ham, and this network has none; leave them out"
        )
    for count in step_counts:
        check_count("eval-solver", "steps", count, least=0)
    for seed in seeds:
        check_seed("eval-solver", seed)
    if seeds and not all(isinstance(layer.dictionary, (Dictionary, RedrawnDictionary)) for layer in layers):
        raise OptionError(
            "eval-solver: --dictionary-seeds needs a spatial ham; the dictionary of a channel ham has one row per "
            "position and cannot be redrawn"
        )

    def variant(step_count: int | None, seed: int | None) -> Callable[[], None]:
        counts = [layer.eval_steps if step_count is None else step_count for layer in layers]
        dictionaries: list[Any] = [layer.dictionary for layer in layers]
        if seed is not None:
            dictionaries = [RedrawnDictionary(layer, seed + index) for index, layer in enumerate(layers)]

        def switch() -> None:
            for layer, count, dictionary in zip(layers, counts, dictionaries, strict=True):
                layer.eval_steps, layer.dictionary = count, dictionary

        return switch

    return [variant(*settings) for settings in itertools.product(steps, dictionary_seeds)]
