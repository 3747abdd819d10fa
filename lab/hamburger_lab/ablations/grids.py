"""The paper's ablations as named grids: what each cell changes in a recipe, or in the evaluation of trained weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hamburger.errors import OptionError, UnknownNameError, did_you_mean
from hamburger.registry import Registry
from hamburger.tasks.sweep import variants
from hamburger.training.recipe import SupervisedTraining

HAMS = ("nmf", "vq", "cd")
GRADIENTS = ("one-step", "bptt", "truncated:1", "truncated:2")
CLIP = 1  # largest norm of all gradients; about the norm of the one-step gradient
INITS = ("random", "fixed", "learned", "online")
TEMPERATURES = (1, 0.1, 0.01)
TRAINED_STEPS = (1, 3, 6, 8)
TESTED_STEPS = (1, 3, 6, 12, 50)
DRAWS = (1, 2, 3)
ATTENTIONS = ("sa-flash", "da", "nonlocal")  # contexts with an n x n matrix
RIVALS = ("baseline", "breads", *HAMS, "sa-flash", "a2", "ema", "efficient", "da")
INSPECTED_IMAGES = 50
MEASUREMENTS = 12  # per training
WIDTH = 512  # default width of HamNet's head
# default options of a Hamburger
DEFAULTS: dict[str, object] = {"grad": "one-step", "init": "random", "steps": 6, "temperature": 0.01}


@dataclass(frozen=True)
class CellVariant:
    """One cell of a grid: changes to the recipe, or, with `weights`, options of `ham eval-solver` for its weights."""

    overrides: tuple[str, ...] = ()
    weights: str | None = None
    evaluation: tuple[str, ...] = ()

    @property
    def shared(self) -> str | None:
        """Return the name under which several grids share this training; None if only one grid has it."""
        return None if self.weights is not None else _COMMON.get(self.overrides)


# settings that may differ between cells of the same training; the context is compared separately
SHARED_DESPITE = ("model.context", "keep=", "angles_every=")
_COMMON = {overrides: name for name, overrides in variants(("baseline", "breads", *HAMS, *ATTENTIONS)).items()}
Grid = dict[str, CellVariant]


def shared_training_name(overrides: Sequence[str], settings: Sequence[str] | None = None) -> str | None:
    """Return the name under which several grids share a training with these context settings, else None.

    `settings` are those of all cells of the grid. A cell that changes anything else is not shared.
    """
    if settings is not None and any(not one.startswith(SHARED_DESPITE) for one in overrides if one not in settings):
        return None
    return _COMMON.get(tuple(one for one in overrides if one.startswith("model.context")))


# name -> function that returns the grid for a recipe
ablations: Registry[Grid] = Registry("ablation")


def ham_variant(recipe: SupervisedTraining, name: str, **options: object) -> CellVariant:
    """Return the cell of a Hamburger with these options; defaults are omitted unless the recipe changes them."""
    recipe_options = _context_options(recipe)
    needed = {key: value for key, value in options.items() if key in recipe_options or DEFAULTS.get(key) != value}
    return CellVariant(
        (f"model.context={name}", *(f"model.context_options.{key}={value}" for key, value in needed.items()))
    )


@ablations.register("gradient")
def gradient(recipe: SupervisedTraining) -> Grid:
    """Table 1: the gradient of each ham."""
    return {
        f"{name}-{grad.replace(':', '')}": ham_variant(recipe, name, grad=grad) for name in HAMS for grad in GRADIENTS
    }


@ablations.register("clip")
def clip(recipe: SupervisedTraining) -> Grid:
    """Table 1 with the gradient norm clipped to 1: whether BPTT fails by its scale or by its direction."""
    return {
        f"{name}-{grad}-clip": CellVariant((*ham_variant(recipe, name, grad=grad).overrides, f"optim.clip={CLIP}"))
        for name in HAMS
        for grad in ("one-step", "bptt")
    }


@ablations.register("angles")
def angles(recipe: SupervisedTraining) -> Grid:
    """Section 2.3: norm of the one-step gradient and its angle to BPTT, twelve times during a training."""
    _head(recipe, "angles")
    every = max(1, recipe.steps // MEASUREMENTS)
    return {
        f"{name}-angles": CellVariant((*ham_variant(recipe, name).overrides, f"angles_every={every}")) for name in HAMS
    }


@ablations.register("parts")
def parts(recipe: SupervisedTraining) -> Grid:
    """Table 2: parts of the Hamburger removed."""
    return {
        "baseline": CellVariant(("model.context=none",)),
        "whole": ham_variant(recipe, "nmf"),
        "without-ham": ham_variant(recipe, "nmf", parts="lower,upper"),
        "without-upper": ham_variant(recipe, "nmf", parts="lower,ham"),
        "without-lower": ham_variant(recipe, "nmf", parts="ham,upper"),
        "only-ham": ham_variant(recipe, "nmf", parts="ham"),
    }


@ablations.register("init")
def init(recipe: SupervisedTraining) -> Grid:
    """Table 8: initial dictionary; a learned one is differentiated by BPTT."""
    return {f"{name}-{start}": ham_variant(recipe, name, init=start) for name in HAMS for start in INITS}


@ablations.register("columns")
def columns(recipe: SupervisedTraining) -> Grid:
    """Our question: few steps from columns of the input against six from a random dictionary."""
    return {
        f"{name}-{start}-k{count}": ham_variant(recipe, name, init=start, steps=count)
        for name in HAMS
        for start in ("random", "columns")
        for count in (2, 6)
    }


@ablations.register("temperature")
def temperature(recipe: SupervisedTraining) -> Grid:
    """Table 9: temperature of CD and VQ; the paper's scores of CD are those of an online dictionary."""
    grid: Grid = {}
    for value in TEMPERATURES:
        grid |= {f"{name}-t{value:g}": ham_variant(recipe, name, temperature=value) for name in ("cd", "vq")}
        grid[f"cd-online-t{value:g}"] = ham_variant(recipe, "cd", init="online", temperature=value)
    return grid


