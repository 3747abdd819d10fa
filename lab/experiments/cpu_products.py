"""What oneDNN gains over MKL for the hams on this CPU: CPU time of one thread, and errors against float64.

    OMP_NUM_THREADS=1 python lab/experiments/cpu_products.py --json results/products_cpu.jsonl

Protocol: b = 1, d = 512, rank 64, K = 6, the same input and first bases for all libraries, which take turns. `mkl` and
`onednn` multiply in float32, also where X is bfloat16; `onednn-bfloat16` multiplies such an X as it is. `infer` is a
call without a graph, `train` forward and backward with the one-step gradient. Times are CPU times of one thread, on
which other programs have little influence.

`error` is that of D C (`infer`) or of the gradient (`train`), relative to float64 on the same X. `rounding` is the
change of the float64 result when X is rounded to its dtype: what a bfloat16 input costs before anything is multiplied.
`residual` is |X - D C| / |X|. Inputs: `noise`, normal numbers, absolute for NMF; `clusters`, columns near 40
non-negative centres, as after a ReLU; these are not timed.
"""

from __future__ import annotations

import argparse
import itertools
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
LIBRARIES = {"float32": ("mkl", "onednn"), "bfloat16": ("mkl", "onednn", "onednn-bfloat16")}
INPUTS = ("noise", "clusters")


def draw(kind: str, n: int, nonnegative: bool, generator: torch.Generator) -> Tensor:
    """Return X in float64, 1 d n."""
    noise = torch.randn(1, D, n, generator=generator, dtype=torch.float64)
    if kind == "noise":
        return noise.abs() if nonnegative else noise
    centres = torch.randn(1, D, 40, generator=generator, dtype=torch.float64).relu()
    return (centres[:, :, torch.randint(40, (n,), generator=generator)] + noise / 2).relu()


def solve(x: Tensor, ham: hb.Ham, bases: Tensor, mode: str) -> Tensor:
    if mode == "infer":
        with torch.no_grad():
            return hb.decompose(x, ham, steps=STEPS, bases=bases, backend="plain").reconstruction
    x = x.detach().requires_grad_()
    y = hb.decompose(x, ham, steps=STEPS, bases=bases, backend="plain").reconstruction
    return torch.autograd.grad(y, x, torch.ones_like(y))[0]


def solve_by(library: str, x: Tensor, ham: hb.Ham, bases: Tensor, mode: str) -> Tensor:
    torch.backends.mkldnn.set_flags(library != "mkl")
    wide = x if library == "onednn-bfloat16" else x.float()
    return solve(wide, ham, bases, mode).to(x.dtype)


def measure(sizes: Sequence[int], repeats: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield one row for each size, ham, kind of input, mode, dtype and library."""
    for n, name, kind in itertools.product(sizes, ("nmf", "vq", "cd"), INPUTS):
        generator = torch.Generator().manual_seed(seed + n)
        ham = hb.hams.create(name, rank=RANK)
        full = draw(kind, n, ham.nonnegative, generator)
        bases = ham.draw(1, D, like=torch.empty(0), generator=generator)
        for mode in ("infer", "train"):
            unrounded = solve(full, ham, bases.double(), mode)
            for dtype, libraries in LIBRARIES.items():
                x = full.to(getattr(torch, dtype))
                exact = solve(x.double(), ham, bases.double(), mode)
                results = {library: solve_by(library, x, ham, bases, mode) for library in libraries}
                timings = race(libraries, x, ham, bases, mode, repeats) if kind == "noise" else {}
                torch.backends.mkldnn.set_flags(True)
                for library in libraries:
                    timing = timings.get(library)
                    yield {"ham": name, "mode": mode, "input": kind, "library": library, "n": n, "d": D, "r": RANK} | {
                        "steps": STEPS,
                        "dtype": dtype,
                        "ms": timing and round(timing.ms, 3),
                        "ms_iqr": timing and round(timing.ms_iqr, 3),
                        "error": relative(results[library], exact),
                        "rounding": relative(unrounded, exact),
                        "residual": relative(results[library], x) if mode == "infer" else None,
                        "repeats": repeats,
                        "seed": seed,
                    }


def relative(value: Tensor, reference: Tensor) -> float:
    """|value - reference| / |reference|, four digits."""
    exact = reference.double()
    return float(f"{float((value.double() - exact).norm() / exact.norm()):.4g}")


def race(
    libraries: Sequence[str], x: Tensor, ham: hb.Ham, bases: Tensor, mode: str, repeats: int
) -> dict[str, RaceTiming]:
    samples: dict[str, list[float]] = {library: [] for library in libraries}
    for turn in range(WARMUP + repeats):
        for library in libraries:
            begin = time.thread_time()
            solve_by(library, x, ham, bases, mode)
            if turn >= WARMUP:
                samples[library].append(1e3 * (time.thread_time() - begin))
    return {library: RaceTiming.of(each) for library, each in samples.items()}


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
