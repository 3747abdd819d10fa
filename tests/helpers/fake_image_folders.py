"""Small image-class data sets in the layouts that users have."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
from PIL import Image


def pixels(seed, size):
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)


def folders(root: Path, *, classes=("cats", "dogs"), each=3, size=(20, 30), split="train", suffix=".png") -> Path:
    for k, name in enumerate(classes):
        for i in range(each):
            path = root / split / name / f"{i}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels(10 * k + i, size)).save(path)
    return root


def official_val(root: Path, classes=("n01", "n02"), each=2) -> Path:
    """Tiny-ImageNet's official layout: images of all classes in one folder; a text file with class and box of each."""
    lines = []
    for i in range(each * len(classes)):
        path = root / "val" / "images" / f"val_{i}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(50 + i, (64, 64))).save(path)
        lines.append(f"val_{i}.JPEG\t{classes[(i + 1) % len(classes)]}\t0\t32\t44\t62\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    return root


def cifar_batches(root: Path, each=4) -> Path:
    """The original python batches: pickle protocol 2, byte strings as keys, lists of labels."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for k, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        data = np.random.default_rng(k).integers(0, 256, (each, 3072), dtype=np.uint8)
        labels = [(k + i) % 10 for i in range(each)]
        (folder / name).write_bytes(pickle.dumps({b"data": data, b"labels": labels, b"batch_label": b"x"}, protocol=2))
    return root
