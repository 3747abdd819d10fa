"""`ham eval`: scores of trained weights on a split, for the task of the weights."""

from __future__ import annotations

import json as json_format
import time
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hamburger.cli.output import DataFolder, Device, Flip, WeightsPath, Window, parse_floats, parse_ints
from hamburger.errors import OptionError, check_count

if TYPE_CHECKING:
    from rich.table import Table

    from hamburger.training.task import Task

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

    from hamburger.cli.output import parse_options, progress_bar
    from hamburger.environment import describe_environment
    from hamburger.files import check_writable, write_atomically
    from hamburger.inspect.evaluation import measure_split, solver_variants
    from hamburger.tasks import task_of_weights
    from hamburger.tasks.load import find_weights
    from hamburger.training.accelerator import pick_device
    from hamburger.training.task import SINGLE_SCALE, EvaluationProtocol

    check_count("eval", "inside", inside, least=0)
    protocol = EvaluationProtocol(parse_floats(scales, "eval"), flip, window)
    path = find_weights(weights)
    task = task_of_weights(path)
    if not task.test_time_augmentation and (protocol != SINGLE_SCALE or inside):
        raise OptionError(
            f"eval: {path} is for the task '{task.name}', which evaluates each image once, as it is; leave out "
            "scales, flip, window and inside"
        )
    step_counts, seeds, files = _parse_variants(steps, draws, json, inside)
    for file in files:
        check_writable(file)
    on = pick_device(device)
    net, info = task.load(path)
    variants = solver_variants(net.to(on), steps=step_counts, draws=seeds)
    about = info.extra
    name = dataset or about.get("data")
    if name is None:
        raise OptionError(f"eval: {path} does not name the data set it was trained on; name one with --dataset")
    name = task.dataset_for(name, data)
    split = about.get("val_split", split) if split == "val" else split  # "val" means the split the run was validated on
    trained = about.get("data_options", {}) if name == about.get("data") else {}
    chosen = parse_options(option)
    images = task.split(info, name, split, data, trained | chosen)
    task.fits("eval", info, images)
    start = time.perf_counter()
    with progress_bar("evaluating", len(images)) as update:
        options = {"device": on, "protocol": protocol, "progress": lambda done, total: update(completed=done)}
        results = [asdict(scores) for scores in task.evaluate_variants(net, images, info, variants, **options)]
    console = Console()
    step = f" of step {about['step']}" if "step" in about else ""
    for (ham_steps, seed), scores in zip(product(step_counts, seeds), results, strict=True):
        overrides = (("steps", ham_steps), ("draws", seed))
        used = scores["protocol"] + "".join(f", {what} {value}" for what, value in overrides if value is not None)
        if task.member_score is not None and scores[task.member_score.name]:
            console.print(member_table(task, scores, f"{name} {split}, {scores['images']} images, {used}"))
        line = ", ".join(score.spoken(value) for score, value in task.present_scores(scores))
        console.print(f"{line} ({used}; {path}{step})", highlight=False, soft_wrap=True, markup=False)
    measured = measure_split(net, images, info, inside, device=on) if inside else {}
    for key, value in measured.items():
        if isinstance(value, float):
            console.print(f"{key} {value:.4g}", highlight=False)
    seconds = round((time.perf_counter() - start) / len(results), 2)
    for file, (ham_steps, seed), scores in zip(files, product(step_counts, seeds), results, strict=bool(files)):
        row = {"weights": str(path), "task": task.name, "data": name, "split": split, **scores, **measured}
        row |= {key: about[key] for key in ("recipe", "seed", "context", "step") if key in about}
        row |= {"options": chosen, "eval_steps": ham_steps, "draws": seed, "seconds": seconds}
        write_atomically(file, (json_format.dumps({**row, **describe_environment(on.type)}) + "\n").encode())


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


def member_table(task: Task[Any], scores: dict[str, Any], title: str) -> Table:
    """The score of each class (or other member)."""
    from rich.table import Table

    assert task.member_score is not None
    table = Table(task.member, f"{task.member_score.words} {task.member_score.unit}", title=title)
    for each, value in scores[task.member_score.name].items():
        table.add_row(each, "absent" if value is None else task.member_score.shown(value))
    return table
