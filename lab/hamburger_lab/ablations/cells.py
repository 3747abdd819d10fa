"""Cells of a grid: trainings, and evaluations of trained weights with other options."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from hamburger.errors import OptionError
from hamburger.tasks import find_training
from hamburger.tasks.sweep import Cell
from hamburger.training.recipe import SupervisedTraining, apply, digest
from hamburger.training.run_folder import RESULT
from hamburger_lab.ablations.gradient_angles import AngleRecipe, AngleTask, find_angle_recipe
from hamburger_lab.ablations.grids import select_cells

# evaluations use the weights of the last step, as the row of their training does
KEEP = "keep=last"
GROUPED_OPTIONS = ("--steps", "--dictionary-seeds")  # options of `ham eval-solver` that take several values


@dataclass(frozen=True)
class AblationCell(Cell):
    """One training or evaluation of an ablation, with one seed."""

    ablation: str = ""
    settings: tuple[str, ...] = ()  # --set options of the call, for all cells
    weights: str | None = None  # the variant whose weights are evaluated; None for a training
    evaluation: tuple[str, ...] = ()  # options of `ham eval-solver`
    trained: str = ""  # folder of the training without its seed; several grids may share it

    @property
    def name(self) -> str:
        return f"{self.variant if self.weights else self.trained}-seed{self.seed}"

    @property
    def steps(self) -> int:
        return super().steps if self.weights is None else 1  # an evaluation is short

    @property
    def needs(self) -> str | None:
        return None if self.weights is None else f"{self.trained}-seed{self.seed}"

    def command(self, out: Path, data: Path | None) -> list[str]:
        if self.needs is None:
            return [*super().command(out, data), "--light"]
        recipe = self.resolved()
        assert isinstance(recipe, SupervisedTraining)
        arguments = [sys.executable, "-m", "hamburger", "eval-solver", str(out / self.needs), *self.evaluation]
        arguments += ["--split", recipe.data.val_split, "--json", str(out / self.name / RESULT)]
        return arguments if data is None else [*arguments, "--data", str(data)]

    def row(self, result: dict[str, Any]) -> dict[str, Any]:
        """One line of `results/ablation_*.jsonl`. It names no folders, which differ between machines."""
        recipe = self.resolved()
        identity = {"ablation": self.ablation, "cell": self.variant, "seed": self.seed, "recipe": self.recipe}
        identity |= {"recipe_hash": digest(recipe), "weights": self.weights, "loss": None}
        identity |= {"settings": list(self.settings), "overrides": list(self.overrides), "steps": recipe.steps}
        return identity | {key: value for key, value in result.items() if key not in ("recipe", "weights", "seed")}


@dataclass(frozen=True)
class AngleCell(AblationCell):
    """A training that compares gradient strategies: one with a setting `angles_every`."""

    verb: ClassVar[tuple[str, ...]] = ("angles",)

    def resolved(self) -> AngleRecipe:
        recipe = replace(apply(find_angle_recipe(self.recipe), self.overrides), seed=self.seed)
        AngleTask().check(recipe, processes=1)
        return recipe


@dataclass(frozen=True)
class Evaluations(AblationCell):
    """Several evaluations of one network in one process, which share most of their work; named after the first."""

    members: tuple[AblationCell, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(cell.name for cell in self.members)

    def command(self, out: Path, data: Path | None) -> list[str]:
        option, value = self.evaluation
        values = ",".join(cell.evaluation[1] for cell in self.members)
        folder = self.name.replace(f"{self.variant}-", f"{self.variant.removesuffix(value)}{{}}-", 1)
        files = {str(out / self.name / RESULT): str(out / folder / RESULT)}
        arguments = super().command(out, data)
        arguments[arguments.index(option) + 1] = values
        return [files.get(argument, argument) for argument in arguments]


def group_evaluations(cells: Sequence[AblationCell]) -> list[AblationCell]:
    """Merge evaluations of one network that differ in the value of one option into one cell."""
    groups: dict[object, list[AblationCell]] = {}
    for cell in cells:
        groupable = (
            cell.weights is not None
            and len(cell.evaluation) == 2
            and cell.evaluation[0] in GROUPED_OPTIONS
            and cell.variant.endswith(cell.evaluation[1])
        )
        key = (cell.needs, cell.evaluation[0]) if groupable else cell.name
        groups.setdefault(key, []).append(cell)
    grouped = []
    for members in groups.values():
        first = {field.name: getattr(members[0], field.name) for field in fields(members[0])}
        grouped.append(members[0] if len(members) == 1 else Evaluations(**first, members=tuple(members)))
    return grouped


def ablation_cells(
    name: str, recipe: str, *, seeds: Sequence[int], settings: Sequence[str] = (), only: Sequence[str] = ()
) -> list[AblationCell]:
    """Return every cell with every seed; seeds outermost, so that an interrupted grid compares all cells."""
    for option, values in (("seed", list(seeds)), ("cell", list(only))):
        if len(set(values)) != len(values) or (option == "seed" and not values):
            raise OptionError(f"ablate: give each {option} once, and at least one seed, got {values}")
    grid = select_cells(name, apply(find_training(recipe), settings), only)
    cells = []
    for seed in seeds:
        for variant, definition in grid.items():
            training = variant if definition.weights is None else definition.weights
            overrides = (KEEP, *settings, *grid[training].overrides)
            kind = AngleCell if any(each.startswith("angles_every=") for each in overrides) else AblationCell
            cells.append(
                kind(
                    variant,
                    recipe,
                    seed,
                    overrides,
                    ablation=name,
                    settings=tuple(settings),
                    weights=definition.weights,
                    evaluation=definition.evaluation,
                    trained=grid[training].shared or training,
                )
            )
    return cells
