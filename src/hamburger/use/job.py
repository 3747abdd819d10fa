"""Predict many photographs into a folder: each on its own, so that a bad one costs only itself."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from hamburger.errors import HamburgerError, OptionError
from hamburger.files import write_atomically
from hamburger.use.answer import Layout, Predicts
from hamburger.use.images import read_image
from hamburger.use.photos import Photo

LABELS = ".png"  # of label maps
LAYOUTS = ("plain", "voc")
VOC_FOLDER = Path("results/VOC2012/Segmentation/comp6_test_cls")
SUMMARY = "summary.json"


@dataclass(frozen=True)
class Done:
    """What was made of one photograph; paths are below the output folder."""

    image: str
    label: str
    overlay: str | None
    height: int
    width: int
    tiles: int
    found: dict[str, Any]  # by the task: shares of classes, objects
    words: str = ""  # the same for the terminal

    def row(self) -> dict[str, Any]:
        """As the summary has it."""
        told = {key: value for key, value in asdict(self).items() if key not in ("found", "words")}
        return told | self.found


@dataclass
class Summary:
    done: list[Done] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)  # image, why

    def write(self, path: Path, *, planned: Iterable[str] = (), **settings: object) -> None:
        """The same photographs and weights give the same file: no times, no dates.

        What an earlier call wrote beside it stays listed, and so does what is `planned`, for calls that are killed:
        only what is listed may be written over later.
        """
        rows = {
            **settings,
            "images": [one.row() for one in self.done],
            "failed": [{"image": image, "reason": reason} for image, reason in self.failed],
        }
        kept = {name for name in listed(path) if os.path.lexists(path.parent / name)} | set(planned)
        kept -= {name for one in self.done for name in (one.label, one.overlay) if name is not None}
        if kept:
            rows["earlier"] = sorted(kept)
        write_atomically(path, (json.dumps(rows, indent=2, ensure_ascii=False) + "\n").encode())


def layout(name: str, classes: Sequence[str], suffix: str = LABELS) -> Layout:
    if name == "plain":
        return Layout(lambda of: Path(f"{of}{suffix}"), lambda of: Path(f"{of}_overlay.jpg"))
    if name != "voc":
        raise OptionError(f"predict: no layout {name!r}; there are: {', '.join(LAYOUTS)}")
    if suffix != LABELS:
        raise OptionError("predict: the voc layout is for label maps, which this network does not make; take plain")
    from hamburger.data.voc import CLASSES  # the server knows VOC's ids only

    unknown = [one for one in classes if one not in CLASSES]
    if unknown:
        raise OptionError(
            f"predict: the voc layout needs PASCAL VOC's classes, but these weights know {', '.join(unknown[:5])}; "
            f"take --layout plain"
        )
    values = tuple(CLASSES.index(one) for one in classes)
    return Layout(lambda of: VOC_FOLDER / f"{of}.png", lambda of: Path("overlays") / f"{of}.jpg", values, by_id=True)


def predict_all(
    predictor: Predicts,
    photos: Sequence[Photo],
    out: Path,
    *,
    where: Layout,
    overlay: bool = True,
    after: Callable[[Photo], None] = lambda photo: None,
    summary: Summary | None = None,
) -> Summary:
    """Write the pictures of every photograph below `out`, and tell what was made and what failed."""
    summary = Summary() if summary is None else summary
    photos = checked(photos, out, where, overlay)
    for photo in photos:
        try:
            summary.done.append(_one(predictor, photo, out, where, overlay))
        except HamburgerError as bad:
            summary.failed.append((str(photo.path), str(bad)))
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as full:
            if not _memory(full):
                raise
            remedy = "take a smaller --max-pixels, a --window or another --device"
            summary.failed.append((str(photo.path), f"{photo.path}: the network ran out of memory; {remedy}"))
        after(photo)
    return summary


def checked(photos: Sequence[Photo], out: Path, where: Layout, overlay: bool) -> list[Photo]:
    """The photographs by the names of their outputs; an error where a file that is not ours would be written over."""
    photos = _by_id(photos) if where.by_id else list(photos)
    _refuse_to_overwrite(photos, out, where, overlay)
    return photos


def targets(photos: Sequence[Photo], where: Layout, overlay: bool) -> list[str]:
    """All that will be written below the output folder, besides the summary."""
    kinds = (where.label, where.overlay) if overlay else (where.label,)
    return [kind(photo.name).as_posix() for photo in photos for kind in kinds]


def listed(summary: Path) -> set[str]:
    """What a summary on disk says was written beside it; nothing where there is none."""
    told = _read(summary) or {"images": []}
    rows = [row for row in told["images"] if isinstance(row, dict)]
    names = [row.get(kind) for row in rows for kind in ("label", "overlay")]
    return {name for name in (*names, *told.get("earlier", ())) if isinstance(name, str)}


def _read(summary: Path) -> dict[str, Any] | None:
    try:
        told = json.loads(summary.read_bytes())
    except (OSError, ValueError):
        return None
    ours = isinstance(told, dict) and all(isinstance(told.get(key), list) for key in ("images", "failed"))
    return told if ours else None


def _one(predictor: Predicts, photo: Photo, out: Path, where: Layout, overlay: bool) -> Done:
    image = read_image(photo.path)
    answer = predictor.answer(image, where)
    picture = where.overlay(photo.name) if overlay else None
    write_atomically(out / where.label(photo.name), answer.label)
    if picture is not None:
        write_atomically(out / picture, answer.overlay())
    height, width = image.shape[-2:]
    return Done(
        image=str(photo.path),
        label=where.label(photo.name).as_posix(),
        overlay=None if picture is None else picture.as_posix(),
        height=height,
        width=width,
        tiles=answer.tiles,
        found=dict(answer.found),
        words=answer.words,
    )


def _by_id(photos: Sequence[Photo]) -> list[Photo]:
    owners: dict[str, Path] = {}
    for photo in photos:
        if photo.path.stem in owners:
            raise OptionError(
                f"predict: {owners[photo.path.stem]} and {photo.path} have the same id, but the voc layout has one "
                f"file for it; predict them into different folders"
            )
        owners[photo.path.stem] = photo.path
    return [Photo(path, stem) for stem, path in owners.items()]


def _refuse_to_overwrite(photos: Sequence[Photo], out: Path, where: Layout, overlay: bool) -> None:
    inputs = {photo.path.resolve() for photo in photos}
    ours = listed(out / SUMMARY)
    for name in targets(photos, where, overlay):
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
