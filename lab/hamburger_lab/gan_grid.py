"""The runs of `ham gan grid`: every context with every seed, each trained, measured and written as a result row."""

from __future__ import annotations

import hashlib
import json as json_format
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from hamburger.classification.data.base import load_images, open_source
from hamburger.cli.output import phase_progress, print_note, progress_bar
from hamburger.contexts import list_contexts
from hamburger.errors import InputError, OptionError, UnknownNameError, did_you_mean
from hamburger.files import check_writable, write_atomically, write_json_lines
from hamburger.generation.networks.contexts import gan_contexts
from hamburger.generation.recipe import GanRecipe, check_gan_recipe
from hamburger.generation.sampling import sample
from hamburger.generation.visualize import tile_images, to_bytes, write_png
from hamburger.generation.weights import GENERATOR, open_generator
from hamburger.tasks import find_gan_recipe
from hamburger.tasks.sweep import Cell, check_grid, finished, run_grid
from hamburger.tasks.sweep import rows as results
from hamburger.training.recipe import apply, digest
from hamburger.training.run_folder import RESULT, RunFolder
from hamburger_lab.gan_metrics.evaluate import Distances, MeasureSettings, measure_generator, measure_real
from hamburger_lab.gan_metrics.extractors import NetworkExtractor, create_extractor, file_digest
from hamburger_lab.rows import read_json_lines

RESULTS = Path("results")
SAMPLES = "samples.png"


