"""Tensors in, tensors out: the arithmetic of each ham, without modules, configuration or state."""
