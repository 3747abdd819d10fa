"""What was predicted: summary.json, and the records of predictions in progress, one file per shard.

Shards are processes that share the images of one call. They never talk to each other. Each appends a line per image to
its own record file, so that a killed process loses only its current image. The shard after which no image is left
turns all records into summary.json and removes them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hamburger.errors import InputError, OptionError
from hamburger.files import encode_json, lock, one_at_a_time, open_own, parse_json, read_bytes, write_atomically

SUMMARY = "summary.json"
MAX_SUMMARY = 2**30  # bytes, also of a record file; a million images take some hundred MB
FILES = ("label", "overlay")  # the kinds of file in summaries that name none
RECORDS = "records-*-of-*.jsonl"

Row = dict[str, Any]  # of an image: "image", then its files by kind and what was predicted; or "reason", why it failed


@dataclass
class Summary:
    """The rows of the images predicted and of those that failed, in the order of the call."""

    done: list[Row] = field(default_factory=list)
    failed: list[Row] = field(default_factory=list)
    left: int = 0  # images of the same call that other shards have to predict
    cells: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of the table on the terminal, by image

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Summary:
        summary = cls()
        for row in rows:
            (summary.failed if "reason" in row else summary.done).append(row)
        return summary

    def write(self, path: Path, *, planned: Iterable[str] = (), **settings: object) -> None:
        """Write summary.json. The same images and weights give the same file: no times, no dates.

        Files of earlier calls stay listed, and so do those `planned`, in case this call is killed: only listed files
        may be overwritten later.
        """
        content = {**settings, "images": self.done, "failed": self.failed}
        earlier = {name for name in listed_files(path) or () if os.path.lexists(path.parent / name)} | set(planned)
        earlier -= {name for row in self.done for name in files_of(row, settings)}
        if earlier:
            content["earlier"] = sorted(earlier)
        write_atomically(path, (encode_json(content, indent=2, ensure_ascii=False) + "\n").encode())


def listed_files(summary: Path) -> set[str] | None:
    """The files that a summary on disk lists; None where there is no summary of predictions."""
    content = _read_summary(summary)
    if content is None:
        return None
    earlier = content.get("earlier")
    names = [name for row in content["images"] for name in files_of(row, content)]
    names += earlier if isinstance(earlier, list) else []
    return {name for name in names if isinstance(name, str) and "\0" not in name}


def _read_summary(path: Path) -> dict[str, Any] | None:
    """The content of a summary of predictions, with objects in `images` and `failed`; None where there is none."""
    try:
        content = parse_json(read_bytes(path, MAX_SUMMARY).decode())
    except ValueError:  # also a file that cannot be read
        return None
    if not isinstance(content, dict) or not all(isinstance(content.get(key), list) for key in ("images", "failed")):
        return None
    objects = {key: [row for row in content[key] if isinstance(row, dict)] for key in ("images", "failed")}
    return content | objects


def files_of(row: Row, settings: Mapping[str, Any]) -> list[str]:
    """The files of an image, below the output folder; a summary or record of anybody may hold other things."""
    kinds = settings.get("files", FILES)
    kinds = [kind for kind in kinds if isinstance(kind, str)] if isinstance(kinds, (list, tuple)) else []
    return [row[kind] for kind in kinds if isinstance(row.get(kind), str)]


# -- records of predictions in progress --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shard:
    """One of `count` processes that share the images: it predicts each `count`-th, starting with the `index`-th.

    >>> Shard(2, 3).select("abcdefg")
    'be'
    """

    index: int = 1  # from 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count:
            raise OptionError(
                f"predict: a shard is i/n with i from 1 to n, such as 3/8 (got {self.index}/{self.count})"
            )

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Return the shard of a text such as `3/8`."""
        index, _, count = text.partition("/")
        if not (index.isdecimal() and count.isdecimal() and len(text) < 20):
            raise OptionError(f"predict: --shard takes i/n, such as 3/8 (got {text!r})")
        return cls(int(index), int(count))

    @classmethod
    def of_process(cls) -> Shard:
        """Return the shard of a process that torchrun has started; the only shard in any other process."""
        rank, count = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
        return cls(int(rank) + 1, int(count)) if rank and count else cls()

    def select(self, images: Any) -> Any:
        """Return the images of this shard."""
        return images[self.index - 1 :: self.count]

    def path(self, folder: Path) -> Path:
        """Return the record file of this shard."""
        return folder / RECORDS.replace("*", "{}").format(self.index, self.count)

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


THE_ONLY_SHARD = Shard()


