"""`ham bench`: measure speed and memory on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hamburger.cli.output import parse_ints, parse_names
from hamburger.errors import OptionError
from hamburger_lab.bench.common import GateError
from hamburger_lab.bench.core import CorePlan, measure

if TYPE_CHECKING:
    from rich.console import RenderableType


# options that mean the same in several commands
Batch = Annotated[int, typer.Option(help="batch size b")]
Dim = Annotated[int, typer.Option(help="channels d")]
Rank = Annotated[int, typer.Option(help="rank r")]
Steps = Annotated[int, typer.Option(help="steps K")]
Device = Annotated[str, typer.Option(help="cpu or cuda")]
Hams = Annotated[str, typer.Option(help="names, comma-separated")]
Sizes = Annotated[str, typer.Option(help="values of n, comma-separated")]
Seed = Annotated[int, typer.Option()]
Classes = Annotated[int, typer.Option(help="number of classes")]
Autocast = Annotated[str, typer.Option(help="float32 or bfloat16 (autocast)")]
Json = Annotated[Path | None, typer.Option(help="write the rows to this file, one JSON object per line")]

app = typer.Typer(help="Measure speed on this machine.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure speed on this machine."""


@app.command()
def core(
    sizes: Sizes = "1024,2048,4096,8192,16384",
    dim: Annotated[int, typer.Option(help="d, a multiple of 8")] = 512,
    rank: Rank = 64,
    steps: Steps = 6,
    batch: Batch = 1,
    dtype: Annotated[str, typer.Option(help="float32 or float64")] = "float32",
    repeats: Annotated[int, typer.Option(help="timed rounds per size")] = 15,
    device: Device = "cpu",
    hams: Hams = "nmf,vq,cd",
    seed: Seed = 0,
    json: Json = None,
) -> None:
    """Time the hams against the authors' code, scikit-learn's NMF and self-attention, as n grows."""
    from rich.console import Console
    from rich.progress import Progress

    from hamburger.files import check_writable, write_json_lines
    from hamburger_lab.bench import views

    plan = CorePlan(
        sizes=parse_ints(sizes),
        dim=dim,
        rank=rank,
        steps=steps,
        batch=batch,
        dtype=dtype,
        repeats=repeats,
        device=device,
        hams=parse_names(hams),
        seed=seed,
    )
    if json is not None:
        check_writable(json)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("racing", total=plan.rounds)
        try:
            rows = measure(plan, after_round=lambda: progress.advance(task))
        except GateError as refusal:
            typer.echo(f"ham: {refusal}", err=True)
            raise typer.Exit(1) from None
    console = Console()
    console.print(views.core_times_table(rows))
    console.print(views.core_growth_table(rows))
    if json is not None:
        write_json_lines(json, map(asdict, rows))


@app.command("table3")
def table3(
    modules: Annotated[
        str, typer.Option(help="names, comma-separated; add +compile to a name to compile it; default: all")
    ] = "",
    sizes: Annotated[str, typer.Option(help="values of n = h * w, comma-separated")] = "16384",
    channels: Annotated[int, typer.Option(help="channels c")] = 512,
    batch: Batch = 1,
    device: Device = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, tf32 (cuda), bfloat16 (autocast), comma-separated")] = "float32",
    memory_format: Annotated[
        str | None,
        typer.Option(help="contiguous, channels_last or best (the faster); default: best on cuda, else contiguous"),
    ] = None,
    repeats: Annotated[int, typer.Option(help="samples, each a call or a block of short calls; at least 5")] = 20,
    seconds: Annotated[
        float, typer.Option(help="time budget of one row: both modes and all candidates; at least 5 samples are taken")
    ] = 2.0,
    max_macs: Annotated[
        float, typer.Option(help="do not run modules that need more multiply-adds; only count them")
    ] = inf,
    seed: Seed = 0,
    json: Json = None,
    append: Annotated[
        bool, typer.Option("--append", help="keep other rows of the file; replace rows of the same measurement")
    ] = False,
    csv: Annotated[Path | None, typer.Option(help="write the rows to this file as CSV")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="draw time and memory against n to this PNG file, one per dtype")
    ] = None,
) -> None:
    """Measure every context module as in the paper's Table 3: parameters, multiply-adds, memory, time."""
    from rich.console import Console
    from rich.progress import Progress

    from hamburger.files import check_writable, write_json_lines
    from hamburger_lab import rows as results
    from hamburger_lab.bench import table3 as bench
    from hamburger_lab.bench.table3_names import module_names
    from hamburger_lab.bench.table3_view import row_notes, table3_growth_table, table3_table
    from hamburger_lab.rows import write_csv

    plan = bench.Table3Plan(
        modules=parse_names(modules) or tuple(module_names()),
        sizes=parse_ints(sizes),
        channels=channels,
        batch=batch,
        device=device,
        dtypes=parse_names(dtype),
        memory_format=memory_format,
        repeats=repeats,
        seconds=seconds,
        max_macs=max_macs,
        seed=seed,
    )
    if append and json is None:
        raise OptionError("bench table3: --append needs the file to append to; name it with --json")
    for path in (json, csv, plot):
        if path is not None:
            check_writable(path)
    kept = results.read_table3_rows(json) if append and json is not None else []
    rows: list[bench.Table3Row] = []
    # refresh between rows only: a refreshing thread would disturb the timing
    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        task = progress.add_task("measuring", total=plan.rows)
        for row in bench.measure(plan, lambda what: progress.update(task, description=what, refresh=True)):
            rows.append(row)
            progress.advance(task)
            if json is not None:  # after every row, so that an interrupted run keeps its rows
                kept = results.merge_table3_rows(kept, [asdict(row)])
                write_json_lines(json, kept)
    console = Console()
    by_dtype = {name: [row for row in rows if row.dtype == name] for name in plan.dtypes}
    for dtype_rows in by_dtype.values():
        console.print(table3_table(dtype_rows))
        if len(plan.sizes) > 1:
            console.print(table3_growth_table(dtype_rows))
    for note in row_notes(rows):
        console.print(note, markup=False, highlight=False)
    if csv is not None:
        write_csv(csv, [asdict(row) for row in rows])
    if plot is not None:
        from hamburger_lab.pages.table3_figure import draw_table3

        for name, dtype_rows in by_dtype.items():
            path = plot.with_stem(f"{plot.stem}_{name}") if len(by_dtype) > 1 else plot
            draw_table3([asdict(row) for row in dtype_rows], path)


