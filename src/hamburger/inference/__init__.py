"""Trained weights at work: prediction, export, sharing."""
