"""Seeded fuzzing of everything that reads data: damaged files must give a clean error or a valid result.

`FUZZERS[name].cases(seed, n)` yields n cases, a function of (name, seed, n) alone; `FUZZERS[name].check(case, folder)`
writes the files of one below an empty folder, reads them, and raises AssertionError if the reader neither refuses
cleanly nor returns what it promises. A clean refusal is a HamburgerError that names a file of the case.
"""

from __future__ import annotations

import copy
import io
import json
import pickle
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from hamburger.errors import HamburgerError

Files = dict[str, bytes]
Reader = Callable[[Path], Any]  # the folder of a case -> arrays, tensors, strings or tuples of them


class Case(NamedTuple):
    """`changed` is False for the files as they were before any mutation: those must be read without an error."""

    files: Files
    changed: bool
    note: str


class Fuzzer(NamedTuple):
    """`make`: the valid files.   `mutate`: (random source, valid files) -> damaged files and what was done."""

    make: Callable[[], Files]
    mutate: Callable[[random.Random, Files], tuple[Files, str]]
    read: Reader

    def cases(self, seed: int, n: int) -> Iterator[Case]:
        files = cache(self.make)()
        yield Case(files, False, "unchanged")
        for i in range(1, n):
            source = random.Random(f"{seed} {i}")
            yield Case(*_reorder(self.mutate(source, dict(files))))

    def check(self, case: Case, folder: Path) -> str:
        """Return "read" or the message of the refusal."""
        for name, content in case.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        try:
            value = self.read(folder)
        except HamburgerError as error:
            message = str(error)
            assert case.changed, f"refused valid files: {message}"
            assert str(folder) in message or any(Path(name).name in message for name in case.files), message
            assert len(message) < 5000 and "Traceback" not in message, message[:300]
            message.encode()  # can be printed
            return message
        _assert_equal(value, self.read(folder), case.note)
        return "read"


def _reorder(mutated: tuple[Files, str]) -> tuple[Files, bool, str]:
    files, note = mutated
    return files, True, note


def _assert_equal(one: Any, other: Any, note: str) -> None:
    if isinstance(one, (tuple, list)):
        assert len(one) == len(other), note
        for a, b in zip(one, other, strict=True):
            _assert_equal(a, b, note)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), note
    else:
        assert np.array_equal(one, other), note


# -- mutations ---------------------------------------------------------------------------------------------------------

INTERESTING = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)


def mutate_bytes(source: random.Random, content: bytes) -> tuple[bytes, str]:
    """Flip bits, overwrite with extreme integers, cut, repeat, insert or remove; one to four times."""
    data, notes = bytearray(content), []
    for _ in range(source.choice((1, 1, 2, 4))):
        place = source.randrange(len(data) + 1) if source.random() < 0.5 else source.randrange(min(len(data), 64) + 1)
        kind = source.choice(("flip", "flip", "integer", "cut", "repeat", "insert", "remove", "zeros"))
        length = source.choice((1, 2, 4, 8, 64))
        if kind == "flip" and place < len(data):
            data[place] ^= 1 << source.randrange(8)
        elif kind == "integer":
            value, order = source.choice(INTERESTING), source.choice(("little", "big"))
            data[place : place + length] = (value % 256 ** min(length, 8)).to_bytes(min(length, 8), order)
        elif kind == "cut":
            del data[place:]
        elif kind == "repeat":
            data[place:place] = data[place : place + length] * source.choice((1, 3, 100))
        elif kind == "insert":
            data[place:place] = source.randbytes(length)
        elif kind == "remove":
            del data[place : place + length]
        elif kind == "zeros":
            data[place : place + length] = bytes(length)
        notes.append(f"{kind} at {place}")
    return bytes(data), ", ".join(notes)


def mutate_file(name: str) -> Callable[[random.Random, Files], tuple[Files, str]]:
    def mutate(source: random.Random, files: Files) -> tuple[Files, str]:
        content, note = mutate_bytes(source, files[name])
        return {**files, name: content}, note

    return mutate


