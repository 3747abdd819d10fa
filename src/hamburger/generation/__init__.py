"""Training of GANs, on the same run folders and checkpoints as that of segmentation."""
