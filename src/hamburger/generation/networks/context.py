"""Context modules of GANs, each behind a gate that starts at zero."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hamburger.contexts import contexts, create_context
from hamburger.contexts.hamburgers import with_authors_version
from hamburger.errors import OptionError, UnknownNameError, did_you_mean
from hamburger.generation.networks.layers import LayerFactory
from hamburger.generation.networks.spectral import spectral_norm_all
from hamburger.registry import Registry
from hamburger.tensors import autocast_dtype, widen

SET_BY_NETWORK = ("size", "layers", "num_classes")  # arguments that the network passes, not its user


class GatedContext(nn.Module):
    """x + gate f(x) with a scalar gate that starts at zero, where it is exactly the identity.   b c h w   ->   b c h w

    While the gate is zero, it receives a gradient but f does not. `y` (b) holds the classes in a generator.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return x + self.gate.to(x.dtype) * self.branch(x, y).to(x.dtype)

    @abstractmethod
    def branch(self, x: Tensor, y: Tensor | None) -> Tensor:
        """f(x).   b c h w   ->   b c h w"""


gan_contexts: Registry[GatedContext] = Registry("GAN context")


class ZooContext(GatedContext):
    """Any module of `create_context`.   x + gate (module(x) - x)

    These modules have their own skip connection, so the gate interpolates between the input (0) and the module's output
    (1). Gates inside the module start open. Convolutions and linear layers are spectrally normalised if the network is;
    the papers do not cover such combinations.
    """

    def __init__(self, channels: int, *, name: str, layers: LayerFactory, options: Mapping[str, Any]) -> None:
        super().__init__()
        module = open_inner_gates(create_context(name, channels, **with_authors_version(name, options)))
        self.module = spectral_norm_all(module, layers.context_spectral)

    def branch(self, x: Tensor, y: Tensor | None) -> Tensor:
        if autocast_dtype(x.device.type) is not None:
            x = widen(x)  # module(x) - x is small compared with x: half precision would lose most of its digits
        out: Tensor = self.module(x) - x
        return out


def open_inner_gates(module: nn.Module) -> nn.Module:
    """The module with its zero-initialised scales set to one and its zero-initialised weights drawn at random.

    Behind a second gate at zero they would stay zero: in a product of two zeros neither factor receives a gradient.
    """
    for name, parameter in module.named_parameters():
        if parameter.is_meta or name.endswith("bias") or parameter.any():
            continue
        if parameter.dim() < 2:
            nn.init.ones_(parameter)
        else:
            nn.init.xavier_uniform_(parameter)
    return module


def create_gan_context(
    name: str, channels: int, *, size: int, layers: LayerFactory, num_classes: int | None, options: Mapping[str, Any]
) -> GatedContext:
    """The named context for maps of `channels` channels and `size` x `size` positions.

    Names are "sagan", "ylg", "hamgan" and all of `list_contexts()`. `num_classes` is None in a discriminator, whose
    contexts do not use classes.
    """
    call = f"create_gan with context '{name}'"
    for option in options:
        if option in SET_BY_NETWORK:
            raise OptionError(f"{call}: '{option}' is set by the network; leave it out of context_options")
    if name in gan_contexts:
        return gan_contexts.create(name, channels, size=size, layers=layers, num_classes=num_classes, **options)
    if name in contexts:
        return ZooContext(channels, name=name, layers=layers, options=options)
    raise UnknownNameError(f"create_gan: no context '{name}'{did_you_mean(name, [*gan_contexts, *contexts])}")
