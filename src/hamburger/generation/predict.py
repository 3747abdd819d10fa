"""Write the images of a trained generator: single images, a grid, a row per class, interpolations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hamburger.errors import DataError, OptionError, check_count, check_positive, check_seed
from hamburger.files import encode_json, read_json_object, write_atomically
from hamburger.generation.model import Generator
from hamburger.generation.sampling import BLOCK, generate, interpolate_latents, latents, samples
from hamburger.generation.visualize import tile_images, to_bytes, write_png
from hamburger.training.datasets import select_classes
from hamburger.training.supervised import check_prediction

SUMMARY = "samples.json"
INTERPOLATION_START = 2**40  # sample numbers that no other file of this command uses
ROW_START = 2**41
FILE_NAMES = re.compile(r"(images/image-\d+-class-\d+|sheet|classes|interpolations)\.png")  # all that is written here
ROWS_SHOWN = 20  # classes in classes.png if none are named; a thousand rows are too many to look at
GRID_IMAGES = 1024  # the most images in sheet.png


@dataclass(frozen=True)
class SampleRequest:
    """What to write: `count` single images and a grid of them, `rows` images of each class, and interpolations.

    An interpolation has `stops` images. If no classes are named, the first `ROWS_SHOWN` get a row.
    """

    count: int = 64
    rows: int = 8
    interpolations: int = 4
    stops: int = 9
    classes: tuple[str, ...] = ()  # by name or number; empty means all
    truncation: float | None = None
    seed: int = 0
    batch: int = 64

    def __post_init__(self) -> None:
        call = "gan sample"
        for name, least in (("count", 0), ("rows", 0), ("interpolations", 0), ("stops", 2), ("batch", 1)):
            check_count(call, name, getattr(self, name), least=least)
        check_seed(call, self.seed)
        if self.truncation is not None:
            check_positive(call, "truncation", self.truncation)
        if not self.count and not self.rows and not self.interpolations:
            raise OptionError(f"{call}: nothing to write; give --count, --rows or --interpolations")


def select_row_classes(request: SampleRequest, known: Sequence[str]) -> list[int]:
    """Indices of the classes with a row in classes.png."""
    selected = select_classes("gan sample", known, request.classes or None)
    return (selected if request.classes else selected[:ROWS_SHOWN]) if request.rows else []


def count_images(request: SampleRequest, known: Sequence[str]) -> int:
    """The number of images that a request generates."""
    classes = select_row_classes(request, known)
    return request.count + request.rows * len(classes) + request.interpolations * request.stops


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
    selected = select_classes("gan sample", classes, request.classes or None)
    in_rows = select_row_classes(request, classes)
    _remove_listed_files(out)
    written: list[str] = []
    try:
        for name, image in _make_files(generator, request, selected, in_rows, after):
            write_png(out / name, image)
            written.append(name)
    finally:
        if written:  # also after an interruption, so that the next call knows what to remove
            summary = {
                **(about or {}),
                "seed": request.seed,
                "truncation": request.truncation,
                "classes": {index: classes[index] for index in selected},
                "rows": {index: classes[index] for index in in_rows},
                "files": written,
            }
            write_atomically(out / SUMMARY, (encode_json(summary, indent=2) + "\n").encode())
    return [out / name for name in (*written, SUMMARY)]


def _remove_listed_files(out: Path) -> None:
    """Remove the images that samples.json lists; a samples.json of another program is left alone."""
    try:
        listed = list(read_json_object(out / SUMMARY, "gan sample", most=2**26)["files"])
    except (DataError, KeyError, TypeError):
        return
    for name in listed:
        if isinstance(name, str) and FILE_NAMES.fullmatch(name):
            (out / name).unlink(missing_ok=True)


def _make_files(
    generator: Generator,
    request: SampleRequest,
    selected: Sequence[int],
    in_rows: Sequence[int],
    after: Callable[[], object],
) -> Iterator[tuple[str, Tensor]]:
    """Yield names and images (3 h w, uint8) of the files; a single image does not depend on the rest of the request."""
    options: dict[str, Any] = {"seed": request.seed, "truncation": request.truncation}
    sizes = {"latent": generator.latent, "num_classes": generator.num_classes}
    labels = torch.tensor(selected).repeat(request.count)[: request.count] if request.classes else None
    number = 0
    grid_images: list[Tensor] = []
    for images, drawn in samples(generator, request.count, labels=labels, batch_size=request.batch, **options):
        pixels = to_bytes(check_prediction("pixels", images)).cpu()
        for image, label in zip(pixels, drawn.tolist(), strict=True):
            yield f"images/image-{number:06d}-class-{label}.png", image
            after()
            number += 1
        grid_images += pixels[: max(0, GRID_IMAGES - len(grid_images))]
    if grid_images:
        yield "sheet.png", tile_images(torch.stack(grid_images))

    def render(z: Tensor, classes: Tensor) -> Tensor:
        images = []
        for some in zip(z.split(BLOCK), classes.split(BLOCK), strict=True):
            images.append(to_bytes(check_prediction("pixels", generate(generator, *some))).cpu())
            for _ in images[-1]:
                after()
        return torch.cat(images)

    if in_rows:  # one row per class, with the same latents in each
        z, _ = latents(request.rows, start=ROW_START, **sizes, **options)
        images = render(z.repeat(len(in_rows), 1), torch.tensor(in_rows).repeat_interleave(request.rows))
        yield "classes.png", tile_images(images, columns=request.rows)
    if request.interpolations:  # each row goes from one latent to another, with a fixed class
        z, _ = latents(2 * request.interpolations, start=INTERPOLATION_START, **sizes, **options)
        paths = torch.cat([interpolate_latents(a, b, request.stops) for a, b in z.unflatten(0, (-1, 2))])
        classes = torch.tensor([selected[row % len(selected)] for row in range(request.interpolations)])
        images = render(paths, classes.repeat_interleave(request.stops))
        yield "interpolations.png", tile_images(images, columns=request.stops)
