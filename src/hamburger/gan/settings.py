"""How each paper trained its networks on ImageNet at 128 pixels."""

from __future__ import annotations

from dataclasses import dataclass

from hamburger.errors import UnknownNameError, did_you_mean


@dataclass(frozen=True)
class Settings:
    """Adam for both networks, hinge losses, classes of made images uniform; neither weight average nor truncation.

    `decay_from`: the step of the generator from which both rates fall linearly to zero; None where they stay.
    """

    batch: int
    steps: int
    generator_rate: float = 1e-4
    discriminator_rate: float = 4e-4
    betas: tuple[float, float] = (0.0, 0.999)
    discriminator_steps: int = 1
    made_batch: int | None = None
    decay_from: int | None = None


# SNGAN's joint batch over four GPUs (64 real, 128 made for a generator's step) is from memory of its paper; its
# configuration file has 16 and 32 to a GPU. The second beta of the others is what their code leaves to the framework;
# SAGAN's paper says 0.9. YLG's batch is inferred: HamGAN-strong has it and claims YLG's settings.
SETTINGS = {
    "sngan": Settings(
        batch=64,
        steps=450_000,
        generator_rate=2e-4,
        discriminator_rate=2e-4,
        betas=(0.0, 0.9),
        discriminator_steps=5,
        made_batch=128,
        decay_from=400_000,
    ),
    "sagan": Settings(batch=256, steps=1_000_000),
    "ylg": Settings(batch=1024, steps=1_000_000),
    "hamgan-baby": Settings(batch=256, steps=2_000_000),
    "hamgan-strong": Settings(batch=1024, steps=1_000_000),
}


def paper_settings(name: str) -> Settings:
    """Those of the named networks; "hamgan" alone does not say which."""
    if name == "hamgan":
        raise UnknownNameError(
            "paper_settings: 'hamgan' was trained in two ways; name 'hamgan-baby' (SAGAN's) or 'hamgan-strong' (YLG's)"
        )
    if name not in SETTINGS:
        raise UnknownNameError(f"paper_settings: no settings for '{name}'{did_you_mean(name, SETTINGS)}")
    return SETTINGS[name]
