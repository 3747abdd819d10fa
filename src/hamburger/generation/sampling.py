"""Images from a seed: sample i is the same image in whatever batch it is made."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import parametrize

from hamburger.errors import InputError, OptionError, ShapeError, check_count, check_positive, check_seed
from hamburger.generation.networks.generator import Generator

BLOCK = 16  # images that the generator makes in one call


def latents(
    count: int,
    *,
    seed: int,
    latent: int,
    num_classes: int,
    start: int = 0,
    labels: int | Tensor | None = None,
    truncation: float | None = None,
) -> tuple[Tensor, Tensor]:
    """z: count latent (normal) and y: count, of the samples start, start + 1, ...: functions of seed and number alone.

    `labels` is one class for all, or a class for each (count); without it classes are drawn, all equally likely.
    `truncation` is the largest entry of z, see `paths.truncated`.
    """
    check_count("latents", "count", count, least=0)
    check_count("latents", "start", start, least=0)
    check_seed("latents", seed)
    given = _labels(count, num_classes, labels)
    numbers = torch.arange(start, start + count, device="cpu")
    z = normals(seed, numbers, latent)
    z = z if truncation is None else truncated(z, truncation)
    return z, classes(seed, numbers, num_classes) if given is None else given


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
    """Images (b 3 h w in [-1, 1]) and classes (b), batch by batch, where the generator's weights are.

    The generator is in evaluation mode while images are made, and in the mode it was in when they have been.
    """
    check_count("sample", "count", count, least=0)
    check_count("sample", "batch_size", batch_size, least=1)
    check_seed("sample", seed)
    given = _labels(count, generator.num_classes, labels)
    device = generator.project.bias.device
    images: list[Tensor] = []
    classes: list[Tensor] = []
    held = 0
    # blocks begin at multiples of BLOCK, so that a number has its place in one whatever was asked for with it
    begin, end = start - start % BLOCK, start + count if count else 0
    several = BLOCK * max(1, batch_size // BLOCK)
    for first in range(begin, end, several):
        z, y = latents(
            min(several, end - first),
            seed=seed,
            latent=generator.latent,
            num_classes=generator.num_classes,
            start=first,
            truncation=truncation,
        )
        wanted = slice(max(start - first, 0), len(y))
        if given is not None:
            y[wanted] = given[first + wanted.start - start : first + wanted.stop - start]
        images.append(generate(generator, z, y)[wanted])
        classes.append(y[wanted].to(device))
        held += len(images[-1])
        last = first + several >= end
        if held >= batch_size or last:
            made = zip(torch.cat(images).split(batch_size), torch.cat(classes).split(batch_size), strict=True)
            images, classes, held = [], [], 0
            for batch, labelled in made:
                if len(batch) == batch_size or last:
                    yield batch, labelled
                else:  # the rest waits for more
                    images, classes, held = [batch], [labelled], len(batch)


@torch.no_grad()
def generate(generator: Generator, z: Tensor, y: Tensor) -> Tensor:
    """Images of given latents and classes, where the generator is.   b latent, b   ->   b 3 h w in [-1, 1]

    Always in calls of BLOCK, the last filled up: kernels are chosen by the number of images, and other kernels round
    otherwise, enough to change a byte of a picture. Weights are normalised once for all calls.
    """
    device = generator.project.bias.device
    missing = -len(z) % BLOCK
    z, y = F.pad(z, (0, 0, 0, missing)).to(device), F.pad(y, (0, missing)).to(device)
    training = generator.training
    generator.eval()
    try:
        with parametrize.cached():
            made = [generator(a, b) for a, b in zip(z.split(BLOCK), y.split(BLOCK), strict=True)]
    finally:
        generator.train(training)
    return torch.cat(made)[: len(y) - missing]


def sample(
    generator: Generator,
    count: int,
    *,
    seed: int,
    labels: int | Tensor | None = None,
    start: int = 0,
    batch_size: int = 64,
    truncation: float | None = None,
) -> Tensor:
    """`count` images in the CPU's memory.   ->   count 3 h w in [-1, 1]

    Image i depends on `seed` and `start + i`, not on `batch_size`, to the last bit.
    """
    made = [
        images.cpu()
        for images, _ in samples(
            generator, count, seed=seed, labels=labels, start=start, batch_size=batch_size, truncation=truncation
        )
    ]
    size = generator.resolution
    return torch.cat(made) if made else torch.empty(0, 3, size, size)


def _labels(count: int, num_classes: int, labels: int | Tensor | None) -> Tensor | None:
    if labels is None:
        return None
    if isinstance(labels, int) and not isinstance(labels, bool):
        labels = torch.full((count,), labels)
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dtype == torch.bool:
        raise InputError(f"sample: labels must be a class, a tensor of whole numbers, or None, got {labels!r}")
    if labels.shape != (count,):
        raise ShapeError(f"sample: there must be one label per image, ({count},), got {tuple(labels.shape)}")
    if count and not (int(labels.min()) >= 0 and int(labels.max()) < num_classes):
        raise OptionError(
            f"sample: labels must lie in 0 ... {num_classes - 1}, got {int(labels.min())} ... {int(labels.max())}"
        )
    return labels.long().cpu()


# ----------------------------------------------------------------------------------------------------------------------
# Random numbers as functions of a seed and a sample's number alone.
#
# torch's generator on the CPU keeps 32 bits of its seed: with one for each of 50,000 samples, two would now and then be
# the same. Here every sample has a stream of SplitMix64 (Steele et al., 2014) of its own, from 64 bits.


GOLDEN = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def normals(seed: int, numbers: Tensor, width: int) -> Tensor:
    """Standard normal, by Box and Muller.   numbers: b   ->   b width"""
    bits = _bits(seed, numbers, 1, 2 * width)
    radius, angle = ((part + 1) * 2.0**-53 for part in bits.double().chunk(2, dim=1))  # in (0, 1]
    return ((-2 * radius.log()).sqrt() * (2 * math.pi * angle).cos()).float()


def classes(seed: int, numbers: Tensor, num_classes: int) -> Tensor:
    """0 ... num_classes - 1, all equally likely; the modulo's bias is below 2^-40 for thousands.   b   ->   b"""
    return _bits(seed, numbers, 0, 1)[:, 0] % num_classes


