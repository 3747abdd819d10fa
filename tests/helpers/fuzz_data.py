"""Fuzzers of everything that reads data sets: images, labels, lists, disparities, annotations."""

from __future__ import annotations

import io
import json
import pickle
import random
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_cases import (
    HOSTILE_PICKLES,
    Files,
    Fuzzer,
    Reader,
    mutate_bytes,
    mutate_file,
    mutate_inner,
    mutate_json,
)
from PIL import Image

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


def make_npz() -> list[Files]:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, disparity=noise(12, 16).astype(np.float32))
    return [{"d.npz": buffer.getvalue()}]


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


def make_mat() -> list[Files]:
    from scipy.io import savemat

    buffer = io.BytesIO()
    label = (noise(12, 17) % 21).astype(np.uint8)
    struct_ = {"Boundaries": np.zeros((20, 1)), "Segmentation": label, "CategoriesPresent": np.unique(label)}
    savemat(buffer, {"GTcls": struct_}, do_compression=True)
    return [{"a.mat": buffer.getvalue()}]


def uncompress_mat(content: bytes) -> bytes:
    return content[:128] + zlib.decompress(content[136:])


def recompress_mat(content: bytes) -> bytes:
    body = zlib.compress(content[128:])
    return content[:128] + struct.pack("<II", 15, len(body)) + body


def make_coco() -> list[Files]:
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
    return [{"val.json": json.dumps(content).encode(), **image_files}]


def mutate_coco(source: random.Random, files: Files) -> tuple[Files, str]:
    if source.random() < 0.2:
        return mutate_file("val.json")(source, files)
    value, note = mutate_json(source, json.loads(files["val.json"]))
    return {**files, "val.json": json.dumps(value).encode()}, note


def make_folder() -> list[Files]:
    files: Files = {"classes.txt": b"sky\nroad 1 2 3\n", "train.txt": b"a\nb.png\nsub/c\n"}
    for name in ("a", "b", "sub/c"):
        files[f"images/{name}.png"] = encode("PNG", noise(6, 8, 3))
        files[f"labels/{name}.png"] = encode("PNG", noise(6, 8) % 2)
    return [files]


HOSTILE_LINES = (
    *("a\0b", "../../x", "/etc/passwd", "\u202e", "x" * 5000, "9" * 5000, f"z 1 2 {'9' * 5000}", "", "sub", "a"),
    *(
        "z 1 2 256",
        "z 1 2 -3",
        "z 1 2 \u0661",
        "1 2 3",
        "road 1 2 3",
        "sky",
        "# 1 2 3",
        "<script>",
        "z\x1b[31m",
        "\ufeff",
    ),
    *(
        "\n".join(f"c{i}" for i in range(300)),
        "\n".join(f"c{i} {i} 0 0" for i in range(200)),
        "\u2028",
        "\x85",
        ",,,",
        "a,b",
    ),
)


def mutate_lists(source: random.Random, files: Files) -> tuple[Files, str]:
    """Mutate the class list or the list of images: as bytes, or by hostile lines in place of some or at the end."""
    name = source.choice(("classes.txt", "train.txt"))
    if source.random() < 0.3:
        content, note = mutate_bytes(source, files[name])
        return {**files, name: content}, f"{name}: {note}"
    lines = files[name].decode().splitlines()
    chosen = source.choices(HOSTILE_LINES, k=source.choice((1, 1, 3)))
    lines = [*lines[: source.randrange(len(lines) + 1)], *chosen] if source.random() < 0.5 else [*lines, *chosen]
    return {**files, name: "\n".join(lines).encode() + b"\n"}, f"{name}: {chosen!r:.80}"


def make_batch() -> list[Files]:
    content = {b"data": noise(4, 3072), b"labels": [1, 2, 3, 4], b"batch_label": b"x"}
    return [{"data_batch_1": pickle.dumps(content, protocol=2)}]


def mutate_batch(source: random.Random, files: Files) -> tuple[Files, str]:
    if source.random() < 0.8:
        return mutate_file("data_batch_1")(source, files)
    note, content = source.choice(list(HOSTILE_PICKLES.items()))
    return {"data_batch_1": content}, note


# -- readers -----------------------------------------------------------------------------------------------------------


def read_folder(folder: Path) -> Any:
    from hamburger.segmentation.data import create_dataset
    from hamburger.segmentation.data.checks import inspect_dataset

    data = create_dataset("folder", "train", folder)
    outside = [path for pair in data.pairs for path in (pair.image, pair.label) if not _is_inside(path, folder)]
    assert not outside, outside
    findings = inspect_dataset(data)
    return [*data.ids, *findings.problems, *findings.pixels]


def _is_inside(path: Path, folder: Path) -> bool:
    return ".." not in path.relative_to(folder).parts if path.is_relative_to(folder) else False


