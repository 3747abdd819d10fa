"""Semantic segmentation: data, networks, training, evaluation and prediction.

The names below are imported on first use, so that importing a recipe loads no network.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hamburger.checkpoints.weights_file import Info
    from hamburger.segmentation.model import Segmenter
    from hamburger.segmentation.predict import Predictor
    from hamburger.segmentation.weights import load_weights, save_weights

_HOMES = {
    "Info": "hamburger.checkpoints.weights_file",
    "Predictor": "hamburger.segmentation.predict",
    "Segmenter": "hamburger.segmentation.model",
    "load_weights": "hamburger.segmentation.weights",
    "save_weights": "hamburger.segmentation.weights",
}

__all__ = ["Info", "Predictor", "Segmenter", "load_weights", "save_weights"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hamburger.segmentation' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
