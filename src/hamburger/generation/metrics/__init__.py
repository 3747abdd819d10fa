"""Distances between sets of images, each tested against an independent implementation."""