@app.command("ham")
def ham(
    hams: Hams = "nmf,vq,cd",
    backends: Annotated[
        str | None, typer.Option(help="plain, fused, comma-separated; default: both on cuda, else plain")
    ] = None,
    modes: Annotated[str, typer.Option(help="infer, train (forward and backward), comma-separated")] = "infer,train",
    sizes: Sizes = "16384",
    dim: Dim = 512,
    rank: Rank = 64,
    steps: Steps = 6,
    batch: Batch = 1,
    dtype: Annotated[str, typer.Option(help="float32, tf32 (cuda), bfloat16, float16, comma-separated")] = "float32",
    repeats: Annotated[int, typer.Option(help="samples, each a call or a block of short calls")] = 20,
    device: Device = "cpu",
    seed: Seed = 0,
    json: Json = None,
) -> None:
    """Time the ham alone, plain and fused, against its roofline: the least time for its arithmetic and bytes."""
    from rich.console import Console
    from rich.progress import Progress

    from hamburger.files import check_writable, write_json_lines
    from hamburger_lab.bench import ham as bench

    plan = bench.HamAlonePlan(
        sizes=parse_ints(sizes),
        dim=dim,
        rank=rank,
        steps=steps,
        batch=batch,
        dtypes=parse_names(dtype),
        hams=parse_names(hams),
        backends=parse_names(backends)
        if backends is not None
        else ("plain", "fused")
        if device == "cuda"
        else ("plain",),
        modes=parse_names(modes),
        repeats=repeats,
        device=device,
        seed=seed,
    )
    if json is not None:
        check_writable(json)
    rows: list[bench.HamAloneRow] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=plan.rows)
        try:
            for row in bench.measure(plan, lambda what: progress.update(task, description=what)):
                rows.append(row)
                progress.advance(task)
                if json is not None:  # after every row, so that an interrupted run keeps its rows
                    write_json_lines(json, map(asdict, rows))
        except GateError as refusal:
            typer.echo(f"ham: {refusal}", err=True)
            raise typer.Exit(1) from None
    Console().print(bench.ham_table(rows))


@app.command("gradients")
def gradients(
    hams: Hams = "nmf,vq,cd",
    grads: Hams = "one-step,truncated:1,truncated:2,bptt,implicit",
    sizes: Sizes = "4096",
    steps: Annotated[str, typer.Option(help="values of K, comma-separated")] = "6,24",
    dim: Dim = 512,
    rank: Rank = 64,
    batch: Batch = 1,
    repeats: Annotated[int, typer.Option(help="timed rounds, each a call of every gradient; at least 5")] = 10,
    device: Device = "cpu",
    seed: Seed = 0,
    json: Json = None,
) -> None:
    """Measure time and peak memory of forward and backward for each gradient of a ham, as K grows."""
    from rich.console import Console
    from rich.progress import Progress

    from hamburger.files import check_writable, write_json_lines
    from hamburger_lab.bench import gradients as bench

    plan = bench.GradientPlan(
        sizes=parse_ints(sizes),
        steps=parse_ints(steps, option="steps"),
        dim=dim,
        rank=rank,
        batch=batch,
        hams=parse_names(hams),
        gradients=parse_names(grads),
        repeats=repeats,
        device=device,
        seed=seed,
    )
    if json is not None:
        check_writable(json)
    rows: list[bench.GradientRow] = []
    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        task = progress.add_task("measuring", total=plan.races)
        for row in bench.measure(plan, lambda what: progress.update(task, description=what, advance=1, refresh=True)):
            rows.append(row)
            if json is not None:  # after every row, so that an interrupted run keeps its rows
                write_json_lines(json, map(asdict, rows))
    Console().print(bench.gradients_table(rows))


