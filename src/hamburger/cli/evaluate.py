"""`ham eval`: scores of trained weights on a split, for the task of the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hamburger.cli.output import DataFolder, Device, Flip, WeightsPath, Window, parse_floats, parse_ints
from hamburger.errors import OptionError

Numbers = tuple[int | None, ...]  # None: as trained


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
    steps: Annotated[
        str, typer.Option(help="steps of the hams, one or several comma-separated; default: as trained")
    ] = "",
    draws: Annotated[
        str, typer.Option(help="draw a new dictionary for every image from this seed, or comma-separated seeds")
    ] = "",
    inside: Annotated[
        int, typer.Option(help="number of images on which to measure ranks and gradients of the context")
    ] = 0,
    device: Device = "auto",
    json: Annotated[
        str | None,
        typer.Option(help="write the scores to this file as JSON; {} in its name is replaced by the steps or draws"),
    ] = None,
) -> None:
    """Evaluate weights on a split: the scores of their task, such as mIoU, overall and per class."""
    from rich.console import Console
    from rich.table import Table

    from hamburger.cli.output import parse_options, progress_bar
    from hamburger.files import check_writable, write_json_lines
    from hamburger.inspect.evaluation import evaluate_weights
    from hamburger.tasks import task_of_weights
    from hamburger.tasks.load import find_weights
    from hamburger.training.task import EvaluationProtocol

    protocol = EvaluationProtocol(parse_floats(scales, "eval"), flip, window)
    path = find_weights(weights)
    step_counts, seeds, files = _parse_variants(steps, draws, json, inside)
    for file in files:
        check_writable(file)
    with progress_bar("evaluating") as update:
        rows, measured = evaluate_weights(
            path,
            data=data,
            dataset=dataset,
            split=split,
            options=parse_options(option),
            protocol=protocol,
            steps=step_counts,
            draws=seeds,
            inside=inside,
            device=device,
            progress=lambda done, total: update(completed=done, total=total),
        )
    console, task = Console(), task_of_weights(path)
    for row in rows:
        overrides = (("steps", row["eval_steps"]), ("draws", row["draws"]))
        used = row["protocol"] + "".join(f", {what} {value}" for what, value in overrides if value is not None)
        if (each := task.member_score) is not None and row[each.name]:
            title = f"{row['data']} {row['split']}, {row['images']} images, {used}"
            table = Table(task.member, f"{each.words} {each.unit}", title=title)
            for name, value in row[each.name].items():
                table.add_row(name, "absent" if value is None else each.shown(value))
            console.print(table)
        line = ", ".join(score.spoken(value) for score, value in task.present_scores(row))
        step = f" of step {row['step']}" if "step" in row else ""
        console.print(f"{line} ({used}; {path}{step})", highlight=False, soft_wrap=True, markup=False)
    for key, value in measured.items():
        if isinstance(value, float):
            console.print(f"{key} {value:.4g}", highlight=False)
    for file, row in zip(files, rows, strict=bool(files)):
        write_json_lines(file, [row])


def _parse_variants(steps: str, draws: str, json: str | None, inside: int) -> tuple[Numbers, Numbers, list[Path]]:
    """Step counts and seeds to evaluate with, and a file for each evaluation if `--json` was given."""
    step_counts: Numbers = parse_ints(steps, "eval", "steps") if steps else (None,)
    seeds: Numbers = parse_ints(draws, "eval", "draws") if draws else (None,)
    if len(step_counts) > 1 and len(seeds) > 1:
        raise OptionError(f"eval: give several steps or several draws, not both (got {steps} and {draws})")
    several = max(step_counts, seeds, key=len)
    if len(several) > 1 and inside:
        raise OptionError("eval: --inside takes a single evaluation; leave it out, or give one of steps or draws")
    if len(several) > 1 and json is not None and "{}" not in json:
        raise OptionError(
            f"eval: --json names one file for {len(several)} evaluations (got {json}); put {{}} into the name"
        )
    return step_counts, seeds, [] if json is None else [Path(json.replace("{}", str(value))) for value in several]
