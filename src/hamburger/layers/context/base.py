"""The registry of context modules: constructors that take the channels first and keyword options after."""

from __future__ import annotations

from torch import nn

from hamburger.registry import Registry

contexts: Registry[nn.Module] = Registry("context")
