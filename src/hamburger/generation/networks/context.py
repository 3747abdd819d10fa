"""Where a context module stands in a GAN: behind a gate that starts closed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hamburger.contexts import contexts, create_context
from hamburger.contexts.hamburgers import with_authors_version
from hamburger.errors import OptionError, UnknownNameError, did_you_mean
from hamburger.generation.networks.layers import Layers
from hamburger.generation.networks.spectral import spectral_norm_all
from hamburger.precision import autocast_dtype, widen
from hamburger.registry import Registry

GIVEN = ("size", "layers", "num_classes")  # what the network says, not its user


class Gated(nn.Module):
    """x + gate f(x), the gate a scalar that starts at zero: the identity, bit for bit.   b c h w   ->   b c h w

    While it is zero, f receives no gradient; the gate does. `y` (b) holds the classes where the network has them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return x + self.gate.to(x.dtype) * self.branch(x, y).to(x.dtype)

    @abstractmethod
    def branch(self, x: Tensor, y: Tensor | None) -> Tensor:
        """What the gate lets through.   b c h w   ->   b c h w"""


blocks: Registry[Gated] = Registry("GAN context")


class FromZoo(Gated):
    """Any module of `create_context`.   x + gate (module(x) - x)

    Such modules bring their own skip, so the gate leads from the input (0) to what the module gives (1). Gates of
    their own start open. Convolutions and linear layers are spectrally normalised where the network is; the papers say
    nothing of such pairs.
    """

    def __init__(self, channels: int, *, name: str, layers: Layers, options: Mapping[str, Any]) -> None:
        super().__init__()
        module = open_gates(create_context(name, channels, **with_authors_version(name, options)))
        self.module = spectral_norm_all(module, layers.context_spectral)

    def branch(self, x: Tensor, y: Tensor | None) -> Tensor:
        if autocast_dtype(x.device.type) is not None:
            x = widen(x)  # what the module adds is small beside x: in half precision x would take most of its digits
        out: Tensor = self.module(x) - x
        return out


def open_gates(module: nn.Module) -> nn.Module:
    """Scales and weights that start at zero, so that the module starts as the identity, set to one or drawn.

    Behind a second gate at zero they would stay there: of a product of two zeros neither factor receives a gradient.
    """
    for name, parameter in module.named_parameters():
        if parameter.is_meta or name.endswith("bias") or parameter.any():
            continue
        if parameter.dim() < 2:
            nn.init.ones_(parameter)
        else:
            nn.init.xavier_uniform_(parameter)
    return module


def create_block(
    name: str, channels: int, *, size: int, layers: Layers, num_classes: int | None, options: Mapping[str, Any]
) -> Gated:
    """The named block for maps of that many channels and `size` x `size` positions.

    Names are those of the papers of this package ("sagan", "ylg", "hamgan") and all of `list_contexts()`.
    `num_classes` is None in a discriminator, whose blocks know nothing of classes.
    """
    call = f"create_gan with context '{name}'"
    for option in options:
        if option in GIVEN:
            raise OptionError(f"{call}: '{option}' follows from the network; leave it out of context_options")
    if name in blocks:
        return blocks.create(name, channels, size=size, layers=layers, num_classes=num_classes, **options)
    if name in contexts:
        return FromZoo(channels, name=name, layers=layers, options=options)
    raise UnknownNameError(f"create_gan: no context '{name}'{did_you_mean(name, [*blocks, *contexts])}")
