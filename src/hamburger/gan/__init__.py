"""HamGAN and its rivals: generators and discriminators by the name of their paper."""

# importing a module registers what it holds
from hamburger.gan import hamgan, sagan, sngan, ylg  # noqa: F401
from hamburger.gan.create import Gan, create_gan, list_gans
from hamburger.gan.discriminator import Discriminator
from hamburger.gan.generator import Generator
from hamburger.gan.losses import discriminator_hinge, generator_hinge
from hamburger.gan.sampling import latents, sample, samples
from hamburger.gan.settings import Settings, paper_settings

__all__ = [
    "Discriminator",
    "Gan",
    "Generator",
    "Settings",
    "create_gan",
    "discriminator_hinge",
    "generator_hinge",
    "latents",
    "list_gans",
    "paper_settings",
    "sample",
    "samples",
]
