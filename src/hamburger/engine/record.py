"""Losses of the latest steps, kept on the device: writing them down makes no step wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hamburger import distributed


class Record:
    """The terms of every step since the last line of the log, at most `capacity`, and the images they came from."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.capacity, self.device = capacity, device
        self.names: list[str] = []
        self.values = torch.empty(0, 0, device=device)  # steps terms
        self.steps: list[int] = []
        self.ids: deque[tuple[int, list[str]]] = deque(maxlen=capacity)

    def add(self, step: int, terms: Mapping[str, Tensor], ids: Sequence[str]) -> None:
        if list(terms) != self.names:
            self.names = list(terms)
            self.values = torch.zeros(self.capacity, len(terms), device=self.device)
            self.steps = []
        self.values[len(self.steps)] = torch.stack([value.detach().float() for value in terms.values()])
        self.steps.append(step)
        self.ids.append((step, list(ids)))

    def joined(self) -> Tensor:
        """The terms as one process with the joined batch would have them; this waits for the device.   steps terms"""
        return (distributed.total(self.values[: len(self.steps)]) / distributed.world()).cpu()

    def ids_of(self, step: int) -> list[str]:
        return next((ids for known, ids in self.ids if known == step), [])

    def clear(self) -> None:
        self.steps = []

    def state(self) -> dict[str, Any]:
        return {"names": list(self.names), "steps": list(self.steps), "values": self.joined().clone()}

    def load(self, state: Mapping[str, Any]) -> None:
        self.names, self.steps = list(state["names"]), list(state["steps"])
        self.values = torch.zeros(self.capacity, len(self.names), device=self.device)
        self.values[: len(self.steps)] = state["values"].to(self.device)


def first_bad(values: Tensor, steps: Sequence[int]) -> int | None:
    """The first step with a term that is not finite.   values: steps terms"""
    good = torch.isfinite(values).all(1)
    return None if bool(good.all()) else steps[int((~good).nonzero()[0])]
