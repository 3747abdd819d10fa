"""`ham recover`: recover a low-rank scene from noise with each ham."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from hamburger.files import encode_json
from hamburger.hams import decompose, hams

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Recovery:
    method: str
    steps: int | None  # None for methods without steps
    error: float  # |estimate - clean| / |clean|
    psnr_gain_db: float  # over the noisy input
    ms: float
    estimate: Tensor  # d n


def recover(scene: Scene, *, rank: int, steps: tuple[int, ...] = (6, 100), seed: int = 0) -> list[Recovery]:
    """Return the noisy input, its truncated SVD, and every ham after few and many steps from one seeded dictionary.

    By Eckart and Young no matrix of rank r is closer to the *noisy* input than the SVD. The clean matrix may be
    approximated better.
    """
    recoveries = [_measure_recovery("noisy", None, scene, scene.noisy, 0.0)]
    start = time.perf_counter()
    u, s, vt = torch.linalg.svd(scene.noisy, full_matrices=False)
    recoveries.append(
        _measure_recovery("svd", None, scene, u[:, :rank] * s[:rank] @ vt[:rank], time.perf_counter() - start)
    )
    for name in ("nmf", "vq", "cd"):
        ham = hams.create(name, rank=rank)
        for count in steps:
            generator = torch.Generator().manual_seed(seed)
            start = time.perf_counter()
            estimate = decompose(scene.noisy[None], ham, steps=count, generator=generator).reconstruction[0]
            recoveries.append(_measure_recovery(name, count, scene, estimate, time.perf_counter() - start))
    return recoveries


def _measure_recovery(method: str, steps: int | None, scene: Scene, estimate: Tensor, seconds: float) -> Recovery:
    error = float((estimate - scene.clean).norm() / scene.clean.norm())
    before = float((scene.noisy - scene.clean).norm() / scene.clean.norm())
    return Recovery(method, steps, error, 20 * math.log10(before / error), seconds * 1e3, estimate)


# -- a generated hyperspectral scene: every pixel mixes a few spectra, so the rank is known ----------------------------


class Scene(NamedTuple):
    clean: Tensor  # d n, in [0, 1], of rank r
    noisy: Tensor  # d n, >= 0
    height: int
    width: int


BANDS = 64


def make_scene(*, bands: int = BANDS, side: int = 96, rank: int = 6, noise: float = 0.25, seed: int = 0) -> Scene:
    """Return a scene of 4 x 4 textured patches that mix `rank` smooth spectra, with Gaussian noise clipped at zero."""
    generator = torch.Generator().manual_seed(seed)
    spectra = _spectra(bands, rank)  # d r
    abundances = _abundances(side, rank, generator)  # r n, columns sum to 1
    clean = spectra @ abundances
    noisy = (clean + noise * torch.randn(clean.shape, generator=generator)).clamp(min=0)
    return Scene(clean, noisy, side, side)


def _spectra(bands: int, rank: int) -> Tensor:
    """Return Gaussian bumps spread over the bands, plus a constant.   ->   d r"""
    position = torch.linspace(0, 1, bands)[:, None]
    centres = torch.linspace(0.05, 0.95, rank)[None]
    return 0.05 + 0.95 * torch.exp(-0.5 * ((position - centres) / 0.09) ** 2)


def _abundances(side: int, rank: int, generator: torch.Generator) -> Tensor:
    """Return the weight of each spectrum in each pixel: two spectra per patch, mixed by a texture.   ->   r n"""
    patch = side // 4
    row, column = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    weights = torch.zeros(rank, side, side)
    for i in range(4):
        for j in range(4):
            first, second = torch.randperm(rank, generator=generator)[:2].tolist()
            inside = (row // patch == i) & (column // patch == j)
            textures = ((row // 3) % 2, (column // 3) % 2, (row // 4 + column // 4) % 2, ((row + column) // 4) % 2)
            share = 0.1 + 0.8 * textures[(i + 2 * j) % 4].float()
            weights[first] += torch.where(inside, share, 0.0)
            weights[second] += torch.where(inside, 1 - share, 0.0)
    return weights.flatten(1)


def as_rgb(matrix: Tensor, height: int, width: int) -> Tensor:
    """Return the means of three groups of bands as red, green and blue.   d n   ->   h w 3, in [0, 1]"""
    blue, green, red = (group.mean(0) for group in matrix.tensor_split(3, dim=0))
    image = torch.stack([red, green, blue], dim=-1) / 0.5
    return image.clamp(0, 1).unflatten(0, (height, width))


# -- table, image and JSON file ---------------------------------------------------------------------------------------


def recovery_table(recoveries: Sequence[Recovery]) -> Table:
    from rich.table import Table

    table = Table(
        title="recovery of a low-rank scene from noise", caption="svd: nearest to the noisy input at this rank"
    )
    table.add_column("method")
    for heading in ("steps", "relative error", "PSNR gain dB", "against svd", "ms"):
        table.add_column(heading, justify="right")
    svd = next(one.error for one in recoveries if one.method == "svd")
    for one in recoveries:
        verdict = "" if one.method in ("svd", "noisy") else "better" if one.error < svd else "worse"
        steps = "" if one.steps is None else str(one.steps)
        table.add_row(one.method, steps, f"{one.error:.3f}", f"{one.psnr_gain_db:+.1f}", verdict, f"{one.ms:.1f}")
    return table


def recovery_image(scene: Scene, recoveries: Sequence[Recovery]) -> bytes:
    """Return a PNG of the clean scene, the noisy scene and all recoveries."""
    from matplotlib.figure import Figure

    tiles = [("clean", scene.clean)]
    for one in recoveries:
        steps = "" if one.steps is None else f", {one.steps} steps"
        tiles.append((f"{one.method}{steps}\nerror {one.error:.3f}", one.estimate))
    columns = -(-len(tiles) // 2)  # rounded up
    figure = Figure(figsize=(2.6 * columns, 6), layout="constrained")
    axes = figure.subplots(2, columns).flatten()
    for axis in axes:
        axis.set_axis_off()
    for axis, (title, matrix) in zip(axes, tiles, strict=False):
        axis.imshow(as_rgb(matrix, scene.height, scene.width).numpy(), interpolation="nearest")
        axis.set_title(title, fontsize=11)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def as_json(recoveries: Sequence[Recovery], **settings: object) -> bytes:
    fields = ("method", "steps", "error", "psnr_gain_db", "ms")
    rows = [{field: getattr(one, field) for field in fields} for one in recoveries]
    return (encode_json({**settings, "recoveries": rows}, indent=2) + "\n").encode()
