"""Generators and discriminators of HamGAN, SNGAN, SAGAN and YLG by the name of their paper."""

# importing a module registers its networks
from hamburger.generation.networks import (
    create,  # noqa: F401
    hamgan,  # noqa: F401
    sagan,  # noqa: F401
    ylg,  # noqa: F401
)
from hamburger.generation.networks.create import Gan, PaperSettings, create_gan, list_gans, paper_settings
from hamburger.generation.networks.discriminator import Discriminator, discriminator_hinge, generator_hinge
from hamburger.generation.networks.generator import Generator
from hamburger.generation.sampling import latents, sample, samples

__all__ = [
    "Discriminator",
    "Gan",
    "Generator",
    "PaperSettings",
    "create_gan",
    "discriminator_hinge",
    "generator_hinge",
    "latents",
    "list_gans",
    "paper_settings",
    "sample",
    "samples",
]
