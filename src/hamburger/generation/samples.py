"""What `ham gan sample` writes: single images, sheets, interpolations, generators side by side."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hamburger.errors import InputError, OptionError, check_count, check_positive, check_seed
from hamburger.files import write_atomically
from hamburger.generation.image_sheets import sheet, to_bytes, write_png
from hamburger.generation.networks.generator import Generator
from hamburger.generation.sampling import BLOCK, between, generate, latents, sample, samples
from hamburger.generation.weights import open_generator

SUMMARY = "samples.json"
INTERPOLATION_START = 2**40  # numbers of latents that no other picture of this command takes
ROW_START = 2**41
NAMES = re.compile(r"(images/image-\d+-class-\d+|sheet|classes|interpolations)\.png")  # what is written here
ROWS_SHOWN = 20  # classes in classes.png where none are named: a thousand rows are nothing to look at


@dataclass(frozen=True)
class Wanted:
    """`count` single images and their sheet, `rows` images of each class, `ways` interpolations of `stops` images.

    Of classes that are not named the first `ROWS_SHOWN` get a row.
    """

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


def row_classes(wanted: Wanted, known: Sequence[str]) -> list[int]:
    """Those with a row in classes.png."""
    own = chosen_classes(wanted.classes, known)
    return (own if wanted.classes else own[:ROWS_SHOWN]) if wanted.rows else []


def images_asked(wanted: Wanted, known: Sequence[str]) -> int:
    """How many images all of it takes."""
    return wanted.count + wanted.rows * len(row_classes(wanted, known)) + wanted.ways * wanted.stops


def write_samples(
    generator: Generator,
    classes: Sequence[str],
    out: Path,
    wanted: Wanted,
    *,
    after: Callable[[], object] = lambda: None,
    about: dict[str, Any] | None = None,
) -> list[Path]:
    """Every file that was written, the account of them last. What an older account in the folder lists is removed, and
    nothing else; `after` is called with each image.
    """
    own, in_rows = chosen_classes(wanted.classes, classes), row_classes(wanted, classes)
    remove_old(out)
    written: list[Path] = []

    def note_all() -> None:
        account = {
            **(about or {}),
            "seed": wanted.seed,
            "truncation": wanted.truncation,
            "classes": {index: classes[index] for index in own},
            "rows": {index: classes[index] for index in in_rows},
            "files": [str(path.relative_to(out)) for path in written],
        }
        write_atomically(out / SUMMARY, (json.dumps(account, indent=2) + "\n").encode())

    try:
        _singles(generator, out, wanted, own, written, after)
        _rows(generator, out, wanted, in_rows, written, after)
        _ways(generator, out, wanted, own, written, after)
    except BaseException:
        if written:
            note_all()  # the next call knows what to remove
        raise
    note_all()
    return [*written, out / SUMMARY]


def remove_old(out: Path) -> None:
    """The pictures that the account in a folder lists; a file that is no such account is a person's own."""
    try:
        listed = list(json.loads((out / SUMMARY).read_text())["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    for name in listed:
        if isinstance(name, str) and NAMES.fullmatch(name):
            (out / name).unlink(missing_ok=True)


def _singles(
    generator: Generator, out: Path, wanted: Wanted, own: list[int], written: list[Path], after: Callable[[], object]
) -> None:
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


def _rows(
    generator: Generator, out: Path, wanted: Wanted, own: list[int], written: list[Path], after: Callable[[], object]
) -> None:
    """`classes.png`: a row a class, the same latents in each."""
    if not own:
        return
    z, _ = latents(
        wanted.rows,
        seed=wanted.seed,
        latent=generator.latent,
        num_classes=generator.num_classes,
        start=ROW_START,
        truncation=wanted.truncation,
    )
    made = pixels(generator, z.repeat(len(own), 1), torch.tensor(own).repeat_interleave(wanted.rows), wanted, after)
    write_png(out / "classes.png", sheet(made, columns=wanted.rows))
    written.append(out / "classes.png")


def _ways(
    generator: Generator, out: Path, wanted: Wanted, own: list[int], written: list[Path], after: Callable[[], object]
) -> None:
    """`interpolations.png`: a row from one latent to another, the class the same all along."""
    if not wanted.ways:
        return
    z, _ = latents(
        2 * wanted.ways,
        seed=wanted.seed,
        latent=generator.latent,
        num_classes=generator.num_classes,
        start=INTERPOLATION_START,
        truncation=wanted.truncation,
    )
    paths = torch.cat([between(z[2 * way], z[2 * way + 1], wanted.stops) for way in range(wanted.ways)])
    classes = torch.tensor([own[way % len(own)] for way in range(wanted.ways)]).repeat_interleave(wanted.stops)
    write_png(out / "interpolations.png", sheet(pixels(generator, paths, classes, wanted, after), columns=wanted.stops))
    written.append(out / "interpolations.png")


def pixels(generator: Generator, z: Tensor, y: Tensor, wanted: Wanted, after: Callable[[], object]) -> Tensor:
    """Images of given latents and classes, on the CPU.   b latent, b   ->   b 3 h w, uint8"""
    made = []
    several = BLOCK * max(1, wanted.batch // BLOCK)  # whole calls of the generator, so that none is filled up in vain
    for some, classes in zip(z.split(several), y.split(several), strict=True):
        made.append(to_bytes(generate(generator, some, classes)).cpu())
        for _ in some:
            after()
    return torch.cat(made)


# ----------------------------------------------------------------------------------------------------------------------
# Generators beside each other: a row each, the same classes and latents in all.


COLUMNS = 16


def beside(
    runs: Sequence[Path], *, columns: int = COLUMNS, seed: int = 0, device: str | torch.device = "cpu"
) -> Tensor:
    """Images of each run's generator in a row, of classes spread over all there are.   ->   3 H W, uint8"""
    rows, first = [], None
    for run in runs:
        generator, info, _ = open_generator(run)
        known = (generator.num_classes, generator.resolution, info.classes)
        if first is not None and known != first:
            raise InputError(f"beside: {run} has other classes or sizes than {runs[0]}; give runs of one data set")
        first = known
        classes = torch.arange(columns) * generator.num_classes // columns
        rows.append(to_bytes(sample(generator.to(device), columns, seed=seed, labels=classes)).cpu())
    if not rows:
        raise InputError("beside: there is no run to show; give at least one")
    return sheet(torch.cat(rows), columns=columns)
