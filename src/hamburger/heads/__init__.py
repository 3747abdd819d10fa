"""Decoders: feature maps to logits, with the loss each is trained with."""
