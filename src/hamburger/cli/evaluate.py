"""`ham eval`: scores of trained weights on a split, for the task of the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hamburger.cli.output import DataFolder, Device, Flip, WeightsPath, Window, parse_floats, suggest


def evaluate(
    weights: WeightsPath,
    data: DataFolder = None,
    split: Annotated[str, typer.Option(help="split of the data set")] = "val",
    dataset: Annotated[str | None, typer.Option(help="a name from `ham list datasets`; default: as trained")] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="an option of the data set, name=value; may be repeated")
    ] = None,
    scales: Annotated[str, typer.Option(help="comma-separated; the paper's: 0.5,0.75,1,1.25,1.5,1.75")] = "1",
    flip: Flip = False,
    window: Window = None,
    device: Device = "auto",
    json: Annotated[Path | None, typer.Option(help="write the scores to this file as a JSON object")] = None,
) -> None:
    """Evaluate weights on a split: the scores of their task, such as mIoU, overall and per class."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from hamburger.cli.output import parse_options, progress_bar
    from hamburger.errors import printable
    from hamburger.files import check_writable, write_json_lines
    from hamburger.inference.find_weights import find_weights
    from hamburger.tasks import task_of_weights
    from hamburger.tasks.evaluate import evaluate_weights
    from hamburger.training.supervised import EvaluationProtocol

    protocol = EvaluationProtocol(parse_floats(scales, "eval"), flip, window)
    path = find_weights(weights)
    if json is not None:
        check_writable(json)
    with progress_bar("evaluating") as update:
        row = evaluate_weights(
            path,
            data=data,
            dataset=dataset,
            split=split,
            options=parse_options(option),
            protocol=protocol,
            device=device,
            progress=lambda done, total: update(completed=done, total=total),
        )
    console, task = Console(), task_of_weights(path)
    if (each := task.member_metric) is not None and row[each.name]:
        title = escape(f"{row['data']} {row['split']}, {row['images']} images, {row['protocol']}")
        table = Table(task.member, f"{each.label} {each.unit}", title=title)
        for name, value in row[each.name].items():
            table.add_row(escape(printable(name)), "absent" if value is None else each.format(value))
        console.print(table)
    line = ", ".join(metric.describe(value) for metric, value in task.present_metrics(row))
    step = f" of step {row['step']}" if "step" in row else ""
    console.print(f"{line} ({row['protocol']}; {path}{step})", highlight=False, soft_wrap=True, markup=False)
    if json is not None:
        write_json_lines(json, [row])
        typer.echo(f"wrote {json}")
    suggest(f"ham predict {weights} IMAGE... --out predictions")
