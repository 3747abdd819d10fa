"""Predict many image files into a folder; an image that fails does not stop the others.

A task implements `FilePredictor`.
"""

from __future__ import annotations

import os
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from hamburger.errors import DataError, HamburgerError, InputError, NotFiniteError, OptionError, printable
from hamburger.files import encode_json, parse_json, write_atomically
from hamburger.inference.summary import (
    SUMMARY,
    THE_ONLY_SHARD,
    Row,
    Shard,
    Summary,
    check_records,
    files_of,
    join_records,
    listed_files,
    open_records,
    read_rows,
)
from hamburger.training import image_files
from hamburger.training.safe_files import MAX_NAME_BYTES

if TYPE_CHECKING:
    from rich.table import Table

    from hamburger.checkpoints.weights_file import Info


@dataclass(frozen=True)
class FilePrediction:
    """`row`: fields of summary.json.   `cells`: of the table on the terminal.   `files`: file contents by kind."""

    row: dict[str, Any]
    cells: tuple[str, ...]
    files: dict[str, bytes] = field(default_factory=dict)


class FilePredictor(ABC):
    """`predictor(path)` reads one image file and predicts it; where `pairs` is set it takes two paths.

    The constructor takes the network, its weights' `Info`, the device, and as keywords the options of `ham predict`
    that apply to the task. `files` maps each kind of output file to a function from the image's name to a path below
    the output folder.
    """

    columns: ClassVar[tuple[str, ...]]  # of the table on the terminal
    pairs: ClassVar[bool] = False  # whether it takes two images, LEFT RIGHT
    remedy: ClassVar[str] = "take another --device"  # advice when memory runs out
    files: Mapping[str, Callable[[str], Path]] = {}

    def __init__(self, net: nn.Module, info: Info, device: torch.device) -> None:
        self.net, self.info, self.device = net.to(device).eval(), info, device

    @abstractmethod
    def __call__(self, *paths: Path) -> FilePrediction:
        """Predict one image; raise InputError where the file cannot be used."""

    def settings(self) -> dict[str, Any]:
        """Fields of summary.json that hold for all images."""
        return {"classes": list(self.info.classes)}

    def notes(self, rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
        """Remarks on the rows, to print after the table."""
        return ()


def predict_folder(
    predictor: FilePredictor,
    inputs: FoundImages,
    out: Path,
    *,
    shard: Shard = THE_ONLY_SHARD,
    resume: bool = False,
    after: Callable[[InputImage], object] = lambda image: None,
    **about: object,
) -> Summary:
    """Predict the images of a shard into `out`; when no image is left, write summary.json, with `about` in it.

    With `resume`, images that earlier calls have predicted with the same settings are not predicted again. A single
    shard writes its summary also when it is interrupted; of a killed call the records remain, for `resume`.
    """
    refused = {image.path: why for image in inputs.photos if (why := _check_names(image, predictor))}
    images = tuple(image for image in inputs.photos if image.path not in refused)
    _refuse_to_overwrite(images, out, predictor)
    kinds = {"files": list(predictor.files)} if predictor.files else {}
    settings = parse_json(encode_json(about | predictor.settings() | kinds))
    no_images = [*inputs.failed, *((path, f"{path}: {refused[path]}; rename it") for path in sorted(refused))]
    failed: list[Row] = [{"image": printable(str(path)), "reason": printable(why)} for path, why in no_images]
    names = {_key(image): set(output_names([image], predictor)) for image in images}
    check_records(out)
    earlier = read_rows(out, settings, names) if resume else {}
    out.mkdir(parents=True, exist_ok=True)
    if images:  # earlier rows stay in the summary while this call runs
        rows = [earlier[image] for image in names if image in earlier]
        Summary.of(rows).write(out / SUMMARY, planned=chain.from_iterable(names.values()), **settings)
    own = shard.select(images)
    done = [row for image in own if (row := earlier.get(_key(image))) is not None and "reason" not in row]
    summary = Summary.of([*(failed if shard.index == 1 else ()), *done])
    known = {row["image"] for row in done}
    try:
        with open_records(shard.path(out), settings, done, keep=resume) as record:
            for image in own:
                if _key(image) not in known:
                    record(_predict_or_fail(predictor, image, out, summary))
                after(image)
    except BaseException:
        if shard.count == 1 and (summary.done or summary.failed):
            summary.write(out / SUMMARY, **settings)
            shard.path(out).unlink(missing_ok=True)
        raise
    summary.left = join_records(out, [*names], failed, settings)
    return summary


def _check_names(image: InputImage, predictor: FilePredictor) -> str:
    """Why an image with these names cannot be predicted; empty where it can."""
    names = output_names([image], predictor)
    if not all(map(is_unicode, image.paths)):
        return "its name is not valid Unicode, which no summary can hold"
    if SUMMARY in (name.lower() for name in names):
        return f"its output would be {SUMMARY}, which lists all predictions"
    if max((len(Path(name).name.encode()) for name in names), default=0) > MAX_NAME_BYTES:
        return f"the names of its output would have more than {MAX_NAME_BYTES} bytes"
    return ""


def _key(image: InputImage) -> str:
    """The name of an image in summaries and records."""
    return str(image.path)


def _predict_or_fail(predictor: FilePredictor, image: InputImage, out: Path, summary: Summary) -> Row:
    """Predict one image, add it to the summary and return its row: where that is impossible, with the reason."""
    try:
        prediction = predictor(*image.paths)
        files = {kind: predictor.files[kind](image.name).as_posix() for kind in prediction.files}
        for kind, path in files.items():
            write_atomically(out / path, prediction.files[kind])
        row = {"image": _key(image), **files, **prediction.row}
        summary.done.append(row)
        summary.cells[_key(image)] = prediction.cells
        return row
    except NotFiniteError as bad:
        reason = f"{image.path}: {bad}"
    except HamburgerError as bad:
        reason = str(bad)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as taken:  # a folder `a.png` next to `a.jpg`
        reason = f"{image.path}: its output cannot be written ({taken.strerror}: {taken.filename})"
    except (MemoryError, RuntimeError) as full:  # on a CPU, running out of memory raises a plain RuntimeError
        if not isinstance(full, MemoryError) and not re.search("alloc|out of memory", str(full).lower()):
            raise
        reason = f"{image.path}: the network ran out of memory; {predictor.remedy}"
    summary.failed.append({"image": _key(image), "reason": reason})
    return summary.failed[-1]


def output_names(images: Sequence[InputImage], predictor: FilePredictor) -> list[str]:
    """The names of all files that will be written below the output folder, except the summary."""
    return [path(image.name).as_posix() for image in images for path in predictor.files.values()]


def _refuse_to_overwrite(images: Sequence[InputImage], out: Path, predictor: FilePredictor) -> None:
    """Raise where a file that no prediction wrote would be overwritten."""
    inputs = {os.path.realpath(path) for image in images for path in image.paths}
    own_files = listed_files(out / SUMMARY)
    for name in output_names(images, predictor):
        path = out / name
        if os.path.realpath(path) in inputs:
            raise OptionError(f"predict: {path} would overwrite an image; name another folder with --out")
        if name not in (own_files or ()) and os.path.lexists(path):
            raise OptionError(
                f"predict: {path} would overwrite a file that no prediction into {out} has listed in {SUMMARY}; name "
                f"another folder with --out, or move the file"
            )
    if own_files is None and os.path.lexists(out / SUMMARY):
        raise OptionError(
            f"predict: {out / SUMMARY} would overwrite a file that is not a summary of predictions; name another "
            f"folder with --out, or move the file"
        )


# -- output on the terminal --------------------------------------------------------------------------------------------


ROWS = 20


def table(predictor: FilePredictor, summary: Summary) -> Table:
    """A line for each of the first images: its first file, or the image where there is none, and the prediction."""
    from rich.markup import escape
    from rich.table import Table

    result = Table()
    for heading in predictor.columns:
        result.add_column(heading, overflow="fold")
    for row in summary.done[:ROWS]:
        first = next(iter(files_of(row, {"files": list(predictor.files)})), row["image"])
        cells = (first, *summary.cells.get(row["image"], ()))  # only of images that this call has predicted
        result.add_row(*(escape(printable(cell)) for cell in cells))
    return result


def notes(predictor: FilePredictor, inputs: FoundImages, summary: Summary, out: Path) -> Iterator[str]:
    """Lines to print after the table: what was skipped, repeated or failed."""
    if len(summary.done) > ROWS:
        yield f"and {len(summary.done) - ROWS} more"
    yield from predictor.notes(summary.done)
    if inputs.repeated:
        yield f"{len(inputs.repeated)} named more than once, predicted once: {_list_some(inputs.repeated)}"
    if inputs.left_out:
        yield f"{len(inputs.left_out)} other files in the folders left out: {_list_some(inputs.left_out)}"
    counts = f"predicted {len(summary.done)}, failed {len(summary.failed)}"
    if summary.left:
        yield f"{counts}; {summary.left} images are left to other shards, the last of which completes {out / SUMMARY}"
    else:
        yield f"{counts}; wrote {out / SUMMARY}"


def _list_some(paths: tuple[Path, ...]) -> str:
    more = f", ... ({len(paths) - 3} more)" if len(paths) > 3 else ""
    return ", ".join(map(str, paths[:3])) + more


# -- images that the user names ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InputImage:
    """One image to predict, or a stereo pair."""

    path: Path
    name: str  # of its output, without suffix; keeps folders below the given one, as in `trip/0001`
    partner: Path | None = None  # the right image of a pair, whose left image is `path`

    @property
    def paths(self) -> tuple[Path, ...]:
        return (self.path,) if self.partner is None else (self.path, self.partner)


@dataclass(frozen=True)
class FoundImages:
    """The images found, and the paths that gave none."""

    photos: tuple[InputImage, ...]
    failed: tuple[tuple[Path, str], ...]  # paths without an image, and why
    left_out: tuple[Path, ...]  # files in folders without an image suffix
    repeated: tuple[Path, ...]  # named more than once


def find_images(paths: Sequence[Path], *, recursive: bool = False, outside: Path | None = None) -> FoundImages:
    """The images at `paths`: files in the given order, folders sorted; none below `outside`, the output folder.

    `a.jpg` and `a.png`, or `x/a.jpg` and `y/a.jpg`, get different names, so neither overwrites the other's output.
    """
    photos: list[InputImage] = []
    failed: list[tuple[Path, str]] = []
    left_out: list[Path] = []
    repeated: list[Path] = []
    seen: set[str] = set()
    names: dict[str, int] = {}
    for source in paths:
        if not source.is_dir():
            candidates = [(source, source.stem)]  # also a missing file: reading it raises the error
        else:
            files = list(_files(source, recursive, outside))
            dangling = [path for path, _ in files if not path.exists() and path.suffix.lower() in image_files.SUFFIXES]
            failed += [(path, f"{path}: a link to {path.readlink()}, which does not exist") for path in dangling]
            files = [(path, name) for path, name in files if path.exists()]
            candidates = [(path, name) for path, name in files if path.suffix.lower() in image_files.SUFFIXES]
            left_out += [path for path, _ in files if path.suffix.lower() not in image_files.SUFFIXES]
            if not (candidates or dangling):
                failed.append((source, _empty(source, recursive)))
        for path, name in candidates:
            if (real := os.path.realpath(path)) in seen:
                repeated.append(path)
                continue
            seen.add(real)
            photos.append(InputImage(path, _unique_name(name, path.suffix, names)))
    return FoundImages(tuple(photos), tuple(failed), tuple(left_out), tuple(repeated))


def is_unicode(path: Path) -> bool:
    """Whether the name of a file can be encoded; names on a disk are any bytes."""
    try:
        return bool(str(path).encode())
    except UnicodeEncodeError:
        return False


def is_below(path: Path, folder: Path) -> bool:
    """Whether a path is in a folder or below it, all links followed; of a link to itself, its own place counts."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def _files(folder: Path, recursive: bool, outside: Path | None) -> Iterator[tuple[Path, str]]:
    """Yield files and their names below the folder, without hidden ones such as `._a.jpg`.

    Broken links are included, so that they are reported as missing images.
    """
    for path in sorted(folder.rglob("*") if recursive else folder.iterdir()):
        inner = path.relative_to(folder)
        ours = outside is not None and is_below(path, outside)
        dangling = path.is_symlink() and not path.exists()
        if (path.is_file() or dangling) and not ours and not any(part.startswith(".") for part in inner.parts):
            yield path, inner.with_suffix("").as_posix()


def _empty(folder: Path, recursive: bool) -> str:
    kinds = ", ".join(image_files.SUFFIXES)
    if not recursive and any(path.is_dir() for path in folder.iterdir()):
        return f"{folder}: no image ({kinds}) in this folder; search its subfolders with --recursive"
    return f"{folder}: no image ({kinds}) in this folder"


def _unique_name(name: str, suffix: str, names: dict[str, int]) -> str:
    """A name that is not taken: `a`, else `a-png`, else `a-png-2`, ...; `A` counts as `a`, as on some file systems.

    `names` are those taken, each with the number of the last name made from it.
    """
    stem = f"{name}-{suffix.lower().lstrip('.')}" if name.casefold() in names else name
    free, count = stem, names.get(stem.casefold(), 1)
    while free.casefold() in names:
        count += 1
        free = f"{stem}-{count}"
    names[stem.casefold()] = count
    names.setdefault(free.casefold(), 1)
    return free


# -- reading, exactly as training images are read ----------------------------------------------------------------------


def read_square(path: Path, size: int) -> Tensor:
    """The largest centred square of an image file, resized.   ->   3 size size uint8"""
    with _user_mistakes():
        return torch.from_numpy(image_files.read_square(path, size))


def read_image(path: Path) -> Tensor:
    """One image file as 3 h w uint8 RGB; an unreadable file raises with its path.

    The EXIF rotation is applied. Grey becomes three equal channels, 16 bits become 8, a palette or CMYK becomes RGB,
    transparent pixels are put on white, and of an animation the first frame is taken.
    """
    with _user_mistakes():
        return image_files.read_image(path)


@contextmanager
def _user_mistakes() -> Iterator[None]:
    """Raise a DataError as InputError; hide Pillow's warnings of odd metadata and large images."""
    try:
        with warnings.catch_warnings():  # beyond its hard limit Pillow raises
            warnings.simplefilter("ignore")
            yield
    except DataError as bad:
        raise InputError(str(bad)) from None
