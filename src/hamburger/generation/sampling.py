"""Images from a seed: sample i is the same image whatever batch it is generated in.

Latents and classes come from keyed random numbers: they are functions of the seed and the sample's number alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import parametrize

from hamburger.errors import check_count, check_positive, check_seed
from hamburger.generation.model import Generator, check_classes
from hamburger.training.supervised import evaluation_mode

BLOCK = 16  # images that the generator makes in one call


def latents(
    count: int, *, seed: int, latent: int, num_classes: int, start: int = 0, truncation: float | None = None
) -> tuple[Tensor, Tensor]:
    """z (count latent, normal) and y (count, all classes equally likely) of the samples start, start + 1, ...

    Both are functions of the seed and the sample's number. `truncation` is the largest entry of z, see
    `truncate_latents`.
    """
    check_count("latents", "count", count, least=0)
    check_count("latents", "start", start, least=0, most=2**63 - 1)
    check_seed("latents", seed)
    bits = draw_bits(seed, start, count, 1 + 2 * latent)
    radius, angle = ((part + 1) * 2.0**-53 for part in bits[:, 1:].double().chunk(2, dim=1))  # in (0, 1]
    z = ((-2 * radius.log()).sqrt() * (2 * math.pi * angle).cos()).float()  # Box-Muller
    y = bits[:, 0] % num_classes  # the bias of the modulo is below 2^-40
    return (z if truncation is None else truncate_latents(z, truncation)), y


def samples(
    generator: Generator,
    count: int,
    *,
    seed: int,
    labels: int | Tensor | None = None,
    start: int = 0,
    batch_size: int = 64,
    truncation: float | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield images (b 3 h w in [-1, 1]) and classes (b), at most `batch_size` or 16 at once, on the generator's device.

    The generator is in evaluation mode while it generates, and then back in the mode it was in.
    """
    check_count("sample", "count", count, least=0)
    check_count("sample", "batch_size", batch_size, least=1)
    check_seed("sample", seed)
    if isinstance(labels, int):
        labels = torch.full((count,), labels)
    if labels is not None:
        labels = labels.cpu() if isinstance(labels, Tensor) else labels  # on a GPU their range would not be checked
        check_classes("sample", labels, count, generator.num_classes)
    # blocks begin at multiples of BLOCK, so that a sample has the same place in its block whatever `start` is
    begin, end = start - start % BLOCK, start + count
    chunk = BLOCK * max(1, batch_size // BLOCK)
    for first in range(begin, end, chunk) if count else ():
        last, skipped = min(first + chunk, end), max(start - first, 0)
        sizes = {"latent": generator.latent, "num_classes": generator.num_classes}
        z, y = latents(last - first, start=first, seed=seed, truncation=truncation, **sizes)
        if labels is not None:
            y[skipped:] = labels[first + skipped - start : last - start]
        images = generate(generator, z, y)
        yield images[skipped:], y[skipped:].to(images.device)


def generate(generator: Generator, z: Tensor, y: Tensor) -> Tensor:
    """Images of given latents and classes, on the generator's device.   b latent, b   ->   b 3 h w in [-1, 1]

    Every call of the generator gets BLOCK samples, the last one padded: libraries choose kernels by batch size, and
    other kernels round differently, enough to change a byte of an image. Spectral norms are computed once in all.
    """
    device = generator.project.bias.device
    missing = -len(z) % BLOCK
    z, y = F.pad(z, (0, 0, 0, missing)).to(device), F.pad(y, (0, missing)).to(device)
    with evaluation_mode(generator), parametrize.cached():
        images = [generator(a, b) for a, b in zip(z.split(BLOCK), y.split(BLOCK), strict=True)]
    return torch.cat(images)[: len(y) - missing]


def sample(generator: Generator, count: int, *, seed: int, **options: Any) -> Tensor:
    """`count` images on the CPU; `options` are those of `samples`.   ->   count 3 h w in [-1, 1]

    Image i is a function of `seed` and `start + i`; `batch_size` does not change a bit of it.
    """
    batches = samples(generator, count, seed=seed, **options)
    empty = torch.empty(0, 3, generator.resolution, generator.resolution)
    return torch.cat([empty, *(images.cpu() for images, _ in batches)])


# -- keyed random numbers ----------------------------------------------------------------------------------------------
#
# torch's CPU generator keeps 32 bits of its seed: with one generator for each of 50,000 samples, two would sometimes be
# equal. Here every sample has its own stream of SplitMix64 (Steele et al., 2014), seeded with 64 bits.


GOLDEN = 0x9E3779B97F4A7C15
MULTIPLIER_1, MULTIPLIER_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def draw_bits(seed: int, start: int, count: int, width: int) -> Tensor:
    """The first `width` numbers, 53 bits each, of the streams start ... start + count - 1.   ->   count width"""
    key = _mix(np.array([(seed + GOLDEN) % 2**64], np.uint64))
    stream = _mix(key + GOLDEN * np.arange(start + 1, start + count + 1, dtype=np.uint64))
    words = _mix(stream[:, None] + GOLDEN * np.arange(1, width + 1, dtype=np.uint64))
    return torch.from_numpy((words >> 11).astype(np.int64))


def _mix(x: Any) -> Any:
    """SplitMix64's mixing function of an array of uint64; it is a bijection."""
    x = (x ^ (x >> 30)) * MULTIPLIER_1
    x = (x ^ (x >> 27)) * MULTIPLIER_2
    return x ^ (x >> 31)


# -- truncation and interpolation of latents ---------------------------------------------------------------------------


def truncate_latents(z: Tensor, limit: float) -> Tensor:
    """Map normal numbers to the normal distribution truncated at -limit and limit, entry by entry.

    Each entry keeps its quantile instead of being drawn again, so that sample i stays a function of its own number.
    Smaller limits give likelier and less varied images.
    """
    check_positive("truncate_latents", "limit", limit)
    low, high = torch.special.ndtr(torch.tensor([-limit, limit], dtype=torch.float64, device=z.device))
    share = low + torch.special.ndtr(z.double()) * (high - low)
    return torch.special.ndtri(share).clamp(-limit, limit).to(z.dtype)


def interpolate_latents(start: Tensor, end: Tensor, count: int) -> Tensor:
    """`count` latents from `start` to `end`, both included, by spherical interpolation.   ->   count latent

    A straight line would pass through short vectors, which a normal distribution of many dimensions hardly ever draws.
    """
    a, b = start.double(), end.double()
    cosine = torch.dot(a, b) / (a.norm() * b.norm()).clamp_min(1e-12)
    angle = torch.arccos(cosine.clamp(-1, 1))
    t = torch.linspace(0, 1, count, dtype=torch.float64, device=a.device)[:, None]
    if angle.sin() < 1e-6:  # parallel vectors: there is no arc
        return torch.lerp(a[None], b[None], t).to(start.dtype)
    path = (torch.sin((1 - t) * angle) * a + torch.sin(t * angle) * b) / angle.sin()
    path[0], path[-1] = a, b
    return path.to(start.dtype)
