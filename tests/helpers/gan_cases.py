"""Small GAN networks and batches."""

from __future__ import annotations

import torch

from hamburger.generation.model import create_gan

NAMES = ("sngan", "sagan", "ylg", "hamgan")
CLASSES = 5


def small(name, *, resolution=32, **options):
    """A network with 64 to 128 channels at its context, which eight heads need."""
    torch.manual_seed(0)
    narrow = {
        "num_classes": CLASSES,
        "latent": 12,
        "width": 16,
        "generator_multipliers": [4] * (resolution.bit_length() - 2),
        "discriminator_multipliers": [4] * (resolution.bit_length() - 3) + [1],
    }
    return create_gan(name, resolution=resolution, **{**narrow, **options})


def batch(net, b=3, seed=1):
    """Inputs of a network: z and y for a generator, images and y for a discriminator."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(net.num_classes, (b,), generator=generator)
    if hasattr(net, "latent"):
        return torch.randn(b, net.latent, generator=generator), y
    return torch.rand(b, 3, net.resolution, net.resolution, generator=generator) * 2 - 1, y


def open_gates(net, value=0.5):
    """The network with the gate of its context opened."""
    if net.context is not None:
        net.context.gate.data.fill_(value)
    return net
