"""Tiny-ImageNet's official validation split: one folder of images, and a text that says which class each has.

    val/images/val_0.JPEG ...      val/val_annotations.txt: val_0.JPEG, n03444034, 0, 32, 44, 62 with tabs between, ...

The four numbers are a box, which nobody needs here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from hamburger.errors import DataError

FOLDER, TEXT = "images", "val_annotations.txt"
SHOWN = 5


def read_annotations(path: Path | str, content: bytes, images: Collection[str]) -> dict[str, str]:
    """The class of every image by its name; a DataError that lists what is wrong with the text."""
    problems: list[str] = []
    found: dict[str, str] = {}
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        if len(words) < 2:
            problems.append(f"line {number} has no class: {line.strip()!r}")
        elif found.setdefault(words[0], words[1]) != words[1]:
            problems.append(f"line {number} gives {words[0]} the class {words[1]}, another line {found[words[0]]}")
    problems += [f"{name} has no line" for name in sorted(set(images) - found.keys())]
    problems += [f"{name} has a line and no file" for name in sorted(found.keys() - set(images))]
    if problems:
        more = f"; ... {len(problems)} in all" if len(problems) > SHOWN else ""
        raise DataError(
            f"{path}: {'; '.join(problems[:SHOWN])}{more}; a line is an image, a tab and its class, for each image in "
            f"{FOLDER} beside it: unpack the archive again",
            problems,
        )
    return found


def classes_of(path: Path | str, annotated: dict[str, str], trained: Sequence[str]) -> tuple[str, ...]:
    """Those of the training folders where they are there, so that a number means the same class in both splits."""
    own = sorted(set(annotated.values()))
    foreign = [name for name in own if name not in trained] if trained else []
    if foreign:
        raise DataError(
            f"{path}: {len(foreign)} of its {len(own)} classes have no folder in train ({', '.join(foreign[:SHOWN])}); "
            f"both must be of one download"
        )
    return tuple(trained) or tuple(own)
