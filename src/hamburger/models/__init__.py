"""Whole networks by name."""
