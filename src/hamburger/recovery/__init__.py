"""A small demonstration: low-rank recovery of a noisy matrix."""
