"""Turn CIFAR-10 from sheets of JPEG tiles into the Python batches that the data set `cifar10` reads.

    python lab/experiments/cifar10_sheets.py SHEETS OUT

A sheet has 50 x 50 tiles in raster order: `train_00.jpg` ... and `test_00.jpg` ..., with labels in `train_labels.npy`
and `test_labels.npy`. They are lossy, so distances such as FID must take their real images from them too.
"""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

TILES, SIZE = 50, 32
BATCHES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}


def convert_sheets(sheets: Path, out: Path, split: str) -> None:
    """Write the batches of one split."""
    labels = np.load(sheets / f"{split}_labels.npy", allow_pickle=False)
    paths = sorted(sheets.glob(f"{split}_[0-9][0-9].jpg"))
    sheets_of_split = np.stack([np.asarray(Image.open(path)) for path in paths])
    tiles = sheets_of_split.reshape(-1, TILES, SIZE, TILES, SIZE, 3).transpose(0, 1, 3, 5, 2, 4)
    images = tiles.reshape(-1, 3 * SIZE * SIZE)[: len(labels)]
    for name, chosen in zip(BATCHES[split], np.array_split(np.arange(len(images)), len(BATCHES[split])), strict=True):
        batch = {b"data": images[chosen], b"labels": labels[chosen].tolist()}
        (out / name).write_bytes(pickle.dumps(batch, protocol=3))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sheets", type=Path, help="folder of the sheets")
    parser.add_argument("out", type=Path, help="folder for the batches")
    options = parser.parse_args(words)
    options.out.mkdir(parents=True, exist_ok=True)
    for split in BATCHES:
        convert_sheets(options.sheets, options.out, split)


if __name__ == "__main__":
    main()
