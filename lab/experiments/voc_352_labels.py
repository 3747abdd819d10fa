"""Score stored label maps of `voc_352.py` by class and by object size, on a CPU, and add the scores to their rows.

    python lab/experiments/voc_352_labels.py nmf-0.tar --cell nmf --seed 0 --data VOC --json results/voc352_h200.jsonl

`--data` needs labels/ and objects/ (VOC's instance maps: 0 background, one value per object, 255 void), val.txt and
classes.txt. An object's class is that of its pixels in labels/. Its recall is the share of its pixels that are
predicted as its class; a size class is judged by the mean recall of its objects. Sizes are shares of the image.
"""

from __future__ import annotations

import argparse
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from voc_352 import write_row

from hamburger.training.supervised import Confusion, accuracy, iou, miou
from hamburger_lab.rows import read_json_lines

VOID = 255
SIZES = {"below 1 %": 0.01, "1 to 5 %": 0.05, "5 to 20 %": 0.2, "above 20 %": 1.0}  # largest share of the image


def score_labels(archive: Path, data: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the scores over all pixels (as in a row's `single`), and the recall of objects by size."""
    classes = (data / "classes.txt").read_text().split()
    counts = Confusion(len(classes))
    recalls: dict[str, list[float]] = {name: [] for name in SIZES}
    with tarfile.open(archive) as maps:
        names = maps.getnames()
        for name in names:
            predicted = np.asarray(Image.open(maps.extractfile(name)))  # type: ignore[arg-type]
            truth = np.asarray(Image.open(data / "labels" / name))
            counts.update(torch.from_numpy(predicted.copy()), torch.from_numpy(truth.copy()))
            for share, recall in object_recalls(predicted, truth, np.asarray(Image.open(data / "objects" / name))):
                recalls[next(size for size, most in SIZES.items() if share <= most)].append(recall)
    expected = (data / "val.txt").read_text().split()
    if {Path(name).stem for name in names} != set(expected):
        raise ValueError(f"{archive}: expected a label map of each of the {len(expected)} images of val.txt")
    matrix = counts.matrix
    single = {
        "miou": miou(matrix),
        "pixel_accuracy": accuracy(matrix),
        "per_class": dict(zip(classes, iou(matrix).tolist(), strict=True)),
        "protocol": "single scale",
        "images": len(names),
        "confusion": matrix.tolist(),
    }
    objects = {
        size: {"objects": len(values), "mean_recall": float(np.mean(values)) if values else None}
        for size, values in recalls.items()
    }
    return single, objects


def object_recalls(predicted: Any, truth: Any, objects: Any) -> list[tuple[float, float]]:
    """Return (share of the image, share of its pixels predicted as its class) of every object of an image."""
    recalls = []
    for index in np.setdiff1d(objects, [0, VOID]):
        inside = (objects == index) & (truth != VOID)
        if not inside.any():
            continue
        label = np.bincount(truth[inside]).argmax()
        recalls.append((float(inside.mean()), float((predicted[inside] == label).mean())))
    return recalls


def main(values: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path, help="the .tar file that `voc_352.py --labels` wrote")
    parser.add_argument("--cell", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--data", type=Path, required=True, help="the data folder, with objects/")
    parser.add_argument("--json", type=Path, required=True, help="result file with the row of that cell and seed")
    arguments = parser.parse_args(values)
    single, objects = score_labels(arguments.archive, arguments.data)
    rows = read_json_lines(arguments.json, "voc_352_labels")
    (row,) = [row for row in rows if (row["cell"], row["seed"]) == (arguments.cell, arguments.seed)]
    write_row(arguments.json, {**row, "single": {**single, **row.get("single", {})}, "objects": objects})


if __name__ == "__main__":
    main()
