"""Train Mask R-CNN with one context on the objects of PASCAL VOC and evaluate it: boxes and masks at 352 pixels.

    python lab/experiments/voc_instances.py nmf --seed 0 --data VOC \\
        --pretrained resnet50_v1_imagenet_int8.safetensors --json results/detection_voc-instances_h200.jsonl

Protocol
- Data: `train` (1,464 images) and `val` (1,449) of VOC 2012 segmentation. The script converts labels and instance maps
  to COCO's format in `<out>/coco`. Void pixels belong to no object; an object's class is that of most of its pixels.
- Training: ResNet-50 with a feature pyramid, frozen norms, stem and first stage; 1,500 steps of 16 views of 352 pixels
  (16 epochs), scaled by 0.75 to 1.5 and mirrored, bf16. Only the context after p3 differs between cells; its gate
  starts at zero. The rate was tuned for none of the cells.
- The weights of the last step count. Five points of the learning curve are scored on every fifth image of `val`.
- Evaluation: COCO's average precision on all of `val`, without autocast, for boxes and masks: over classes, by class
  and by COCO's areas (small below 32 x 32, large above 96 x 96 pixels), measured in the reduced images.
- `--data` names a folder with images/, labels/, objects/, train.txt, val.txt and classes.txt.

The command writes one row for the cell and seed into the file of `--json`, in place of an older one. A run folder that
was interrupted is resumed; a finished one is only evaluated. Cells that run at the same time need a file each;
concatenate the files afterwards. `--tiny` replaces the network and the sizes by toy ones
for a CPU: it tests the script, and its scores mean nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from hamburger.detection.data import find_boxes
from hamburger.detection.data.coco import CocoSet, encode_masks, read_size
from hamburger.detection.evaluate import DetectionScores, ScoredImage, average_precision, describe_image, score_images
from hamburger.detection.recipe import DetectionRecipe, coco_maskrcnn
from hamburger.detection.task import DetectionTask
from hamburger.environment import describe_environment
from hamburger.files import write_atomically, write_json_lines
from hamburger.training.loader import prefetch
from hamburger.training.metrics_log import CheckProgress, ValidationProgress
from hamburger.training.supervised import evaluation_mode
from hamburger.training.train import train
from hamburger_lab.rows import read_json_lines

# cell: context and its options
CELLS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "none": (None, {}),
    "sa": ("sa", {"heads": 8}),
    "efficient": ("efficient", {}),
    "nmf": ("nmf", {}),
}
SPLITS = ("train", "val")
BACKGROUND, VOID = 0, 255
SIDE = 352  # longest side of the images
CURVE_POINTS = 5
CURVE_STRIDE = 5  # the learning curve is scored on every fifth image
EVALUATION_BATCH = 8  # images of one size that are evaluated together: others would be padded, and contexts see padding


# -- data --------------------------------------------------------------------------------------------------------------


def convert_objects(data: Path, target: Path) -> None:
    """Write `annotations/instances_<split>.json` of both splits below `target`, and a link to the images."""
    classes = (data / "classes.txt").read_text().split()
    categories = [{"id": label, "name": name} for label, name in enumerate(classes) if label != BACKGROUND]
    files = {path.stem: path.name for path in (data / "images").iterdir()}
    for split in SPLITS:
        path = target / "annotations" / f"instances_{split}.json"
        if path.exists():
            continue
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for number, name in enumerate((data / f"{split}.txt").read_text().split()):
            label, objects = (np.asarray(Image.open(data / folder / f"{name}.png")) for folder in ("labels", "objects"))
            h, w = label.shape
            images.append({"id": number, "file_name": files[name], "height": h, "width": w})
            annotations += [{**each, "image_id": number} for each in describe_objects(label, objects)]
        numbered = [{"id": number, **each} for number, each in enumerate(annotations, start=1)]
        content = {"images": images, "annotations": numbered, "categories": categories}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(content).encode())
    link = target / "images"
    with suppress(FileExistsError):  # from an earlier run, or from another cell at the same moment
        link.symlink_to((data / "images").resolve(), target_is_directory=True)


def describe_objects(label: Any, objects: Any) -> Iterator[dict[str, Any]]:
    """Yield class, box, area and mask of every object of an image; one without a pixel of any class is left out."""
    for index in np.setdiff1d(objects, [BACKGROUND, VOID]):
        mask = (objects == index) & (label != BACKGROUND) & (label != VOID)
        if not mask.any():
            continue
        masks = torch.from_numpy(mask)[None]
        left, top, right, bottom = find_boxes(masks)[0].tolist()
        yield {
            "category_id": int(np.bincount(label[mask]).argmax()),
            "bbox": [left, top, right - left, bottom - top],
            "area": int(mask.sum()),
            "iscrowd": 0,
            "segmentation": encode_masks(masks)[0],
        }


# -- training and evaluation -------------------------------------------------------------------------------------------


def build_recipe(cell: str, seed: int, *, pretrained: Path | None, steps: int | None, tiny: bool) -> DetectionRecipe:
    """Return the recipe of a cell; `steps` replaces its number of steps and keeps five points of the curve."""
    context, options = CELLS[cell]
    steps = 1_500 if steps is None else steps
    recipe = coco_maskrcnn()
    model = replace(
        recipe.model,
        context=context,
        context_options=options,
        pretrained=None if pretrained is None else str(pretrained),
        stride_in="1x1",  # the weights are those of a ResNet v1
        size=SIDE,
        max_size=SIDE,
        anchor=16,
        sampled=256,
        proposals=500,
    )
    splits = {"train_split": SPLITS[0], "val_split": SPLITS[1]}
    data = replace(recipe.data, options={}, crop=SIDE, scales=(0.75, 1.5), pad=True, workers=4, **splits)
    recipe = replace(
        recipe,
        name="voc-instances",
        model=model,
        data=data,
        optim=replace(recipe.optim, warmup=100, clip=10.0),
        steps=steps,
        eval_every=max(1, steps // CURVE_POINTS),
        checkpoint_every=max(1, steps // CURVE_POINTS),
        seed=seed,
        keep="last",
    )
    if tiny:
        sizes = {"size": 32, "max_size": 32, "anchor": 8, "channels": 16, "hidden": 16, "sampled": 16, "proposals": 20}
        model = replace(model, backbone="tiny", norm="batch", frozen=0, stride_in="3x3", **sizes)
        data = replace(data, crop=32, workers=0)
        recipe = replace(recipe, model=model, data=data, batch=2, precision="32", log_every=1)
    return recipe


class CurveDetection(DetectionTask):
    """Detection that validates on every fifth image, several of one size at once."""

    def evaluate(
        self, net: nn.Module, split: Any, info: Any, *, device: torch.device, workers: int = 4, **options: Any
    ) -> DetectionScores:
        indices = range(0, len(split), CURVE_STRIDE)
        return score_images(detect(net, split, indices, device=device, workers=workers), split.classes)


def detect(
    net: nn.Module, split: CocoSet, indices: Sequence[int], *, device: torch.device, workers: int
) -> list[ScoredImage]:
    """Return objects and detections of the images at `indices`, in this order."""
    by_size: dict[tuple[int, int], list[int]] = {}
    for index in indices:
        by_size.setdefault(read_size(split.images[index]), []).append(index)
    batches = [
        group[first : first + EVALUATION_BATCH]
        for group in by_size.values()
        for first in range(0, len(group), EVALUATION_BATCH)
    ]
    order = [index for batch in batches for index in batch]
    scored: dict[int, ScoredImage] = {}
    with (
        evaluation_mode(net, fixed_size=False),
        closing(prefetch(split.__getitem__, order, workers=workers, depth=4 * EVALUATION_BATCH)) as scenes,
    ):
        for batch in batches:
            read = [next(scenes) for _ in batch]
            detections = net([scene.image.to(device).float() / 255 for scene in read])
            for index, scene, objects in zip(batch, read, detections, strict=True):
                scored[index] = describe_image(index, scene, objects)
    return [scored[index] for index in indices]


def log_event(event: object) -> None:
    if not isinstance(event, CheckProgress | ValidationProgress):
        sys.stderr.write(f"{event}\n")


def run_cell(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train and evaluate one cell; return its row."""
    recipe = build_recipe(
        arguments.cell, arguments.seed, pretrained=arguments.pretrained, steps=arguments.steps, tiny=arguments.tiny
    )
    root, run = arguments.out / "coco", arguments.out / f"{arguments.cell}-seed{arguments.seed}"
    convert_objects(arguments.data, root)
    task = CurveDetection()
    result = train(task, recipe, run, data=root, resume=(run / "recipe.json").exists(), on_event=log_event)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net, _ = task.load(run / "best.safetensors")
    net.to(device)
    split = CocoSet(recipe.data.val_split, root=root)
    begin = time.perf_counter()
    images = detect(net, split, range(len(split)), device=device, workers=recipe.data.workers)
    scores = asdict(score_images(images, split.classes))
    _, box_per_class = average_precision(images, len(split.classes), "bbox")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "cell": arguments.cell,
        # recipe, context, seed, steps, speed and memory; scores of the curve, which are replaced or left out
        **{name: value for name, value in result.values.items() if not name.startswith("best_")},
        **scores,
        "box_per_class": dict(zip(split.classes, box_per_class, strict=True)),
        "learning_curve": [
            {key: line[key] for key in ("step", "mask_map", "box_map")} for line in lines if "mask_map" in line
        ],
        "curve_images": len(range(0, len(split), CURVE_STRIDE)),
        "context_options": recipe.model.context_options,
        "size": recipe.model.size,
        "pretrained": None if arguments.pretrained is None else arguments.pretrained.name,
        "tiny": arguments.tiny,
        "evaluation_seconds": round(time.perf_counter() - begin, 1),
        **describe_environment(device.type),
    }


# -- command line ------------------------------------------------------------------------------------------------------


def parse_arguments(values: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cell", choices=list(CELLS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, required=True, help="the data folder")
    parser.add_argument("--pretrained", type=Path, help="weights of the ResNet-50; only --tiny does without")
    parser.add_argument("--out", type=Path, default=Path("runs/voc-instances"), help="folder of the run folders")
    parser.add_argument("--json", type=Path, required=True, help="result file, one JSON object per line")
    parser.add_argument("--steps", type=int, help="training steps; default: 1,500")
    parser.add_argument("--tiny", action="store_true", help="toy sizes, to test the script on a CPU")
    return parser.parse_args(values)


def main(values: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(values)
    row = run_cell(arguments)
    key = row["cell"], row["seed"]
    others = [old for old in read_json_lines(arguments.json, "voc_instances") if (old["cell"], old["seed"]) != key]
    write_json_lines(arguments.json, [*others, row])
    sys.stdout.write(f"{key[0]}, seed {key[1]}: box AP {row['box_map']:.4f}, mask AP {row['mask_map']:.4f}\n")


if __name__ == "__main__":
    main()
