"""A grid of GANs on the terminal: bars while it runs, rows as they come, a table at the end."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hamburger.cli.grid import grid_bar
from hamburger.engine.gan.grid import GanCell, check_data
from hamburger.engine.grid import Cell, check_grid, finished, run_grid
from hamburger.engine.grid import rows as results
from hamburger.recipes.codec import digest
from hamburger.use.gan.distances import Measure, look_at_real, measure_generator

if TYPE_CHECKING:
    import torch
    from rich.table import Table

    from hamburger.metrics.features import NetworkExtractor

RESULTS = Path("results")
SAMPLES = "samples.png"


def measured_grid(
    planned: Sequence[GanCell],
    out: Path,
    *,
    data: Path | None,
    jobs: int,
    extractor: NetworkExtractor,
    measure: Measure,
    device: torch.device,
    json: Path | None,
) -> list[dict[str, Any]]:
    """Train all; each is measured as soon as it is trained, against one set of real images, and its row is then in the
    file. Runs whose row lies in `json` are not made again, also where their folders are gone.
    """
    from hamburger.cli.notes import image_bar, note, warnings_as_notes
    from hamburger.data.generation.load import load_images, open_source
    from hamburger.engine.gan.loop import GENERATOR
    from hamburger.errors import OptionError
    from hamburger.files import check_writable
    from hamburger.gan.sheets import write_png
    from hamburger.metrics.features import file_digest
    from hamburger.use.gan.beside import beside
    from hamburger.use.gan.rows import append_rows, kept_distances, read_rows, row
    from hamburger.use.gan.source import open_generator

    recipe = planned[0].resolved()
    if out.is_file():
        raise OptionError(f"gan grid: --out {out} is a file; name a folder")
    # now, and not when all is trained: that rows can be added to what is there
    check_writable(json or RESULTS / "rows.jsonl")
    for path in [json] if json else sorted(RESULTS.glob(f"gan_{recipe.data.name}_*.jsonl")):
        read_rows(path)
    source = open_source(
        recipe.data.name, recipe.data.split, size=recipe.model.resolution, root=data, **recipe.data.options
    )
    images = load_images(source, note=note)  # before any training: what is wrong with the data is told now
    check_grid(planned, out, call="gan grid")
    check_data(planned, out, images.digest)
    compared = min(measure.choice, measure.samples, len(images))
    # runs at once slow each other down, so a time means little without their number
    about = {"data": images.name, "split": images.split, "data_sha256": images.digest, "jobs": jobs}
    measured = {**about, "extractor": extractor.label, "fake_images": measure.samples, "compared_images": compared}
    found = {} if json is None else known(planned, read_rows(json), measured)
    with warnings_as_notes(), image_bar() as bar:
        real = look_at_real(images, extractor, measure, device=device, progress=bar)
    seen = real.seen

    def note_row(cell: Cell) -> None:
        (result,) = results([cell], out)
        generator, _, weights = open_generator(out / cell.name)
        key = (file_digest(weights), images.digest, extractor.label, real.code, seen, asdict(measure), device.type)
        find = partial(measure_generator, generator, real, extractor, measure, device=device)
        with warnings_as_notes():
            # what cannot be known again when its code changes is not kept
            distances = dict(find().row()) if real.code is None else kept_distances(out / cell.name, key, find)
        found[cell.name] = row(result, distances, real=about, compared=compared)
        append_rows(json or results_file(images.name, result), [found[cell.name]])

    waiting = [cell for cell in planned if cell.name not in found]
    for cell in waiting:
        if finished(cell, out):
            note_row(cell)
    with grid_bar(len(waiting)) as progress:
        run_grid(waiting, out, data=data, jobs=jobs, progress=progress, done=note_row, call="gan grid")
    # of the first seed; a run whose row came with the file may have no weights here
    first = [cell for cell in planned if cell.seed == planned[0].seed and (out / cell.name / GENERATOR).is_file()]
    if first:
        write_png(out / SAMPLES, beside([out / cell.name for cell in first], device=device))
        note(f"wrote {out / SAMPLES}, from the top: {', '.join(cell.variant for cell in first)}")
    return [found[cell.name] for cell in planned]


def known(
    planned: Sequence[GanCell], rows: Sequence[dict[str, Any]], measured: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Rows of these very recipes that were measured in this way, by the name of the cell; from whatever machine."""
    same = [name for name in measured if name != "jobs"]
    kept = {
        (each.get("context"), each.get("recipe_hash")): each
        for each in rows
        if all(each.get(name) == measured[name] for name in same)
    }
    keys = {cell.name: (cell.variant, digest(cell.resolved())) for cell in planned}
    return {name: kept[key] for name, key in keys.items() if key in kept}


def results_file(data: str, result: dict[str, Any]) -> Path:
    """`results/gan_cifar10_h200.jsonl`: the hardware's own letters and digits, or cpu."""
    name = "cpu"
    if result["device"] == "cuda":
        words = re.findall(r"[a-z0-9]+", str(result["hardware"]).lower())
        name = next((word for word in words if any(letter.isdigit() for letter in word)), "cuda")
    return RESULTS / f"gan_{data}_{name}.jsonl"


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Mean and standard deviation over the seeds, best last."""
    from rich.markup import escape
    from rich.table import Table

    first = rows[0]
    made = Table(
        title=escape(f"{first['recipe']}: {first['name']}, {first['fake_images']:,} generated images"),
        caption=escape(f"{first['hardware']}, torch {first['torch']}, {first['steps']} steps; by {first['extractor']}"),
    )
    made.add_column("context")
    for heading in ("Frechet", "spread", "kernel x 1000", "precision", "recall", "seeds", "ms/step", "peak MB"):
        made.add_column(heading, justify="right")
    by_context: dict[str, list[dict[str, Any]]] = {}
    for each in rows:
        by_context.setdefault(each["context"], []).append(each)

    def mean(own: list[dict[str, Any]], field: str) -> float:
        return statistics.mean(each[field] for each in own)

    for context, own in sorted(by_context.items(), key=lambda item: -mean(item[1], "frechet")):
        spread = f"{statistics.stdev(each['frechet'] for each in own):.2f}" if len(own) > 1 else ""
        times = [1000 * each["seconds_per_step"] for each in own if each["seconds_per_step"]]
        made.add_row(
            context,
            f"{mean(own, 'frechet'):.2f}",
            spread,
            f"{1000 * mean(own, 'kid'):.2f}",
            f"{mean(own, 'precision'):.3f}",
            f"{mean(own, 'recall'):.3f}",
            str(len(own)),
            f"{statistics.median(times):.1f}" if times else "",
            f"{max(each['peak_mb'] for each in own):.0f}",
        )
    return made
