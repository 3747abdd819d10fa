"""`ham bench profile`: which kernels a module's time goes into."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hamburger.bench.gate import GateError
from hamburger.cli.lists import numbers, words


def profile(
    modules: Annotated[str, typer.Option(help="names of `ham bench table3`, with commas")] = "nmf",
    sizes: Annotated[str, typer.Option(help="values of n = h * w, with commas")] = "16384",
    modes: Annotated[str, typer.Option(help="infer, train (forward and backward), with commas")] = "infer,train",
    channels: Annotated[int, typer.Option(help="c")] = 512,
    batch: Annotated[int, typer.Option(help="b")] = 1,
    dtype: Annotated[str, typer.Option(help="float32, tf32 or bfloat16 (autocast)")] = "bfloat16",
    calls: Annotated[int, typer.Option(help="calls to average over")] = 20,
    seed: Annotated[int, typer.Option()] = 0,
    json: Annotated[Path | None, typer.Option(help="write the rows here, one JSON object per line")] = None,
) -> None:
    """Which kernels the time of a context module goes into, on a CUDA device: launches and microseconds of a call."""
    from rich.console import Console
    from rich.progress import Progress

    from hamburger.bench import profile as bench
    from hamburger.files import check_writable, write_json_lines

    plan = bench.Plan(
        modules=words(modules),
        sizes=numbers(sizes, "bench profile", "sizes"),
        channels=channels,
        batch=batch,
        dtype=dtype,
        modes=words(modes),
        calls=calls,
        seed=seed,
    )
    if json is not None:
        check_writable(json)
    # drawn between stages only: a thread that draws takes its turns from whatever is timed then
    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("measuring", total=plan.stages)
        try:
            rows = list(bench.measure(plan, lambda what: bar.update(task, description=what, advance=1, refresh=True)))
        except GateError as refusal:
            typer.echo(f"ham: {refusal}", err=True)
            raise typer.Exit(1) from None
    if json is not None:
        write_json_lines(json, map(asdict, rows))
    Console().print(bench.table(rows))
