"""Recover a scene from noise with each ham, and with the best that any matrix of that rank can do."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from hamburger.recovery.scene import Scene
from hamburger.solvers import decompose, hams


@dataclass(frozen=True)
class Recovery:
    method: str
    steps: int | None  # None where there are no sweeps
    error: float  # |estimate - clean| / |clean|
    psnr_gain_db: float  # over the noisy input
    ms: float
    estimate: Tensor  # d n


def recover(scene: Scene, *, rank: int, steps: tuple[int, ...] = (6, 100), seed: int = 0) -> list[Recovery]:
    """The noisy input, a truncated SVD of it, and every ham after few and after many sweeps, from one seeded start.

    By Eckart and Young no matrix of rank r is nearer to the *noisy* input than the SVD; it is the yardstick here, not
    an upper bound on how near one can come to the clean matrix.
    """
    found = [_judge("noisy", None, scene, scene.noisy, 0.0)]
    start = time.perf_counter()
    u, s, vt = torch.linalg.svd(scene.noisy, full_matrices=False)
    found.append(_judge("svd", None, scene, u[:, :rank] * s[:rank] @ vt[:rank], time.perf_counter() - start))
    for name in ("nmf", "vq", "cd"):
        ham = hams.create(name, rank=rank)
        for count in steps:
            generator = torch.Generator().manual_seed(seed)
            start = time.perf_counter()
            estimate = decompose(scene.noisy[None], ham, steps=count, generator=generator).reconstruction[0]
            found.append(_judge(name, count, scene, estimate, time.perf_counter() - start))
    return found


def _judge(method: str, steps: int | None, scene: Scene, estimate: Tensor, seconds: float) -> Recovery:
    error = float((estimate - scene.clean).norm() / scene.clean.norm())
    before = float((scene.noisy - scene.clean).norm() / scene.clean.norm())
    return Recovery(method, steps, error, 20 * math.log10(before / error), seconds * 1e3, estimate)
