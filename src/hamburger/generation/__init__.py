"""GANs: networks, training and sampling."""
