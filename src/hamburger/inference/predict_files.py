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
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from hamburger.errors import DataError, HamburgerError, InputError, NotFiniteError, OptionError, printable
from hamburger.files import encode_json, parse_json, read_bytes, write_atomically
from hamburger.tensors import list_tensors
from hamburger.training import image_files

if TYPE_CHECKING:
    from rich.table import Table

    from hamburger.checkpoints.weights_file import Info


SUMMARY = "summary.json"
MAX_SUMMARY = 2**30  # bytes
FILES = ("label", "overlay")  # the kinds of file in summaries that name none


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


@dataclass(frozen=True)
class PredictedImage:
    """The prediction of one image; `files` are paths below the output folder, by kind."""

    image: str
    files: dict[str, str]
    row: dict[str, Any]
    cells: tuple[str, ...]


@dataclass
class Summary:
    done: list[PredictedImage] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)  # image, why

    def write(self, path: Path, *, planned: Iterable[str] = (), **settings: object) -> None:
        """Write summary.json. The same images and weights give the same file: no times, no dates.

        Files of earlier calls stay listed, and so do those `planned`, in case this call is killed: only listed files
        may be overwritten later.
        """
        rows = {
            **settings,
            "images": [{"image": one.image, **one.files, **one.row} for one in self.done],
            "failed": [{"image": image, "reason": reason} for image, reason in self.failed],
        }
        earlier = {name for name in _listed_files(path) or () if os.path.lexists(path.parent / name)} | set(planned)
        earlier -= {name for one in self.done for name in one.files.values()}
        if earlier:
            rows["earlier"] = sorted(earlier)
        write_atomically(path, (encode_json(rows, indent=2, ensure_ascii=False) + "\n").encode())


def predict_folder(
    predictor: FilePredictor,
    inputs: FoundImages,
    out: Path,
    *,
    after: Callable[[InputImage], object] = lambda image: None,
) -> Summary:
    """Predict all images found into `out`, with a summary.json that is also right after an interrupt."""
    unnamed = {image.path for image in inputs.photos if not all(map(is_unicode, image.paths))}
    images = tuple(image for image in inputs.photos if image.path not in unnamed)
    _refuse_to_overwrite(images, out, predictor)
    settings = predictor.settings() | ({"files": list(predictor.files)} if predictor.files else {})
    out.mkdir(parents=True, exist_ok=True)
    if images:
        Summary().write(out / SUMMARY, planned=output_names(images, predictor), **settings)
    why = "its name is not valid Unicode, which no summary can hold; rename it"
    failed = [*inputs.failed, *((path, f"{path}: {why}") for path in sorted(unnamed))]
    summary = Summary(failed=[(printable(str(path)), printable(why)) for path, why in failed])
    try:
        for image in images:
            try:
                summary.done.append(_predict_image(predictor, image, out))
            except NotFiniteError as bad:
                summary.failed.append((str(image.path), f"{image.path}: {bad}"))
            except HamburgerError as bad:
                summary.failed.append((str(image.path), str(bad)))
            except (MemoryError, RuntimeError) as full:  # on a CPU, running out of memory raises a plain RuntimeError
                if not isinstance(full, MemoryError) and not re.search("alloc|out of memory", str(full).lower()):
                    raise
                why = f"{image.path}: the network ran out of memory; {predictor.remedy}"
                summary.failed.append((str(image.path), why))
            after(image)
    finally:
        if summary.done or summary.failed:
            summary.write(out / SUMMARY, **settings)
    return summary


def _predict_image(predictor: FilePredictor, image: InputImage, out: Path) -> PredictedImage:
    prediction = predictor(*image.paths)
    files = {kind: predictor.files[kind](image.name).as_posix() for kind in prediction.files}
    for kind, path in files.items():
        write_atomically(out / path, prediction.files[kind])
    return PredictedImage(str(image.path), files, prediction.row, prediction.cells)


