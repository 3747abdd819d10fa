"""Shared by the data sets of all tasks: creation by name, class subsets, colours, and checks."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence, Sized
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from hamburger.errors import DataError, OptionError, ShapeError, did_you_mean
from hamburger.registry import Registry, options_of
from hamburger.training.image_files import Bytes, Colour
from hamburger.training.loader import Integers, KeyedRng, prefetch
from hamburger.training.safe_files import check_relative

IGNORE = 255  # the label of pixels that do not count
Set = TypeVar("Set")
T = TypeVar("T")
Progress = Callable[[int, int], object]  # called with what is done, and all there is to do


class SampleSet(Generic[T]):
    """One split of a data set. `data[i]` reads or generates sample i; the same i always gives the same bits."""

    name: str
    split: str
    ids: Sequence[str]
    in_files: bool = False  # read from files, not generated

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> T:
        if not 0 <= index < len(self):  # this also ends a plain for loop
            raise IndexError(f"{self.name}: index out of range (got {index} for {len(self)} samples)")
        return self.read(index)

    def read(self, index: int) -> T:
        raise NotImplementedError


class Sample(NamedTuple):
    """`image`: 3 h w, uint8, RGB.    `label`: h w, uint8, 0 ... k - 1, and 255 where unlabelled."""

    image: Tensor
    label: Tensor

    @property
    def nbytes(self) -> int:
        return self.image.nbytes + self.label.nbytes


def create_from_registry(
    known: Registry[Set], name: str, split: str, /, root: str | Path | None = None, **options: Any
) -> Set:
    """Return a split of the named data set in a registry. `root` is its folder; generated sets take none.

    The split is part of a path and may come from a recipe of others, so it stays inside the folder.
    """
    if "root" not in options_of(known[name]):
        if root is not None:
            raise OptionError(
                f"{known.kind} '{name}' is generated and reads no folder, but was given {root}; leave it out"
            )
        return known.create(name, split, **options)
    if root is None:
        raise OptionError(f"{known.kind} '{name}' needs its folder: root= in Python, --data DIR on the command line")
    if isinstance(split, str):
        check_relative(f"{known.kind} '{name}': split", split)
    return known.create(name, split, root=Path(root), **options)


def check_root(name: str, root: Path, layouts: str) -> Path:
    """Return the folder; if it does not exist, raise an error that says what it must contain."""
    if not root.is_dir():
        raise DataError(f"{name}: there is no folder {root}; it must contain {layouts}")
    return root


# -- classes -----------------------------------------------------------------------------------------------------------


OUTSIDE = 254  # in a label table: neither a class nor ignored
MOST_CLASSES = 254


def build_label_table(values: Iterable[int], *, ignored: Iterable[int] = ()) -> Bytes:
    """Return 256 entries: `values[i]` maps to class i, ignored values and 255 to 255, all others to OUTSIDE."""
    table = np.full(256, OUTSIDE, np.uint8)
    table[[*ignored, IGNORE]] = IGNORE
    for index, value in enumerate(values):
        table[value] = index
    return table


def select_classes(call: str, names: Sequence[str], classes: Sequence[str | int] | str | None) -> list[int]:
    """Return the numbers of the requested classes in that order; all if `classes` is None.

    `classes`: names or numbers, as a sequence or a comma-separated string.
    """
    if classes is None:
        return list(range(len(names)))
    requested = [part.strip() for part in classes.split(",")] if isinstance(classes, str) else classes
    numbers = [_find_number(call, names, one) for one in requested]
    if len(set(numbers)) != len(numbers) or not numbers:
        raise OptionError(f"{call}: classes must be different ones, at least one, got {classes!r}")
    return numbers


def _find_number(call: str, names: Sequence[str], one: str | int) -> int:
    if isinstance(one, str) and one in names:
        return names.index(one)
    text = str(one)
    if not isinstance(one, bool) and text.isdecimal() and int(text) < len(names):
        return int(text)
    shown = names if len(names) <= 40 else [*names[:10], f"... {len(names)} of them"]
    raise OptionError(f"{call}: no class {one!r} among numbers 0 ... {len(names) - 1}{did_you_mean(text, shown)}")


# -- checks ------------------------------------------------------------------------------------------------------------


SHOWN = 20


def join_problems(heading: str, problems: Sequence[str], hint: str = "") -> str:
    """Return one message: the heading, the first 20 problems, and how many more there are."""
    more = [f"... and {len(problems) - SHOWN} more{hint}"] if len(problems) > SHOWN else []
    return "\n  ".join([heading, *problems[:SHOWN], *more])


def join_names(names: Sequence[str], most: int = 8) -> str:
    """Return the first names, comma-separated, and how many more there are."""
    more = [f"... and {len(names) - most} more"] if len(names) > most else []
    return ", ".join([*names[:most], *more])


def raise_problems(data: SampleSet[Any], problems: list[str]) -> None:
    """Raise a DataError with all problems of a data set if there are any; its message shows the first 20."""
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        hint = f"; `ham data check {data.name}{' --data DIR' if data.in_files else ''}` lists them all"
        raise DataError(join_problems(f"{data.name}, split '{data.split}': {count}", problems, hint), problems)


Row = dict[str, Any]  # of one sample: "problem", None if it is valid, and what the task wants to know


def inspect_samples(inspect: Callable[[int], Row], count: int, after: Callable[[], object] = lambda: None) -> list[Row]:
    """Return `inspect(i)` for every sample, in threads, since each reads files; `after` is called once per sample."""
    threads = min(16, (os.cpu_count() or 2) + 2)
    rows = []
    for row in prefetch(inspect, range(count), workers=threads, depth=4 * threads):
        rows.append(row)
        after()
    return rows


# -- checks of several splits ------------------------------------------------------------------------------------------


S = TypeVar("S", bound=Sized)
Checked = TypeVar("Checked")


def check_each(
    splits: Sequence[S],
    check: Callable[[S, Callable[[], object]], Checked],
    progress: Progress = lambda done, total: None,
) -> list[Checked]:
    """The results of `check` for each split; one DataError lists the problems of all of them.

    `check` takes a function to call after each sample.
    """
    results: list[Checked] = []
    errors: list[DataError] = []
    done, total = itertools.count(1), sum(map(len, splits))
    progress(0, total)
    for split in splits:
        try:
            results.append(check(split, lambda: progress(next(done), total)))
        except DataError as error:
            errors.append(error)
    progress(total, total)  # a generated set may need no check
    if errors:
        problems = [problem for error in errors for problem in error.problems]
        raise DataError("\n".join(str(error) for error in errors), problems)
    return results


def check_same_classes(data: Any, train: tuple[str, ...], val: tuple[str, ...]) -> None:
    """Raise where the splits of a recipe's `data` have different classes, or the same ones in another order."""
    if train != val:
        shared = {*train} & {*val}
        only = [name for name in (*train, *val) if name not in shared]
        what = f"{', '.join(only[:8])} in one of them only" if only else "in their order"
        raise DataError(
            f"{data.name}: the classes of '{data.train_split}' and '{data.val_split}' differ, {what}; both must "
            "name the same ones in the same order"
        )


