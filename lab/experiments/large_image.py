"""Label a mosaic of generated scenes exactly, in independent tiles and as a whole; measure memory, time and agreement.

    ham train patchwork --run runs/patchwork
    python lab/experiments/large_image.py mosaic --scenes 10 --image mosaic.tif
    for METHOD in exact tiles whole:
        python lab/experiments/large_image.py label --method METHOD --run runs/patchwork --image mosaic.tif --json ROWS
    python lab/experiments/large_image.py agree --image mosaic.tif --json ROWS
    python lab/experiments/large_image.py bases --run runs/patchwork --image mosaic.tif --json ROWS

`label` writes `mosaic-METHOD.png` and a row with the peak of resident memory and the seconds of its process. `agree`
adds rows with the share of pixels that get the label of the whole image. `bases` adds rows with the relative error of
NMF's bases, by `--exact` and by one solve of the whole map in float32, against a solve in float64.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import hamburger as hb
from hamburger.environment import describe_environment
from hamburger.files import encode_json
from hamburger.inference.large_images import open_large_image
from hamburger.segmentation.data.patchwork import PatchworkShift
from hamburger.segmentation.stream import StreamedLabels
from hamburger.training.image_files import encode_label_png

SCENE, TILE = 1024, 512  # pixels
METHODS = ("exact", "tiles", "whole")


def write_mosaic(path: Path, scenes: int) -> None:
    """Write a TIFF of scenes x scenes generated scenes of 1,024 x 1,024 pixels, in tiles of 512 x 512."""
    import tifffile

    data = PatchworkShift(split="val", size=SCENE, pieces=1024, length=scenes * scenes)

    def tiles() -> Iterator[np.ndarray[Any, Any]]:
        for row in range(scenes):
            line = [data[row * scenes + column].image.permute(1, 2, 0).numpy() for column in range(scenes)]
            for top in range(0, SCENE, TILE):
                for scene in line:
                    for left in range(0, SCENE, TILE):
                        yield np.ascontiguousarray(scene[top : top + TILE, left : left + TILE])

    side = scenes * SCENE
    shape = (side, side, 3)
    tifffile.imwrite(path, tiles(), shape=shape, dtype=np.uint8, photometric="rgb", tile=(TILE, TILE))


def label(method: str, run: Path, path: Path, max_pixels: int, out: Path) -> dict[str, Any]:
    """Label the mosaic in one of three ways; return a row."""
    begun = time.perf_counter()
    if method == "exact":
        hb.stream(run, path, out, device="cpu", max_pixels=max_pixels)
    else:
        image = open_large_image(path)
        pixels = image.read(0, image.height, 0, image.width)
        limit = max_pixels if method == "tiles" else image.height * image.width
        predictor = hb.Predictor(run, side=0, device="cpu", max_pixels=limit)
        out.write_bytes(encode_label_png(predictor(pixels), [(0, 0, 0)] * 256))
    seconds = time.perf_counter() - begun
    # not ru_maxrss, which also counts the process that this one was forked from
    (line,) = (text for text in Path("/proc/self/status").read_text().splitlines() if text.startswith("VmHWM"))
    return {"seconds": round(seconds, 1), "peak_mb": round(int(line.split()[1]) / 1024)}


class _Solved(BaseException):
    """The solve of the first ham is done."""


def measure_bases(run: Path, path: Path, max_pixels: int) -> dict[str, float]:
    """Return the relative errors of the final bases, by method."""
    with TemporaryDirectory() as folder:
        streamed = StreamedLabels(run, path, Path(folder), device="cpu", max_pixels=max_pixels)
        (ham,) = streamed.hams
        steps, last = ham.steps, len(streamed.tiles) + ham.steps + 1

        def stop(done: int, total: int) -> None:
            if done == last:
                raise _Solved

        with suppress(_Solved):
            streamed.compute(stop)
        first, final = ham.read_bases(0), ham.read_bases(steps)
        height, width = ham.features.height, ham.features.width
        x = ham.features.read(0, height, 0, width).flatten(0, 1).T[None].contiguous()
    with torch.inference_mode():
        whole = hb.decompose(x, ham.layer.ham, steps=steps, bases=first).bases
    exact = solve_in_float64(x[0], first[0].double(), steps, ham.layer.ham.eps)  # type: ignore[attr-defined]
    return {
        method: float((bases[0].double() - exact).norm() / exact.norm())
        for method, bases in (("exact", final), ("whole", whole))
    }


def solve_in_float64(x: Tensor, bases: Tensor, steps: int, eps: float) -> Tensor:
    """NMF as the paper's Algorithm 2 has it, in bands of positions.   x: d n   bases: d r   ->   d r"""
    parts = x.split(2**18, dim=1)
    codes = [(bases.T @ part.double()).softmax(0) for part in parts]
    for _ in range(steps):
        for i, part in enumerate(parts):
            codes[i] = codes[i] * (bases.T @ part.double()) / (bases.T @ bases @ codes[i] + eps)
        numerator = sum(part.double() @ code.T for part, code in zip(parts, codes, strict=True))
        bases = bases * numerator / (bases @ sum(code @ code.T for code in codes) + eps)
    return bases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("mosaic", "label", "agree", "bases"))
    parser.add_argument("--image", type=Path, required=True)
    parser.add_argument("--scenes", type=int, default=10, help="per side of the mosaic, each 1,024 pixels wide")
    parser.add_argument("--method", choices=METHODS, default="exact")
    parser.add_argument("--run", type=Path, help="of `ham train patchwork`")
    parser.add_argument("--max-pixels", type=int, default=1024 * 1024, help="of a tile, for exact and tiles")
    parser.add_argument("--json", type=Path, help="append rows to this file")
    options = parser.parse_args()
    Image.MAX_IMAGE_PIXELS = None
    rows: list[dict[str, Any]] = []
    if options.task == "mosaic":
        write_mosaic(options.image, options.scenes)
        return
    image = open_large_image(options.image)
    files = {method: options.image.with_name(f"{options.image.stem}-{method}.png") for method in METHODS}
    size = {"height": image.height, "width": image.width, **describe_environment("cpu")}
    if options.task == "label":
        method = options.method
        row = label(method, options.run, options.image, options.max_pixels, files[method])
        rows.append({"method": method, "max_pixels": options.max_pixels, **row, **size})
    elif options.task == "bases":
        for method, error in measure_bases(options.run, options.image, options.max_pixels).items():
            rows.append({"method": method, "max_pixels": options.max_pixels, "bases_error": error, **size})
    else:
        whole = np.asarray(Image.open(files["whole"]))
        for method in METHODS[:2]:
            share = float((np.asarray(Image.open(files[method])) == whole).mean())
            rows.append({"method": method, "max_pixels": options.max_pixels, "agree": share, **size})
    lines = "".join(encode_json(row) + "\n" for row in rows)
    if options.json:
        with options.json.open("a") as file:
            file.write(lines)
    print(lines, end="")  # noqa: T201


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
