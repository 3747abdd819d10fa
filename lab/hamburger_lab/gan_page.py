"""One HTML page about a GAN run: curves, samples over time, and the atoms of the ham on generated images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hamburger.devices import pick_device
from hamburger.files import check_writable, read_json_object, write_atomically
from hamburger.generation.model import Generator
from hamburger.generation.recipe import GanRecipe
from hamburger.generation.sampling import generate, latents
from hamburger.generation.visualize import SAMPLE_SEED, draw_class_rows, to_bytes
from hamburger.generation.weights import GENERATOR, SAMPLES, load_generator
from hamburger.inspect.solves import code_maps, list_ham_layers
from hamburger.report import html
from hamburger.report.gallery import atom_tiles
from hamburger.report.html import Markup
from hamburger.report.study import RunError, RunRecord, read_rows
from hamburger.training.image_files import read_image
from hamburger.training.recipe import build_recipe
from hamburger.training.run_folder import read_result

SHEETS = 8  # sample sheets shown, evenly spaced over time
IMAGES = 3  # generated images whose atoms are shown
RESULT_FIELDS = (
    *("context", "data", "resolution", "steps", "batch", "seed", "precision", "generator_parameters"),
    *("discriminator_parameters", "images_per_s", "seconds_per_step", "peak_mb", "hardware", "torch", "commit", "date"),
)


def read_gan_run(path: Path) -> RunRecord:
    """Read the run folder; raise RunError if it is not a GAN run."""
    if not (path / "recipe.json").is_file():
        raise RunError(f"gan report: {path} has no recipe.json; give a run folder of `ham gan train --run`")
    values = read_json_object(path / "recipe.json", "gan report")
    if not isinstance(values.get("optim"), dict) or "discriminator_lr" not in values["optim"]:
        raise RunError(f"gan report: {path} is not a GAN run; use `ham report`")
    recipe = asdict(build_recipe(values, GanRecipe, f"gan report: {path / 'recipe.json'}"))
    result = read_result(path / "result.json", "gan report") if (path / "result.json").is_file() else {}
    weights = path / GENERATOR
    rows = tuple(read_rows(path / "metrics.jsonl"))
    return RunRecord(path, recipe, result, rows, weights if weights.is_file() else None)


def write_gan_report(run: Path, out: Path, *, device: str = "auto") -> Path:
    """Write the page about one run."""
    record = read_gan_run(Path(run))
    check_writable(out)
    generator: Generator | None = None
    classes: tuple[str, ...] = ()
    if record.weights is not None:
        generator, info = load_generator(record.weights)
        generator, classes = generator.to(pick_device(device)), info.classes
    write_atomically(out, render_gan_page(record, generator, classes).encode())
    return out


def render_gan_page(run: RunRecord, generator: Generator | None, classes: Sequence[str] = ()) -> str:
    title = f"{run.recipe['name']}: {run.recipe['model']['name']} on {run.recipe['data']['name']}"
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    last = run.rows[-1]["step"] if run.rows else 0
    state = "finished" if run.result else f"at step {last} of {run.recipe['steps']}"
    body = (
        Markup(f"<h1>{html.text(title)}</h1>")
        + html.paragraph(f"{run.path}, {state}. Written {now}.", kind="soft")
        + html.section("curves", "Training curves", _curves(run))
        + html.section("samples", "Samples over time", _samples(run, generator))
        + html.section("atoms", "Atoms of the ham on generated images", _atoms(generator, classes))
        + html.section("measured", "How it was measured", _facts(run))
    )
    return html.document(title, body)


def _curves(run: RunRecord) -> Markup:
    if not run.rows:
        return html.paragraph("No line of metrics.jsonl yet.", kind="soft")
    drawn = [
        _figure(run, "losses", "Hinge losses", {"discriminator": "discriminator", "generator": "generator"}),
        _figure(run, "answers", "Discriminator outputs", {"real": "real images", "made": "generated images"}),
        _figure(run, "spread", "Variety of generated images, real = 1", {"spread": "generated / real"}),
    ]
    explanation = (
        "Means between two lines of the log. The discriminator's loss is 0 if it is always certain and right, and 2 or "
        "more if it guesses or errs; neither loss measures image quality. Variety: the standard deviation over a "
        "batch, averaged over pixels; near 0 all generated images are the same."
    )
    return Markup(html.side_by_side(*drawn) + html.paragraph(explanation, kind="soft"))


def _figure(run: RunRecord, name: str, title: str, fields: dict[str, str]) -> str:
    def draw(axes: Any) -> None:
        for colour, (field, label) in zip(html.COLOURS, fields.items(), strict=False):
            points = run.curve(field)
            axes.plot(list(points), list(points.values()), label=label, color=colour)
        axes.set(title=title, xlabel="step")
        axes.legend()

    return html.figure(html.render_svg(f"gan-{name}", draw, alt=f"{title} over steps"), "")


def _samples(run: RunRecord, generator: Generator | None) -> Markup:
    drawn = {file.stem.removeprefix("step-"): file for file in sorted((run.path / SAMPLES).glob("step-*.png"))}
    sheets = {int(step): file for step, file in drawn.items() if step.isdecimal()}  # others are not of training
    steps = list(sheets)
    if not steps:
        return html.paragraph("No sample sheet yet.", kind="soft")
    chosen_steps = sorted({steps[round(i * (len(steps) - 1) / (SHEETS - 1))] for i in range(SHEETS)})
    entries = [(html.encode_image(read_image(sheets[step])), f"step {step:,}") for step in chosen_steps]
    parts = [html.paragraph("The same latents each time; each row is one class."), html.tiles(entries, large=True)]
    if generator is not None:
        entries = [(html.encode_image(draw_class_rows(generator)), "now")]
        parts += [html.heading("From the saved generator"), html.tiles(entries, large=True)]
    return Markup("".join(parts))


class FixedClassGenerator(nn.Module):
    """A generator with fixed classes, called with latents alone, as `code_maps` calls a model."""

    def __init__(self, generator: Generator, y: Tensor) -> None:
        super().__init__()
        self.generator, self.y = generator, y

    def forward(self, z: Tensor) -> Tensor:
        out: Tensor = self.generator(z, self.y)
        return out


def _atoms(generator: Generator | None, classes: Sequence[str]) -> Markup:
    if generator is None:
        return html.paragraph(f"No {GENERATOR} yet.", kind="soft")
    if not list_ham_layers(generator):
        return html.paragraph("This generator has no ham: there are no atoms to show.", kind="soft")
    device = generator.project.bias.device
    count = min(IMAGES, generator.num_classes)
    z, _ = latents(count, seed=SAMPLE_SEED, latent=generator.latent, num_classes=generator.num_classes)
    y = torch.arange(count)
    atoms = code_maps(FixedClassGenerator(generator, y.to(device)), z.to(device))
    images = to_bytes(generate(generator, z, y)).cpu()
    assert generator.context is not None
    gate = float(generator.context.gate.detach())
    parts = [
        html.paragraph(
            "The ham writes the generator's map as D C. Shown is how much of each atom every position holds (a row of "
            "C), over the generated image, for the atoms whose part has most energy, with its share. The gate that "
            f"scales the ham's output is {gate:.4f}; at 0, its initial value, the ham changes nothing."
        )
    ]
    factor = max(1, 128 // images.shape[2])  # enlarge small images pixel by pixel
    for index in range(count):
        large = images[index].repeat_interleave(factor, 1).repeat_interleave(factor, 2)
        name = classes[index] if classes else f"class {index}"
        parts.append(atom_tiles(large, name, atoms.maps[index], atoms.energies[index]))
    return Markup("".join(parts))


def _facts(run: RunRecord) -> Markup:
    if not run.result:
        return html.paragraph("The run is not finished, so it has no result.json.", kind="soft")
    rows = [(name, str(run.result[name])) for name in RESULT_FIELDS if run.result.get(name) is not None]
    return html.table(("what", "value"), rows, name="facts", kind="text")