@contextmanager
def open_records(
    path: Path, settings: Mapping[str, Any], done: Sequence[Row], *, keep: bool
) -> Iterator[Callable[[Row], None]]:
    """Open and lock a record file; yield a function that appends the row of an image.

    With `keep` the rows in the file stay, and rows of `done` that it lacks are added.
    """

    def append(row: Row) -> None:
        file.write((encode_json(row) + "\n").encode())
        file.flush()  # a killed process loses nothing; a power failure may, and those images are predicted again

    with open_own(path, "a+b") as file:
        if not lock(file, wait=False):
            raise OptionError(f"predict: another process is writing {path}; wait for it, or name another --shard")
        file.seek(0)
        old = RecordFile.parse(file.read(MAX_SUMMARY), path) if keep else None
        file.truncate(0 if old is None else old.length)  # drops half a line, which a killed process left
        if old is None:
            append({"settings": settings})
        for row in done:
            if old is None or old.rows.get(row["image"]) != row:
                append(row)
        yield append


@dataclass(frozen=True)
class RecordFile:
    """What a record file holds: the last row of each image."""

    settings: Mapping[str, Any]
    rows: dict[str, Row]
    length: int  # bytes up to the end of the last complete line

    @classmethod
    def parse(cls, content: bytes, path: Path) -> RecordFile | None:
        """Return what the content says; None if it lacks even the first line."""
        length = content.rfind(b"\n") + 1
        if not length:
            return None
        try:
            first, *rows = [parse_json(line) for line in content[:length].decode().splitlines()]
            if not all(isinstance(row["image"], str) and isinstance(row.get("reason", ""), str) for row in rows):
                raise ValueError
            return cls(dict(first["settings"]), {row["image"]: row for row in rows}, length)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise InputError(
                f"predict: {path} is not a record of predictions; remove it, or name another --out"
            ) from None


def read_rows(out: Path, settings: Mapping[str, Any], expected: Mapping[str, set[str]]) -> dict[str, Row]:
    """Return the rows of earlier calls, finished or not, for the images in `expected`.

    `expected` has the files of each image. A prediction whose files are not all there is left out. Raise where earlier
    predictions were made with other settings.
    """
    valid: dict[str, Row] = {}
    for path, found_settings, rows in _earlier(out):
        different = [name for name, value in settings.items() if found_settings.get(name) != value]
        if different and rows:
            raise OptionError(
                f"predict: --resume: {path} has predictions with other settings ({', '.join(different)}); name another "
                f"--out, or leave out --resume to predict all images again"
            )
        for image, row in rows.items():
            files = set(files_of(row, settings))
            complete = files == expected.get(image) and all(os.path.lexists(out / name) for name in files)
            if complete or (image in expected and "reason" in row):
                valid[image] = _better(valid.get(image), row)
    return valid


def _better(first: Row | None, second: Row) -> Row:
    """Return the prediction of two rows of an image; the second of two failures or of two predictions."""
    return first if first is not None and "reason" in second and "reason" not in first else second


def _earlier(out: Path) -> Iterator[tuple[Path, Mapping[str, Any], dict[str, Row]]]:
    """Yield path, settings and rows by image of the summary and of all record files of a folder."""
    content = _read_summary(out / SUMMARY)
    if content is not None:
        failed = [row for row in content["failed"] if isinstance(row.get("reason"), str)]
        rows = failed + [row for row in content["images"] if "reason" not in row]
        rows = [row for row in rows if isinstance(row.get("image"), str)]
        yield out / SUMMARY, content, {row["image"]: row for row in rows}
    for path in sorted(out.glob(RECORDS)):
        if (records := RecordFile.parse(read_bytes(path, MAX_SUMMARY, "predict"), path)) is not None:
            yield path, records.settings, records.rows


def check_records(out: Path) -> None:
    """Raise where a record file of a folder holds something else, before hours of work."""
    for _ in _earlier(out):
        pass


def _is_locked(path: Path) -> bool:
    with open_own(path, "ab") as file:
        return not lock(file, wait=False)


def join_records(out: Path, images: Sequence[str], failed: Sequence[Row], settings: Mapping[str, Any]) -> int:
    """Write summary.json and remove the records if every image has a row. Return how many have none.

    `images` gives the order of the summary, `failed` the rows of paths that held no image.
    """
    with one_at_a_time(out / ".records.lock"):
        rows: dict[str, Row] = {}
        for path, found_settings, found in _earlier(out):
            in_use = path.name != SUMMARY and _is_locked(path)  # by a shard at work
            if not in_use and all(found_settings.get(name) == value for name, value in settings.items()):
                rows |= {image: _better(rows.get(image), row) for image, row in found.items()}
        left = sum(image not in rows for image in images)
        if left == 0:
            Summary.of([*failed, *(rows[image] for image in images)]).write(out / SUMMARY, **settings)
            for path in out.glob(RECORDS):
                path.unlink()
    (out / ".records.lock").unlink(missing_ok=True)
    return left
