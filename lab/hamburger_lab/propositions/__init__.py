"""Section 2.3 of the paper, measured on small decompositions."""
