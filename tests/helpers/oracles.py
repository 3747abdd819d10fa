"""The three hams once more, in numpy float64, one image at a time, straight from the paper's algorithms.

Nothing here comes from the library: where the two agree, two different programs agree.
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


def nmf(x, d, steps, eps=EPS, codes_init="softmax"):
    x, d = x.astype(np.float64), d.astype(np.float64)
    c = softmax_columns(d.T @ x) if codes_init == "softmax" else cosine_codes(x, d, 1.0)
    for _ in range(steps):
        c = c * np.einsum("dr,dn->rn", d, x) / (np.einsum("dr,ds,sn->rn", d, d, c) + eps)
        d = d * np.einsum("dn,rn->dr", x, c) / (np.einsum("ds,sn,rn->dr", d, c, c) + eps)
    c = c * np.einsum("dr,dn->rn", d, x) / (np.einsum("dr,ds,sn->rn", d, d, c) + eps)
    return d, c, d @ c


def vq(x, d, steps, temperature=0.01):
    x, d = x.astype(np.float64), d.astype(np.float64)
    for _ in range(steps):
        c = cosine_codes(x, d, temperature)
        d = np.stack([(x * weights).sum(axis=1) / (weights.sum() + EPS) for weights in c], axis=1)
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
