"""Predict many images into a folder; a broken image fails alone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hamburger.errors import HamburgerError, OptionError
from hamburger.files import write_atomically
from hamburger.inference.image_inputs import Found, InputImage
from hamburger.training.predictor import FilePredictor

if TYPE_CHECKING:
    from rich.table import Table


SUMMARY = "summary.json"
FILES = ("label", "overlay")  # the kinds of file where a summary names none


@dataclass(frozen=True)
class PredictedImage:
    """What was made of one photograph; `files` are paths below the output folder, by their kind."""

    image: str
    files: dict[str, str]
    row: dict[str, Any]
    cells: tuple[str, ...]


@dataclass
class Summary:
    done: list[PredictedImage] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)  # image, why

    def write(self, path: Path, *, planned: Iterable[str] = (), **settings: object) -> None:
        """The same photographs and weights give the same file: no times, no dates.

        What an earlier call wrote beside it stays listed, and so does what is `planned`, for calls that are killed:
        only what is listed may be written over later.
        """
        rows = {
            **settings,
            "images": [{"image": one.image, **one.files, **one.row} for one in self.done],
            "failed": [{"image": image, "reason": reason} for image, reason in self.failed],
        }
        kept = {name for name in listed_files(path) if os.path.lexists(path.parent / name)} | set(planned)
        kept -= {name for one in self.done for name in one.files.values()}
        if kept:
            rows["earlier"] = sorted(kept)
        write_atomically(path, (json.dumps(rows, indent=2, ensure_ascii=False) + "\n").encode())


def predict_all(
    answers: FilePredictor,
    photos: Sequence[InputImage],
    out: Path,
    *,
    after: Callable[[InputImage], None] = lambda photo: None,
    summary: Summary | None = None,
) -> Summary:
    """Write the files of every photograph below `out`, and tell what was made and what failed."""
    summary = Summary() if summary is None else summary
    for photo in check_outputs(photos, out, answers):
        try:
            summary.done.append(_one(answers, photo, out))
        except HamburgerError as bad:
            summary.failed.append((str(photo.path), str(bad)))
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as full:
            if not _memory(full):
                raise
            why = f"{photo.path}: the network ran out of memory; {answers.remedy}"
            summary.failed.append((str(photo.path), why))
        after(photo)
    return summary


def check_outputs(photos: Sequence[InputImage], out: Path, answers: FilePredictor) -> list[InputImage]:
    """The photographs by the names of their outputs; an error where a file that is not ours would be written over."""
    photos = _by_id(photos) if answers.by_id else list(photos)
    _refuse_to_overwrite(photos, out, answers)
    return photos


def output_names(photos: Sequence[InputImage], answers: FilePredictor) -> list[str]:
    """All that will be written below the output folder, besides the summary."""
    return [path(photo.name).as_posix() for photo in photos for path in answers.files.values()]


def listed_files(summary: Path) -> set[str]:
    """What a summary on disk says was written beside it; nothing where there is none."""
    told = _read(summary) or {"images": []}
    rows = [row for row in told["images"] if isinstance(row, dict)]
    names = [row.get(kind) for row in rows for kind in told.get("files", FILES)]
    return {name for name in (*names, *told.get("earlier", ())) if isinstance(name, str)}


def _read(summary: Path) -> dict[str, Any] | None:
    try:
        told = json.loads(summary.read_bytes())
    except (OSError, ValueError):
        return None
    ours = isinstance(told, dict) and all(isinstance(told.get(key), list) for key in ("images", "failed"))
    return told if ours else None


def _one(answers: FilePredictor, photo: InputImage, out: Path) -> PredictedImage:
    found = answers(*photo.paths)
    files = {kind: answers.files[kind](photo.name) for kind in found.files}
    for kind, path in files.items():
        write_atomically(out / path, found.files[kind])
    return PredictedImage(
        str(photo.path), {kind: path.as_posix() for kind, path in files.items()}, found.row, found.cells
    )


def _by_id(photos: Sequence[InputImage]) -> list[InputImage]:
    owners: dict[str, Path] = {}
    for photo in photos:
        if photo.path.stem in owners:
            raise OptionError(
                f"predict: {owners[photo.path.stem]} and {photo.path} have the same id, but the voc layout has one "
                f"file for it; predict them into different folders"
            )
        owners[photo.path.stem] = photo.path
    return [InputImage(path, stem) for stem, path in owners.items()]


def _refuse_to_overwrite(photos: Sequence[InputImage], out: Path, answers: FilePredictor) -> None:
    inputs = {path.resolve() for photo in photos for path in photo.paths}
    ours = listed_files(out / SUMMARY)
    for name in output_names(photos, answers):
        path = out / name
        if path.resolve() in inputs:
            raise OptionError(f"predict: {path} would overwrite an image; name another folder with --out")
        if name not in ours and os.path.lexists(path):
            raise OptionError(
                f"predict: {path} would overwrite a file that no prediction into {out} has listed in {SUMMARY}; name "
                f"another folder with --out, or move the file"
            )
    if _read(out / SUMMARY) is None and os.path.lexists(out / SUMMARY):
        raise OptionError(
            f"predict: {out / SUMMARY} would overwrite a file that is no summary of predictions; name another folder "
            f"with --out, or move the file"
        )


def _memory(error: BaseException) -> bool:
    # on a CPU the allocator speaks through a plain RuntimeError
    words = str(error).lower()
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "alloc" in words or "out of memory" in words


# ----------------------------------------------------------------------------------------------------------------------
# What a prediction made, in a few lines for the terminal.


ROWS = 20


def table(answers: FilePredictor, summary: Summary) -> Table:
    """A line for each of the first photographs: its first file, or itself where it has none, and the answer."""
    from rich.markup import escape
    from rich.table import Table

    made = Table()
    for heading in answers.columns:
        made.add_column(heading, overflow="fold")
    for one in summary.done[:ROWS]:
        first = next(iter(one.files.values()), one.image)
        made.add_row(*(escape(cell) for cell in (first, *one.cells)))
    return made


def notes(answers: FilePredictor, found: Found, summary: Summary, out: Path) -> Iterator[str]:
    """Nothing is passed over in silence."""
    if len(summary.done) > ROWS:
        yield f"and {len(summary.done) - ROWS} more"
    yield from answers.notes([one.row for one in summary.done])
    if found.repeated:
        yield f"{len(found.repeated)} named more than once, predicted once: {_some(found.repeated)}"
    if found.left_out:
        yield f"{len(found.left_out)} other files in the folders left out: {_some(found.left_out)}"
    yield f"predicted {len(summary.done)}, failed {len(summary.failed)}; wrote {out / SUMMARY}"


def _some(paths: tuple[Path, ...]) -> str:
    more = f", ... ({len(paths) - 3} more)" if len(paths) > 3 else ""
    return ", ".join(map(str, paths[:3])) + more
