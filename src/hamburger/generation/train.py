"""Train a GAN recipe into a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from hamburger import distributed
from hamburger.classification.data.base import load_images, open_source
from hamburger.classification.data.batches import ImageBatches
from hamburger.errors import DataError, OptionError
from hamburger.generation.gan_steps import build_gan, set_up_network
from hamburger.generation.recipe import GanRecipe, check_gan_recipe, gan_recipes
from hamburger.generation.trainer import GanTrainer
from hamburger.training.accelerator import Accelerator, is_rank_zero
from hamburger.training.loader import batch_options
from hamburger.training.metrics_log import Listener, Note
from hamburger.training.run_folder import Result, measurements
from hamburger.training.run_lifecycle import StopSignal
from hamburger.training.train import advise_on_device, open_folder, start_or_resume


def train_gan(
    recipe: GanRecipe,
    run: Path | str,
    *,
    data: Path | str | None = None,
    devices: int = 1,
    accelerator: str = "auto",
    resume: bool = False,
    on_event: Listener = lambda event: None,
) -> Result:
    """Train `recipe` into the folder `run`, or resume it; arguments as in `hamburger.training.train.train`."""
    hardware = Accelerator(accelerator, devices=devices, precision=recipe.precision)
    check_gan_recipe(recipe, processes=hardware.processes)
    if recipe.graph and hardware.device.type != "cuda":
        raise OptionError(
            f"recipe '{recipe.name}': graph needs a CUDA device, got {hardware.device.type}; --set graph=false"
        )
    listen: Listener = on_event if is_rank_zero() else lambda event: None
    with open_folder(recipe, run, hardware, resume=resume) as folder:
        if resume and (values := folder.result()) is not None:
            listen(Note(f"the run in {folder.path} is finished: nothing is left to do"))
            return Result(folder.path, values)
        advise_on_device(recipe, gan_recipes, hardware, listen)
        source = open_source(
            recipe.data.name, recipe.data.split, size=recipe.model.resolution, root=data, **recipe.data.options
        )
        images = load_images(source, verify=is_rank_zero(), note=lambda text: listen(Note(text)))
        if len(images) < 2:
            raise DataError(
                f"gan train: {images.name}, split '{images.split}', has {len(images)} image; training needs at least 2"
            )
        hardware.launch()
        if distributed.rank():
            # rank 0 has verified the packed file by now, and rebuilt it if it was damaged
            images = load_images(source, verify=False)
        nets = build_gan(recipe, len(images.classes))
        hardware.autotune(nn.ModuleList(nets))
        generator = set_up_network(recipe, hardware, nets[0], recipe.optim.generator_lr)
        discriminator = set_up_network(recipe, hardware, nets[1], recipe.optim.discriminator_lr)
        batches = ImageBatches(images, flip=recipe.data.flip, **batch_options(recipe, hardware.device))
        parameters = [sum(parameter.numel() for parameter in net.parameters()) for net in nets]
        with StopSignal() as stop:
            trainer = GanTrainer(recipe, hardware, folder, generator, discriminator, batches, stop, listen)
            start_or_resume(trainer, resume, sum(parameters), len(images), None)
            trainer.run()
        return _finish(trainer, *parameters)


def _finish(trainer: GanTrainer, generator_parameters: int, discriminator_parameters: int) -> Result:
    recipe, speed = trainer.recipe, trainer.clock.images_per_s
    values: dict[str, Any] = {
        "recipe": recipe.name,
        "model": recipe.model.name,
        "context": trainer.generator.net.config["context"],
        "data": recipe.data.name,
        "split": recipe.data.split,
        "data_sha256": trainer.data_digest(),
        "resolution": recipe.model.resolution,
        "seed": recipe.seed,
        "steps": recipe.steps,
        "batch": recipe.batch,
        "precision": recipe.precision,
        **trainer.progress.terms,
        "generator_parameters": generator_parameters,
        "discriminator_parameters": discriminator_parameters,
        **measurements(trainer.clock, trainer.device),
        "seconds_per_step": None if speed is None else round(recipe.batch / speed, 6),
    }
    trainer.conclude(values)
    return Result(trainer.folder.path, values)
