"""Semantic segmentation: data, networks, training, evaluation and prediction."""

from hamburger.checkpoints.weights_file import Info
from hamburger.segmentation.model import Segmenter, load_weights, save_weights

__all__ = ["Info", "Segmenter", "load_weights", "save_weights"]
