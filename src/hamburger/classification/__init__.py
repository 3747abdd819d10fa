"""Classification on the engine of segmentation."""
