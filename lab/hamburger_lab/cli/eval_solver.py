"""`ham eval-solver`: scores of trained weights with other steps or dictionaries, and statistics of their context."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hamburger.cli.output import DataFolder, Device, WeightsPath, parse_ints
from hamburger.errors import OptionError

Numbers = tuple[int | None, ...]  # None: as trained


def eval_solver(
    weights: WeightsPath,
    data: DataFolder = None,
    split: Annotated[str, typer.Option(help="split of the data set")] = "val",
    steps: Annotated[
        str, typer.Option(help="steps of the hams, one or several comma-separated; default: as trained")
    ] = "",
    dictionary_seeds: Annotated[
        str, typer.Option(help="draw a new dictionary for every image from this seed, or comma-separated seeds")
    ] = "",
    statistics_images: Annotated[
        int, typer.Option(help="number of images on which to measure ranks and gradients of the context")
    ] = 0,
    device: Device = "auto",
    json: Annotated[
        str | None,
        typer.Option(help="write the scores to this file as JSON; {} in its name is replaced by the steps or seeds"),
    ] = None,
) -> None:
    """Evaluate weights with other solver settings: step counts, or dictionaries drawn for every image."""
    from hamburger.cli.output import progress_bar, suggest
    from hamburger.files import check_writable, write_json_lines
    from hamburger.inference.find_weights import find_weights
    from hamburger.tasks import task_of_weights
    from hamburger_lab.ablations.solver_evaluation import evaluate_settings

    path = find_weights(weights)
    step_counts, seeds, files = _parse_variants(steps, dictionary_seeds, json, statistics_images)
    for file in files:
        check_writable(file)
    with progress_bar("evaluating") as update:
        rows, measured = evaluate_settings(
            path,
            data=data,
            split=split,
            steps=step_counts,
            dictionary_seeds=seeds,
            statistics_images=statistics_images,
            device=device,
            progress=lambda done, total: update(completed=done, total=total),
        )
    task = task_of_weights(path)
    for row in rows:
        settings = (("steps", row["eval_steps"]), ("dictionary seed", row["draws"]))
        used = row["protocol"] + "".join(f", {name} {value}" for name, value in settings if value is not None)
        line = ", ".join(metric.describe(value) for metric, value in task.present_metrics(row))
        typer.echo(f"{line} ({used}; {path})")
    for key, value in measured.items():
        if isinstance(value, float):
            typer.echo(f"{key} {value:.4g}")
    for file, row in zip(files, rows, strict=bool(files)):
        write_json_lines(file, [row])
        typer.echo(f"wrote {file}")
    suggest("ham list ablations (grids of such evaluations)")


def _parse_variants(
    steps: str, dictionary_seeds: str, json: str | None, statistics_images: int
) -> tuple[Numbers, Numbers, list[Path]]:
    """Step counts and seeds to evaluate with, and a file for each evaluation if `--json` was given."""
    call = "eval-solver"
    step_counts: Numbers = parse_ints(steps, call, "steps") if steps else (None,)
    seeds: Numbers = parse_ints(dictionary_seeds, call, "dictionary-seeds") if dictionary_seeds else (None,)
    if len(step_counts) > 1 and len(seeds) > 1:
        raise OptionError(
            f"{call}: several --steps and several --dictionary-seeds (got {steps} and {dictionary_seeds}); "
            "give several of one of them"
        )
    several = max(step_counts, seeds, key=len)
    if len(several) > 1 and statistics_images:
        raise OptionError(
            f"{call}: --statistics-images takes a single evaluation (got {len(several)}); leave it out, or give one "
            "number of steps and one seed"
        )
    if len(several) > 1 and json is not None and "{}" not in json:
        raise OptionError(
            f"{call}: --json names one file for {len(several)} evaluations (got {json}); put {{}} into the name"
        )
    return step_counts, seeds, [] if json is None else [Path(json.replace("{}", str(value))) for value in several]
