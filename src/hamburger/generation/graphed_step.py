"""A whole step recorded once as a CUDA graph and played again: hundreds of small launches become one.

At 32 pixels a step is bound by the host that launches its kernels, not by the card. What is recorded reads real images
from buffers that each step fills, draws its latents from the device's own generator, and leaves its terms in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hamburger.classification.data.batches import ImageBatch

WARMUP = 11  # as many steps are made one by one first: kernels are chosen, compiled and their workspaces allocated

Draws = Sequence[list[ImageBatch]]


class Replayed:
    """`step(draws)` by replay, after the first few calls; every call is a step of the training."""

    def __init__(self, step: Callable[[Draws], dict[str, Tensor]]) -> None:
        self.step = step
        self.calls = 0
        self.stream = torch.cuda.Stream()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: list[list[ImageBatch]] = []
        self.terms: dict[str, Tensor] = {}

    def __call__(self, draws: Draws) -> dict[str, Tensor]:
        self.calls += 1
        if self.calls <= WARMUP:
            return self._aside(draws)
        if self.graph is None:
            self._record(draws)
        assert self.graph is not None
        for parts, kept in zip(draws, self.inputs, strict=True):
            for part, own in zip(parts, kept, strict=True):
                own.images.copy_(part.images)
                own.labels.copy_(part.labels)
        self.graph.replay()
        return {name: value.clone() for name, value in self.terms.items()}

    def _aside(self, draws: Draws) -> dict[str, Tensor]:
        """On the stream that will record: what a stream's first use sets up must not fall into the recording."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            terms = self.step(draws)
        torch.cuda.current_stream().wait_stream(self.stream)
        return terms

    def _record(self, draws: Draws) -> None:
        self.inputs = [[ImageBatch(part.images.clone(), part.labels.clone()) for part in parts] for parts in draws]
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        # threads that read images ahead may pin memory meanwhile, which is no part of the recording
        with torch.cuda.graph(self.graph, stream=self.stream, capture_error_mode="thread_local"):
            self.terms = self.step(self.inputs)
