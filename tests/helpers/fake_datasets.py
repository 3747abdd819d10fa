"""Small segmentation data sets in the layouts that users have, written with Pillow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

SIZE = (24, 32)  # h, w


def rng(name: str) -> np.random.Generator:
    return np.random.default_rng(list(name.encode()))


def write_image(path: Path, size: tuple[int, int] = SIZE) -> np.ndarray:
    """A random RGB image, in the format of its suffix; lossless, so that tests can compare (JPEG excepted)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = rng(path.stem).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, **({"lossless": True} if path.suffix == ".webp" else {}))
    return pixels


def write_label(path: Path, values: tuple[int, ...], size: tuple[int, int] = SIZE, palette: bool = False) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    label = rng(path.stem).choice(np.array(values, np.uint8), size)
    image = Image.fromarray(label)
    if palette:
        image.putpalette(rng("palette").integers(0, 256, 768, dtype=np.uint8).tolist())
    image.save(path)
    return label


def write_list(path: Path, ids: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{i}\n" for i in ids))


def folder(root: Path, *, ids: int = 4, classes: str = "sky\nroad\ntree\n") -> Path:
    """images/, labels/, classes.txt; the first ids train, the last val."""
    names = [f"img{i}" for i in range(ids)]
    for name in names:
        write_image(root / "images" / f"{name}.png")
        write_label(root / "labels" / f"{name}.png", (0, 1, 2, 255))
    write_list(root / "train.txt", names[:-1])
    write_list(root / "val.txt", names[-1:])
    (root / "classes.txt").write_text(classes)
    return root


def voc(root: Path) -> Path:
    """The official tree: a, b train; c val; t test without label; d, e are images that only SBD labels."""
    tree = root / "VOCdevkit" / "VOC2012"
    for name in "abcdet":
        write_image(tree / "JPEGImages" / f"{name}.jpg")
    for name in "abc":
        write_label(tree / "SegmentationClass" / f"{name}.png", (0, 8, 15, 20, 255), palette=True)
    lists = tree / "ImageSets" / "Segmentation"
    for split, names in {"train": "ab", "val": "c", "trainval": "abc", "test": "t"}.items():
        write_list(lists / f"{split}.txt", list(names))
    return tree


def sbd(root: Path) -> Path:
    """a and c are in VOC too, c in its val; d and e are SBD's own."""
    from scipy.io import savemat

    data = root / "benchmark_RELEASE" / "dataset"
    (data / "cls").mkdir(parents=True)
    for name in "acde":
        label = rng(name).integers(0, 21, SIZE, dtype=np.uint8)
        struct = {"Segmentation": label, "Boundaries": np.zeros((20, 1)), "CategoriesPresent": np.unique(label)}
        savemat(data / "cls" / f"{name}.mat", {"GTcls": struct})
    write_list(data / "train.txt", ["a", "d"])
    write_list(data / "val.txt", ["c", "e"])
    return data
