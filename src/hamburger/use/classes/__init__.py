"""Classifiers on a person's photographs and in a report."""
