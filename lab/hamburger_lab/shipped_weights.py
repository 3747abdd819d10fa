"""Train a network that ships with hamburger, store it as int8, check it and write its model card.

    python -m hamburger_lab.shipped_weights hamnet-lite0-voc --data VOC \\
        --pretrained efficientnet_lite0_imagenet_fp16.safetensors

- Training: the recipe of that name into runs/NAME. Repeat an interrupted command to continue; a finished run is read.
- Shipping: evaluates the float32 network and the int8 file on the whole validation split, single scale. If the file is
  small enough and loses at most `--tolerance` points of mIoU, it becomes NAME.safetensors in the folder of shipped
  weights, the scores become a row of results/shipped_weights.jsonl, and that row the model card NAME.md.

`--only train` and `--only ship` do one of both, for example on two machines: shipping needs nothing of the run but
best.safetensors, recipe.json and result.json. `--data` names a folder with images/, labels/, train_aug.txt, val.txt and
classes.txt. `--set` changes fields of the recipe as in `ham train`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from hamburger.checkpoints.read import read_checkpoint
from hamburger.checkpoints.weights_file import write_weights
from hamburger.devices import pick_device
from hamburger.environment import describe_environment
from hamburger.errors import HamburgerError, TrainingError
from hamburger.files import write_atomically, write_json_lines
from hamburger.inference.find_weights import SHIPPED
from hamburger.segmentation.data.base import read_ids
from hamburger.segmentation.evaluate import SegmentationScores
from hamburger.segmentation.recipe import SegmentationRecipe, segmentation_recipes
from hamburger.training.metrics_log import CheckProgress, ValidationProgress
from hamburger.training.recipe import apply
from hamburger.training.train import train
from hamburger_lab.efficientnet import backbone_state
from hamburger_lab.markdown import markdown_table
from hamburger_lab.rows import read_json_lines
from hamburger_lab.size_batches import BatchedSegmentation

ROWS = Path("results/shipped_weights.jsonl")
FROM_RESULT = ("seconds", "images_per_s", "hardware", "devices")  # of the training


def build_recipe(name: str, run: Path, pretrained: Path | None, settings: Sequence[str]) -> SegmentationRecipe:
    """Return the recipe; weights of the package efficientnet_lite_pytorch are converted into the folder above `run`."""
    recipe = apply(segmentation_recipes.create(name), settings)
    if pretrained is None:
        return recipe
    state = read_checkpoint(pretrained)
    if "_conv_stem.weight" in state:
        pretrained = run.parent / f"{pretrained.stem}_timm.safetensors"
        pretrained.parent.mkdir(parents=True, exist_ok=True)
        save_file(backbone_state(state), pretrained)
    return apply(recipe, [f"model.pretrained={pretrained}"])


def evaluate(path: Path, data: Path, device: torch.device) -> tuple[Any, SegmentationScores]:
    """Return the network of a weights file, and its scores on the split it was validated on."""
    task = BatchedSegmentation()
    net, info = task.load(path)
    extra, net = info.extra, net.to(device)
    split = task.split(info, extra["data"], extra["val_split"], data, extra["data_options"], whole=False)
    return net, task.evaluate(net, split, info, device=device, workers=4)


def ship(
    name: str, run: Path, data: Path, *, out: Path, rows: Path, device: torch.device, tolerance: float, max_mb: float
) -> dict[str, Any]:
    """Write the int8 file, its row and its card, if the file is small and accurate enough; return the row."""
    source, target = run / "best.safetensors", run / f"{name}.safetensors"
    net, full = evaluate(source, data, device)
    write_weights(target, net, net.info, int8=True)
    _, scores = evaluate(target, data, device)
    megabytes, lost = target.stat().st_size / 1e6, 100 * (full.miou - scores.miou)
    write(f"mIoU {100 * full.miou:.2f} as float32, {100 * scores.miou:.2f} as int8, {megabytes:.2f} MB")
    if not (lost <= tolerance and megabytes <= max_mb):
        raise TrainingError(f"ship: {target} must have at most {max_mb} MB and lose at most {tolerance} points of mIoU")
    recipe, result = (json.loads((run / f"{each}.json").read_text()) for each in ("recipe", "result"))
    recipe["model"]["pretrained"] = recipe["model"]["pretrained"] and Path(recipe["model"]["pretrained"]).name
    row = {
        "name": name,
        "bytes": target.stat().st_size,
        "parameters": sum(parameter.numel() for parameter in net.parameters()),
        "miou_float32": full.miou,
        "miou": scores.miou,
        "pixel_accuracy": scores.pixel_accuracy,
        "per_class": scores.per_class,
        "protocol": scores.protocol,
        "images": scores.images,
        "side": net.info.side,
        "train_images": len(read_ids(data / f"{recipe['data']['train_split']}.txt")),
        "recipe": recipe,
        "training": {key: result[key] for key in FROM_RESULT if key in result},
        **describe_environment(device.type),
    }
    out.mkdir(parents=True, exist_ok=True)
    others = [old for old in read_json_lines(rows, "shipped_weights") if old["name"] != name]
    write_json_lines(rows, [*others, row])
    write_atomically(out / f"{name}.md", write_card(row).encode())
    shutil.copyfile(target, out / target.name)
    return row


def write_card(row: dict[str, Any]) -> str:
    """Return the model card of a row."""
    recipe, training = row["recipe"], row["training"]
    model, data = recipe["model"], recipe["data"]
    samples = recipe["steps"] * recipe["batch"]
    start = Path(model["pretrained"]).stem if model["pretrained"] else "random weights"
    duration = f", {training['seconds'] / 60:.0f} minutes on {training['hardware']}" if "seconds" in training else ""
    facts = {
        "network": f"HamNet on {model['backbone']} at stride {model['output_stride']}, context {model['context']} "
        f"{json.dumps(model['context_options'])}; {row['parameters'] / 1e6:.1f} million parameters",
        "file": f"{row['bytes'] / 1e6:.1f} MB, int8 weights with a factor per output channel",
        "training data": f"PASCAL VOC 2012 with the augmented labels of SBD, split {data['train_split']}: "
        f"{row['train_images']:,} images, longer side {row['side']}",
        "training": f"recipe {recipe['name']}: {recipe['steps']:,} steps of {recipe['batch']} crops of {data['crop']} "
        f"pixels ({samples:,} samples), seed {recipe['seed']}, from {start}{duration}",
        "evaluation": f"split {data['val_split']}: {row['images']:,} whole images at the size of the training images, "
        f"{row['protocol']}; weights of the {recipe['keep']} step",
        "mIoU": f"{100 * row['miou']:.1f} % (before rounding to int8: {100 * row['miou_float32']:.1f} %)",
        "pixel accuracy": f"{100 * row['pixel_accuracy']:.1f} %",
    }
    scores = sorted(row["per_class"].items(), key=lambda item: -(item[1] or 0))
    classes = [[name, "absent" if value is None else f"{100 * value:.1f}"] for name, value in scores]
    return f"""# {row["name"]}