def check_prediction(what: str, values: Tensor) -> Tensor:
    """Return what the network predicts for an image; raise NotFiniteError where it is NaN or infinite."""
    if not values.isfinite().all():
        broken = int((~values.isfinite()).sum())
        raise NotFiniteError(
            f"predict: {broken} of {values.numel()} {what} are NaN or infinite; the weights are unusable for this image"
        )
    return values


@contextmanager
def check_outputs(what: str, modules: Sequence[nn.Module]) -> Iterator[None]:
    """Inside the block, `check_prediction` is called on everything that the modules return."""

    def check(module: nn.Module, args: Any, output: Any) -> None:
        for values in list_tensors(output):
            check_prediction(what, values)

    handles = [module.register_forward_hook(check) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def output_names(images: Sequence[InputImage], predictor: FilePredictor) -> list[str]:
    """The names of all files that will be written below the output folder, except the summary."""
    return [path(image.name).as_posix() for image in images for path in predictor.files.values()]


def _listed_files(summary: Path) -> set[str] | None:
    """The files that a summary on disk lists; None where there is no summary of predictions."""
    try:
        content = parse_json(read_bytes(summary, MAX_SUMMARY).decode())
    except ValueError:  # also a file that cannot be read
        return None
    if not isinstance(content, dict) or not all(isinstance(content.get(key), list) for key in ("images", "failed")):
        return None
    rows = [row for row in content["images"] if isinstance(row, dict)]
    listed = (content.get("files", [*FILES]), content.get("earlier"))
    kinds, earlier = (value if isinstance(value, list) else [] for value in listed)
    names = [row.get(kind) for row in rows for kind in kinds if isinstance(kind, str)]
    return {name for name in (*names, *earlier) if isinstance(name, str) and "\0" not in name}


def _refuse_to_overwrite(images: Sequence[InputImage], out: Path, predictor: FilePredictor) -> None:
    """Raise where a file that no prediction wrote would be overwritten."""
    inputs = {path.resolve() for image in images for path in image.paths}
    own_files = _listed_files(out / SUMMARY)
    for name in output_names(images, predictor):
        path = out / name
        if path.resolve() in inputs:
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
    for one in summary.done[:ROWS]:
        first = next(iter(one.files.values()), one.image)
        result.add_row(*(escape(cell) for cell in (first, *one.cells)))
    return result


def notes(predictor: FilePredictor, inputs: FoundImages, summary: Summary, out: Path) -> Iterator[str]:
    """Lines to print after the table: what was skipped, repeated or failed."""
    if len(summary.done) > ROWS:
        yield f"and {len(summary.done) - ROWS} more"
    yield from predictor.notes([one.row for one in summary.done])
    if inputs.repeated:
        yield f"{len(inputs.repeated)} named more than once, predicted once: {_list_some(inputs.repeated)}"
    if inputs.left_out:
        yield f"{len(inputs.left_out)} other files in the folders left out: {_list_some(inputs.left_out)}"
    yield f"predicted {len(summary.done)}, failed {len(summary.failed)}; wrote {out / SUMMARY}"


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
    seen: set[Path] = set()
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
            if path.resolve() in seen:
                repeated.append(path)
                continue
            seen.add(path.resolve())
            photos.append(InputImage(path, _unique_name(name, path.suffix, names)))
    return FoundImages(tuple(photos), tuple(failed), tuple(left_out), tuple(repeated))


def is_unicode(path: Path) -> bool:
    """Whether the name of a file can be encoded; names on a disk are any bytes."""
    try:
        return bool(str(path).encode())
    except UnicodeEncodeError:
        return False


def _files(folder: Path, recursive: bool, outside: Path | None) -> Iterator[tuple[Path, str]]:
    """Yield files and their names below the folder, without hidden ones such as `._a.jpg`.

    Broken links are included, so that they are reported as missing images.
    """
    for path in sorted(folder.rglob("*") if recursive else folder.iterdir()):
        inner = path.relative_to(folder)
        ours = outside is not None and path.resolve().is_relative_to(outside.resolve())
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
