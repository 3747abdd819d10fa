"""Measure how many steps a ham saves on video when each frame starts from the dictionary of the previous one.

    python lab/experiments/carried_dictionary.py --json results/carried_dictionary_cpu.jsonl

Protocol
- Video: a window of 128 x 128 pixels that moves back and forth over each photo of `hamburger.app.samples`, by `speed`
  pixels a frame. X holds its patches of 8 x 8 RGB pixels, one every 4 pixels: d = 192, n = 961.
- `hb.HamLayer` in evaluation, rank 24, default options of each ham. "fixed" starts every frame from the stored
  dictionary, "carry" from the previous frame's. The first frame of "carry" runs 6 steps and does not count.
- `error`: |X - D C| / |X|, its mean over frames.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import hamburger as hb
import hamburger.app
from hamburger.environment import describe_environment
from hamburger.files import write_json_lines

PHOTOS = ("astronaut", "chelsea", "coffee")
HAMS = ("nmf", "vq", "cd")
SPEEDS = (2, 8)
SIDE, PATCH, STRIDE, RANK, FIRST_STEPS = 128, 8, 4, 24, 6


def read_frames(photo: str, speed: int, count: int) -> Iterator[Tensor]:
    """Yield the patches of each frame: 1 d n."""
    path = Path(hamburger.app.__file__).parent / "samples" / f"{photo}.jpg"
    image = torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1).float() / 255
    top, last = (image.shape[1] - SIDE) // 2, image.shape[2] - SIDE
    for frame in range(count):
        left = last - abs(last - frame * speed % (2 * last))
        window = image[None, :, top : top + SIDE, left : left + SIDE]
        yield torch.nn.functional.unfold(window, PATCH, stride=STRIDE)


@torch.inference_mode()
def mean_error(layer: hb.HamLayer, frames: Sequence[Tensor]) -> float:
    """Return the mean relative error of all frames but the first."""
    layer.eval()
    errors = [float((layer(x) - x).norm() / x.norm()) for x in frames]
    return sum(errors[1:]) / (len(errors) - 1)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="write the rows to this file")
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--most-steps", type=int, default=FIRST_STEPS)
    args = parser.parse_args(argv)
    rows = []
    for photo, speed in itertools.product(PHOTOS, SPEEDS):
        frames = list(read_frames(photo, speed, args.frames))
        for name, init, steps in itertools.product(HAMS, ("fixed", "carry"), range(1, args.most_steps + 1)):
            ham = hb.hams.create(name, rank=RANK)
            layer = hb.HamLayer(ham, frames[0].shape[1], init=init, steps=FIRST_STEPS, eval_steps=steps)
            error = round(mean_error(layer, frames), 5)
            rows.append({"ham": name, "init": init, "steps": steps, "speed": speed, "photo": photo, "error": error})
    size = {"frames": args.frames, "d": frames[0].shape[1], "n": frames[0].shape[2], "r": RANK}
    environment = describe_environment("cpu")
    write_json_lines(args.json, [row | size | environment for row in rows])


if __name__ == "__main__":
    main()
