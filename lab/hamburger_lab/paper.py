"""Numbers of the paper's Table 3, and why some of ours differ.

Input 1 x 512 x 128 x 128 (n = 16,384), float32, one NVIDIA TITAN Xp. Parameters in units of 2^20, multiply-adds in
units of 10^9, memory in MiB.
"""

from __future__ import annotations

from dataclasses import dataclass

MEBI = 2**20


@dataclass(frozen=True)
class Printed:
    params: float  # 2^20
    macs: float  # 10^9
    train_mb: float
    infer_mb: float
    train_ms: float
    infer_ms: float


TABLE3 = {
    "sa": Printed(1.00, 292.0, 5253, 2148, 242.0, 82.2),
    "da": Printed(4.82, 79.5, 2395, 2203, 72.6, 64.4),
    "a2": Printed(1.01, 25.7, 326, 165, 22.9, 8.0),
    "apc": Printed(2.03, 17.6, 458, 264, 26.5, 11.6),
    "dm": Printed(3.00, 35.1, 557, 268, 65.7, 23.3),
    "acf": Printed(0.75, 79.5, 1380, 627, 71.0, 22.6),
    "cd": Printed(0.50, 16.2, 162, 102, 20.0, 13.0),
    "nmf": Printed(0.50, 17.6, 202, 98, 15.6, 7.7),
}
SIZE, CHANNELS = 16384, 512

# Reasons for a difference above one percent in parameters or multiply-adds.
DIFFERENCES = {
    ("da", "macs"): (
        "the printed 79.5 G cannot be right: the 4.82 M printed parameters are convolution weights used at every "
        "position, which alone is 82.7 G, and the n x n products come on top. 79.5 G is the figure of the ACF row, "
        "probably copied"
    ),
}


def deviation(module: str, field: str, ours: float) -> float | None:
    """Return the relative difference to the printed number; None if the table has no such row."""
    if module not in TABLE3:
        return None
    printed = float(getattr(TABLE3[module], field))
    return ours / printed - 1


def notes(module: str, params: int, macs: int) -> list[str]:
    """Return a sentence for every number that differs from the printed one by more than one percent."""
    sentences = []
    for field, value in (("params", params / MEBI), ("macs", macs / 1e9)):
        off = deviation(module, field, value)
        if off is not None and abs(off) > 0.01:
            why = DIFFERENCES.get((module, field), "not explained")
            sentences.append(f"{field} {value:.3g} against a printed {getattr(TABLE3[module], field):g}: {why}")
    return sentences
