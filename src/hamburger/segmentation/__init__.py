"""Semantic segmentation: data, networks, training, evaluation and prediction."""
