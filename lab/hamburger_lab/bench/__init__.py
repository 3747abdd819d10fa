"""Benchmarks: cases, timing, a check of the values before it, and tables of what was measured."""