def mutate_inner(
    name: str, unpack: Callable[[bytes], bytes], pack: Callable[[bytes], bytes]
) -> Callable[[random.Random, Files], tuple[Files, str]]:
    """Mutate what is inside a container, and every third time the container itself."""

    def mutate(source: random.Random, files: Files) -> tuple[Files, str]:
        if source.random() < 1 / 3:
            return mutate_file(name)(source, files)
        content, note = mutate_bytes(source, unpack(files[name]))
        return {**files, name: pack(content)}, f"inside: {note}"

    return mutate


NASTY: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2**31,
        2**63,
        10**4000,
        1.5,
        -0.5,
        1e308,
        float("nan"),
        float("inf"),
        "",
        "0",
        "nan",
    ),
    *("a\0b", "\ud800", "../../x.png", "/etc/passwd", "x" * 5000, [], {}, [[]], [None] * 3, {"a": []}, [1, 2, 3, 4, 5]),
    *(
        [1, 1, -5, -5],
        [float("nan")] * 4,
        ["1", "2", "3", "4"],
        [True] * 4,
        [[1, 2], [3, 4]],
        [[0.0, 0, 1e9, 0, 0, 1e9]],
    ),
    *({"size": [1, 1], "counts": [1]}, {"size": [30, 40], "counts": "P" * 9}, {"size": "ab", "counts": [10**400]}),
)


def mutate_json(source: random.Random, value: Any) -> tuple[Any, str]:
    """Replace, remove or repeat values anywhere in a JSON document; some become deeply nested."""
    value, notes = copy.deepcopy(value), []
    for _ in range(source.choice((1, 1, 2, 5))):
        parent: Any = value
        steps: list[Any] = []
        while True:
            keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
            if not keys:
                break
            steps.append(source.choice(keys))
            child = parent[steps[-1]]
            if not isinstance(child, (dict, list)) or not child or source.random() < 0.2:
                break
            parent = child
        if not steps:
            continue
        kind = source.choice(("nasty", "nasty", "nasty", "remove", "repeat", "nest"))
        kind = (
            "nasty" if kind == "nest" and any(note.startswith("nest") for note in notes) else kind
        )  # json writes 1,000
        if kind == "nasty":
            parent[steps[-1]] = copy.deepcopy(source.choice(NASTY))
        elif kind == "remove":
            del parent[steps[-1]]
        elif kind == "nest":
            for _ in range(source.choice((3, 70, 400, 900))):
                parent[steps[-1]] = [parent[steps[-1]]] if source.random() < 0.9 else {"a": parent[steps[-1]]}
        elif isinstance(parent, list):
            parent.append(parent[steps[-1]])
        notes.append(f"{kind} at {steps}")
    return value, ", ".join(notes)


# -- valid files -------------------------------------------------------------------------------------------------------


def noise(*shape: int) -> Any:
    return np.random.default_rng(list(shape)).integers(0, 256, shape, dtype=np.uint8)


def encode(format: str, pixels: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(pixels)
    if options.pop("palette", False):
        image.putpalette(list(range(256)) * 3)
    image.save(buffer, format=format, **options)
    return buffer.getvalue()


def unpack_png(content: bytes) -> bytes:
    """The chunks of a PNG with the pixels decompressed, so that a mutation meets more than a checksum."""
    out, place = bytearray(), 8
    while place < len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        kind, data = content[place + 4 : place + 8], content[place + 8 : place + 8 + length]
        data = zlib.decompress(data) if kind == b"IDAT" else data
        out += kind + struct.pack(">I", len(data)) + data
        place += 12 + length
    return bytes(out)


def pack_png(content: bytes) -> bytes:
    """The inverse, with right checksums whatever the chunks hold."""
    out, place = bytearray(b"\x89PNG\r\n\x1a\n"), 0
    while place < len(content):
        kind, length = content[place : place + 4], int.from_bytes(content[place + 4 : place + 8], "big")
        data = content[place + 8 : place + 8 + min(length, len(content))]
        data = zlib.compress(data) if kind == b"IDAT" else data
        out += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        place += 8 + min(length, len(content))
    return bytes(out)


def make_npz() -> Files:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, disparity=noise(12, 16).astype(np.float32))
    return {"d.npz": buffer.getvalue()}


