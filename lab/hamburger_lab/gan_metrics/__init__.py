"""Distances between generated and real images, each tested against an independent implementation."""
