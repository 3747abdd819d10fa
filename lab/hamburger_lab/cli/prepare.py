"""`ham data prepare`: PASCAL VOC's augmented training set, results for its server, labels of PASCAL-Context."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hamburger.cli.output import progress_bar, suggest

app = typer.Typer(help="Build the files that a data set needs.", no_args_is_help=True)

AnyCounts = Annotated[bool, typer.Option("--any-counts", help="accept other numbers of images than the official ones")]


@app.command("voc")
def prepare_voc(
    root: Annotated[Path, typer.Option(help="VOC 2012: VOCdevkit/VOC2012 or a folder above it")],
    sbd: Annotated[
        Path | None, typer.Option(help="SBD: benchmark_RELEASE/dataset; default: searched near ROOT")
    ] = None,
    any_counts: AnyCounts = False,
) -> None:
    """Build the augmented training set (10,582 images) from SBD's labels; can be interrupted and repeated."""
    from hamburger_lab.prepare_voc import EXPECTED
    from hamburger_lab.prepare_voc import prepare_voc as build

    expected = None if any_counts else EXPECTED
    with progress_bar("writing labels") as update:
        done = build(root, sbd, expected=expected, after=lambda total: update(total=total, advance=1))
    counts = ", ".join(f"{name} {count:,}" for name, count in done.counts.items() if count is not None)
    typer.echo(f"{done.tree}: {counts}")
    typer.echo(f"labels: {done.from_voc:,} of VOC, {done.from_sbd:,} of SBD; {done.already:,} existed already")
    for note in done.notes:
        typer.echo(note)
    suggest(f"ham data check voc --data {root} --split trainaug,val")


@app.command("voc-results")
def write_voc_results(
    predicted: Annotated[Path, typer.Argument(help="the output folder of `ham predict` on VOC's test images")],
    out: Annotated[Path, typer.Option(help="folder for results/VOC2012/...")],
) -> None:
    """Write predicted labels with the folders, names and class ids that the PASCAL VOC server expects."""
    from hamburger_lab.prepare_voc import write_server_results

    typer.echo(f"wrote {len(write_server_results(predicted, out))} labels to {out}")


@app.command("context")
def prepare_context(
    root: Annotated[Path, typer.Option(help="VOC 2010: VOCdevkit/VOC2010 or a folder above it")],
    annotations: Annotated[
        Path | None, typer.Option(help="the official trainval_merged.json; default: in the folder of VOC 2010")
    ] = None,
    any_counts: AnyCounts = False,
) -> None:
    """Build PASCAL-Context's labels (59 classes, 10,103 images) and lists; can be interrupted and repeated."""
    from hamburger_lab.prepare_context import EXPECTED
    from hamburger_lab.prepare_context import prepare_context as build

    expected = None if any_counts else EXPECTED
    with progress_bar("writing labels") as update:
        done = build(root, annotations, expected=expected, after=lambda total: update(total=total, advance=1))
    counts = ", ".join(f"{name} {count:,}" for name, count in done.counts.items())
    typer.echo(f"{done.tree}: {counts}; {done.already:,} labels existed already")
    for note in done.notes:
        typer.echo(note)
    suggest(f"ham data check context --data {root}")