def _bits(seed: int, numbers: Tensor, first: int, count: int) -> Tensor:
    """Draws first, first + 1, ... of every sample's stream, 53 bits each.   b   ->   b count"""
    key = _mixed(torch.tensor(_signed(seed + GOLDEN), device="cpu"))
    stream = _mixed(key + _signed(GOLDEN) * (numbers + 1))
    steps = torch.arange(first + 1, first + count + 1, device="cpu")
    return _shifted(_mixed(stream[:, None] + _signed(GOLDEN) * steps), 11)


def _mixed(x: Tensor) -> Tensor:
    """SplitMix64's mixing, modulo 2^64: different numbers give different ones."""
    x = (x ^ _shifted(x, 30)) * _signed(FIRST)
    x = (x ^ _shifted(x, 27)) * _signed(SECOND)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    """To the right, with zeros: torch's own shift repeats the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _signed(x: int) -> int:
    """The int64 with the same 64 bits."""
    return (x + 2**63) % 2**64 - 2**63


# ----------------------------------------------------------------------------------------------------------------------
# Latents by design: nearer to the mean, or on the way from one to another.


def truncated(z: Tensor, limit: float) -> Tensor:
    """Normal draws as draws of the normal that ends at -limit and limit, each entry by itself and in its order.

    By ranks (u -> the same share of the shorter distribution) instead of by drawing again: sample i stays a function of
    its own number. Smaller limits give likelier and less varied images.
    """
    check_positive("truncated", "limit", limit)
    low, high = torch.special.ndtr(torch.tensor([-limit, limit], dtype=torch.float64, device=z.device))
    share = low + torch.special.ndtr(z.double()) * (high - low)
    return torch.special.ndtri(share).clamp(-limit, limit).to(z.dtype)


def between(start: Tensor, end: Tensor, count: int) -> Tensor:
    """`count` latents from `start` to `end`, both included, along the arc: a straight line would pass through short
    vectors, which a normal of many entries hardly ever draws.   latent, latent   ->   count latent
    """
    check_count("between", "count", count, least=2)
    if start.dim() != 1 or start.shape != end.shape:
        raise ShapeError(f"between: needs two latents of one length, got {tuple(start.shape)} and {tuple(end.shape)}")
    a, b = start.double(), end.double()
    cosine = torch.dot(a, b) / (a.norm() * b.norm()).clamp_min(1e-12)
    angle = torch.arccos(cosine.clamp(-1, 1))
    t = torch.linspace(0, 1, count, dtype=torch.float64, device=a.device)[:, None]
    if angle.sin() < 1e-6:  # on one line, there is no arc
        return torch.lerp(a[None], b[None], t).to(start.dtype)
    made = (torch.sin((1 - t) * angle) * a + torch.sin(t * angle) * b) / angle.sin()
    made[0], made[-1] = a, b
    return made.to(start.dtype)
