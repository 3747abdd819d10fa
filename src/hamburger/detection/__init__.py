"""Object detection and instance segmentation: Mask R-CNN with a context."""
