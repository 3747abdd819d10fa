"""Benchmarks: cases, timing, a correctness gate, and tables of what was measured."""