Labels every pixel of a photo with one of the {len(classes)} classes of PASCAL VOC.

```python
import hamburger as hb

labels = hb.Predictor("{row["name"]}")(image)        # 3 h w uint8 -> h w uint8, the class of each pixel
```

{markdown_table(["", ""], [[key, text] for key, text in facts.items()])}

## Scores by class

{markdown_table(["class", "IoU, %"], classes)}

## Limits

- Everything that is none of these classes is labelled background, or as a similar class.
- Photos are resized to a longer side of {row["side"]} pixels. Objects of a few pixels there are missed, and edges are
  coarse: the network decides on a grid of {model["output_stride"]} pixels.
- Images and labels are smaller than the originals, so these scores are not comparable with published ones on VOC.
- The data are photos of Flickr before 2012: expect less accuracy on other kinds of images.
- The photos of VOC and ImageNet stay under their owners' terms, and both data sets are offered for research.

Written by `python -m hamburger_lab.shipped_weights` from {ROWS}, measured on {row["date"][:10]}.
"""


def write(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def parse_arguments(values: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="a recipe: hamnet-lite0-voc or hamnet-r50-voc")
    parser.add_argument("--data", type=Path, required=True, help="the data folder")
    parser.add_argument("--pretrained", type=Path, help="weights of the backbone; default: random")
    parser.add_argument("--run", type=Path, help="the run folder; default: runs/NAME")
    parser.add_argument("--only", choices=("train", "ship"), help="default: both")
    parser.add_argument("--set", action="append", default=[], help="override a field of the recipe")
    parser.add_argument("--out", type=Path, default=SHIPPED, help="folder of the file and its card")
    parser.add_argument("--json", type=Path, default=ROWS, help="result file, one JSON object per line")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--tolerance", type=float, default=0.3, help="points of mIoU that int8 may lose")
    parser.add_argument("--max-mb", type=float, default=8.0, help="largest file")
    return parser.parse_args(values)


def log_event(event: object) -> None:
    if not isinstance(event, CheckProgress | ValidationProgress):
        write(str(event))


def main(values: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(values)
    run, device = arguments.run or Path("runs") / arguments.name, pick_device(arguments.device)
    try:
        if arguments.only != "ship":
            recipe = build_recipe(arguments.name, run, arguments.pretrained, arguments.set)
            resume = (run / "recipe.json").exists()
            accelerator = "cuda" if device.type == "cuda" else "cpu"
            train(
                BatchedSegmentation(),
                recipe,
                run,
                data=arguments.data,
                accelerator=accelerator,
                resume=resume,
                on_event=log_event,
            )
        if arguments.only != "train":
            limits = {"tolerance": arguments.tolerance, "max_mb": arguments.max_mb}
            ship(arguments.name, run, arguments.data, out=arguments.out, rows=arguments.json, device=device, **limits)
    except HamburgerError as error:
        raise SystemExit(f"shipped_weights: {error}") from None


if __name__ == "__main__":
    main()