def check_classes(call: str, known: Sequence[str], dataset: Any) -> None:
    """Raise where weights and data set have different classes, or the same ones in another order."""
    if len(known) != len(dataset.classes):
        raise ShapeError(
            f"{call}: the weights know {len(known)} classes, the data set '{dataset.name}' has "
            f"{len(dataset.classes)}; give the data set and options that the weights were trained with"
        )
    for i, (ours, theirs) in enumerate(zip(known, dataset.classes, strict=True)):
        if ours != theirs:
            raise OptionError(
                f"{call}: class {i} is '{ours}' to the weights and '{theirs}' in the data set '{dataset.name}'; "
                f"name and order the classes as the weights were trained with: {', '.join(known)}"
            )


# -- generated scenes: Voronoi pieces in families of warm and cool twins -----------------------------------------------


TWINS = ("warm", "cool")
WARM = np.array([1, 0, -1], np.int64)  # the direction in which twins differ: red against blue


class SceneLayout(NamedTuple):
    """Where the pieces lie and what they are. `piece`: size size, the number of the nearest centre."""

    piece: Integers
    centres: Integers  # pieces 2, y and x
    families: Integers  # pieces
    twins: Integers  # families, this image's twin of each


def cut_scene(rng: KeyedRng, *, size: int, pieces: int, families: int, present: int) -> SceneLayout:
    """A Voronoi cut around random centres; `present` of the families, each with at least one piece."""
    centres = rng.below(size, 2 * pieces).reshape(pieces, 2)
    here = rng.shuffled(families)[:present]
    order = rng.below(present, pieces)
    order[:present] = np.arange(present)
    axis = np.arange(size, dtype=np.int32)[:, None]
    squares = (axis - centres.T[:, None].astype(np.int32)) ** 2 * np.int32(pieces)  # 2 size pieces
    rows, columns = np.ascontiguousarray(squares.swapaxes(1, 2))
    # the piece's number in the low digits: one minimum finds the nearest centre and settles ties; piece by piece, since
    # two maps stay in the cache and one of all distances does not
    nearest = rows[0][:, None] + columns[0]
    other = np.empty_like(nearest)
    for piece in range(1, pieces):
        np.add((rows[piece] + np.int32(piece))[:, None], columns[piece], out=other)
        np.minimum(nearest, other, out=nearest)
    return SceneLayout((nearest % pieces).astype(np.int64), centres, here[order], rng.below(2, families))


def shade(colour: Colour, twin: str) -> Colour:
    """The family's colour, lighter for the warm twin and darker for the cool one, so that label maps show both."""
    r, g, b = ((c + 255) // 2 if twin == "warm" else c * 5 // 8 for c in colour)
    return (r, g, b)
