"""Global context by matrix decomposition instead of attention.

>>> import hamburger as hb
>>> layer = hb.Hamburger(512, ham="nmf", rank=64, steps=6)      # where a self-attention block stood
>>> y = layer(z)                                                # (b, 512, h, w) -> (b, 512, h, w), linear in h * w
"""

from typing import TYPE_CHECKING, Any

from hamburger.contexts import create_context, list_contexts
from hamburger.contexts.common import contexts
from hamburger.errors import (
    CheckpointError,
    DataError,
    ExportError,
    HamburgerError,
    ImplicitGradientError,
    InputError,
    NotFiniteError,
    OptionError,
    ShapeError,
    TrainingError,
    UnknownNameError,
)
from hamburger.hams import (
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
from hamburger.insertion import insert_context, remove_contexts, replace_attention
from hamburger.layers import Hamburger, HamLayer
from hamburger.shapes import debug

if TYPE_CHECKING:
    from hamburger.generation.networks.create import create_gan
    from hamburger.segmentation.model import create_model

__version__ = "0.2.0"

__all__ = [
    "CD",
    "NMF",
    "VQ",
    "CheckpointError",
    "DataError",
    "Decomposition",
    "ExportError",
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
    "TrainingError",
    "Truncated",
    "UnknownNameError",
    "bptt",
    "contexts",
    "create_context",
    "create_gan",
    "create_model",
    "debug",
    "decompose",
    "hams",
    "insert_context",
    "list_contexts",
    "one_step",
    "remove_contexts",
    "replace_attention",
]


def __getattr__(name: str) -> Any:
    """Whole networks are imported when they are asked for: the layers alone should load at once."""
    if name == "create_model":
        from hamburger.segmentation.model import create_model

        return create_model
    if name == "create_gan":
        from hamburger.generation.networks import create_gan

        return create_gan
    raise AttributeError(f"module 'hamburger' has no attribute '{name}'")
