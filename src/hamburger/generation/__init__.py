"""GANs: networks, training, sampling and distances to real images."""
