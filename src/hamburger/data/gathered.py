"""Training batches that are gathered from one block of pixels, whatever the sizes of the images in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic

from hamburger.data.packed import Packed, Pixels, join, on_device
from hamburger.data.stream import Part, Set, Stream


class Gathered(Stream[Set, Pixels, Packed, Part], Generic[Set, Part]):
    def hold(self, samples: Iterable[Pixels]) -> Packed:
        return on_device(join(samples), self.device)
