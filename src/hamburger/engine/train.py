"""Train a recipe into a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hamburger import distributed
from hamburger.engine.angles import check_hams
from hamburger.engine.assemble import Sets, assemble, feed
from hamburger.engine.clock import peak_mb
from hamburger.engine.events import Began, Listener, Note
from hamburger.engine.folder import ANGLES, RunFolder
from hamburger.engine.interrupt import StopRequest
from hamburger.engine.loop import Loop
from hamburger.engine.machine import Machine
from hamburger.engine.result import Result, summary, surroundings
from hamburger.engine.session import in_folder
from hamburger.recipes.base import Recipe
from hamburger.recipes.check import check_recipe

if TYPE_CHECKING:
    from lightning.fabric import Fabric


def train(
    recipe: Recipe,
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
    """Train `recipe` into the folder `run`, or go on with it; a finished run is only read.

    `data` is the data folder, where the recipe's set is not an embedded one. With several `devices` the calling script
    is started once more for each further process, as Fabric does it, unless `torchrun` has started them all. Ctrl-C and
    SIGTERM save a checkpoint and raise `Interrupted`. A `light` run leaves no checkpoint behind once it is
    finished, only its weights and its result.
    """
    machine = Machine.choose(accelerator=accelerator, devices=devices, nodes=nodes)
    check_recipe(recipe, processes=machine.processes)

    def open_data(first: bool) -> Sets:
        sets = Sets.of(recipe, None if data is None else Path(data))
        if first:
            sets.check()
        return sets

    def work(fabric: Fabric, folder: RunFolder, sets: Sets, listen: Listener) -> Result:
        return _train(recipe, machine, fabric, folder, sets, resume, light, listen)

    return in_folder(recipe, run, machine, resume=resume, on_event=on_event, open_data=open_data, work=work)


def _train(
    recipe: Recipe,
    machine: Machine,
    fabric: Fabric,
    folder: RunFolder,
    sets: Sets,
    resume: bool,
    light: bool,
    listen: Listener,
) -> Result:
    from hamburger.models.weights import Info

    if machine.accelerator == "cuda":
        torch.backends.cudnn.benchmark = True  # every batch has the same size
        torch.cuda.reset_peak_memory_stats(fabric.device)
    assembly = assemble(recipe, fabric, len(sets.train.classes))
    if recipe.angles_every:
        check_hams(assembly.net)
    info = Info(
        classes=sets.train.classes,
        palette=sets.train.palette,
        extra={"recipe": recipe.name, "data": recipe.data.name, "data_options": recipe.data.options},
    )
    batches = feed(recipe, fabric, sets.train, info)
    torch.manual_seed(recipe.seed)  # whatever building the network drew, all processes begin with equal generators
    with StopRequest() as stop:
        loop = Loop(recipe, fabric, folder, sets, assembly, batches, info, stop, listen)
        loop.light = light
        resumed = resume and loop.restore()
        parameters = sum(parameter.numel() for parameter in assembly.net.parameters())
        if loop.first:
            folder.begin(recipe)
            if resume and not resumed:
                listen(Note(f"{folder.path} has no checkpoint yet: beginning at the beginning"))
            report = getattr(assembly.net.backbone, "report", None)
            if report is not None:
                listen(Note(str(report).splitlines()[0]))
            if recipe.model.backbone.startswith("resnet") and not (recipe.model.pretrained or recipe.start):
                listen(Note("the backbone starts from random weights; --set model.pretrained=FILE gives it others"))
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


def _finish(recipe: Recipe, folder: RunFolder, loop: Loop, parameters: int) -> Result:
    progress, clock = loop.progress, loop.clock
    assert progress.scores is not None
    assert progress.best_miou is not None
    values: dict[str, Any] = {
        **summary(
            recipe,
            scores=progress.scores,
            best=(progress.best_step, progress.best_miou),
            loss=progress.loss,
            parameters=parameters,
        ),
        "processes": distributed.world(),
        **surroundings(loop.device.type),
        "images_per_s": None if clock.images_per_s is None else round(clock.images_per_s, 2),
        "peak_mb": round(peak_mb(loop.device), 1),
        "data_wait": round(clock.data_wait, 4),
        "seconds": round(clock.seconds, 2),
    }
    if recipe.angles_every:
        values[ANGLES] = folder.angles()
    loop.conclude(values)
    return Result(folder.path, values)