@app.command("network")
def network(
    contexts: Annotated[
        str, typer.Option(help="comma-separated; also baseline, breads (no ham) and sa-flash")
    ] = "baseline,breads,nmf,vq,cd,sa-flash,a2,ema,efficient,da",
    backbone: Annotated[str, typer.Option()] = "resnet50",
    output_stride: Annotated[int, typer.Option(help="8, 16 or 32")] = 16,
    num_classes: Classes = 21,
    crop: Annotated[int, typer.Option(help="height and width of the images")] = 513,
    batch: Batch = 16,
    device: Device = "cpu",
    dtype: Autocast = "float32",
    repeats: Annotated[int, typer.Option(help="timed rounds, each a step of every network")] = 20,
    seed: Seed = 0,
    json: Json = None,
) -> None:
    """Time a training step of HamNet with each context, in shuffled rounds: images/s and peak memory."""
    from hamburger_lab.bench import network as bench
    from hamburger_lab.bench.common import model_options
    from hamburger_lab.bench.views import network_table

    plan = bench.NetworkPlan(
        variants={name: model_options(name) for name in parse_names(contexts)},
        backbone=backbone,
        output_stride=output_stride,
        num_classes=num_classes,
        crop=crop,
        batch=batch,
        device=device,
        dtype=dtype,
        repeats=repeats,
        seed=seed,
    )
    _run_rounds(partial(bench.measure, plan), plan.stages, network_table, json)


@app.command("detect")
def detect(
    contexts: Annotated[
        str, typer.Option(help="comma-separated; also none, breads (no ham), sa-flash and sa-materialised")
    ] = "none,sa-materialised,sa-flash,efficient,nmf",
    sizes: Annotated[str, typer.Option(help="height and width of the images, comma-separated")] = "256,512,768,1024",
    backbone: Annotated[str, typer.Option(help="a ResNet of torchvision, or tiny")] = "resnet50",
    after: Annotated[str, typer.Option(help="where the context is inserted: layer1 ... layer4, p2 ... p5")] = "p3",
    batch: Batch = 4,
    device: Device = "cpu",
    dtype: Autocast = "float32",
    repeats: Annotated[int, typer.Option(help="timed rounds, each a step of every network")] = 20,
    seed: Seed = 0,
    json: Json = None,
) -> None:
    """Time a training step of Mask R-CNN with each context as the image grows: time, and memory against n."""
    from hamburger_lab.bench import detect as bench
    from hamburger_lab.bench.common import model_options
    from hamburger_lab.bench.views import size_sweep_table

    plan = bench.DetectorPlan(
        variants={name: model_options(name) for name in parse_names(contexts)},
        sizes=parse_ints(sizes, "bench detect", "sizes"),
        backbone=backbone,
        after=after,
        batch=batch,
        device=device,
        dtype=dtype,
        repeats=repeats,
        seed=seed,
    )
    _run_rounds(partial(bench.measure, plan), plan.stages, partial(size_sweep_table, network="Mask R-CNN"), json)


@app.command("classes")
def classes(
    contexts: Annotated[
        str, typer.Option(help="comma-separated; also none, breads (no ham), sa-flash and sa-materialised")
    ] = "none,sa-flash,efficient,nmf",
    sizes: Annotated[str, typer.Option(help="height and width of the images, comma-separated")] = "32",
    backbone: Annotated[str, typer.Option(help="a ResNet of timm; others with --stem timm")] = "resnet18",
    stem: Annotated[str, typer.Option(help="small: a ResNet's, without stride or pool; timm: as it is")] = "small",
    after: Annotated[str, typer.Option(help="the submodule that the context follows")] = "layer3",
    num_classes: Classes = 10,
    batch: Batch = 128,
    device: Device = "cpu",
    dtype: Autocast = "float32",
    repeats: Annotated[int, typer.Option(help="timed rounds, each a step of every network")] = 20,
    seed: Seed = 0,
    json: Json = None,
) -> None:
    """Time a training step of an image classifier with each context: images/s and peak memory."""
    from hamburger_lab.bench import classes as bench
    from hamburger_lab.bench.common import model_options
    from hamburger_lab.bench.views import size_sweep_table

    plan = bench.ClassifierPlan(
        variants={name: model_options(name) for name in parse_names(contexts)},
        sizes=parse_ints(sizes, "bench classes", "sizes"),
        backbone=backbone,
        stem=stem,
        after=after,
        num_classes=num_classes,
        batch=batch,
        device=device,
        dtype=dtype,
        repeats=repeats,
        seed=seed,
    )
    _run_rounds(partial(bench.measure, plan), plan.stages, partial(size_sweep_table, network="a classifier"), json)