def unzip(content: bytes) -> bytes:
    import zipfile

    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return archive.read(archive.namelist()[0])


def rezip(content: bytes) -> bytes:
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("disparity.npy", content)
    return buffer.getvalue()


def make_mat(compress: bool = True) -> Files:
    from scipy.io import savemat

    buffer = io.BytesIO()
    label = (noise(12, 17) % 21).astype(np.uint8)
    struct_ = {"Boundaries": np.zeros((20, 1)), "Segmentation": label, "CategoriesPresent": np.unique(label)}
    savemat(buffer, {"GTcls": struct_}, do_compression=compress)
    return {"a.mat": buffer.getvalue()}


def uncompress_mat(content: bytes) -> bytes:
    return content[:128] + zlib.decompress(content[136:])


def recompress_mat(content: bytes) -> bytes:
    body = zlib.compress(content[128:])
    return content[:128] + struct.pack("<II", 15, len(body)) + body


def make_coco() -> Files:
    square, mask = [4, 5, 14, 5, 14, 15, 4, 15], {"size": [30, 40], "counts": [100, 5, 25, 5, 30 * 40 - 135]}
    note = {"id": 0, "image_id": 10, "category_id": 3, "bbox": [4, 5, 10, 10], "segmentation": [square], "area": 100.0}
    other = {**note, "id": 1, "category_id": 7, "bbox": [3, 10, 2, 5], "segmentation": mask, "iscrowd": 0}
    image = {"id": 10, "file_name": "0.png", "height": 30, "width": 40}
    content = {
        "images": [image, {**image, "id": 11, "file_name": "1.png"}],
        "annotations": [note, other, {**note, "id": 2, "image_id": 11}],
        "categories": [{"id": 7, "name": "triangle"}, {"id": 3, "name": "square"}],
    }
    image_files = {f"val/{i}.png": encode("PNG", noise(30, 40, 3)) for i in range(2)}
    return {"val.json": json.dumps(content).encode(), **image_files}


def mutate_coco(source: random.Random, files: Files) -> tuple[Files, str]:
    if source.random() < 0.2:
        return mutate_file("val.json")(source, files)
    value, note = mutate_json(source, json.loads(files["val.json"]))
    return {**files, "val.json": json.dumps(value).encode()}, note


def make_folder() -> Files:
    files = {"classes.txt": b"sky\nroad 1 2 3\n", "train.txt": b"a\nb.png\nsub/c\n"}
    for name in ("a", "b", "sub/c"):
        files[f"images/{name}.png"] = encode("PNG", noise(6, 8, 3))
        files[f"labels/{name}.png"] = encode("PNG", noise(6, 8) % 2)
    return files


def mutate_lists(source: random.Random, files: Files) -> tuple[Files, str]:
    name = source.choice(("classes.txt", "train.txt"))
    if source.random() < 0.5:
        content, note = mutate_bytes(source, files[name])
    else:
        lines = [
            "a\0b",
            "../../x",
            "/etc/passwd",
            "\u202e",
            "x" * 5000,
            "9" * 5000,
            f"z 1 2 {'9' * 5000}",
            "",
            "sub",
            "a",
        ]
        note = source.choice(lines)
        content = files[name] + note.encode() + b"\n"
    return {**files, name: content}, f"{name}: {note[:80]}"


def make_batch() -> Files:
    content = {b"data": noise(4, 3072), b"labels": [1, 2, 3, 4], b"batch_label": b"x"}
    return {"data_batch_1": pickle.dumps(content, protocol=2)}


# -- readers -----------------------------------------------------------------------------------------------------------


def read_folder(folder: Path) -> Any:
    from hamburger.segmentation.data import create_dataset
    from hamburger.segmentation.data.checks import inspect_dataset

    data = create_dataset("folder", "train", folder)
    outside = [path for pair in data.pairs for path in (pair.image, pair.label) if not _is_inside(path, folder)]
    assert not outside, outside
    findings = inspect_dataset(data, cache=False)
    return [*data.ids, *findings.problems, *findings.pixels]


