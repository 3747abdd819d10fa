"""Whole segmentation networks: built by name, kept in files."""
