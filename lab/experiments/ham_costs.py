"""What every ham costs and how near it comes: CPU time, error of D C and objective after K steps.

    OMP_NUM_THREADS=1 python lab/experiments/ham_costs.py --images DIR \\
        --pretrained resnet50_v1_imagenet_int8.safetensors --json results/ham_costs_cpu.jsonl

Protocol
- X: `--count` images of `--images`, drawn by `--seed` and resized to 352 x 352, through ResNet-50 (plain stem, stride
  8, the given weights), a random linear map to 512 channels and a ReLU: what a Hamburger decomposes before training.
  Without `--images`: rank 32 plus noise, with a ReLU, on a 44 x 44 grid. X is the same for all hams, and non-negative,
  although VQ and CD take other X too, so that errors compare.
- Hams have rank 64 and their default options, float32, one image at a time, from a random dictionary drawn by the
  number of the image: the same for all hams that draw alike, and for every K.
- `ms`: CPU time of one thread for a solve with read-out, without a graph. All hams and K take turns on each input.
- `error`: |X - D C| / |X|. `objective`: of the ham, divided by |X|^2 / 2; for a Euclidean objective, `error` squared.
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

STEPS, RANK, WIDTH, SIDE, STRIDE, WARMUP = (1, 2, 6, 12), 64, 512, 352, 8, 1


def photo_inputs(folder: Path, pretrained: Path | None, count: int, seed: int, side: int) -> list[Tensor]:
    """Return the input of an untrained Hamburger for every image.   ->   1 d n each"""
    torch.manual_seed(seed + 1)
    bread = Bread(2048, WIDTH, bias=True)
    with torch.no_grad():
        maps = read_features(read_images(folder, count, seed, side), pretrained, seed)
        return [bread(each[-1]).relu() for each in maps]


def synthetic_inputs(count: int, seed: int, n: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.rand(1, *shape, generator=generator)

    return [(draw(WIDTH, 32) @ draw(32, n) / 32 + 0.5 * (draw(WIDTH, n) - 0.5)).relu() for _ in range(count)]


def measure(
    inputs: Sequence[Tensor], grid: tuple[int, int], steps: Sequence[int], repeats: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Yield one row for each ham and number of steps."""
    hams = {name: hb.hams.create(name, rank=RANK) for name in hb.hams.names()}
    cases = [(name, count) for name in hams for count in steps]
    ms: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    errors: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    objectives: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    for turn in range(-WARMUP, repeats):
        number = turn % len(inputs)
        x = inputs[number]
        for name, count in cases:
            ham = hams[name]
            bases = ham.draw(1, x.shape[1], like=x, generator=torch.Generator().manual_seed(seed + number))
            begin = time.thread_time()
            with torch.no_grad():
                out = hb.decompose(x, ham, steps=count, bases=bases, grid=grid)
            took = 1e3 * (time.thread_time() - begin)
            if turn < 0:
                continue
            ms[name, count].append(took)
            if turn < len(inputs):
                value = ham.on_grid(grid).objective(x, hb.Factors(out.bases, out.codes))
                errors[name, count].append(float((x - out.reconstruction).norm() / x.norm()))
                objectives[name, count].append(float(value) / float(x.square().sum() / 2))
    for name, count in cases:
        timing = RaceTiming.of(ms[name, count])
        yield {"ham": name, "steps": count, "d": WIDTH, "n": inputs[0].shape[2], "r": RANK, "grid": list(grid)} | {
            "dtype": "float32",
            "ms": round(timing.ms, 3),
            "ms_iqr": round(timing.ms_iqr, 3),
            "error": round(fmean(errors[name, count]), 5),
            "objective": round(fmean(objectives[name, count]), 5),
            "repeats": repeats,
            "seed": seed,
        }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="folder of images")
    parser.add_argument("--pretrained", type=Path, help="weights of ResNet-50 v1")
    parser.add_argument("--count", type=int, default=16, help="inputs")
    parser.add_argument("--side", type=int, default=SIDE, help="of the images; the grid has an eighth of it")
    parser.add_argument("--steps", default=",".join(map(str, STEPS)), help="values of K, comma-separated")
    parser.add_argument("--repeats", type=int, default=16, help="timed solves of each ham and K")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, required=True, help="result file")
    options = parser.parse_args(arguments)
    if options.repeats < max(2, options.count):
        parser.error("--repeats must be at least 2 and at least --count, so that every input is measured")
    environment = describe_environment("cpu") | {"threads": 1}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    cells = options.side // STRIDE
    kind = "synthetic"
    if options.images is None:
        inputs = synthetic_inputs(options.count, options.seed, cells**2)
    else:
        inputs = photo_inputs(options.images, options.pretrained, options.count, options.seed, options.side)
        kind = "photographs" if options.pretrained else "photographs, random weights"
    steps = [int(text) for text in options.steps.split(",")]
    rows = measure(inputs, (cells, cells), steps, options.repeats, options.seed)
    write_json_lines(options.json, [{"input": kind, "inputs": len(inputs)} | row | environment for row in rows])
    torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
