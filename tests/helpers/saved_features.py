"""Distances between two files of features by the formulas of the papers, pair by pair, with numpy only.

Run as a program: python saved_features.py REAL.npy FAKE.npy K   ->   one line of JSON
"""

from __future__ import annotations

import json
import sys

import numpy as np


def frechet(x, y):
    """Heusel et al.: |m - w|^2 + tr(C + D - 2 (C D)^1/2), the root's trace by the eigenvalues of C D."""
    c, d = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    roots = np.sqrt(np.linalg.eigvals(c @ d).astype(complex))
    return float(np.sum((x.mean(0) - y.mean(0)) ** 2) + np.trace(c) + np.trace(d) - 2 * roots.sum().real)


def kernel(x, y):
    """Binkowski et al.: the unbiased estimate with (<a, b> / d + 1)^3."""

    def k(a, b):
        return (sum(s * t for s, t in zip(a, b, strict=True)) / len(a) + 1) ** 3

    n, m = len(x), len(y)
    within_x = sum(k(x[i], x[j]) for i in range(n) for j in range(n) if i != j) / (n * (n - 1))
    within_y = sum(k(y[i], y[j]) for i in range(m) for j in range(m) if i != j) / (m * (m - 1))
    return float(within_x + within_y - 2 * sum(k(a, b) for a in x for b in y) / (n * m))


def covered(points, centres, k):
    """Kynkaanniemi et al.: the fraction of points within the k-th neighbour's distance of some centre."""

    def distance(a, b):
        return float(np.sqrt(np.sum((a - b) ** 2)))

    radii = [
        sorted(distance(one, two) for j, two in enumerate(centres) if j != i)[k - 1] for i, one in enumerate(centres)
    ]
    inside = [any(distance(p, c) <= r for c, r in zip(centres, radii, strict=True)) for p in points]
    return sum(inside) / len(inside)


if __name__ == "__main__":
    real, fake = (np.load(path).astype(np.float64) for path in sys.argv[1:3])
    neighbours = int(sys.argv[3])
    distances = {
        "frechet": frechet(real, fake),
        "kernel": kernel(real.tolist(), fake.tolist()),
        "precision": covered(fake, real, neighbours),
        "recall": covered(real, fake, neighbours),
    }
    sys.stdout.write(json.dumps(distances) + "\n")
