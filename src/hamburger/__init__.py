"""Global context by matrix decomposition instead of attention.

>>> import hamburger as hb
>>> layer = hb.Hamburger(512, ham="nmf", rank=64, steps=6)      # in place of a self-attention block
>>> y = layer(z)                                                # (b, 512, h, w) -> (b, 512, h, w), linear in h * w
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hamburger import errors, startup  # noqa: F401  # before the first import of torch
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
    HALS,
    NMF,
    VQ,
    Decomposition,
    Factors,
    Ham,
    Implicit,
    Learned,
    Local,
    Phantom,
    Robust,
    Truncated,
    Windowed,
    bptt,
    decompose,
    hams,
    one_step,
)
from hamburger.insertion import insert_context, remove_contexts, replace_attention
from hamburger.layers import Hamburger, HamLayer, shard_positions
from hamburger.tensors import debug

if TYPE_CHECKING:
    from hamburger.classification.model import create_classifier
    from hamburger.detection.model import create_detector
    from hamburger.generation.model import create_gan
    from hamburger.inference.find_weights import list_weights
    from hamburger.segmentation.model import create_model
    from hamburger.segmentation.predict import Predictor
    from hamburger.segmentation.stream import stream
    from hamburger.stereo.model import create_stereo
    from hamburger.tasks import train
    from hamburger.tasks.load import list_models, load

__version__ = "0.2.0"

# fmt: off
__all__ = [
    "CD", "HALS", "NMF", "VQ", "CheckpointError", "DataError", "Decomposition", "ExportError", "Factors", "Ham",
    "HamLayer", "Hamburger", "HamburgerError", "Implicit", "ImplicitGradientError", "InputError", "Learned", "Local",
    "NotFiniteError", "OptionError", "Phantom", "Predictor", "Robust", "ShapeError", "TrainingError", "Truncated",
    "UnknownNameError", "Windowed", "bptt", "contexts",
    "create_classifier", "create_context", "create_detector", "create_gan", "create_model", "create_stereo",
    "debug", "decompose", "errors", "hams", "insert_context", "list_contexts", "list_models", "list_weights",
    "load", "one_step", "remove_contexts", "replace_attention", "shard_positions", "stream", "train",
]
# fmt: on


# whole networks are imported when they are first used: the layers alone load fast and need torch only
_IMPORTED_ON_USE = {
    "Predictor": "hamburger.segmentation.predict",
    "create_classifier": "hamburger.classification.model",
    "create_detector": "hamburger.detection.model",
    "create_gan": "hamburger.generation.model",
    "create_model": "hamburger.segmentation.model",
    "create_stereo": "hamburger.stereo.model",
    "list_models": "hamburger.tasks.load",
    "list_weights": "hamburger.inference.find_weights",
    "load": "hamburger.tasks.load",
    "stream": "hamburger.segmentation.stream",
    "train": "hamburger.tasks",
}


def __getattr__(name: str) -> Any:
    if name not in _IMPORTED_ON_USE:
        # with name and obj, Python itself suggests the nearest name
        raise AttributeError(f"module 'hamburger' has no attribute '{name}'", name=name, obj=sys.modules[__name__])
    try:
        return getattr(import_module(_IMPORTED_ON_USE[name]), name)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("hamburger"):
            raise
        raise ImportError(f"hamburger.{name} needs {missing.name}; {errors.install_extra('train')}") from missing


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