@ablations.register("options")
def options(recipe: SupervisedTraining) -> Grid:
    """Options that appendix F names in words, versions of the layer, and the rank of what each NMF returns."""
    _head(recipe, "options")
    nmf = {
        "nmf": {},
        "nmf-cosine": {"codes_init": "cosine"},
        "nmf-uniform": {"codes_init": "uniform"},
        "nmf-fixed": {"init": "fixed"},
        "nmf-online": {"init": "online"},
        "nmf-paper": {"version": "paper"},
        "nmf-v2": {"version": "v2"},
    }
    grid: Grid = {}
    for name, changed in nmf.items():
        grid[name] = ham_variant(recipe, "nmf", **changed)
        grid[f"{name}-inside"] = CellVariant(weights=name, evaluation=("--statistics-images", str(INSPECTED_IMAGES)))
    return grid | {"cd": ham_variant(recipe, "cd"), "cd-beta0.01": ham_variant(recipe, "cd", beta=0.01)}


@ablations.register("latent")
def latent(recipe: SupervisedTraining) -> Grid:
    """Fig. 3: inner width d and rank r, as fractions of the head's width."""
    width = head_width(recipe, "latent")
    if width % 64:
        raise OptionError(f"ablate: 'latent' divides the head's width by up to 64, got {width}; take a multiple of 64")
    across = [(width, width // part) for part in (64, 32, 16, 8, 4)]
    along = [(width // part, width // part // 8) for part in (2, 4, 8)]  # d = 8 r
    narrow = [(width // part, width // 8) for part in (2, 4)]
    cells = {f"d{d}-r{r}": ham_variant(recipe, "nmf", inner=d, rank=r) for d, r in (*across, *along, *narrow)}
    if width // 8 >= 8 and not _context_options(recipe):
        cells[f"d{width}-r{width // 8}"] = ham_variant(recipe, "nmf")  # the default
    return cells


@ablations.register("steps")
def steps(recipe: SupervisedTraining) -> Grid:
    """Figs. 4, 7 to 9: steps K in training, each network evaluated with several K."""
    grid: Grid = {}
    for name in HAMS:
        for trained in TRAINED_STEPS:
            trained_name = f"{name}-k{trained}"
            grid[trained_name] = ham_variant(recipe, name, steps=trained)
            for tested in TESTED_STEPS:
                if tested != trained:
                    grid[f"{trained_name}-at{tested}"] = CellVariant(
                        weights=trained_name, evaluation=("--steps", str(tested))
                    )
    return grid


@ablations.register("dictionary")
def dictionary(recipe: SupervisedTraining) -> Grid:
    """Evaluation with the stored dictionary against one drawn for every image."""
    grid: Grid = {}
    for name in HAMS:
        grid[name] = ham_variant(recipe, name)
        for draw in DRAWS:
            grid[f"{name}-drawn{draw}"] = CellVariant(weights=name, evaluation=("--dictionary-seeds", str(draw)))
    return grid


@ablations.register("contexts")
def contexts(recipe: SupervisedTraining) -> Grid:
    """Tables 4 and 5 at a small scale: hams against attention."""
    return {name: CellVariant(overrides) for name, overrides in variants(RIVALS).items()}


@ablations.register("inside")
def inside(recipe: SupervisedTraining) -> Grid:
    """Figs. 5 and 6: spectra before and after the context, ranks of attention matrices, angles of gradients."""
    _head(recipe, "inside")
    grid: Grid = {}
    for name, overrides in variants(("breads", *HAMS, *ATTENTIONS)).items():
        grid[name] = CellVariant(overrides)
        grid[f"{name}-inside"] = CellVariant(weights=name, evaluation=("--statistics-images", str(INSPECTED_IMAGES)))
    return grid


def head_width(recipe: SupervisedTraining, grid: str) -> int:
    """Return the number of channels of the context in a segmentation network."""
    return int(_head(recipe, grid).get("width", WIDTH))


def _head(recipe: SupervisedTraining, grid: str) -> dict[str, Any]:
    """Return the options of the segmentation head; raise OptionError for other tasks."""
    if not hasattr(recipe.model, "head_options"):
        raise OptionError(f"ablate: '{grid}' needs a segmentation recipe (got '{recipe.name}')")
    return dict(recipe.model.head_options)


def _context_options(recipe: SupervisedTraining) -> dict[str, Any]:
    """Return the context options of the recipe."""
    return dict(getattr(recipe.model, "context_options", {}))


def select_cells(name: str, recipe: SupervisedTraining, cells: Sequence[str] = ()) -> Grid:
    """Return a grid, or some cells of it together with the trainings that their evaluations need."""
    grid = ablations.create(name, recipe)
    for cell in cells:
        if cell not in grid:
            raise UnknownNameError(f"ablate: '{name}' has no cell '{cell}'{did_you_mean(cell, grid)}")
    names = set(cells or grid)
    names |= {weights for cell in names if (weights := grid[cell].weights) is not None}
    return {cell: variant for cell, variant in grid.items() if cell in names}
