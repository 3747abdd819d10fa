"""Runs as values: each row of the paper's tables is one function that returns a frozen Recipe."""
