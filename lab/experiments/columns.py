"""How few steps are enough from columns of the input: errors of D C on features of photographs, and times of a layer.

    python lab/experiments/columns.py --images DIR --pretrained resnet50_v1_imagenet_int8.safetensors \\
        --errors results/columns_error_cpu.jsonl --times results/columns_time_cpu.jsonl

Protocol
- Errors: |X - D C| / |X| after K steps and the read-out, rank 64, float32, one image at a time. X are the maps of
  ResNet-50 (plain stem, stride 8), once with the given weights and once with random ones, on `--count` images of
  `--images` drawn by `--seed` and resized to 352 x 352; and `bread`, what a Hamburger of 512 channels on the last map
  decomposes before training: a random linear map of it, with a ReLU for NMF. Random dictionaries are drawn anew for
  each image, by its number, and are the same for every K.
- Times: a Hamburger of 512 channels, rank 64, in evaluation without a graph, from random bases with K = 6 and from
  columns with K = 2, in turn on fresh inputs. CPU time of one thread, on which other programs have little influence.

Each file is written as a whole; leave an option out to measure the other part alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

import hamburger as hb
from hamburger.environment import describe_environment
from hamburger.files import write_json_lines
from hamburger.layers.ham import Bread
from hamburger_lab.bench.timing import RaceTiming
from hamburger_lab.photo_features import read_features, read_images

HAMS, STARTS, STEPS, RANK, SIDE, WIDTH = ("nmf", "vq", "cd"), ("random", "columns"), (0, 1, 2, 4, 6), 64, 352, 512
WARMUP = 2
STAGES = ("layer1", "layer2", "layer3", "layer4")


def measure_errors(
    images: Tensor, weights: str, pretrained: Path | None, seed: int, steps: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Yield one row for each stage, ham, start and number of steps, with the errors of all images."""
    errors: dict[tuple[str, str, str, int], list[float]] = {}
    shapes: dict[str, tuple[int, int]] = {}
    bread = Bread(2048, WIDTH, bias=True)
    for number, maps in enumerate(read_features(images, pretrained, seed)):
        torch.manual_seed(seed + 1)
        bread.reset_parameters()
        with torch.no_grad():
            inputs = dict(zip(STAGES, maps, strict=True)) | {"bread": bread(maps[-1])}
        for stage, signed in inputs.items():
            for name in HAMS:
                ham = hb.hams.create(name, rank=RANK)
                x = signed.relu() if ham.nonnegative else signed
                shapes[stage] = x.shape[1], x.shape[2]
                for start in STARTS:
                    drawn = ham.draw(1, x.shape[1], like=x, generator=torch.Generator().manual_seed(seed + number))
                    for count in steps:
                        bases: Any = drawn if start == "random" else "columns"
                        y = hb.decompose(x, ham, steps=count, bases=bases).reconstruction
                        errors.setdefault((stage, name, start, count), []).append(float((x - y).norm() / x.norm()))
    for (stage, name, start, count), values in errors.items():
        d, n = shapes[stage]
        yield {"weights": weights, "stage": stage, "ham": name, "init": start, "steps": count, "d": d, "n": n} | {
            "r": RANK,
            "dtype": "float32",
            "error": round(fmean(values), 5),
            "errors": [round(value, 5) for value in values],
            "seed": seed,
        }


def measure_times(sizes: Sequence[int], repeats: int, seed: int, width: int = WIDTH) -> Iterator[dict[str, Any]]:
    """Yield one row for each ham, size and variant of the layer."""
    variants: dict[str, dict[str, Any]] = {"random": {"steps": 6}, "columns": {"steps": 2, "init": "columns"}}
    for name in HAMS:
        layers = {}
        for start, options in variants.items():
            torch.manual_seed(seed)
            layers[start] = hb.Hamburger(width, ham=name, rank=min(RANK, width // 8), **options).eval()
        for n in sizes:
            generator = torch.Generator().manual_seed(seed + n)

            samples: dict[str, list[float]] = {start: [] for start in layers}
            for turn in range(WARMUP + repeats):
                x = torch.randn(1, width, n, generator=generator)
                for start, layer in layers.items():
                    begin = time.thread_time()
                    with torch.no_grad():
                        layer(x)
                    if turn >= WARMUP:
                        samples[start].append(1e3 * (time.thread_time() - begin))
            for start, timing in ((start, RaceTiming.of(each)) for start, each in samples.items()):
                yield {"ham": name, "init": start, "steps": variants[start]["steps"], "c": width, "n": n} | {
                    "r": min(RANK, width // 8),
                    "dtype": "float32",
                    "ms": round(timing.ms, 3),
                    "ms_iqr": round(timing.ms_iqr, 3),
                    "repeats": repeats,
                    "seed": seed,
                }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="folder of images")
    parser.add_argument("--pretrained", type=Path, help="weights of ResNet-50 v1")
    parser.add_argument("--count", type=int, default=16, help="images")
    parser.add_argument("--side", type=int, default=SIDE)
    parser.add_argument("--steps", default=",".join(map(str, STEPS)), help="values of K, comma-separated")
    parser.add_argument("--sizes", default="1024,4096,16384", help="positions n of the times, comma-separated")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--width", type=int, default=WIDTH, help="channels of the timed layer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--errors", type=Path, help="result file of the errors")
    parser.add_argument("--times", type=Path, help="result file of the times")
    options = parser.parse_args(arguments)
    environment = describe_environment("cpu")
    if options.errors:
        if options.images is None:
            parser.error("--errors needs --images")
        images = read_images(options.images, options.count, options.seed, options.side)
        nets: dict[str, Path | None] = {"imagenet": options.pretrained} if options.pretrained else {}
        rows: list[dict[str, Any]] = []
        for weights, pretrained in (nets | {"random": None}).items():
            steps = [int(text) for text in options.steps.split(",")]
            measured = measure_errors(images, weights, pretrained, options.seed, steps)
            rows += [row | {"images": options.count} | environment for row in measured]
            write_json_lines(options.errors, rows)
    if options.times:
        sizes = [int(text) for text in options.sizes.split(",")]
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        timed = measure_times(sizes, options.repeats, options.seed, options.width)
        write_json_lines(options.times, [row | environment | {"threads": 1} for row in timed])
        torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
