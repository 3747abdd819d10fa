"""Whether a game between two networks is over: told from the log, and only when it has been so for long."""

from __future__ import annotations

from collections.abc import Mapping

from hamburger.generation.recipe import Collapse

WON, BLIND, UNIFORM = "won", "blind", "uniform"


def signs(terms: Mapping[str, float], rule: Collapse) -> dict[str, bool]:
    """Which of the three hold in one line of the log."""
    return {
        WON: terms["discriminator"] < rule.won,
        BLIND: abs(terms["real"] - terms["made"]) < rule.blind,
        UNIFORM: terms["spread"] < rule.uniform,
    }


def counted(before: Mapping[str, int], terms: Mapping[str, float], rule: Collapse, steps: int) -> dict[str, int]:
    """For how many steps in a row each has held, this line's `steps` included."""
    return {name: before.get(name, 0) + steps if holds else 0 for name, holds in signs(terms, rule).items()}


def verdict(counts: Mapping[str, int], terms: Mapping[str, float], rule: Collapse) -> str | None:
    """What has happened and what helps, or None while the game goes on."""
    if not rule.patience:
        return None
    long = [name for name, steps in counts.items() if steps >= rule.patience]
    if not long:
        return None
    name = long[0]
    what = {
        WON: (
            f"the discriminator tells real from made without effort (its loss is {terms['discriminator']:.4f}, below "
            f"{rule.won:g}), so the generator learns nothing more",
            "a lower optim.discriminator_lr, optim.discriminator_steps=1, data.flip=true or more images",
        ),
        BLIND: (
            f"the discriminator answers the same to real and made images ({terms['real']:.4f} and "
            f"{terms['made']:.4f}), so there is nothing to learn from it",
            "a higher optim.discriminator_lr, more optim.discriminator_steps, or precision=32",
        ),
        UNIFORM: (
            f"the generator makes one image again and again (they differ by {100 * terms['spread']:.1f} % of what real "
            f"ones do)",
            "a lower optim.generator_lr, a larger batch, or more optim.discriminator_steps",
        ),
    }[name]
    return (
        f"{what[0]}, for {counts[name]} steps now; begin a new run, with {what[1]}, or with collapse.patience=0, which "
        f"never stops"
    )
