"""The learning rate as a function of the step alone, so that a resumed run needs no memory of it."""

from __future__ import annotations

from hamburger.recipes.base import AdamOptim, Optim


def learning_rate(optim: Optim | AdamOptim, step: int, steps: int) -> float:
    """Poly: lr (1 - step / steps)^power for step 0 ... steps - 1, after a linear rise over the first `warmup` steps."""
    poly = optim.lr * (1 - step / steps) ** optim.power
    return poly * min(1.0, (step + 1) / optim.warmup) if optim.warmup else poly
