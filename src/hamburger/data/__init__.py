"""Data sets, their checks, augmentation and batches."""