@app.command("gan")
def gan(
    contexts: Annotated[
        str, typer.Option(help="comma-separated")
    ] = "none,sagan,ylg,ylg-fused,ylg-sparse,hamgan,efficient",
    resolution: Annotated[int, typer.Option(help="32, 64 or 128")] = 128,
    width: Annotated[int, typer.Option(help="channels of the widest map")] = 64,
    num_classes: Classes = 1000,
    batch: Batch = 64,
    device: Device = "cpu",
    dtype: Autocast = "float32",
    graph: Annotated[bool, typer.Option("--graph", help="record calls as CUDA graphs and time their replay")] = False,
    repeats: Annotated[int, typer.Option(help="timed rounds, each a step of every GAN")] = 20,
    seed: Seed = 0,
    json: Json = None,
) -> None:
    """Time a training step of HamGAN and its rivals, and their modules alone, in shuffled rounds."""
    from hamburger_lab.bench import gan as bench
    from hamburger_lab.bench.views import gan_table

    plan = bench.GanStepPlan(
        contexts=parse_names(contexts),
        resolution=resolution,
        width=width,
        num_classes=num_classes,
        batch=batch,
        device=device,
        dtype=dtype,
        graph=graph,
        repeats=repeats,
        seed=seed,
    )
    _run_rounds(partial(bench.measure, plan), plan.stages, gan_table, json)


@app.command("profile")
def profile(
    modules: Annotated[str, typer.Option(help="names of `ham bench table3`, comma-separated")] = "nmf",
    sizes: Annotated[str, typer.Option(help="values of n = h * w, comma-separated")] = "16384",
    modes: Annotated[str, typer.Option(help="infer, train (forward and backward), comma-separated")] = "infer,train",
    channels: Annotated[int, typer.Option(help="channels c")] = 512,
    batch: Annotated[int, typer.Option(help="batch size b")] = 1,
    dtype: Annotated[str, typer.Option(help="float32, tf32 or bfloat16 (autocast)")] = "bfloat16",
    calls: Annotated[int, typer.Option(help="calls to average over")] = 20,
    seed: Annotated[int, typer.Option()] = 0,
    json: Annotated[Path | None, typer.Option(help="write the rows to this file, one JSON object per line")] = None,
) -> None:
    """Profile the kernels of a context module on a CUDA device: launches and microseconds of a call."""
    from rich.console import Console
    from rich.progress import Progress

    from hamburger.files import check_writable, write_json_lines
    from hamburger_lab.bench import profile as bench

    plan = bench.ProfilePlan(
        modules=parse_names(modules),
        sizes=parse_ints(sizes, "bench profile", "sizes"),
        channels=channels,
        batch=batch,
        dtype=dtype,
        modes=parse_names(modes),
        calls=calls,
        seed=seed,
    )
    if json is not None:
        check_writable(json)
    # refresh between stages only: a refreshing thread would disturb the timing
    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("measuring", total=plan.stages)
        try:
            rows = list(bench.measure(plan, lambda what: bar.update(task, description=what, advance=1, refresh=True)))
        except GateError as refusal:
            typer.echo(f"ham: {refusal}", err=True)
            raise typer.Exit(1) from None
    if json is not None:
        write_json_lines(json, map(asdict, rows))
    Console().print(bench.profile_table(rows))


def _run_rounds(
    measure: Callable[[Callable[[str], object]], Iterable[Any]],
    stages: int,
    table: Callable[[list[Any]], RenderableType],
    json: Path | None,
) -> None:
    """Measure with a progress bar, write rows as they come (an interrupted run keeps them), print the table."""
    from rich.console import Console
    from rich.progress import Progress

    from hamburger.files import check_writable, write_json_lines

    if json is not None:
        check_writable(json)
    rows: list[Any] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=stages)
        for row in measure(lambda what: progress.update(task, description=what, advance=1)):
            rows.append(row)
            if json is not None:
                write_json_lines(json, map(asdict, rows))
    Console().print(table(rows))
