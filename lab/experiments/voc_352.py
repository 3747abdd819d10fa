"""Train one cell of the recipe `voc-352` and evaluate it: contexts compared on all of PASCAL VOC at 352 pixels.

    python lab/experiments/voc_352.py nmf --seed 0 --data VOC --pretrained resnet50_v1_imagenet_int8.safetensors \\
        --json results/voc352_h200.jsonl

Protocol
- Training: HamNet with a ResNet-50 at stride 16, `train_aug` of VOC, 22,500 steps of 16 crops of 353 pixels, bf16, the
  optimiser of the paper's ablation. The rate was tuned for none of the cells. Only the context differs between cells,
  or the whole head where the cell is a head's name. `--steps 11250` is half length; keep its rows in another file.
- The weights of the last step count, not the best of the ten validation points, which are kept as a learning curve.
- Evaluation on all of `val`, whole images, under bf16 autocast: single scale; the paper's six scales with flip; and,
  where the context is a ham, single scale with other numbers of steps K than the six of the training.
- `--data` names a folder with images/, labels/, train_aug.txt, val.txt and classes.txt.

The command writes one row for the cell and seed into the file of `--json`, in place of an older one: after the
single-scale evaluation, and again after each further one. A run folder that was interrupted is resumed; a finished one
is only evaluated. `voc_352_labels.py` adds scores by object size to the rows. `--tiny` replaces backbone, crop and
batch by toy sizes for a CPU: it tests the script, and its scores mean nothing.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import nn

from hamburger.environment import describe_environment
from hamburger.files import write_json_lines
from hamburger.layers.ham import HamLayer
from hamburger.segmentation.data.base import SegmentationSet
from hamburger.segmentation.evaluate import SegmentationScores, predict_labels
from hamburger.segmentation.recipe import SegmentationRecipe, voc_352
from hamburger.training.metrics_log import CheckProgress, ValidationProgress
from hamburger.training.supervised import SINGLE_SCALE, Confusion, EvaluationProtocol
from hamburger.training.train import train
from hamburger_lab.rows import read_json_lines
from hamburger_lab.size_batches import EVALUATION_BATCH, BatchedSegmentation, size_batches


class Cell(NamedTuple):
    """What differs from the recipe: the context with its options, or the whole head."""

    context: str | None
    options: Mapping[str, Any] = MappingProxyType({})
    head: str = "hamnet"


CELLS = {
    "none": Cell(None),
    "breads": Cell("nmf", {"parts": ("lower", "upper")}),
    "nmf": Cell("nmf"),
    "nmf-online": Cell("nmf", {"init": "online"}),
    "nmf-columns": Cell("nmf", {"init": "columns", "steps": 2}),
    "vq": Cell("vq"),
    "cd-online": Cell("cd", {"init": "online"}),
    "sa-flash": Cell("sa", {"heads": 8}),
    **{name: Cell(name) for name in ("efficient", "ema", "da", "hals", "robust", "local", "windowed", "learned")},
    **{name: Cell(None, head=name) for name in ("emanet", "danet", "pspnet", "ocrnet")},
}
MULTI_SCALE = EvaluationProtocol((0.5, 0.75, 1.0, 1.25, 1.5, 1.75), flip=True)  # the paper's test scales
OTHER_STEPS = (1, 2, 3, 4, 8, 12, 20)


def build_recipe(cell: str, seed: int, *, pretrained: Path | None, steps: int | None, tiny: bool) -> SegmentationRecipe:
    """Return the recipe of a cell; `steps` shortens it and keeps ten validation points."""
    context, options, head = CELLS[cell]
    recipe = voc_352()
    weights = None if pretrained is None else str(pretrained)
    model = replace(recipe.model, name=head, context=context, context_options=dict(options), pretrained=weights)
    recipe = replace(recipe, model=model, seed=seed)
    if steps is not None:
        recipe = replace(recipe, steps=steps, eval_every=max(1, steps // 10), checkpoint_every=steps)
    if tiny:
        narrow = {"width": 64} if head == "hamnet" else {}
        model = replace(model, backbone="tiny", backbone_options={}, output_stride=4, head_options=narrow)
        data = replace(recipe.data, crop=33, workers=0, resident="no")
        recipe = replace(recipe, model=model, data=data, batch=2, precision="32", channels_last=False, log_every=1)
    return recipe


def score(
    net: nn.Module,
    split: SegmentationSet,
    info: Any,
    protocol: EvaluationProtocol,
    *,
    device: torch.device,
    workers: int,
    labels: tarfile.TarFile | None = None,
) -> dict[str, Any]:
    """Return scores, confusion matrix (rows: label, columns: prediction) and seconds; predictions go into `labels`."""
    counts = Confusion(len(split.classes))
    begin = time.perf_counter()
    with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16):
        for images, truth, ids in size_batches(
            split, batch=EVALUATION_BATCH, device=device, workers=workers, mean=info.mean, std=info.std
        ):
            if device.type == "cuda":
                images = images.contiguous(memory_format=torch.channels_last)
            predicted = predict_labels(net, images, protocol)
            counts.update(predicted, truth)
            if labels is not None:
                for name, label in zip(ids, predicted.to(torch.uint8).cpu().numpy(), strict=True):
                    add_png(labels, name, label)
    scores = asdict(SegmentationScores.of(counts, split, protocol))
    return {**scores, "confusion": counts.matrix.tolist(), "seconds": round(time.perf_counter() - begin, 1)}


def add_png(archive: tarfile.TarFile, name: str, label: Any) -> None:
    """Write a label map into the archive as `name`.png."""
    buffer = io.BytesIO()
    Image.fromarray(label).save(buffer, "PNG")
    member = tarfile.TarInfo(f"{name}.png")
    member.size = buffer.tell()
    buffer.seek(0)
    archive.addfile(member, buffer)


def log_event(event: object) -> None:
    if not isinstance(event, CheckProgress | ValidationProgress):
        sys.stderr.write(f"{event}\n")


def run_cell(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Train and evaluate one cell; yield its row after each evaluation."""
    recipe = build_recipe(
        arguments.cell, arguments.seed, pretrained=arguments.pretrained, steps=arguments.steps, tiny=arguments.tiny
    )
    task, run = BatchedSegmentation(), arguments.out / f"{arguments.cell}-seed{arguments.seed}"
    train(task, recipe, run, data=arguments.data, resume=(run / "recipe.json").exists(), on_event=log_event)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net, info = task.load(run / "best.safetensors")
    net.to(device).eval()
    split = task.split(info, recipe.data.name, recipe.data.val_split, arguments.data, recipe.data.options, whole=False)
    options: dict[str, Any] = {"device": device, "workers": recipe.data.workers}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    curve = [{key: line[key] for key in ("step", "miou", "pixel_accuracy")} for line in lines if "miou" in line]
    row: dict[str, Any] = {
        "cell": arguments.cell,
        "seed": arguments.seed,
        "recipe": recipe.name,
        "steps": recipe.steps,
        "batch": recipe.batch,
        "precision": recipe.precision,
        "crop": recipe.data.crop,
        "head": recipe.model.name,
        "context": recipe.model.context,
        "context_options": recipe.model.context_options,
        "pretrained": None if arguments.pretrained is None else arguments.pretrained.name,
        "tiny": arguments.tiny,
        "learning_curve": curve,
        "other_steps": {},
        "evaluation_precision": "bf16",
        **describe_environment(device.type),
    }
    torch.backends.cudnn.benchmark = False  # the sizes of the images vary: trying algorithms for each takes minutes
    with nullcontext() if arguments.labels is None else tarfile.open(arguments.labels, "w") as archive:
        row["single"] = score(net, split, info, SINGLE_SCALE, labels=archive, **options)
    row["miou"] = row["single"]["miou"]  # what the verdicts compare
    yield row
    row["multi"] = score(net, split, info, MULTI_SCALE, **options)
    yield row
    hams = [module for module in net.modules() if isinstance(module, HamLayer)]
    for steps in arguments.other_steps if hams else ():
        for ham in hams:
            ham.eval_steps = steps
        row["other_steps"][str(steps)] = score(net, split, info, SINGLE_SCALE, **options)
        yield row


