"""Scores, each tested against an independent implementation."""
