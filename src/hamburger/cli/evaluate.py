"""`ham eval`: scores of trained weights on a split, by the task of the weights."""

from __future__ import annotations

import json as json_format
import time
from dataclasses import asdict
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from hamburger.errors import OptionError, check_count

if TYPE_CHECKING:
    import torch
    from rich.table import Table

    from hamburger.checkpoints.weights_file import Info
    from hamburger.inspect.network import Found
    from hamburger.segmentation.data import SegmentationSet
    from hamburger.training.task import Kind


def evaluate(
    weights: Annotated[Path, typer.Argument(metavar="RUN_OR_WEIGHTS", help="a run folder or a .safetensors file")],
    data: Annotated[Path | None, typer.Option(help="the data folder; embedded sets need none")] = None,
    split: Annotated[str, typer.Option(help="which part of the data set")] = "val",
    dataset: Annotated[str | None, typer.Option(help="a name of `ham list datasets`; default: as trained")] = None,
    option: Annotated[list[str] | None, typer.Option(help="name=value of the data set; may be repeated")] = None,
    scales: Annotated[str, typer.Option(help="with commas; the paper's: 0.5,0.75,1,1.25,1.5,1.75")] = "1",
    flip: Annotated[bool, typer.Option("--flip", help="look at the mirrored image too")] = False,
    window: Annotated[int | None, typer.Option(help="side of a sliding window in pixels; default: none")] = None,
    steps: Annotated[str, typer.Option(help="sweeps of the hams, or several with commas; default: as trained")] = "",
    draws: Annotated[str, typer.Option(help="a seed, or several: draw a new dictionary for every image")] = "",
    inside: Annotated[int, typer.Option(help="images to look at ranks and gradients of the context with")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    json: Annotated[
        str | None, typer.Option(help="write the scores here as one JSON object; of several steps or draws {} is which")
    ] = None,
) -> None:
    """The scores of the task that the weights were trained for, such as mIoU, per class, with the protocol stated."""
    from rich.console import Console
    from rich.progress import Progress

    from hamburger.cli.data import parsed
    from hamburger.cli.output import decimals
    from hamburger.environment import Environment
    from hamburger.files import check_writable, write_atomically
    from hamburger.inference.locate import find_weights
    from hamburger.inspect.resolve import ways_to_solve
    from hamburger.segmentation.predict import pick_device
    from hamburger.tasks import task_of_weights
    from hamburger.training.task import SINGLE, Protocol

    check_count("eval", "inside", inside, least=0)
    protocol = Protocol(decimals(scales, "eval"), flip, window)
    path = find_weights(weights)
    task = task_of_weights(path)
    if not task.views and (protocol != SINGLE or inside):
        raise OptionError(
            f"eval: {path} is for the task '{task.kind.task}', which looks at an image as it is; leave out scales, "
            "flip, window and inside"
        )
    asked = Asked.of(steps, draws, json, inside)
    for target in asked.targets:
        check_writable(target)
    on = pick_device(device)
    net, info = task.load(path)
    ways = ways_to_solve(net.to(on), steps=asked.steps, draws=asked.draws)
    about = info.extra
    name = dataset or about.get("data")
    if name is None:
        raise OptionError(f"eval: {path} does not say which data set it was trained on; name one with --dataset")
    name = task.set_meant(name, data)
    split = about.get("val_split", split) if split == "val" else split  # "val" is what the run was validated on
    options = about.get("data_options", {}) if name == about.get("data") else {}
    chosen = dict(parsed(text) for text in option or [])
    images = task.split(info, name, split, data, options | chosen)
    task.fits("eval", info, images)
    begun = time.perf_counter()
    with Progress(console=Console(stderr=True), transient=True) as bar:
        shown = bar.add_task("evaluating", total=len(images))
        every = task.evaluate_ways(
            net,
            images,
            info,
            ways,
            device=on,
            protocol=protocol,
            progress=lambda done, total: bar.update(shown, completed=done),
        )
    found = [asdict(scores) for scores in every]
    console = Console()
    step = f" of step {about['step']}" if "step" in about else ""
    for (sweeps, seed), scores in zip(asked.ways, found, strict=True):
        way = "".join(f", {what} {value}" for what, value in (("steps", sweeps), ("draws", seed)) if value is not None)
        protocol_said = f"{scores['protocol']}{way}"
        if task.kind.each is not None and scores[task.kind.each.name]:
            console.print(table(task.kind, scores, f"{name} {split}, {scores['images']} images, {protocol_said}"))
        said = ", ".join(score.spoken(value) for score, value in task.kind.told(scores))
        console.print(f"{said} ({protocol_said}; {path}{step})", highlight=False, soft_wrap=True, markup=False)
    looked: Found = _inside(net, images, info, on, inside) if inside else {}
    for key, value in looked.items():
        if isinstance(value, float):
            console.print(f"{key} {value:.4g}", highlight=False)
    seconds = round((time.perf_counter() - begun) / len(found), 2)
    for target, (sweeps, seed), scores in zip(asked.targets, asked.ways, found, strict=bool(asked.targets)):
        row = {"weights": str(path), "task": task.kind.task, "data": name, "split": split, **scores, **looked}
        row |= {key: about[key] for key in ("recipe", "seed", "context", "step") if key in about}
        row |= {"options": chosen, "eval_steps": sweeps, "draws": seed, "seconds": seconds}
        write_atomically(target, (json_format.dumps({**row, **asdict(Environment.here(on.type))}) + "\n").encode())


class Asked(NamedTuple):
    """Ways to solve, and a file for each of them where files are asked for."""

    steps: tuple[int | None, ...]
    draws: tuple[int | None, ...]
    targets: tuple[Path, ...]

    @property
    def ways(self) -> list[tuple[int | None, int | None]]:
        return list(product(self.steps, self.draws))

    @classmethod
    def of(cls, steps: str, draws: str, json: str | None, inside: int) -> Asked:
        from hamburger.cli.output import numbers

        sweeps = numbers(steps, "eval", "steps") if steps else (None,)
        seeds = numbers(draws, "eval", "draws") if draws else (None,)
        if len(sweeps) > 1 and len(seeds) > 1:
            raise OptionError(f"eval: give several steps or several draws, not both; got {steps} and {draws}")
        several = max(sweeps, seeds, key=len)
        if len(several) > 1 and inside:
            raise OptionError(
                "eval: --inside looks at one way to solve; leave it out, or give one of the steps or draws"
            )
        if len(several) > 1 and json is not None and "{}" not in json:
            raise OptionError(
                f"eval: {len(several)} evaluations have a file each, got {json}; put {{}} where they differ"
            )
        files = () if json is None else tuple(Path(json.replace("{}", str(value))) for value in several)
        return cls(sweeps, seeds, files)


def table(kind: Kind, scores: dict[str, Any], title: str) -> Table:
    from rich.table import Table

    assert kind.each is not None
    made = Table(kind.member, f"{kind.each.words} {kind.each.unit}", title=title)
    for each, value in scores[kind.each.name].items():
        made.add_row(each, "absent" if value is None else kind.each.shown(value))
    return made


def _inside(net: Any, images: SegmentationSet, info: Info, device: torch.device, count: int) -> Found:
    from hamburger.inspect.network import CONTEXT, look_inside
    from hamburger.segmentation.data.batches import evaluation_batches

    if getattr(net.head, "context", None) is None:
        raise OptionError(
            f"eval: --inside looks at the layer '{CONTEXT}', which this network does not have; leave it out"
        )
    batches = islice(evaluation_batches(images, device=device, mean=info.mean, std=info.std), count)
    return look_inside(net, ((pictures, labels) for pictures, labels, _ in batches))