def _is_inside(path: Path, folder: Path) -> bool:
    return ".." not in path.relative_to(folder).parts if path.is_relative_to(folder) else False


def read_coco(folder: Path) -> Any:
    from hamburger.detection.data import create_detection_set

    data = create_detection_set("coco", "val", folder, broken="drop", empty="keep")
    assert all(_is_inside(data.path(i), folder) for i in range(len(data)))
    problems = data.problems(cache=False)
    scenes = [] if problems else [tuple(data[i]) for i in range(len(data))]
    for image, boxes, labels, masks, areas, _ in scenes:
        h, w = image.shape[1:]
        assert masks.shape[1:] == (h, w) and len(boxes) == len(labels) == len(masks) == len(areas)
        assert bool(boxes.isfinite().all()) and bool(areas.isfinite().all()) and bool((labels >= 0).all())
        assert all(mask.any() for mask in masks)
    return [*problems, scenes]


def read_batch_file(folder: Path) -> Any:
    from hamburger.classification.data.cifar10 import read_batch

    chunk = read_batch(folder / "data_batch_1")
    assert chunk.images.dtype == np.uint8 and chunk.images.shape == (len(chunk.labels), 3, 32, 32)
    assert ((chunk.labels >= 0) & (chunk.labels < 10)).all()
    return tuple(chunk)


def make_annotations() -> Files:
    return {"val_annotations.txt": b"".join(b"val_%d.JPEG\tn0%d\t0\t32\t44\t62\n" % (i, i % 2) for i in range(4))}


def read_class_list(folder: Path) -> Any:
    from hamburger.classification.data.sources import read_annotations

    classes = read_annotations(folder / "val_annotations.txt", [f"val_{i}.JPEG" for i in range(4)])
    return [*classes, *classes.values()]


def _reader(module: str, function: str, name: str) -> Reader:
    def read(folder: Path) -> Any:
        import importlib

        return getattr(importlib.import_module(f"hamburger.{module}"), function)(folder / name)

    return read


def _image_fuzzer(format: str, name: str, function: str, pixels: Any, **options: Any) -> Fuzzer:
    def make() -> Files:
        return {name: encode(format, pixels, **options)}

    mutate = mutate_inner(name, unpack_png, pack_png) if format == "PNG" else mutate_file(name)
    return Fuzzer(make, mutate, _reader("training.image_files", function, name))


def _pfm() -> Files:
    from hamburger.stereo.data.files import encode_pfm

    return {"d.pfm": encode_pfm(noise(6, 8).astype(np.float32))}


FUZZERS: dict[str, Fuzzer] = {
    "png": _image_fuzzer("PNG", "a.png", "read_image", noise(9, 11, 4)),
    "jpeg": _image_fuzzer("JPEG", "a.jpg", "read_image", noise(9, 11, 3)),
    "webp": _image_fuzzer("WEBP", "a.webp", "read_image", noise(9, 11, 3)),
    "label": _image_fuzzer("PNG", "a.png", "read_indices", noise(9, 11), palette=True),
    "grey": _image_fuzzer("PNG", "a.png", "read_grey", noise(9, 11).astype(np.uint16)),
    "npz": Fuzzer(
        make_npz, mutate_inner("d.npz", unzip, rezip), _reader("stereo.data.files", "read_disparity", "d.npz")
    ),
    "pfm": Fuzzer(_pfm, mutate_file("d.pfm"), _reader("stereo.data.files", "read_disparity", "d.pfm")),
    "mat": Fuzzer(
        make_mat,
        mutate_inner("a.mat", uncompress_mat, recompress_mat),
        _reader("segmentation.data.sbd", "read_sbd_label", "a.mat"),
    ),
    "coco": Fuzzer(make_coco, mutate_coco, read_coco),
    "folder": Fuzzer(make_folder, mutate_lists, read_folder),
    "annotations": Fuzzer(make_annotations, mutate_file("val_annotations.txt"), read_class_list),
    "cifar": Fuzzer(make_batch, mutate_file("data_batch_1"), read_batch_file),
}
