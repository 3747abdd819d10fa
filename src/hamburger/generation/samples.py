"""Sample files of trained generators: single images, grids, interpolations, and grids that compare runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hamburger.errors import InputError, OptionError, check_count, check_positive, check_seed, did_you_mean
from hamburger.files import write_atomically
from hamburger.generation.image_grid import tile_images, to_bytes, write_png
from hamburger.generation.networks.generator import Generator
from hamburger.generation.sampling import BLOCK, generate, interpolate_latents, latents, sample, samples
from hamburger.generation.weights import open_generator

SUMMARY = "samples.json"
INTERPOLATION_START = 2**40  # sample numbers that no other file of this command uses
ROW_START = 2**41
FILE_NAMES = re.compile(r"(images/image-\d+-class-\d+|sheet|classes|interpolations)\.png")  # all that is written here
ROWS_SHOWN = 20  # classes in classes.png if none are named; a thousand rows are too many to look at
GRID_IMAGES = 1024  # the most images in sheet.png


@dataclass(frozen=True)
class SampleRequest:
    """What to write: `count` single images and a grid of them, `rows` images of each class, `ways` interpolations of
    `stops` images each.

    If no classes are named, the first `ROWS_SHOWN` get a row.
    """

    count: int = 64
    rows: int = 8
    ways: int = 4
    stops: int = 9
    classes: tuple[str, ...] = ()  # by name or number; empty means all
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
            raise OptionError(f"{call}: nothing to write; give --count, --rows or --ways")


def select_classes(names: Sequence[str], known: Sequence[str]) -> list[int]:
    """Indices of the named classes, or of all if none are named."""
    indices = []
    for name in names:
        if name in known:
            indices.append(list(known).index(name))
        elif name.isdecimal() and int(name) < len(known):
            indices.append(int(name))
        else:
            shown = list(known) if len(known) <= 40 else [*known[:10], f"... {len(known)} of them"]
            numbers = f"; indices go from 0 to {len(known) - 1}" if name.lstrip("-").isdecimal() else ""
            raise OptionError(f"gan sample: no class '{name}'{did_you_mean(name, shown)}{numbers}")
    return indices or list(range(len(known)))


def select_row_classes(request: SampleRequest, known: Sequence[str]) -> list[int]:
    """Indices of the classes with a row in classes.png."""
    selected = select_classes(request.classes, known)
    return (selected if request.classes else selected[:ROWS_SHOWN]) if request.rows else []


def count_images(request: SampleRequest, known: Sequence[str]) -> int:
    """The number of images that a request generates."""
    return request.count + request.rows * len(select_row_classes(request, known)) + request.ways * request.stops


def write_samples(
    generator: Generator,
    classes: Sequence[str],
    out: Path,
    request: SampleRequest,
    *,
    after: Callable[[], object] = lambda: None,
    about: dict[str, Any] | None = None,
) -> list[Path]:
    """Write the requested files and return their paths, samples.json last.

    Files listed in an older samples.json of the folder are removed first, nothing else. `after` is called for each
    image; `about` is added to samples.json.
    """
    selected, in_rows = select_classes(request.classes, classes), select_row_classes(request, classes)
    remove_listed_files(out)
    written: list[Path] = []

    def write_summary() -> None:
        summary = {
            **(about or {}),
            "seed": request.seed,
            "truncation": request.truncation,
            "classes": {index: classes[index] for index in selected},
            "rows": {index: classes[index] for index in in_rows},
            "files": [str(path.relative_to(out)) for path in written],
        }
        write_atomically(out / SUMMARY, (json.dumps(summary, indent=2) + "\n").encode())

    try:
        _write_single_images(generator, out, request, selected, written, after)
        _write_class_rows(generator, out, request, in_rows, written, after)
        _write_interpolations(generator, out, request, selected, written, after)
    except BaseException:
        if written:
            write_summary()  # so that the next call knows what to remove
        raise
    write_summary()
    return [*written, out / SUMMARY]


def remove_listed_files(out: Path) -> None:
    """Remove the images that samples.json lists; a samples.json of another program is left alone."""
    try:
        listed = list(json.loads((out / SUMMARY).read_text())["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    for name in listed:
        if isinstance(name, str) and FILE_NAMES.fullmatch(name):
            (out / name).unlink(missing_ok=True)


def _write_single_images(
    generator: Generator,
    out: Path,
    request: SampleRequest,
    selected: list[int],
    written: list[Path],
    after: Callable[[], object],
) -> None:
    """Write `image-000000-class-3.png` ... and `sheet.png`; image i does not depend on the rest of the request."""
    labels = None if not request.classes else torch.tensor(selected).repeat(request.count)[: request.count]
    batches = samples(
        generator,
        request.count,
        seed=request.seed,
        labels=labels,
        batch_size=request.batch,
        truncation=request.truncation,
    )
    kept: list[Tensor] = []
    for images, labels_drawn in batches:
        pixels = to_bytes(images).cpu()
        for image, label in zip(pixels, labels_drawn.tolist(), strict=True):
            path = out / "images" / f"image-{len(written):06d}-class-{label}.png"
            write_png(path, image)
            written.append(path)
            after()
        if len(written) <= GRID_IMAGES + request.batch:
            kept.append(pixels)
    if kept:
        write_png(out / "sheet.png", tile_images(torch.cat(kept)[:GRID_IMAGES]))
        written.append(out / "sheet.png")


def _write_class_rows(
    generator: Generator,
    out: Path,
    request: SampleRequest,
    selected: list[int],
    written: list[Path],
    after: Callable[[], object],
) -> None:
    """Write `classes.png`: one row per class, with the same latents in each."""
    if not selected:
        return
    z, _ = latents(
        request.rows,
        seed=request.seed,
        latent=generator.latent,
        num_classes=generator.num_classes,
        start=ROW_START,
        truncation=request.truncation,
    )
    labels = torch.tensor(selected).repeat_interleave(request.rows)
    images = render(generator, z.repeat(len(selected), 1), labels, request, after)
    write_png(out / "classes.png", tile_images(images, columns=request.rows))
    written.append(out / "classes.png")


def _write_interpolations(
    generator: Generator,
    out: Path,
    request: SampleRequest,
    selected: list[int],
    written: list[Path],
    after: Callable[[], object],
) -> None:
    """Write `interpolations.png`: each row goes from one latent to another, with a fixed class."""
    if not request.ways:
        return
    z, _ = latents(
        2 * request.ways,
        seed=request.seed,
        latent=generator.latent,
        num_classes=generator.num_classes,
        start=INTERPOLATION_START,
        truncation=request.truncation,
    )
    paths = torch.cat([interpolate_latents(z[2 * way], z[2 * way + 1], request.stops) for way in range(request.ways)])
    classes = torch.tensor([selected[way % len(selected)] for way in range(request.ways)]).repeat_interleave(
        request.stops
    )
    write_png(
        out / "interpolations.png",
        tile_images(render(generator, paths, classes, request, after), columns=request.stops),
    )
    written.append(out / "interpolations.png")


def render(generator: Generator, z: Tensor, y: Tensor, request: SampleRequest, after: Callable[[], object]) -> Tensor:
    """Images of given latents and classes, on the CPU.   b latent, b   ->   b 3 h w, uint8"""
    images = []
    chunk = BLOCK * max(1, request.batch // BLOCK)  # whole blocks, so that only the last one is padded
    for some, classes in zip(z.split(chunk), y.split(chunk), strict=True):
        images.append(to_bytes(generate(generator, some, classes)).cpu())
        for _ in some:
            after()
    return torch.cat(images)


# -- comparison of runs ------------------------------------------------------------------------------------------------

COLUMNS = 16


def compare_samples(
    runs: Sequence[Path], *, columns: int = COLUMNS, seed: int = 0, device: str | torch.device = "cpu"
) -> Tensor:
    """A grid with one row per run: the same latents, and classes spread over all there are.   ->   3 H W, uint8"""
    rows, first = [], None
    for run in runs:
        generator, info, _ = open_generator(run)
        kind = (generator.num_classes, generator.resolution, info.classes)
        if first is not None and kind != first:
            raise InputError(
                f"compare_samples: {run} has other classes or another size than {runs[0]}; give runs of one data set"
            )
        first = kind
        classes = torch.arange(columns) * generator.num_classes // columns
        rows.append(to_bytes(sample(generator.to(device), columns, seed=seed, labels=classes)).cpu())
    if not rows:
        raise InputError("compare_samples: there are no runs; give at least one")
    return tile_images(torch.cat(rows), columns=columns)
