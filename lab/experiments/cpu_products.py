"""What oneDNN gains over MKL for the hams on this CPU: CPU time of one thread, and errors against float64.

    OMP_NUM_THREADS=1 python lab/experiments/cpu_products.py --json results/products_cpu.jsonl

Protocol: b = 1, d = 512, rank 64, K = 6, float32, the same input and first bases for both libraries, which take turns.
`infer` is a call without a graph, `train` forward and backward with the one-step gradient. Times are CPU times of one
thread, on which other programs have little influence. `error` is that of D C, relative.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import hamburger as hb
from hamburger.environment import describe_environment
from hamburger.files import write_json_lines
from hamburger_lab.bench.timing import RaceTiming

D, RANK, STEPS, WARMUP = 512, 64, 6, 1
LIBRARIES = {"mkl": False, "onednn": True}  # whether oneDNN may multiply


def solve(x: Tensor, ham: hb.Ham, bases: Tensor, mode: str) -> Tensor:
    if mode == "infer":
        with torch.no_grad():
            return hb.decompose(x, ham, steps=STEPS, bases=bases, backend="plain").reconstruction
    x = x.detach().requires_grad_()
    y = hb.decompose(x, ham, steps=STEPS, bases=bases, backend="plain").reconstruction
    return torch.autograd.grad(y, x, torch.ones_like(y))[0]


def measure(sizes: Sequence[int], repeats: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield one row for each ham, size, mode and library."""
    for n in sizes:
        for name in ("nmf", "vq", "cd"):
            generator = torch.Generator().manual_seed(seed + n)
            ham = hb.hams.create(name, rank=RANK)
            signed = torch.randn(1, D, n, generator=generator)
            x = signed.abs() if ham.nonnegative else signed
            bases = ham.draw(1, D, like=x, generator=generator)
            exact = solve(x.double(), ham, bases.double(), "infer")
            for mode in ("infer", "train"):
                samples: dict[str, list[float]] = {library: [] for library in LIBRARIES}
                errors = {}
                for turn in range(WARMUP + repeats):
                    for library, enabled in LIBRARIES.items():
                        torch.backends.mkldnn.set_flags(enabled)
                        begin = time.thread_time()
                        y = solve(x, ham, bases, mode)
                        if turn >= WARMUP:
                            samples[library].append(1e3 * (time.thread_time() - begin))
                        if mode == "infer":
                            errors[library] = float((y - exact).norm() / exact.norm())
                torch.backends.mkldnn.set_flags(True)
                for library, timing in ((library, RaceTiming.of(each)) for library, each in samples.items()):
                    yield {"ham": name, "mode": mode, "library": library, "n": n, "d": D, "r": RANK, "steps": STEPS} | {
                        "dtype": "float32",
                        "ms": round(timing.ms, 3),
                        "ms_iqr": round(timing.ms_iqr, 3),
                        "error": float(f"{errors[library]:.2g}") if mode == "infer" else None,
                        "repeats": repeats,
                        "seed": seed,
                    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1024,4096,16384", help="positions n, comma-separated")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, required=True, help="result file")
    options = parser.parse_args(arguments)
    environment = describe_environment("cpu") | {"threads": 1}
    torch.set_num_threads(1)
    sizes = [int(text) for text in options.sizes.split(",")]
    write_json_lines(options.json, [row | environment for row in measure(sizes, options.repeats, options.seed)])


if __name__ == "__main__":
    main()
