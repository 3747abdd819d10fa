"""Global context by matrix decomposition instead of attention.

>>> import hamburger as hb
>>> layer = hb.Hamburger(512, ham="nmf", rank=64, steps=6)      # where a self-attention block stood
>>> y = layer(z)                                                # (b, 512, h, w) -> (b, 512, h, w), linear in h * w
"""

from hamburger.checks import debug
from hamburger.errors import (
    HamburgerError,
    ImplicitGradientError,
    InputError,
    NotFiniteError,
    OptionError,
    ShapeError,
    UnknownNameError,
)
from hamburger.layers import Hamburger, HamLayer
from hamburger.layers.context import create_context, list_contexts
from hamburger.layers.context.base import contexts
from hamburger.solvers import (
    CD,
    NMF,
    VQ,
    Decomposition,
    Factors,
    Ham,
    Implicit,
    Truncated,
    bptt,
    decompose,
    hams,
    one_step,
)

__version__ = "0.1.0"

__all__ = [
    "CD",
    "NMF",
    "VQ",
    "Decomposition",
    "Factors",
    "Ham",
    "HamLayer",
    "Hamburger",
    "HamburgerError",
    "Implicit",
    "ImplicitGradientError",
    "InputError",
    "NotFiniteError",
    "OptionError",
    "ShapeError",
    "Truncated",
    "UnknownNameError",
    "bptt",
    "contexts",
    "create_context",
    "debug",
    "decompose",
    "hams",
    "list_contexts",
    "one_step",
]