def parse_arguments(values: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cell", choices=list(CELLS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, required=True, help="the data folder")
    parser.add_argument("--pretrained", type=Path, help="weights of the ResNet-50; default: random")
    parser.add_argument("--out", type=Path, default=Path("runs/voc-352"), help="folder of the run folders")
    parser.add_argument("--json", type=Path, required=True, help="result file, one JSON object per line")
    parser.add_argument("--labels", type=Path, help="write the single-scale label maps into this .tar file")
    parser.add_argument("--steps", type=int, help="training steps; default: those of the recipe")
    parser.add_argument(
        "--other-steps",
        type=lambda text: tuple(int(part) for part in text.split(",") if part),
        default=OTHER_STEPS,
        help="further K to evaluate a ham with, comma-separated",
    )
    parser.add_argument("--tiny", action="store_true", help="toy sizes, to test the script on a CPU")
    return parser.parse_args(values)


def main(values: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(values)
    for row in run_cell(arguments):
        write_row(arguments.json, row)
        scores = {name: f"{row[name]['miou']:.4f}" for name in ("single", "multi") if name in row}
        sys.stdout.write(f"{row['cell']}, seed {row['seed']}: mIoU {scores}\n")


def write_row(path: Path, row: dict[str, Any]) -> None:
    """Put the row into the file, in place of an older one of the same cell and seed."""
    key = row["cell"], row["seed"]
    others = [old for old in read_json_lines(path, "voc_352") if (old["cell"], old["seed"]) != key]
    write_json_lines(path, [*others, row])


if __name__ == "__main__":
    main()
