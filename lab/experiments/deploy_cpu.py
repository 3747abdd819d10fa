"""How fast a segmentation network runs on a CPU in torch, torch.compile, ONNX Runtime and OpenVINO.

    python lab/experiments/deploy_cpu.py --json results/deploy_cpu.jsonl

Protocol: the network of recipe `hamnet-lite0-voc` with random weights in evaluation mode, one image of 352 x 352; each
number of threads has a process. bfloat16 is autocast in torch and a setting of OpenVINO; ONNX Runtime has none.
`torch.compile, freezing` compiles with `torch._inductor.config.freezing`: parameters become constants of the compiled
code, batch norm is folded into convolutions, and oneDNN gets weights in its own layout. Compiled networks and files
take images of this size only. All runtimes take turns in shuffled order. `ms` is CPU time of the process divided by
the threads; with one thread other programs have less influence on it than on wall time, which is in the rows as well.
With several threads it includes time in which threads wait. Before anything is timed, logits are compared with those
of eager torch in float32. What is not installed is left out.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hamburger.environment import describe_environment
from hamburger.errors import HamburgerError
from hamburger.files import write_json_lines
from hamburger.segmentation.model import create_model
from hamburger.segmentation.recipe import segmentation_recipes
from hamburger_lab.bench.timing import RaceTiming

RECIPE, CLASSES, WARMUP, PAUSE = "hamnet-lite0-voc", 21, 3, 0.02
# relative difference of the logits in the norm; bfloat16 rounds every layer
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.2}
TORCH = ("torch", "torch.compile", "torch.compile, freezing")
Run = Callable[[Tensor], Tensor]


def create_network() -> nn.Module:
    """Return the network, with batch statistics from random images: the initial ones would let activations vanish."""
    torch.manual_seed(0)
    net = create_model(**asdict(segmentation_recipes.create(RECIPE).model), num_classes=CLASSES).train()
    with torch.no_grad():
        for _ in range(3):
            net(torch.randn(4, 3, 97, 97))
    return net.eval()


def build_runtimes(net: nn.Module, image: Tensor, threads: int, folder: Path) -> dict[tuple[str, str], Run]:
    """Return the runtimes by name and dtype."""
    runs: dict[tuple[str, str], Run] = {}
    modules: dict[str, Any] = {name: copy.deepcopy(net).to(memory_format=torch.channels_last) for name in TORCH}
    compiled = modules["torch.compile, freezing"]
    modules["torch.compile"] = torch.compile(modules["torch.compile"])
    # a function of its own: torch would run the code that it compiled for the other copy
    modules["torch.compile, freezing"] = torch.compile(lambda x: compiled(x))
    for name, module in modules.items():
        for dtype in TOLERANCE:
            runs[name, dtype] = call_torch(module, dtype)
            with torch._inductor.config.patch(freezing="freezing" in name):
                runs[name, dtype](image)
    file = folder / "net.onnx"
    if find_spec("onnxscript"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(net, (image,), file, dynamo=True, opset_version=18, external_data=False, verbose=False)
        if find_spec("onnxruntime"):
            runs["onnxruntime", "float32"] = open_onnxruntime(file, threads)
        if find_spec("openvino"):
            for dtype, hint in {"float32": "f32", "bfloat16": "bf16"}.items():
                runs["openvino", dtype] = open_openvino(file, threads, hint)
    return runs


def call_torch(module: Run, dtype: str) -> Run:
    def run(x: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            return module(x.contiguous(memory_format=torch.channels_last))

    return run


def open_onnxruntime(file: Path, threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


def open_openvino(file: Path, threads: int, precision: str) -> Run:
    import openvino

    core = openvino.Core()
    limits = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": precision}
    model = core.compile_model(core.read_model(file), "CPU", limits)
    return lambda x: torch.from_numpy(np.array(model([x.numpy()])[0]))


def measure(side: int, threads: int, repeats: int) -> list[dict[str, Any]]:
    """Return one row for each runtime and dtype."""
    torch.set_num_threads(threads)
    image = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(0))
    net = create_network()
    with torch.no_grad():
        exact = net(image)
    with tempfile.TemporaryDirectory() as folder:
        runs = build_runtimes(net, image, threads, Path(folder))
    errors = {}
    for (name, dtype), run in runs.items():
        error = float((run(image) - exact).norm() / exact.norm())
        if not error <= TOLERANCE[dtype]:
            raise HamburgerError(f"{name} in {dtype} differs from torch by {error:.2g}; what disagrees is not timed")
        errors[name, dtype] = float(f"{error:.2g}")
    samples = race(runs, image, repeats)
    rows = []
    for (name, dtype), (cpu, wall) in samples.items():
        timing, elapsed = RaceTiming.of(cpu), RaceTiming.of(wall)
        rows.append(
            {"recipe": RECIPE, "side": side, "runtime": name, "version": version_of(name), "dtype": dtype}
            | {"threads": threads, "ms": round(timing.ms / threads, 2), "ms_iqr": round(timing.ms_iqr / threads, 2)}
            | {"wall_ms": round(elapsed.ms, 2), "wall_ms_iqr": round(elapsed.ms_iqr, 2)}
            | {"difference": errors[name, dtype], "repeats": repeats}
        )
    return rows


def race(runs: dict[tuple[str, str], Run], image: Tensor, repeats: int) -> dict[tuple[str, str], Any]:
    """Return CPU and wall milliseconds of each runtime."""
    shuffle, order = random.Random(0).shuffle, list(runs)
    samples: dict[tuple[str, str], tuple[list[float], list[float]]] = {key: ([], []) for key in runs}
    for turn in range(WARMUP + repeats):
        shuffle(order)
        for key in order:
            time.sleep(PAUSE)  # threads of the one before stop spinning
            cpu, wall = time.process_time(), time.perf_counter()
            runs[key](image)
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            if turn >= WARMUP:
                samples[key][0].append(1e3 * cpu)
                samples[key][1].append(1e3 * wall)
    return samples


def version_of(runtime: str) -> str:
    return version(runtime if runtime in ("onnxruntime", "openvino") else "torch")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=352, help="height and width of the image in pixels")
    parser.add_argument("--threads", default="1,2", help="numbers of threads, comma-separated: a process each")
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--json", type=Path, required=True, help="result file")
    options = parser.parse_args(arguments)
    counts = [int(text) for text in options.threads.split(",")]
    if len(counts) == 1:
        rows = measure(options.side, counts[0], options.repeats)
        write_json_lines(options.json, [row | describe_environment("cpu") | {"threads": counts[0]} for row in rows])
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for threads in counts:
            part = Path(folder) / "rows.jsonl"
            command = [sys.executable, __file__, "--threads", str(threads), "--json", str(part)]
            command += ["--side", str(options.side), "--repeats", str(options.repeats)]
            subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": str(threads)})
            rows += [json.loads(line) for line in part.read_text().splitlines()]
    write_json_lines(options.json, rows)


if __name__ == "__main__":
    main()
