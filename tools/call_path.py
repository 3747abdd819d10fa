"""Print which files of `hamburger` a call runs, in the order in which they are first entered.

    python tools/call_path.py                      # all five paths
    python tools/call_path.py forward train-step   # some of them

Each call runs twice and the second run is recorded, so imports do not count. The script also prints the files on the
call stack where a reader arrives: at the ham's arithmetic for `forward` and `decompose`, at the network's `forward` for
`train-step` and `predict`, and how many files build and run the network.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}

import torch

import hamburger as hb

SOURCE = Path(hb.__file__).parent
ARITHMETIC = "hams/nmf.py", "update_codes"
NETWORK = "segmentation/model.py", "forward"
# folders and files whose code builds and runs a segmentation network
NETWORK_FILES = (
    *("backbones/", "contexts/", "hams/", "kernels/", "layers/", "segmentation/heads/", "segmentation/losses.py"),
    *("segmentation/model.py", "linalg.py", "registry.py", "tensors.py"),
)


class CallPath:
    """The files entered by a call, and those on the stack when the function `target` is first entered."""

    def __init__(self, target: tuple[str, str]) -> None:
        self.target = target
        self.files: dict[str, None] = {}  # an ordered set
        self.stack: dict[str, None] = {}

    @contextlib.contextmanager
    def recording(self) -> Any:
        """Record the calls of this thread."""
        sys.setprofile(self._enter)
        try:
            yield self
        finally:
            sys.setprofile(None)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or frame.f_code.co_name == "<module>":
            return
        file = file_of(frame)
        if file is None:
            return
        self.files.setdefault(file)
        if not self.stack and (file, frame.f_code.co_name) == self.target:
            callers, caller = [file], frame.f_back
            while caller is not None:
                callers.append(file_of(caller) or "")
                caller = caller.f_back
            self.stack = dict.fromkeys(filter(None, reversed(callers)))


def file_of(frame: FrameType) -> str | None:
    """The file of a frame, relative to the package; None for other code."""
    name = frame.f_code.co_filename
    return Path(name).relative_to(SOURCE).as_posix() if name.startswith(f"{SOURCE}{os.sep}") else None


def record(call: Callable[[], object], target: tuple[str, str]) -> CallPath:
    """Run the call twice and record the second run: the first imports and fills caches."""
    call()
    with CallPath(target).recording() as path:
        call()
    return path


def forward() -> CallPath:
    """hb.Hamburger(64, rank=8)(x), on a CPU"""
    layer, x = hb.Hamburger(64, rank=8), torch.randn(1, 64, 8, 8)
    return record(lambda: layer(x), ARITHMETIC)


def decompose() -> CallPath:
    """hb.decompose(x, "nmf", rank=8)"""
    x = torch.rand(1, 64, 100)
    return record(lambda: hb.decompose(x, "nmf", rank=8), ARITHMETIC)


def train_step() -> CallPath:
    """One training step: `Trainer.train_step` of `ham train patchwork`"""
    return training()[1]


def train_start() -> CallPath:
    """`ham train patchwork`, up to its first training step"""
    return training()[0]


def predict() -> CallPath:
    """`ham predict` with one image"""
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder) / "run", steps=1)
        image = Path(folder) / "image.png"
        Image.new("RGB", (64, 64), "gray").save(image)
        out = map(str, range(2))
        arguments = ("predict", Path(folder) / "run", image, "--device", "cpu", "--out")
        return record(lambda: ham(*arguments, Path(folder) / next(out)), NETWORK)


def training() -> tuple[CallPath, CallPath]:
    """The start of a training run, and its second step."""
    from hamburger.training.trainer import Trainer

    start, step = CallPath(NETWORK), CallPath(NETWORK)
    original = Trainer.train_step
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder) / "run", steps=1)

    def traced(self: Any, index: int, micro_batches: Any) -> None:
        sys.setprofile(None)
        with step.recording() if index else contextlib.nullcontext():
            original(self, index, micro_batches)

    Trainer.train_step = traced  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder, start.recording():
            train(Path(folder) / "run", steps=2)
    finally:
        Trainer.train_step = original  # type: ignore[method-assign]
    return start, step


def train(run: Path, *, steps: int) -> None:
    """Train a small network on generated data."""
    settings = f"steps={steps} batch=2 eval_every={steps} data.options.length=8".split()
    ham("train", "patchwork", "--run", run, "--accelerator", "cpu", *[part for s in settings for part in ("--set", s)])


def ham(*arguments: object) -> None:
    """Run a command of `ham` in this process, without its output."""
    from hamburger.cli import main

    output = io.StringIO()
    before, sys.argv = sys.argv, ["ham", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            main()
    except SystemExit as error:
        if error.code:
            raise RuntimeError(f"ham {arguments[0]} failed:\n{output.getvalue()}") from error
    finally:
        sys.argv = before


PATHS = {
    "forward": forward,
    "decompose": decompose,
    "train-step": train_step,
    "predict": predict,
    "train-start": train_start,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Print which files of hamburger a call runs.")
    parser.add_argument("paths", nargs="*", metavar="PATH", help=f"some of {', '.join(PATHS)}; default: all")
    names = parser.parse_args().paths or list(PATHS)
    for name in names:
        if name not in PATHS:
            parser.error(f"no path {name!r}; choose from {', '.join(PATHS)}")
        path = PATHS[name]()
        lines = [f"{name}: {PATHS[name].__doc__}", f"  {len(path.files)} files run: {' '.join(path.files)}"]
        if path.target == NETWORK:
            network = [file for file in path.files if file.startswith(NETWORK_FILES)]
            lines.append(f"  of which {len(network)} build and run the network: {' '.join(network)}")
        if path.stack:
            where = "arithmetic" if path.target == ARITHMETIC else "network"
            lines.append(f"  {len(path.stack)} lead to the {where}: {' '.join(path.stack)}")
        sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
