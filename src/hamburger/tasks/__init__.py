"""The supervised tasks and all recipes by name; `hb.train`. CONTRIBUTING.md has the steps for a new task."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hamburger.classification.recipe import classification_recipes
from hamburger.detection.recipe import detection_recipes
from hamburger.errors import InputError, UnknownNameError, did_you_mean, shorten
from hamburger.files import parse_json, read_text
from hamburger.generation.recipe import GanRecipe, gan_recipes
from hamburger.registry import Registry
from hamburger.segmentation.recipe import segmentation_recipes
from hamburger.stereo.recipe import stereo_recipes
from hamburger.training.recipe import SupervisedTraining, override, read_recipe

if TYPE_CHECKING:
    from hamburger.training.metrics_log import Listener
    from hamburger.training.run_folder import Result
    from hamburger.training.task import Task


class TaskRegistry(UserDict[str, Any]):
    """Tasks by name. An entry "module:object" is imported when the task is first used: it brings its networks."""

    def __getitem__(self, name: str) -> Task[Any]:
        task = self.data[name]
        if isinstance(task, str):
            module, _, attribute = task.partition(":")
            task = self.data[name] = getattr(import_module(module), attribute)
        return task


tasks = TaskRegistry(
    {
        "segmentation": "hamburger.segmentation.task:SEGMENTATION",
        "classification": "hamburger.classification.task:CLASSIFICATION",
        "detection": "hamburger.detection.task:DETECTION",
        "stereo": "hamburger.stereo.task:STEREO",
    }
)
recipes: dict[str, Registry[Any]] = {  # of `ham train`, by task
    "segmentation": segmentation_recipes,
    "classification": classification_recipes,
    "detection": detection_recipes,
    "stereo": stereo_recipes,
}


def task_of(recipe: object) -> Task[Any]:
    """The task that a recipe belongs to."""
    task = task_named(getattr(recipe, "task", None), "train: the recipe")
    if type(recipe) is not task.recipe:
        raise InputError(f"train: no task trains a {type(recipe).__name__}; give a recipe of `ham list recipes`")
    return task


def task_named(name: object, source: str) -> Task[Any]:
    """The task by the value of "task" in `source`; segmentation, the oldest task, writes none."""
    name = "segmentation" if name is None else name
    if name == "generation":
        raise InputError(f"{source} is for a GAN: use `ham gan train`, `ham gan sample` and `ham gan fid`")
    if not isinstance(name, str) or name not in tasks:
        raise InputError(
            f"{source} is for the task {shorten(name)}, which is not known{did_you_mean(str(name), tasks)}"
        )
    return tasks[name]


def task_of_weights(path: Path) -> Task[Any]:
    """The task named in a weights file; segmentation for a file that cannot be read, whose loading then fails."""
    from hamburger.checkpoints.weights_file import read_task_name

    return task_named(read_task_name(path), f"weights: {path}")


def find_training(name: str) -> SupervisedTraining:
    """A recipe of any supervised task, by name (`voc-ablation`) or file (`some/run/recipe.json`)."""
    if name.endswith(".json"):
        text = _read_file(name, "train", "a recipe of `ham list recipes`")
        source = f"train: {name}"
        return read_recipe(text, task_named(_stored_task(text), source).recipe, source)
    known = {name: registry for registry in recipes.values() for name in registry}
    if name not in known:
        raise UnknownNameError(f"no recipe '{name}'{did_you_mean(name, known)}")
    recipe: SupervisedTraining = known[name].create(name)
    return recipe


def find_gan_recipe(name: str) -> GanRecipe:
    """A GAN recipe by name (`cifar10`) or file (`some/run/recipe.json`)."""
    if name.endswith(".json"):
        text = _read_file(name, "gan train", "one of `ham list gan-recipes`")
        return read_recipe(text, GanRecipe, f"gan train: {name}")
    return gan_recipes.create(name)


def _read_file(name: str, call: str, else_name: str) -> str:
    if not Path(name).exists():
        raise InputError(f"{call}: there is no recipe file {name}; name one, or {else_name}")
    return read_text(Path(name), call)


def _stored_task(text: str) -> object:
    try:
        values = parse_json(text)
    except ValueError:
        return None  # reading it as a recipe raises the error
    return values.get("task") if isinstance(values, dict) else None


def train(
    recipe: str | Path | SupervisedTraining,
    run: Path | str,
    *,
    overrides: Mapping[str, Any] | None = None,
    data: Path | str | None = None,
    devices: int = 1,
    accelerator: Literal["auto", "cpu", "cuda", "mps", "xpu"] = "auto",
    strategy: Literal["ddp", "fsdp"] = "ddp",
    resume: bool = False,
    light: bool = False,
    profile: bool = False,
    on_event: Listener | None = None,
) -> Result:
    """Train a recipe of any task into the folder `run` and return its result.

    >>> result = hb.train("patchwork", "runs/patchwork", overrides={"steps": 200, "model.context": "vq"})
    >>> result.values["miou"]

    - `recipe`: a name of `ham list recipes`, the path of a `recipe.json`, or a recipe
    - `overrides`: new values of fields by their dotted names, as `ham train --set` takes them
    - `data`: the data folder; embedded data sets need none
    - `devices`, `accelerator`: processes on this machine, and "auto", "cpu" or the kind of GPU: "cuda", "mps", "xpu"
    - `strategy` of several processes: "ddp" keeps the whole network in each, "fsdp" a part of every parameter
    - `resume`: continue from the last checkpoint in `run`; of a finished run only the result is read
    - `light`: delete the checkpoint when the run finishes
    - `profile`: write where the time of some early steps goes, to `profile.txt`
    - `on_event`: called with every event of `hamburger.training.metrics_log`; default: a progress bar on a terminal
      or in a notebook

    Ctrl-C and SIGTERM save a checkpoint and raise `hamburger.errors.Interrupted`.
    """
    from hamburger.training.display import default_display
    from hamburger.training.train import train

    chosen = find_training(str(recipe)) if isinstance(recipe, (str, Path)) else recipe
    chosen = override(chosen, overrides or {})
    with default_display() if on_event is None else nullcontext(on_event) as listen:
        return train(
            task_of(chosen),
            chosen,
            run,
            data=data,
            devices=devices,
            accelerator=accelerator,
            strategy=strategy,
            resume=resume,
            light=light,
            profile=profile,
            on_event=listen,
        )
