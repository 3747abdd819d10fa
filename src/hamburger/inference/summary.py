"""What was predicted: summary.json, and the records of predictions in progress, one file per shard.

Shards are processes that share the images of one call. They never talk to each other. Each appends a line per image to
its own record file, so that a killed process loses only its current image. The shard after which no image is left
turns all records into summary.json and removes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from hamburger.errors import InputError, OptionError
from hamburger.files import encode_json, lock, one_at_a_time, open_own, parse_json, read_bytes, write_atomically

SUMMARY = "summary.json"
MAX_SUMMARY = 2**28  # bytes, also of a record file
FILES = ("label", "overlay")  # the kinds of file in summaries that name none
RECORDS = "records-*-of-*.jsonl"
FIELDS = ("image", "files", "row", "cells")  # of a predicted image in a record


@dataclass(frozen=True)
class PredictedImage:
    """The prediction of one image; `files` are paths below the output folder, by kind."""

    image: str
    files: dict[str, str]
    row: dict[str, Any]
    cells: tuple[str, ...]


Outcome = PredictedImage | tuple[str, str]  # of an image: what was predicted, or the image and why it failed


@dataclass
class Summary:
    """The images predicted and those that failed, in the order of the call."""

    done: list[PredictedImage] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)  # image, why
    left: int = 0  # images of the same call that other shards have to predict

    @classmethod
    def of(cls, outcomes: Iterable[Outcome], failed: Iterable[tuple[str, str]] = ()) -> Summary:
        """Sort outcomes into predictions and failures; `failed` comes before these."""
        summary = cls(failed=[*failed])
        for one in outcomes:
            if isinstance(one, PredictedImage):
                summary.done.append(one)
            else:
                summary.failed.append(one)
        return summary

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
        earlier = {name for name in listed_files(path) or () if os.path.lexists(path.parent / name)} | set(planned)
        earlier -= {name for one in self.done for name in one.files.values()}
        if earlier:
            rows["earlier"] = sorted(earlier)
        write_atomically(path, (encode_json(rows, indent=2, ensure_ascii=False) + "\n").encode())


def listed_files(summary: Path) -> set[str] | None:
    """The files that a summary on disk lists; None where there is no summary of predictions."""
    content = _read_summary(summary)
    if content is None:
        return None
    earlier = content.get("earlier")
    names = [row.get(kind) for row in content["images"] for kind in _kinds(content)]
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


def _kinds(summary: Mapping[str, Any]) -> list[str]:
    """The kinds of file that the rows of a summary name."""
    kinds = summary.get("files", [*FILES])
    return [kind for kind in kinds if isinstance(kind, str)] if isinstance(kinds, list) else []


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


class Records:
    """The open record file of a shard: its settings, then a line per image."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file

    def add(self, outcome: Outcome) -> None:
        """Append a predicted image, or a failed one and why."""
        if isinstance(outcome, PredictedImage):
            self.append({name: getattr(outcome, name) for name in FIELDS})
        else:
            self.append(dict(zip(("image", "reason"), outcome, strict=True)))

    def append(self, row: Mapping[str, Any]) -> None:
        self.file.write((encode_json(row) + "\n").encode())
        self.file.flush()  # a killed process loses nothing; a power failure may, and those images are predicted again


@contextmanager
def open_records(
    path: Path, settings: Mapping[str, Any], done: Mapping[str, PredictedImage], *, keep: bool
) -> Iterator[Records]:
    """Open and lock a record file; with `keep` its rows stay, and rows of `done` that it lacks are added."""
    with open_own(path, "a+b") as file:
        if not lock(file, wait=False):
            raise OptionError(f"predict: another process is writing {path}; wait for it, or name another --shard")
        file.seek(0)
        old = RecordFile.parse(file.read(MAX_SUMMARY), path) if keep else None
        file.truncate(0 if old is None else old.length)  # drops half a line, which a killed process left
        records = Records(file)
        if old is None:
            records.append({"settings": settings})
        for image, one in done.items():
            if old is None or old.outcomes.get(image) != one:
                records.add(one)
        yield records


