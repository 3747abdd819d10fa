"""Detection on the engine of segmentation."""
