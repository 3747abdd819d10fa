"""The three hams in numpy float64, one image at a time, written from the paper and not from the library.

`nmf` and `vq` end with one more update of the codes, as the authors' code does; `as_printed=True` leaves it out, which
is Algorithms 1 and 2 of the paper: the output is D_K C_K.
"""

from __future__ import annotations

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


HAMS = {"nmf": nmf, "vq": vq, "cd": cd}
