"""Depth from two images on the engine of segmentation."""
