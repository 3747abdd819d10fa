"""`ham eval`: scores of trained weights on a split."""

from __future__ import annotations

import json as json_format
import time
from collections.abc import Iterable
from dataclasses import asdict
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from hamburger.errors import OptionError, check_count

if TYPE_CHECKING:
    from hamburger.analysis.inside import Found
    from hamburger.data.batches import Batch
    from hamburger.models.segmenter import Segmenter


def evaluate(
    weights: Annotated[Path, typer.Argument(metavar="RUN_OR_WEIGHTS", help="a run folder or a .safetensors file")],
    data: Annotated[Path | None, typer.Option(help="the data folder; embedded sets need none")] = None,
    split: Annotated[str, typer.Option(help="which part of the data set")] = "val",
    dataset: Annotated[str | None, typer.Option(help="a name of `ham list datasets`; default: as trained")] = None,
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
    """mIoU over all pixels of a split, or the accuracy of a classifier, per class, with the protocol stated."""
    from hamburger.cli.bench import decimals
    from hamburger.engine.probabilities import SINGLE, Protocol
    from hamburger.models.classifier import is_classifier
    from hamburger.use.source import find_weights

    check_count("eval", "inside", inside, least=0)
    protocol = Protocol(decimals(scales, "eval"), flip, window)
    path = find_weights(weights)
    if is_classifier(path):
        if protocol != SINGLE or inside or steps or draws:
            raise OptionError(
                f"eval: {path} is of a classifier, which is scored in one view, as it was trained; leave out scales, "
                "flip, window, steps, draws and inside"
            )
        target = None if json is None else Path(json)
        evaluate_classifier(path, data=data, split=split, dataset=dataset, device=device, json=target)
        return
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from hamburger.data import create_dataset
    from hamburger.data.checks import check
    from hamburger.data.evaluation import evaluation_batches
    from hamburger.engine.evaluate import check_classes, evaluate_ways
    from hamburger.environment import Environment
    from hamburger.files import check_writable, write_atomically
    from hamburger.models.weights import load_weights
    from hamburger.use.predict import pick_device
    from hamburger.use.solving import ways_to_solve

    asked = Asked.of(steps, draws, json, inside)
    for target in asked.targets:
        check_writable(target)
    on = pick_device(device)
    net, info = load_weights(path)
    name = dataset or info.extra.get("data")
    if name is None:
        raise OptionError(f"eval: {path} does not say which data set it was trained on; name one with --dataset")
    options = info.extra.get("data_options", {}) if name == info.extra.get("data") else {}
    images = create_dataset(name, split, root=data, **options)
    check_classes("eval", info.classes, images)
    check(images)
    begun = time.perf_counter()
    ways = ways_to_solve(net.to(on), steps=asked.steps, draws=asked.draws)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"evaluating, {protocol}", total=len(images))
        found = evaluate_ways(
            net,
            images,
            ways,
            device=on,
            mean=info.mean,
            std=info.std,
            protocol=protocol,
            workers=4,
            progress=lambda done, total: bar.update(task, completed=done),
        )
    console = Console()
    step = f" of step {info.extra['step']}" if "step" in info.extra else ""
    for (sweeps, seed), scores in zip(asked.ways, found, strict=True):
        way = "".join(f", {what} {value}" for what, value in (("steps", sweeps), ("draws", seed)) if value is not None)
        table = Table("class", "IoU %", title=f"{name} {split}, {scores.images} images, {protocol}{way}")
        for each, value in scores.per_class.items():
            table.add_row(each, "absent" if value is None else f"{100 * value:.2f}")
        console.print(table)
        said = f"mIoU {100 * scores.miou:.2f}, pixel accuracy {100 * scores.pixel_accuracy:.2f}"
        console.print(f"{said} ({protocol}{way}; {path}{step})", highlight=False, soft_wrap=True, markup=False)
    looked: Found = {}
    if inside:
        looked = _inside(net, islice(evaluation_batches(images, device=on, mean=info.mean, std=info.std), inside))
        for key, measure in looked.items():
            if isinstance(measure, float):
                console.print(f"{key} {measure:.4g}", highlight=False)
    seconds = round((time.perf_counter() - begun) / len(found), 2)
    for target, (sweeps, seed), scores in zip(asked.targets, asked.ways, found, strict=bool(asked.targets)):
        row = {"weights": str(path), "data": name, "split": split, **asdict(scores), **looked}
        row |= {key: info.extra[key] for key in ("recipe", "step") if key in info.extra}
        row |= {"eval_steps": sweeps, "draws": seed, "seconds": seconds}
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
        from hamburger.cli.bench import numbers

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


def evaluate_classifier(
    path: Path, *, data: Path | None, split: str, dataset: str | None, device: str, json: Path | None
) -> None:
    """The share of images that are named rightly; `split` "val" is the split that the run was validated on."""
    from rich.console import Console
    from rich.table import Table

    from hamburger.data.generation.load import load_images, open_source
    from hamburger.engine.classes.evaluate import evaluate_classes
    from hamburger.environment import Environment
    from hamburger.files import check_writable, write_atomically
    from hamburger.models.classifier import load_classifier
    from hamburger.use.predict import pick_device

    if json is not None:
        check_writable(json)
    on = pick_device(device)
    net, info = load_classifier(path)
    about = info.extra
    name = dataset or about["data"]
    split = about.get("val_split", split) if split == "val" else split
    options = about.get("data_options", {}) if name == about["data"] else {}
    images = load_images(open_source(name, split, size=about["size"], root=data, **options))
    if images.classes != info.classes:
        raise OptionError(
            f"eval: the weights know the classes {', '.join(info.classes)}, and '{name}' has "
            f"{', '.join(images.classes)}; give the data that they were trained with"
        )
    scores = evaluate_classes(net.to(on), images, device=on)
    table = Table("class", "right %", title=f"{name} {split}, {scores.images} images, {scores.protocol}")
    for each, value in scores.per_class.items():
        table.add_row(each, "absent" if value is None else f"{100 * value:.2f}")
    console = Console()
    console.print(table)
    said = f"accuracy {100 * scores.accuracy:.2f} ({scores.protocol}; {path} of step {about['step']})"
    console.print(said, highlight=False, soft_wrap=True, markup=False)
    if json is not None:
        row = {"weights": str(path), "data": name, "split": split, **asdict(scores)}
        row |= {key: about[key] for key in ("recipe", "step")}
        write_atomically(json, (json_format.dumps({**row, **asdict(Environment.here(on.type))}) + "\n").encode())


def _inside(net: Segmenter, batches: Iterable[Batch]) -> Found:
    from hamburger.analysis.inside import CONTEXT, look_inside

    if getattr(net.head, "context", None) is None:
        raise OptionError(
            f"eval: --inside looks at the layer '{CONTEXT}', which this network does not have; leave it out"
        )
    return look_inside(net, ((images, labels) for images, labels, _ in batches))
