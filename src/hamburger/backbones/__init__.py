"""Encoders: images to feature maps. Names: `ham list backbones`."""
