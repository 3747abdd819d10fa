"""SNGAN with projection (Miyato & Koyama, "cGANs with projection discriminator", ICLR 2018): no context.

Only its discriminator is spectrally normalised, and its blocks are as wide inside as their input. The batch norm's eps
and momentum are the defaults of the framework that its authors used, from memory and not checked against their code.
"""

from __future__ import annotations

from hamburger.generation.networks.layers import Style, gans


@gans.register("sngan")
def sngan() -> Style:
    return Style(
        context=None,
        generator_spectral="none",
        discriminator_spectral="equality",
        hidden="in",
        init="xavier-relu",
        norm_eps=2e-5,
        norm_momentum=0.1,
    )
