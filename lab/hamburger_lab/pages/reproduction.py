"""Tables of docs/reproduction.md: every table and figure of the paper, its cost at full size, and what was run here.

GPU hours are estimates from committed rows. Segmentation: multiply-adds of the recipe's network and crop, divided by
the rate that `network_h200` measured for a smaller network. GANs: the step that `ganspeed_graph_h200` measured, times
batch and steps. Neither includes data loading and evaluation.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from hamburger.generation.recipe import gan_recipes
from hamburger.report.study import summarise
from hamburger.segmentation.model import create_model
from hamburger.segmentation.recipe import SegmentationModel, segmentation_recipes
from hamburger_lab.ablations.grids import ablations
from hamburger_lab.bench.footprint import count_params_and_macs
from hamburger_lab.claims.base import OUTCOMES, deciding_trials
from hamburger_lab.claims.registry import CLAIMS, FAMILIES
from hamburger_lab.claims.tables import heading_anchor
from hamburger_lab.markdown import markdown_table
from hamburger_lab.pages.comparison import list_seeds
from hamburger_lab.paper import METHODS, TABLE4, TABLE5
from hamburger_lab.rows import Results, Row, select_rows

RUNS = 5  # of every cell of the paper's ablations
MEASURED_CONTEXT = "nmf"  # of the rows that hours are computed from


@dataclass(frozen=True)
class PaperItem:
    """A table or figure of the paper: the commands at full size, the recipes they train, its topic among the claims.

    `grid`: name of the ablation whose cells are trained `RUNS` times each.
    """

    place: str
    content: str
    family: str
    commands: tuple[str, ...]
    recipes: tuple[str, ...] = ()
    grid: str | None = None


def ablation_item(place: str, content: str, grid: str) -> PaperItem:
    return PaperItem(place, content, grid, (f"ham ablate {grid} --recipe voc-ablation",), ("voc-ablation",), grid)


def training_item(place: str, content: str, family: str, call: str, *recipes: str) -> PaperItem:
    return PaperItem(place, content, family, tuple(f"{call} {name}" for name in recipes), recipes)


ITEMS = (
    ablation_item("Table 1", "one-step gradient and BPTT", "gradient"),
    ablation_item("Table 2", "parts of the layer", "parts"),
    PaperItem("Table 3", "cost of context modules", "cost", ("ham bench table3 --device cuda --dtype float32",)),
    training_item("Table 4", "VOC test", "accuracy", "ham train", "voc", "voc-trainval"),
    training_item("Table 5", "PASCAL-Context", "accuracy", "ham train", "context"),
    training_item("Table 6", "ImageNet, FID", "generation", "ham gan train", "hamgan-baby", "hamgan-strong"),
    ablation_item("Table 8", "start of a solve", "init"),
    ablation_item("Table 9", "temperature", "temperature"),
    ablation_item("Fig. 3", "inner width d and rank r", "latent"),
    ablation_item("Figs. 4, 7, 8, 9", "steps K in training and evaluation", "steps"),
    ablation_item("Figs. 5, 6", "spectra and feature maps", "inside"),
)


def overview_table(results: Results) -> str:
    """Return one line per table or figure: command, hours at full size, what was run here, verdicts."""
    lines = [
        [
            f"{item.place}: {item.content}",
            "<br>".join(f"`{command}`" for command in item.commands),
            format_hours(results, item),
            "<br>".join(describe_runs_here(results, item)),
            verdict_counts(results, item.family),
        ]
        for item in ITEMS
    ]
    header = ["in the paper", "command", "GPU hours", "run here", "verdicts"]
    return markdown_table(header, lines)


def verdict_counts(results: Results, family: str) -> str:
    """Return the number of verdicts of each kind on the paper's claims, with a link to them."""
    counts = Counter(claim.judge(results).outcome for claim in CLAIMS if claim.family == family and not claim.ours)
    text = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
    return f"[{text}](generated/claims.md#{heading_anchor(FAMILIES[family])})"


def describe_runs_here(results: Results, item: PaperItem) -> list[str]:
    """Return the sets of runs that decide the claims of this topic: recipe, steps, hardware and seeds."""
    if item.family == "cost":
        rows = results.rows("table3_h200")
        sizes = sorted({row["n"] for row in rows})
        return [f"at full size, n = {sizes[0]:,} to {sizes[-1]:,}, {rows[0]['hardware']}"] if rows else []
    seeds: dict[str, int] = {}
    for claim in CLAIMS:
        if claim.family != item.family:
            continue
        for trial in deciding_trials(claim.judge(results).trials):
            for finding in trial.findings:
                if finding.counted == "seed":
                    seeds[trial.where] = max(seeds.get(trial.where, 0), finding.n)
    texts = [f"{where}, {n} seeds" for where, n in seeds.items()]
    rows = results.rows("voc352_h200") if item.place == "Table 4" else []
    if rows:
        texts.insert(0, f"voc-352, {rows[0]['steps']:,} steps, {rows[0]['hardware']}, seeds {list_seeds(rows)}")
    return texts


