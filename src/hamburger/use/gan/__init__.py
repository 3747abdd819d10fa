"""What a trained generator is for: samples, distances to real images, comparisons."""
