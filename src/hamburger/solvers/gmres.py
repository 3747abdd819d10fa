"""GMRES for a batch of independent linear systems that are known only by what they do to a vector."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def gmres(apply: Callable[[Tensor], Tensor], g: Tensor, iterations: int, tol: float) -> tuple[Tensor, Tensor]:
    """Solve apply(v) = g for each sample by GMRES from zero.   g: b m   ->   v: b m, relative residuals: b"""
    norm = torch.linalg.vector_norm(g, dim=1, keepdim=True)  # b 1
    safe = torch.where(norm == 0, 1.0, norm)
    krylov = [g / safe]
    hessenberg = g.new_zeros(g.shape[0], iterations + 1, iterations)
    target = g.new_zeros(g.shape[0], iterations + 1, 1)
    target[:, 0] = norm
    v, residual = torch.zeros_like(g), (norm != 0).to(g.dtype).squeeze(1)
    for k in range(iterations):
        w = apply(krylov[k])
        for _ in range(2):  # a second pass keeps the basis orthogonal in float32
            for i, q in enumerate(krylov):
                along = (q * w).sum(1)
                hessenberg[:, i, k] += along
                w = w - along[:, None] * q
        left = torch.linalg.vector_norm(w, dim=1, keepdim=True)
        hessenberg[:, k + 1, k] = left[:, 0]
        krylov.append(w / torch.where(left == 0, 1.0, left))
        small = hessenberg[:, : k + 2, : k + 1]
        if not bool(torch.isfinite(small).all()):
            break  # v stays zero and solves nothing: the residual says so
        y = torch.linalg.pinv(small) @ target[:, : k + 2]  # least squares that survives a singular system
        residual = torch.linalg.vector_norm(small @ y - target[:, : k + 2], dim=(1, 2)) / safe[:, 0]
        if bool((residual <= tol).all()) or k == iterations - 1:
            v = (torch.stack(krylov[: k + 1], dim=2) @ y).squeeze(2)
            break
    # the recurrence's residual drifts from the true one in low precision: report the true one
    true = torch.linalg.vector_norm(g - apply(v), dim=1) / safe[:, 0]
    return v, torch.where(norm[:, 0] == 0, 0.0, true)