# -- hours -------------------------------------------------------------------------------------------------------------


def format_hours(results: Results, item: PaperItem) -> str:
    """Return the hours of all trainings of an item on one GPU; empty if nothing is trained or no row tells."""
    hours = [recipe_hours(results, name) for name in item.recipes]
    if not hours or None in hours:
        return ""
    total = sum(each for each in hours if each is not None)
    if item.grid is None:
        return f"{total:,.1f}" if total < 100 else f"{total:,.0f}"
    cells = sum(variant.weights is None for variant in grid_cells(item.grid).values())
    return f"{cells * RUNS * total:,.0f} ({cells} x {RUNS} trainings)"


def grid_cells(grid: str) -> dict[str, Any]:
    return ablations.create(grid, segmentation_recipes.create("voc-ablation"))


def recipe_hours(results: Results, name: str) -> float | None:
    """Return the estimated hours of one training on the GPU of the committed rows."""
    if name in gan_recipes:
        gan, rows = gan_recipes.create(name), select_rows(results.rows("ganspeed_graph_h200"), context="hamgan")
        return rows[0]["step_ms"] * gan.batch / rows[0]["batch"] * gan.steps / 3.6e6 if rows else None
    rows = select_rows(results.rows("network_h200"), context=MEASURED_CONTEXT)
    if not rows:
        return None
    recipe = segmentation_recipes.create(name)
    macs = count_macs(recipe.model, recipe.data.crop)
    return recipe.steps * recipe.batch * macs / measured_rate(rows[0]) / 3600


def measured_rate(row: Row) -> float:
    """Return multiply-adds of forward passes per second of training, of a row of `ham bench network`."""
    model = SegmentationModel(backbone=row["backbone"], output_stride=row["output_stride"], context=row["context"])
    return float(row["images_per_s"]) * count_macs(model, row["crop"])


def count_macs(model: SegmentationModel, crop: int) -> int:
    return _count_macs(model.backbone, model.output_stride, model.context, crop)


@lru_cache
def _count_macs(backbone: str, output_stride: int, context: str | None, crop: int) -> int:
    options = asdict(SegmentationModel(backbone=backbone, output_stride=output_stride, context=context))
    _, macs = count_params_and_macs(lambda: create_model(**options, num_classes=21), (1, 3, crop, crop))
    return macs


# -- recipes and published numbers -------------------------------------------------------------------------------------


def recipe_table(results: Results) -> str:
    """Return the paper's recipes as they are trained here."""
    lines = []
    for name in dict.fromkeys(name for item in ITEMS for name in item.recipes):
        hours = recipe_hours(results, name)
        cost = "" if hours is None else f"{hours:,.1f}"
        if name in gan_recipes:
            gan = gan_recipes.create(name)
            rates = f"{gan.optim.generator_lr:g}, {gan.optim.discriminator_lr:g}"
            cells = [f"`{gan.model.name}`, {gan.model.resolution} x {gan.model.resolution}", rates]
            lines.append([f"`{name}`", *cells, f"{gan.steps:,} x {gan.batch:,}", gan.data.name, cost])
            continue
        recipe = segmentation_recipes.create(name)
        model, data = recipe.model, recipe.data
        start = f"from `{recipe.start}`" if recipe.start else f"{model.backbone}, stride {model.output_stride}"
        images = f"{data.name}, {data.train_split}, crop {data.crop}"
        lines.append([f"`{name}`", start, f"{recipe.optim.lr:g}", f"{recipe.steps:,} x {recipe.batch}", images, cost])
    header = ["recipe", "network", "learning rate", "steps x batch", "data", "GPU hours of one training"]
    return markdown_table(header, lines)


def systems_table(results: Results) -> str:
    """Return Tables 4 and 5 next to the contexts of those methods in our training on VOC at a reduced size."""
    rows = results.rows("voc352_h200")
    lines = []
    for method in dict.fromkeys([*TABLE4, *TABLE5]):
        ours = [100 * row["learning_curve"][-1]["miou"] for row in rows if row["cell"] == METHODS[method]]
        shown = f"{summarise(ours).mean:.1f} ({len(ours)} seeds)" if ours else ""
        printed = [f"{table[method]:.1f}" if method in table else "" for table in (TABLE4, TABLE5)]
        lines.append([method, *printed, f"`{METHODS[method]}`", shown])
    return markdown_table(["method", "Table 4", "Table 5", "context here", "mIoU here, voc-352"], lines)
