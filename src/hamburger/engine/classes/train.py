"""Train a classification recipe into a run folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from hamburger import distributed
from hamburger.data.generation.feed import Feed
from hamburger.data.generation.load import ImageSet, load_images, open_source
from hamburger.engine.assemble import outfit
from hamburger.engine.classes.loop import ClassLoop
from hamburger.engine.clock import peak_mb
from hamburger.engine.events import Began, Listener, Note
from hamburger.engine.folder import RunFolder
from hamburger.engine.interrupt import StopRequest
from hamburger.engine.machine import Machine
from hamburger.engine.result import Result, surroundings
from hamburger.engine.session import in_folder
from hamburger.errors import DataError
from hamburger.models.classifier import create_classifier
from hamburger.recipes.class_base import ClassRecipe
from hamburger.recipes.class_check import check_class_recipe

if TYPE_CHECKING:
    from lightning.fabric import Fabric


class Splits(NamedTuple):
    train: ImageSet
    val: ImageSet


def train_classes(
    recipe: ClassRecipe,
    run: Path | str,
    *,
    data: Path | str | None = None,
    devices: int = 1,
    nodes: int = 1,
    accelerator: str = "auto",
    resume: bool = False,
    light: bool = False,
    on_event: Listener = lambda event: None,
) -> Result:
    """Train `recipe` into the folder `run`, or go on with it; everything is as in `engine.train.train`."""
    machine = Machine.choose(accelerator=accelerator, devices=devices, nodes=nodes)
    check_class_recipe(recipe, processes=machine.processes)

    def open_data(first: bool) -> Splits:
        listen: Listener = on_event if first else lambda event: None
        asked = recipe.data
        sets = [
            load_images(
                open_source(asked.name, split, size=asked.size, root=data, **asked.options),
                verify=first,
                note=lambda text: listen(Note(text)),
            )
            for split in (asked.train_split, asked.val_split)
        ]
        if sets[0].classes != sets[1].classes:
            raise DataError(f"{asked.name}: the classes of '{asked.train_split}' and '{asked.val_split}' differ")
        return Splits(*sets)

    def work(fabric: Fabric, folder: RunFolder, sets: Splits, listen: Listener) -> Result:
        return _train(recipe, machine, fabric, folder, sets, resume, light, listen)

    return in_folder(recipe, run, machine, resume=resume, on_event=on_event, open_data=open_data, work=work)


def _train(
    recipe: ClassRecipe,
    machine: Machine,
    fabric: Fabric,
    folder: RunFolder,
    sets: Splits,
    resume: bool,
    light: bool,
    listen: Listener,
) -> Result:
    if machine.accelerator == "cuda":
        torch.backends.cudnn.benchmark = True  # every batch has the same size
        torch.cuda.reset_peak_memory_stats(fabric.device)
    with fabric.rank_zero_first(local=True):  # whoever downloads weights does it once for all
        torch.manual_seed(recipe.seed)
        net = create_classifier(**asdict(recipe.model), num_classes=len(sets.train.classes), size=recipe.data.size)
    assembly = outfit(recipe, recipe.optim, fabric, net)
    feed = Feed(
        sets.train,
        batch=recipe.batch,
        flip=recipe.data.flip,
        seed=recipe.seed,
        device=fabric.device,
        rank=distributed.rank(),
        world=distributed.world(),
        accumulate=recipe.accumulate,
        workers=recipe.data.workers,
        resident=recipe.data.resident,
    )
    torch.manual_seed(recipe.seed)  # whatever building the network drew, all processes begin with equal generators
    with StopRequest() as stop:
        loop = ClassLoop(recipe, fabric, folder, assembly, feed, sets.val, stop, listen)
        loop.light = light
        resumed = resume and loop.restore()
        if loop.first:
            folder.begin(recipe)
            if resume and not resumed:
                listen(Note(f"{folder.path} has no checkpoint yet: beginning at the beginning"))
        parameters = sum(parameter.numel() for parameter in net.parameters())
        listen(
            Began(
                run=folder.path,
                step=loop.progress.step,
                steps=recipe.steps,
                parameters=parameters,
                train_images=len(sets.train),
                val_images=len(sets.val),
                device=str(fabric.device),
                processes=distributed.world(),
            )
        )
        loop.run()
    return _finish(recipe, folder, loop, parameters)


def _finish(recipe: ClassRecipe, folder: RunFolder, loop: ClassLoop, parameters: int) -> Result:
    progress, clock = loop.progress, loop.clock
    assert progress.scores is not None
    values: dict[str, Any] = {
        "recipe": recipe.name,
        "task": recipe.task,
        "backbone": recipe.model.backbone,
        "context": recipe.model.context,
        "after": recipe.model.after if recipe.model.context is not None else None,
        "data": recipe.data.name,
        "seed": recipe.seed,
        "steps": recipe.steps,
        "batch": recipe.batch,
        "precision": recipe.precision,
        **progress.scores,
        "best_accuracy": progress.best_accuracy,
        "best_step": progress.best_step,
        "loss": progress.loss,
        "parameters": parameters,
        "processes": distributed.world(),
        **surroundings(loop.device.type),
        "images_per_s": None if clock.images_per_s is None else round(clock.images_per_s, 2),
        "peak_mb": round(peak_mb(loop.device), 1),
        "data_wait": round(clock.data_wait, 4),
        "seconds": round(clock.seconds, 2),
    }
    loop.conclude(values)
    return Result(folder.path, values)