def read_coco(folder: Path) -> Any:
    from hamburger.detection.data import create_detection_set

    data = create_detection_set("coco", "val", folder, broken="drop", empty="keep")
    assert all(_is_inside(data.path(i), folder) for i in range(len(data)))
    problems = data.problems()
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


def make_annotations() -> list[Files]:
    lines = (b"val_%d.JPEG\tn0%d\t0\t32\t44\t62\n" % (i, i % 2) for i in range(4))
    return [{"val_annotations.txt": b"".join(lines)}]


def read_class_list(folder: Path) -> Any:
    from hamburger.classification.data.sources import read_annotations

    classes = read_annotations(folder / "val_annotations.txt", [f"val_{i}.JPEG" for i in range(4)])
    return [*classes, *classes.values()]


def _reader(module: str, function: str, name: str) -> Reader:
    def read(folder: Path) -> Any:
        import importlib

        return getattr(importlib.import_module(module), function)(folder / name)

    return read


def _image_fuzzer(format: str, name: str, function: str, pixels: Any, **options: Any) -> Fuzzer:
    def make() -> list[Files]:
        return [{name: encode(format, pixels, **options)}]

    mutate = mutate_inner(name, unpack_png, pack_png) if format == "PNG" else mutate_file(name)
    return Fuzzer(make, mutate, _reader("hamburger.training.image_files", function, name))


def _pfm() -> list[Files]:
    from hamburger.stereo.data.files import encode_pfm

    return [{"d.pfm": encode_pfm(noise(6, 8).astype(np.float32))}]


def make_large_tiff() -> list[Files]:
    files = []
    for options in ({"tile": (16, 16)}, {"tile": (16, 16), "compression": "zlib", "predictor": True}, {}):
        buffer = io.BytesIO()
        tifffile.imwrite(buffer, noise(20, 30, 3), photometric="rgb", metadata=None, **options)
        files.append({"a.tif": buffer.getvalue()})
    return files


def read_large_tiff(folder: Path) -> Any:
    """A small rectangle: the file may say that the image has billions of pixels."""
    from hamburger.inference.large_images import open_large_image

    image = open_large_image(folder / "a.tif")
    bottom, right = min(image.height, 20), min(image.width, 30)
    return image.read(bottom // 2, bottom, right // 2, right)


DATA: dict[str, Fuzzer] = {
    "png": _image_fuzzer("PNG", "a.png", "read_image", noise(9, 11, 4)),
    "jpeg": _image_fuzzer("JPEG", "a.jpg", "read_image", noise(9, 11, 3)),
    "webp": _image_fuzzer("WEBP", "a.webp", "read_image", noise(9, 11, 3)),
    "bmp": _image_fuzzer("BMP", "a.bmp", "read_image", noise(9, 11, 3)),
    "gif": _image_fuzzer("GIF", "a.gif", "read_image", noise(9, 11)),
    "tiff": _image_fuzzer("TIFF", "a.tif", "read_image", noise(9, 11, 3)),
    "tiff-lzw": _image_fuzzer("TIFF", "a.tif", "read_image", noise(9, 11, 3), compression="tiff_lzw"),
    "label": _image_fuzzer("PNG", "a.png", "read_indices", noise(9, 11), palette=True),
    "grey": _image_fuzzer("PNG", "a.png", "read_grey", noise(9, 11).astype(np.uint16)),
    "npz": Fuzzer(
        make_npz, mutate_inner("d.npz", unzip, rezip), _reader("hamburger.stereo.data.files", "read_disparity", "d.npz")
    ),
    "pfm": Fuzzer(_pfm, mutate_file("d.pfm"), _reader("hamburger.stereo.data.files", "read_disparity", "d.pfm")),
    "mat": Fuzzer(
        make_mat,
        mutate_inner("a.mat", uncompress_mat, recompress_mat),
        _reader("hamburger_lab.prepare_voc", "read_sbd_label", "a.mat"),
    ),
    "coco": Fuzzer(make_coco, mutate_coco, read_coco),
    "folder": Fuzzer(make_folder, mutate_lists, read_folder),
    "annotations": Fuzzer(make_annotations, mutate_file("val_annotations.txt"), read_class_list),
    "cifar": Fuzzer(make_batch, mutate_batch, read_batch_file),
}
Image.init()
if "AVIF" in Image.SAVE:  # Pillow 11.3 or newer
    DATA["avif"] = _image_fuzzer("AVIF", "a.avif", "read_image", noise(9, 11, 3))
with suppress(ImportError):  # the extra `tiff`
    import tifffile

    DATA["tiff-parts"] = Fuzzer(make_large_tiff, mutate_file("a.tif"), read_large_tiff)
with suppress(ImportError):  # the extra `heic`
    import pillow_heif

    pillow_heif.register_heif_opener()
    DATA["heic"] = _image_fuzzer("HEIF", "a.heic", "read_image", noise(64, 64, 3))
