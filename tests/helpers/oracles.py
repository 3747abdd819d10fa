"""The hams in numpy float64, one image at a time, written from the papers and not from the library.

`nmf` and `vq` end with one more update of the codes, as the authors' code does; `as_printed=True` leaves it out, which
is Algorithms 1 and 2 of the paper: the output is D_K C_K. All others except `cd` end like `nmf`.
"""

from __future__ import annotations

import itertools

import numpy as np

EPS = 1e-6


def softmax_columns(a):
    e = np.exp(a - a.max(axis=0))
    return e / e.sum(axis=0)


def unit_columns(a, eps=1e-12):
    return a / np.maximum(np.sqrt((a**2).sum(axis=0)), eps)


def cosine_codes(x, d, temperature):
    return softmax_columns(unit_columns(d, EPS).T @ unit_columns(x) / temperature)


def columns(x, r, nonnegative):
    """r columns spread over the n positions: one from each of r equal stretches, with unit length."""
    d, n = x.shape
    positions = []
    for k in range(r):
        turn = (0.5 + k * (40503 / 65536)) % 1  # exact in float64
        positions.append(int((k * n + turn * max(n - r, 0)) // r))
    picked = unit_columns(x.astype(np.float64)[:, positions], EPS)
    return unit_columns(picked + 0.1 / np.sqrt(d)) if nonnegative else picked


def nmf(x, d, steps, eps=EPS, codes_init="softmax", codes_temperature=1.0, as_printed=False):
    x, d = x.astype(np.float64), d.astype(np.float64)
    c = softmax_columns(d.T @ x) if codes_init == "softmax" else cosine_codes(x, d, codes_temperature)
    for _ in range(steps):
        c = c * np.einsum("dr,dn->rn", d, x) / (np.einsum("dr,ds,sn->rn", d, d, c) + eps)
        d = d * np.einsum("dn,rn->dr", x, c) / (np.einsum("ds,sn,rn->dr", d, c, c) + eps)
    if not as_printed:
        c = c * np.einsum("dr,dn->rn", d, x) / (np.einsum("dr,ds,sn->rn", d, d, c) + eps)
    return d, c, d @ c


def vq(x, d, steps, temperature=0.01, as_printed=False):
    x, d = x.astype(np.float64), d.astype(np.float64)
    for _ in range(steps):
        c = cosine_codes(x, d, temperature)
        d = np.stack([(x * weights).sum(axis=1) / (weights.sum() + EPS) for weights in c], axis=1)
    if not as_printed:
        c = cosine_codes(x, d, temperature)
    return d, c, d @ c


def cd(x, d, steps, temperature=0.01, beta=0.1):
    x, d = x.astype(np.float64), d.astype(np.float64)
    for _ in range(steps):
        c = cosine_codes(x, d, temperature)
        d = np.stack([(x * weights).sum(axis=1) / (weights.sum() + EPS) for weights in c], axis=1)
        d = unit_columns(d, EPS)
    # ridge regression as an ordinary least squares problem on an augmented system
    r = d.shape[1]
    a = np.vstack([d, np.sqrt(beta) * np.eye(r)])
    c = np.linalg.lstsq(a, np.vstack([x, np.zeros((r, x.shape[1]))]), rcond=None)[0]
    return d, c, d @ c


def hals(x, d, steps, eps=EPS):
    """Each row and each column from the residual of X without its own atom."""
    x, d = x.astype(np.float64), d.astype(np.float64).copy()
    c = softmax_columns(d.T @ x)

    def best(target, direction, old):
        return np.maximum((direction @ target + eps * old) / (direction @ direction + eps), 0)

    for half in range(2 * steps + 1):
        for k in range(d.shape[1]):
            others = [j for j in range(d.shape[1]) if j != k]
            residual = x - d[:, others] @ c[others]
            if half % 2 == 0:
                c[k] = best(residual, d[:, k], c[k])
            else:
                d[:, k] = best(residual.T, c[k], d[:, k])
    return d, c, d @ c


def robust(x, d, steps, eps=EPS, threshold=1.0, component="low-rank"):
    x, d = x.astype(np.float64), d.astype(np.float64)
    c = softmax_columns(d.T @ x)
    t = threshold * np.sqrt((x**2).mean())

    def sparse(d, c):
        residual = x - d @ c
        return np.where(residual > t, residual - t, np.where(residual < -t, residual + t, 0))

    for k in range(steps + 1):
        y = x - sparse(d, c)
        c = c * (d.T @ y) / (d.T @ (d @ c) + eps)
        if k < steps:
            d = d * (y @ c.T) / ((d @ c) @ c.T + eps)
    return d, c, d @ c if component == "low-rank" else sparse(d, c)


def laplacian(grid):
    """Degrees and adjacency of a grid as n x n matrices, from its list of edges."""
    index = np.arange(np.prod(grid)).reshape(grid)
    adjacency = np.zeros((index.size, index.size))
    for here in itertools.product(*map(range, grid)):
        for axis in range(len(grid)):
            there = tuple(i + (k == axis) for k, i in enumerate(here))
            if there[axis] < grid[axis]:
                adjacency[index[here], index[there]] = adjacency[index[there], index[here]] = 1 / (2 * len(grid))
    return np.diag(adjacency.sum(axis=0)), adjacency


def local(x, d, steps, eps=EPS, smoothness=1.0, grid=None):
    x, d = x.astype(np.float64), d.astype(np.float64)
    degrees, adjacency = laplacian((x.shape[1],) if grid is None else grid)
    c = softmax_columns(d.T @ x)
    for k in range(steps + 1):
        s = smoothness * np.diag((d**2).sum(axis=0))
        c = c * (d.T @ x + s @ c @ (adjacency + degrees)) / (d.T @ (d @ c) + 2 * s @ c @ degrees + eps)
        if k < steps:
            penalty = smoothness * np.diag(np.diag(c @ (degrees - adjacency) @ c.T))
            d = d * (x @ c.T) / ((d @ c) @ c.T + d @ penalty + eps)
    return d, c, d @ c


def split_grid(grid, window):
    """The positions of every window, with smaller windows at the ends."""
    index = np.arange(np.prod(grid)).reshape(grid)
    starts = itertools.product(*(range(0, size, window) for size in grid))
    return [index[tuple(slice(a, a + window) for a in start)].ravel() for start in starts]


def windowed(x, d, steps, eps=EPS, window=16, local_rank=None, grid=None):
    x, d = x.astype(np.float64), d.astype(np.float64)
    r = d.shape[1]
    own = r // 4 if local_rank is None else local_rank
    windows = split_grid((x.shape[1],) if grid is None else grid, window)
    c = softmax_columns(d.T @ x)
    shared, locals_ = d[:, : r - own], [d[:, r - own :]] * len(windows)
    for k in range(steps + 1):
        above, below, moved = np.zeros_like(shared), np.zeros_like(shared), []
        for positions, mine in zip(windows, locals_, strict=True):
            e, y = np.hstack([shared, mine]), x[:, positions]
            c[:, positions] = c[:, positions] * (e.T @ y) / (e.T @ (e @ c[:, positions]) + eps)
            g, h = c[: r - own, positions], c[r - own :, positions]
            z = e @ c[:, positions]
            above, below = above + y @ g.T, below + z @ g.T
            moved.append(mine * (y @ h.T) / (z @ h.T + eps))
        if k < steps:
            shared, locals_ = shared * above / (below + eps), moved
    codes = np.zeros((r - own + own * len(windows), x.shape[1]))
    codes[: r - own] = c[: r - own]
    for i, positions in enumerate(windows):
        rows = slice(r - own + i * own, r - own + (i + 1) * own)
        codes[rows, positions] = c[r - own :, positions]
    bases = np.hstack([shared, *locals_])
    return bases, codes, bases @ codes


def learned(x, d, steps, eps=EPS, relaxation=1.0, relaxations=None):
    """`relaxations`: those of all 2 K + 1 half-steps."""
    x, d = x.astype(np.float64), d.astype(np.float64)
    c = softmax_columns(d.T @ x)
    for half in range(2 * steps + 1):
        w = relaxation if relaxations is None else relaxations[half]
        old = d if half % 2 else c
        up = x @ c.T if half % 2 else d.T @ x
        down = (d @ c) @ c.T if half % 2 else d.T @ (d @ c)
        best = old * up / (down + eps)
        new = np.maximum(old + w * (best - old), best / 10)
        c, d = (c, new) if half % 2 else (new, d)
    return d, c, d @ c


HAMS = {"nmf": nmf, "vq": vq, "cd": cd, "hals": hals, "robust": robust, "local": local}
HAMS |= {"windowed": windowed, "learned": learned}
