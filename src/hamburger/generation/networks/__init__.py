"""Parts of generators and discriminators: layers, spectral norm, contexts."""
