"""Mixed precision by autocast alone; a module of its own since importing Fabric takes seconds."""

from __future__ import annotations

from typing import Any

from lightning.fabric.plugins.precision import MixedPrecision


class AutocastPrecision(MixedPrecision):
    """Fabric's mixed precision, but inputs keep float32: a box corner at pixel 513 would become 512 in bfloat16."""

    def __init__(self, precision: str, device: str) -> None:
        super().__init__(precision, device)  # type: ignore[arg-type]

    def convert_input(self, data: Any) -> Any:
        return data