@dataclass(frozen=True)
class RecordFile:
    """What a record file holds: the last outcome of each image."""

    settings: Mapping[str, Any]
    outcomes: dict[str, Outcome]
    length: int  # bytes up to the end of the last complete line

    @classmethod
    def parse(cls, content: bytes, path: Path) -> RecordFile | None:
        """Return what the content says; None if it lacks even the first line."""
        length = content.rfind(b"\n") + 1
        if not length:
            return None
        try:
            rows = [parse_json(line) for line in content[:length].decode().splitlines()]
            outcomes = dict(map(_outcome, rows[1:]))
            return cls(dict(rows[0]["settings"]), outcomes, length)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise InputError(
                f"predict: {path} is not a record of predictions; remove it, or name another --out"
            ) from None


def _outcome(row: Mapping[str, Any]) -> tuple[str, Outcome]:
    if "reason" in row:
        return str(row["image"]), (str(row["image"]), str(row["reason"]))
    files = {str(kind): str(name) for kind, name in row["files"].items()}
    return str(row["image"]), PredictedImage(str(row["image"]), files, dict(row["row"]), tuple(map(str, row["cells"])))


def read_outcomes(out: Path, settings: Mapping[str, Any], expected: Mapping[str, set[str]]) -> dict[str, Outcome]:
    """Return what earlier calls, finished or not, predicted of the images in `expected`, and which of them failed.

    `expected` has the files that each image may get. An image whose files are not all there is left out. Raise where
    earlier predictions were made with other settings.
    """
    valid: dict[str, Outcome] = {}
    for path, found_settings, outcomes in _earlier(out):
        different = [name for name, value in settings.items() if found_settings.get(name) != value]
        if different and outcomes:
            raise OptionError(
                f"predict: --resume: {path} has predictions with other settings ({', '.join(different)}); name another "
                f"--out, or leave out --resume to predict all images again"
            )
        for image, one in outcomes.items():
            files = set(one.files.values()) if isinstance(one, PredictedImage) else set()
            if image in expected and files <= expected[image] and all(os.path.lexists(out / name) for name in files):
                valid[image] = _better(valid.get(image), one)
    return valid


def _better(first: Outcome | None, second: Outcome) -> Outcome:
    """Return the prediction of two outcomes of an image; the second of two failures or of two predictions."""
    return first if isinstance(first, PredictedImage) and not isinstance(second, PredictedImage) else second


def _earlier(out: Path) -> Iterator[tuple[Path, Mapping[str, Any], dict[str, Outcome]]]:
    """Yield path, settings and outcomes of the summary and of all record files of a folder."""
    content = _read_summary(out / SUMMARY)
    if content is not None:
        outcomes: dict[str, Outcome] = {}
        for row in content["failed"] + content["images"]:
            image, reason = row.get("image"), row.get("reason")
            if isinstance(image, str) and isinstance(reason, str):
                outcomes[image] = (image, reason)
            elif isinstance(image, str):
                files = {kind: row[kind] for kind in _kinds(content) if isinstance(row.get(kind), str)}
                more = {name: value for name, value in row.items() if name != "image" and name not in files}
                outcomes[image] = PredictedImage(image, files, more, ())
        yield out / SUMMARY, content, outcomes
    for path in sorted(out.glob(RECORDS)):
        if (records := RecordFile.parse(read_bytes(path, MAX_SUMMARY, "predict"), path)) is not None:
            yield path, records.settings, records.outcomes


def check_records(out: Path) -> None:
    """Raise where a record file of a folder holds something else, before hours of work."""
    for _ in _earlier(out):
        pass


def _is_locked(path: Path) -> bool:
    with open_own(path, "ab") as file:
        return not lock(file, wait=False)


def join_records(
    out: Path, images: Sequence[str], failed: Sequence[tuple[str, str]], settings: Mapping[str, Any]
) -> int:
    """Write summary.json and remove the records if every image has an outcome. Return how many have none.

    `images` gives the order of the summary, `failed` the paths that held no image.
    """
    with one_at_a_time(out / ".records.lock"):
        outcomes: dict[str, Outcome] = {}
        for path, found_settings, found in _earlier(out):
            in_use = path.name != SUMMARY and _is_locked(path)  # by a shard at work
            if not in_use and all(found_settings.get(name) == value for name, value in settings.items()):
                outcomes |= {image: _better(outcomes.get(image), one) for image, one in found.items()}
        left = sum(image not in outcomes for image in images)
        if left == 0:
            Summary.of([outcomes[image] for image in images], failed).write(out / SUMMARY, **settings)
            for path in out.glob(RECORDS):
                path.unlink()
    (out / ".records.lock").unlink(missing_ok=True)
    return left
