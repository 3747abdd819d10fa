"""Disparities of a person's stereo pairs, and in a report."""
