"""What `ham gan sample` writes: single images, a sheet, a row for every class, ways from one latent to another."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hamburger.errors import OptionError, check_count, check_positive, check_seed
from hamburger.files import write_atomically
from hamburger.gan.generator import Generator
from hamburger.gan.paths import between
from hamburger.gan.sampling import generate, latents, samples
from hamburger.gan.sheets import sheet, to_bytes, write_png

SUMMARY = "samples.json"
INTERPOLATION_START = 2**40  # numbers of latents that no other picture of this command takes
ROW_START = 2**41


@dataclass(frozen=True)
class Wanted:
    """`count` single images and their sheet, `rows` images of every class, `ways` interpolations of `stops` images."""

    count: int = 64
    rows: int = 8
    ways: int = 4
    stops: int = 9
    classes: tuple[str, ...] = ()  # only these, by name or number; none means all
    truncation: float | None = None
    seed: int = 0
    batch: int = 64

    def __post_init__(self) -> None:
        call = "gan sample"
        check_count(call, "count", self.count, least=0)
        check_count(call, "rows", self.rows, least=0)
        check_count(call, "ways", self.ways, least=0)
        check_count(call, "stops", self.stops, least=2)
        check_count(call, "batch", self.batch, least=1)
        check_seed(call, self.seed)
        if self.truncation is not None:
            check_positive(call, "truncation", self.truncation)
        if not self.count and not self.rows and not self.ways:
            raise OptionError(f"{call}: nothing is asked for; give --count, --rows or --ways")


def chosen_classes(wanted: Sequence[str], known: Sequence[str]) -> list[int]:
    """Numbers of the classes that were named, or of all."""
    from hamburger.errors import did_you_mean

    found = []
    for name in wanted:
        if name in known:
            found.append(list(known).index(name))
        elif name.isdecimal() and int(name) < len(known):
            found.append(int(name))
        else:
            shown = list(known) if len(known) <= 40 else [*known[:10], f"... {len(known)} of them"]
            numbers = f"; numbers go from 0 to {len(known) - 1}" if name.lstrip("-").isdecimal() else ""
            raise OptionError(f"gan sample: no class '{name}'{did_you_mean(name, shown)}{numbers}")
    return found or list(range(len(known)))


def write_samples(
    generator: Generator,
    classes: Sequence[str],
    out: Path,
    wanted: Wanted,
    *,
    after: Callable[[], object] = lambda: None,
    about: dict[str, Any] | None = None,
) -> list[Path]:
    """Every file that was written, the account of them last."""
    own = chosen_classes(wanted.classes, classes)
    written = _singles(generator, out, wanted, own, after)
    written += _rows(generator, classes, out, wanted, own)
    written += _ways(generator, out, wanted, own)
    account = {
        **(about or {}),
        "seed": wanted.seed,
        "truncation": wanted.truncation,
        "classes": {index: classes[index] for index in own},
        "files": [str(path.relative_to(out)) for path in written],
    }
    write_atomically(out / SUMMARY, (json.dumps(account, indent=2) + "\n").encode())
    return [*written, out / SUMMARY]


def _singles(
    generator: Generator, out: Path, wanted: Wanted, own: list[int], after: Callable[[], object]
) -> list[Path]:
    """`image-000000-class-3.png` ... and `sheet.png`: image i is the same whatever else is asked for."""
    labels = None if not wanted.classes else torch.tensor(own).repeat(wanted.count)[: wanted.count]
    made = samples(
        generator,
        wanted.count,
        seed=wanted.seed,
        labels=labels,
        batch_size=wanted.batch,
        truncation=wanted.truncation,
    )
    written: list[Path] = []
    kept: list[Tensor] = []
    for images, drawn in made:
        whole = to_bytes(images).cpu()
        for image, label in zip(whole, drawn.tolist(), strict=True):
            path = out / "images" / f"image-{len(written):06d}-class-{label}.png"
            write_png(path, image)
            written.append(path)
            after()
        if len(written) <= 1024 + wanted.batch:  # a sheet of more is nothing to look at
            kept.append(whole)
    if kept:
        write_png(out / "sheet.png", sheet(torch.cat(kept)[:1024]))
        written.append(out / "sheet.png")
    return written


def _rows(generator: Generator, classes: Sequence[str], out: Path, wanted: Wanted, own: list[int]) -> list[Path]:
    """`classes.png`: a row for every class, the same latents in each."""
    if not wanted.rows:
        return []
    z, _ = latents(
        wanted.rows,
        seed=wanted.seed,
        latent=generator.latent,
        num_classes=generator.num_classes,
        start=ROW_START,
        truncation=wanted.truncation,
    )
    made = [pixels(generator, z, index) for index in own]
    write_png(out / "classes.png", sheet(torch.cat(made), columns=wanted.rows))
    return [out / "classes.png"]


def _ways(generator: Generator, out: Path, wanted: Wanted, own: list[int]) -> list[Path]:
    """`interpolations.png`: a row from one latent to another, the class the same all along."""
    if not wanted.ways:
        return []
    z, _ = latents(
        2 * wanted.ways,
        seed=wanted.seed,
        latent=generator.latent,
        num_classes=generator.num_classes,
        start=INTERPOLATION_START,
        truncation=wanted.truncation,
    )
    made = []
    for way in range(wanted.ways):
        path = between(z[2 * way], z[2 * way + 1], wanted.stops)
        made.append(pixels(generator, path, own[way % len(own)]))
    write_png(out / "interpolations.png", sheet(torch.cat(made), columns=wanted.stops))
    return [out / "interpolations.png"]


def pixels(generator: Generator, z: Tensor, index: int) -> Tensor:
    """Images of given latents in one class, on the CPU.   b latent   ->   b 3 h w, uint8"""
    return to_bytes(generate(generator, z, torch.full((len(z),), index))).cpu()
