"""A transformer of hams against the same transformer with attention, linear attention, pooling and no mixing.

    python lab/experiments/hamformer.py --data hamformer-cifar10=CIFAR --data hamformer-tiny-imagenet=TINY \\
        --json results/hamformer_h200.jsonl --speed results/hamformer_speed_h200.jsonl

Protocol
- Accuracy: every recipe with every mixer and seed, equal steps, schedule, augmentation and network but for the mixer.
  `nmf-wide` has the parameters of attention: two breads to twice the width and back, for four square matrices.
  `nmf-batchnorm` has the norm that a Hamburger has elsewhere. The rates are those of the recipes, tuned for none of the
  mixers. The weights of the last step count.
- Depth: `--images` validation images, evenly spaced, through each trained network. Of the tokens before the first block
  and after each: the mean cosine between two tokens of an image, and the effective rank of the matrix of an image.
- Speed: `hamformer_tiny` with random weights on images with n patches, `--tokens` in a batch; median of `--repeats`
  rounds in which all mixers take turns. A training step is forward and backward with cross entropy, under bf16 autocast
  on a GPU. Memory is what a training step takes at its peak besides the weights.

Each row is written when it is measured. Repeat an interrupted call to continue it: finished runs and written rows are
skipped. Leave `--json` or `--speed` out to measure the other part alone.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hamburger as hb
from hamburger.classification.data.batches import to_model_input
from hamburger.classification.hamformer import HAMFORMERS
from hamburger.classification.task import CLASSIFICATION
from hamburger.devices import call_backend, peak_memory, pick_device
from hamburger.environment import describe_environment
from hamburger.files import write_json_lines
from hamburger.inspect.activations import cumulative_energy, effective_rank, record_activations
from hamburger.tasks.sweep import Cell, cells, finished, rows, run_grid, variants
from hamburger.training.run_folder import BEST
from hamburger_lab.bench.timing import RaceTiming, time_call
from hamburger_lab.rows import read_json_lines

RECIPES = ("hamformer-cifar10", "hamformer-tiny-imagenet")
NETWORK = "hamformer_tiny"
WIDTH = HAMFORMERS[NETWORK]["embed_dim"]
# mixer: context and its options
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "nmf-wide": ("nmf", {"inner": 2 * WIDTH}),
    "nmf-batchnorm": ("nmf", {"norm": "batch"}),
}
MIXERS = ("none", "pooling", "efficient", "sa", "nmf", "vq", "cd", *VARIANTS)
WARMUP = 3


# -- accuracy and depth ------------------------------------------------------------------------------------------------


def list_settings(mixer: str) -> tuple[str, ...]:
    """Return what a mixer changes in a recipe."""
    if mixer not in VARIANTS:
        return variants([mixer])[mixer]
    context, options = VARIANTS[mixer]
    return (f"model.context={context}", *(f"model.context_options.{name}={value}" for name, value in options.items()))


def token_similarity(x: Tensor) -> Tensor:
    """Return the mean cosine between two different tokens of each image.   b c h w   ->   b"""
    unit = F.normalize(x.flatten(2).double(), dim=1)
    n = unit.shape[2]
    return (unit.sum(2).square().sum(1) - n) / (n * (n - 1))


def profile_depth(weights: Path, data: Path | None, count: int) -> dict[str, list[float]]:
    """Return similarity and effective rank of the tokens before the first block and after each, means over images."""
    net, info = CLASSIFICATION.load(weights)
    split = CLASSIFICATION.split(
        info, info.extra["data"], info.extra["val_split"], data, info.extra["data_options"], whole=False
    )
    chosen = torch.linspace(0, len(split) - 1, min(count, len(split))).long().unique()
    images = to_model_input(torch.from_numpy(split.images[chosen.numpy()]))
    names = [f"net.blocks.{i}" for i in range(len(net.net.blocks))]
    activations = record_activations("hamformer", net, images, names)
    tokens = [activations[names[0]].before, *(activations[name].after for name in names)]
    return {
        "similarity": [round(float(token_similarity(x).mean()), 5) for x in tokens],
        "effective_rank": [round(float(effective_rank(cumulative_energy(x)).mean()), 3) for x in tokens],
    }


def measure_accuracy(options: argparse.Namespace) -> None:
    """Train what is not finished, and write the rows that are missing."""
    written = {(row["recipe"], row["context"], row["seed"]): row for row in read_json_lines(options.json, "hamformer")}
    mixers = {name: list_settings(name) for name in options.mixers.split(",")}
    seeds = [int(text) for text in options.seeds.split(",")]
    data = {name: Path(path) for name, _, path in (text.partition("=") for text in options.data)}
    for recipe in options.recipes.split(","):
        out = options.out / recipe
        grid: list[Cell] = cells(recipe, mixers, seeds, ("keep=last", *options.set), call="hamformer")

        def write_missing(grid: Sequence[Cell] = grid, out: Path = out, recipe: str = recipe) -> None:
            for cell in (cell for cell in grid if finished(cell, out)):
                key = (recipe, cell.variant, cell.seed)
                if key not in written:
                    [row] = rows([cell], out)
                    depth = profile_depth(out / cell.name / BEST, data.get(recipe), options.images)
                    written[key] = {**row, **depth, "depth_images": options.images}
                    write_json_lines(options.json, written.values())

        write_missing()
        missing = [cell for cell in grid if (recipe, cell.variant, cell.seed) not in written]
        if missing:
            run_grid(
                missing,
                out,
                data=data.get(recipe),
                jobs=options.jobs,
                done=lambda cell, write=write_missing: write(),
                call="hamformer",
            )


# -- speed and memory --------------------------------------------------------------------------------------------------


def create_net(mixer: str, size: int, network: dict[str, Any]) -> nn.Module:
    context, options = VARIANTS.get(mixer, (None if mixer == "none" else mixer, {}))
    return hb.create_classifier(
        NETWORK, num_classes=10, size=size, context=context, context_options=options, backbone_options=network
    )


def measure_size(mixers: Sequence[str], n: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield one row for each mixer, on images with n patches."""
    device, network = pick_device(options.device), {"depth": options.depth} if options.depth else {}
    size = HAMFORMERS[NETWORK]["patch_size"] * math.isqrt(n)
    batch = max(2, options.tokens // n)
    nets = {mixer: create_net(mixer, size, network).to(device) for mixer in mixers}
    images = torch.randn(batch, 3, size, size, device=device)
    labels = torch.zeros(batch, dtype=torch.long, device=device)
    cast = torch.autocast(device.type, torch.bfloat16) if device.type != "cpu" else nullcontext()

    def infer(net: nn.Module) -> None:
        with torch.no_grad(), cast:
            net.eval()(images)

    def train(net: nn.Module) -> None:
        net.train().zero_grad(set_to_none=True)
        with cast:
            logits = net(images)
        F.cross_entropy(logits.float(), labels).backward()

    samples: dict[str, dict[str, list[float]]] = {mixer: {"train": [], "infer": []} for mixer in mixers}
    memory: dict[str, int | None] = {}
    for turn in range(WARMUP + options.repeats):
        for mixer, net in nets.items():
            call_backend(device, "reset_peak_memory_stats", device)
            before, times = peak_memory(device), {"train": time_call(train, (net,), device.type)}
            peak = peak_memory(device)
            memory[mixer] = None if peak is None or before is None else peak - before
            net.zero_grad(set_to_none=True)
            times["infer"] = time_call(infer, (net,), device.type)
            if turn >= WARMUP:
                for name, value in times.items():
                    samples[mixer][name].append(value)
    for mixer, net in nets.items():
        timing = {name: RaceTiming.of(values) for name, values in samples[mixer].items()}
        peak = memory[mixer]
        yield {
            **{"mixer": mixer, "n": n, "batch": batch, "depth": len(net.net.blocks), "width": WIDTH},  # type: ignore[arg-type, union-attr]
            "parameters": sum(parameter.numel() for parameter in net.parameters()),
            **{f"{name}_ms": round(each.ms, 3) for name, each in timing.items()},
            **{f"{name}_ms_iqr": round(each.ms_iqr, 3) for name, each in timing.items()},
            "train_mb": None if peak is None else round(peak / 2**20, 1),
            "dtype": "float32" if device.type == "cpu" else "bfloat16",
            "repeats": options.repeats,
            **describe_environment(device.type),
        }


def measure_speed(options: argparse.Namespace) -> None:
    """Write the rows of every size that is not complete."""
    written = read_json_lines(options.speed, "hamformer")
    mixers = options.mixers.split(",")
    for n in (int(text) for text in options.sizes.split(",")):
        if {row["mixer"] for row in written if row["n"] == n} >= set(mixers):
            continue
        written = [row for row in written if row["n"] != n]
        for row in measure_size(mixers, n, options):
            written.append(row)
        write_json_lines(options.speed, written)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/hamformer"), help="folder of the runs")
    parser.add_argument("--json", type=Path, help="rows of accuracy and depth")
    parser.add_argument("--speed", type=Path, help="rows of speed and memory")
    parser.add_argument("--data", action="append", default=[], metavar="RECIPE=DIR", help="may be repeated")
    parser.add_argument("--recipes", default=",".join(RECIPES))
    parser.add_argument("--mixers", default=",".join(MIXERS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--set", action="append", default=[], help="override a field of the recipes")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--images", type=int, default=64, help="for the profile over depth")
    parser.add_argument("--device", default="auto", help="of the speed measurement")
    parser.add_argument("--sizes", default="64,256,1024,4096,16384", help="patches n, square numbers")
    parser.add_argument("--tokens", type=int, default=32768, help="in a batch of the speed measurement")
    parser.add_argument("--depth", type=int, help="blocks of the network whose speed is measured")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args(arguments)
    for name in options.mixers.split(","):
        if name not in MIXERS:
            parser.error(f"no mixer '{name}'; known: {', '.join(MIXERS)}")
    for n in (int(text) for text in options.sizes.split(",")):
        if math.isqrt(n) ** 2 != n:
            parser.error(f"sizes must be square numbers (got {n})")
    if options.json:
        measure_accuracy(options)
    if options.speed:
        measure_speed(options)


if __name__ == "__main__":
    main()