def gan_variants(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Recipe overrides for each context: "none", "sagan", "ylg", "hamgan", or any of `list_contexts()`."""
    known = sorted({"none", *gan_contexts, *list_contexts()})
    chosen = list(names)
    for name in chosen:
        if name not in known:
            raise UnknownNameError(f"gan grid: no context '{name}'{did_you_mean(name, known)}")
    # context options of the recipe are for its own context only
    return {name: (f"model.context={name}", "model.context_options=none") for name in chosen}


@dataclass(frozen=True)
class GanCell(Cell):
    """One GAN run of a grid."""

    verb: ClassVar[tuple[str, ...]] = ("gan", "train")

    def resolved(self) -> GanRecipe:
        recipe = replace(apply(find_gan_recipe(self.recipe), self.overrides), seed=self.seed)
        check_gan_recipe(recipe, processes=1)
        return recipe

    def row(self, result: dict[str, Any]) -> dict[str, Any]:
        return {**super().row(result), "recipe_hash": digest(self.resolved())}


def open_extractor(name: str, weights: Path | None, size: int | None) -> NetworkExtractor:
    """The extractor "efficientnet-lite0", or one of `create_extractor`."""
    if name != "efficientnet-lite0":
        return create_extractor(name, weights, size=size)
    if weights is None or not weights.is_file():
        raise OptionError(f"gan grid: --extractor {name} needs the file of its weights (got --weights {weights})")
    from hamburger_lab.efficientnet import efficientnet_lite0

    return efficientnet_lite0(weights, size=size or 224)


def check_data(grid: Sequence[Cell], out: Path, digest: str) -> None:
    """Raise where a finished run in the folder was trained on other images than those of the digest.

    Unfinished runs check this themselves when they resume.
    """
    for cell in grid:
        result = RunFolder(out / cell.name).result()
        if result is not None and result.get("data_sha256") != digest:
            stored = str(result.get("data_sha256", "unknown"))[:12]
            raise OptionError(
                f"gan grid: the run in {out / cell.name} was trained on other images (sha256 {stored}) than --data "
                f"holds ({digest[:12]}); give the same --data, or name another folder with --out. If they are the "
                f"same, remove its {RESULT}: --resume writes it again from the checkpoint"
            )


def run_measured_grid(
    planned: Sequence[GanCell],
    out: Path,
    *,
    data: Path | None,
    jobs: int,
    extractor: NetworkExtractor,
    measure: MeasureSettings,
    device: torch.device,
    json: Path | None,
) -> list[dict[str, Any]]:
    """Train all cells, measure each as soon as it is trained, append its row to the file, and return all rows.

    Runs with a row in `json` are not repeated, even if their folders are gone.
    """
    recipe = planned[0].resolved()
    if out.is_file():
        raise OptionError(f"gan grid: --out {out} is a file; give a folder")
    # before any training: the rows can be appended to the existing files
    check_writable(json or RESULTS / "rows.jsonl")
    for path in [json] if json else sorted(RESULTS.glob(f"gan_{recipe.data.name}_*.jsonl")):
        read_rows(path)
    source = open_source(
        recipe.data.name, recipe.data.split, size=recipe.model.resolution, root=data, **recipe.data.options
    )
    images = load_images(source, note=print_note)  # before any training, to report problems with the data at once
    check_grid(planned, out, call="gan grid")
    check_data(planned, out, images.digest)
    compared = min(measure.compared, measure.samples, len(images))
    # parallel runs slow each other down, so times need the number of jobs
    about = {"data": images.name, "split": images.split, "data_sha256": images.digest, "jobs": jobs}
    measured = {**about, "extractor": extractor.label, "fake_images": measure.samples, "compared_images": compared}
    rows = {} if json is None else find_known_rows(planned, read_rows(json), measured)
    with warnings_as_notes(), image_progress() as bar:
        real = measure_real(images, extractor, measure, device=device, progress=bar)

    def measure_cell(cell: Cell) -> None:
        (result,) = results([cell], out)
        generator, _, weights = open_generator(out / cell.name)
        key = (file_digest(weights), images.digest, extractor.label, extractor.version, asdict(measure), device.type)
        compute = partial(measure_generator, generator, real, extractor, measure, device=device)
        with warnings_as_notes():
            # without a version, a change of the extractor's code would go unnoticed
            cached = extractor.version is not None
            distances = cached_distances(out / cell.name, key, compute) if cached else dict(compute().row())
        rows[cell.name] = make_result_row(result, distances, real=about, compared=compared)
        append_rows(json or choose_results_file(images.name, result), [rows[cell.name]])

    waiting = [cell for cell in planned if cell.name not in rows]
    for cell in waiting:
        if finished(cell, out):
            measure_cell(cell)
    with phase_progress() as progress:
        run_grid(waiting, out, data=data, jobs=jobs, progress=progress, done=measure_cell, call="gan grid")
    # samples of the first seed; a run whose row was already in the file may have no weights here
    first = [cell for cell in planned if cell.seed == planned[0].seed and (out / cell.name / GENERATOR).is_file()]
    if first:
        write_png(out / SAMPLES, compare_samples([out / cell.name for cell in first], device=device))
        print_note(f"wrote {out / SAMPLES}, from the top: {', '.join(cell.variant for cell in first)}")
    return [rows[cell.name] for cell in planned]


def find_known_rows(
    planned: Sequence[GanCell], rows: Sequence[dict[str, Any]], measured: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Rows of the planned recipes that were measured in the same way, by cell name; from any hardware."""
    compared = [name for name in measured if name != "jobs"]
    matching = {
        (row.get("context"), row.get("recipe_hash")): row
        for row in rows
        if all(row.get(name) == measured[name] for name in compared)
    }
    keys = {cell.name: (cell.variant, digest(cell.resolved())) for cell in planned}
    return {name: matching[key] for name, key in keys.items() if key in matching}


def choose_results_file(data: str, result: dict[str, Any]) -> Path:
    """Such as `results/gan_cifar10_h200.jsonl`: the first word of the GPU's name with a digit, or cpu."""
    name = "cpu"
    if result["device"] == "cuda":
        words = re.findall(r"[a-z0-9]+", str(result["hardware"]).lower())
        name = next((word for word in words if any(letter.isdigit() for letter in word)), "cuda")
    return RESULTS / f"gan_{data}_{name}.jsonl"


# -- rows of results/gan_*.jsonl: a training run and its distances ---------------------------------------------------

# two rows that agree in these are of the same run and measurement; runs on other images are other runs
ROW_KEY = (
    *("recipe", "recipe_hash", "context", "seed", "steps", "batch", "overrides", "hardware"),
    *("data", "split", "data_sha256", "extractor", "fake_images", "compared_images"),
)
# the first fields of a row, in this order
LEADING_FIELDS = ("recipe", "context", "seed", "frechet", "extractor", "kid", "seconds_per_step", "peak_mb", "steps")


def make_result_row(
    trained: dict[str, Any], distances: dict[str, Any], *, real: dict[str, Any], compared: int
) -> dict[str, Any]:
    """One row from a run's result.json (`trained`), the row of its distances, and facts about the real images."""
    # "precision" is a data type in result.json and a fraction of images in distances: the former becomes "dtype"
    trained = {**trained, "dtype": trained["precision"]}
    fields = {**trained, **distances, **real, "compared_images": compared}
    return {**{name: fields.pop(name) for name in LEADING_FIELDS}, **fields}


def cached_distances(run: Path, key: Sequence[Any], measure: Callable[[], Distances]) -> dict[str, Any]:
    """The row of distances saved in the run folder under `key`, or a new one from `measure`, which is then saved.

    The key must hold everything that the numbers depend on: generator, real images, extractor and settings.
    """
    text = json_format.dumps(list(key))
    path = run / f"distances-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    if path.exists():
        try:
            saved = json_format.loads(path.read_text())
            if saved["key"] == text:
                return dict(saved["row"])
        except (ValueError, KeyError, TypeError):
            pass  # not a file of ours, or a damaged one: measure again
    row: dict[str, Any] = dict(measure().row())
    write_atomically(path, json_format.dumps({"key": text, "row": row}).encode())
    return row


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a result file; an empty list if there is no file yet."""
    return read_json_lines(path, "gan grid")


def append_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Add rows to a result file; a new row replaces an older one of the same run and measurement."""
    merged = {_row_key(row): row for row in read_rows(path)}
    merged.update((_row_key(row), row) for row in rows)
    write_json_lines(path, merged.values())


def _row_key(row: dict[str, Any]) -> str:
    return json_format.dumps([row.get(name) for name in ROW_KEY])


# -- samples of several runs -----------------------------------------------------------------------------------------

COLUMNS = 16


def compare_samples(
    runs: Sequence[Path], *, columns: int = COLUMNS, seed: int = 0, device: str | torch.device = "cpu"
) -> Tensor:
    """A grid with one row per run: the same latents, and classes spread over all there are.   ->   3 H W, uint8"""
    rows, first = [], None
    for run in runs:
        generator, info, _ = open_generator(run)
        kind = (generator.num_classes, generator.resolution, info.classes)
        if first is not None and kind != first:
            raise InputError(
                f"compare_samples: {run} has other classes or another size than {runs[0]}; give runs of one data set"
            )
        first = kind
        classes = torch.arange(columns) * generator.num_classes // columns
        rows.append(to_bytes(sample(generator.to(device), columns, seed=seed, labels=classes)).cpu())
    if not rows:
        raise InputError("compare_samples: there are no runs; give at least one")
    return tile_images(torch.cat(rows), columns=columns)


# -- progress and notes, also of `ham gan fid` -------------------------------------------------------------------------


@contextmanager
def image_progress() -> Iterator[Callable[[str, int], object]]:
    """A progress bar; yields `advance(what, count)`."""
    with progress_bar("starting") as update:
        yield lambda what, count: update(description=what, advance=count)


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Print Python warnings as one-line notes, without their source lines."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for text in dict.fromkeys(str(each.message) for each in caught):
        print_note(text)
