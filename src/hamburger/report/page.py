"""The whole report: sections in their order, and the file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from hamburger.files import check_writable, write_atomically
from hamburger.report import tables
from hamburger.report.atoms_and_spectra import render_atoms, render_spectra
from hamburger.report.figures import plot_curves, plot_scores
from hamburger.report.gallery import Gallery, open_gallery, render_predictions
from hamburger.report.html import Markup, document, paragraph, section
from hamburger.report.study import Study, group_runs, read_runs

SECTIONS = {
    "results": "Results",
    "curves": "Learning curves",
    "predictions": "Predictions and errors",
    "atoms": "Atoms of the ham",
    "spectra": "Spectrum before and after",
    "measured": "How it was measured",
}


def write_report(
    run_folders: Sequence[Path], out: Path, data_root: Path | None = None, *, device: str = "auto"
) -> Path:
    """One HTML file about these runs; a folder that holds run folders stands for all of them.

    `data_root` is the folder of a data set that lies in files; without it such a report has no pictures and says so.
    """
    check_writable(out)
    found = group_runs(read_runs([Path(folder) for folder in run_folders]))
    write_atomically(out, render_page(found, open_gallery(found, data_root, device=device)).encode())
    return out


def render_page(found: Study, gallery: Gallery | str) -> str:
    title = f"{found.task.networks} on {', '.join(_data_names(found))}"
    runs = sum(len(group.runs) for group in found.groups)
    contents = {
        "results": _results(found),
        "curves": plot_curves(found),
        "predictions": _from(gallery, lambda opened: render_predictions(found, opened)),
        "measured": tables.conditions_table(found) + tables.run_table(found),
    }
    if _one_tensor(gallery):
        contents["atoms"] = _from(gallery, render_atoms)
        contents["spectra"] = _from(gallery, lambda opened: render_spectra(found, opened))
    shown = {name: words for name, words in SECTIONS.items() if name in contents}
    head = (
        f"<h1>{title}</h1>"
        + paragraph(f"{runs} runs of {len(found.groups)} networks. Written {_now()}.", kind="soft")
        + f'<div class="verdict">{tables.verdict_text(found)}</div>'
        + "<nav>"
        + "".join(f'<a href="#{name}">{words}</a>' for name, words in shown.items())
        + "</nav>"
    )
    return document(title, head + "".join(section(name, words, contents[name]) for name, words in shown.items()))


def _results(found: Study) -> Markup:
    parts: list[str] = []
    if found.mixed:
        fields = ", ".join(found.mixed)
        parts.append(
            paragraph(
                f"Careful: these networks differ in more than their context ({fields}), so a difference between them "
                "is not the context's alone.",
                kind="note",
            )
        )
    parts += [tables.score_table(found), paragraph(_reading(found), kind="soft"), plot_scores(found)]
    parts += [tables.further_scores(found), tables.per_seed_table(found), tables.per_member_table(found)]
    return Markup("".join(parts))


def _reading(found: Study) -> str:
    said = (
        f"The {found.task.score.words} is that of the last step, {found.task.pooled}. "
        "Mean and sample standard deviation are over seeds, which change the start, the order of the data and the "
        "augmentation together. "
    )
    if len(found.groups) > 1:
        said += (
            f"Differences to {found.reference.name} are paired by seed; the interval is Student's, at 95 % for each "
            "row by itself: among many rows some will leave out zero by chance. "
        )
    return said + "Parameters, images/s (training) and peak memory are means over seeds."


def _from(gallery: Gallery | str, make: Callable[[Gallery], Markup]) -> Markup:
    return paragraph(gallery, kind="soft") if isinstance(gallery, str) else make(gallery)


def _one_tensor(gallery: Gallery | str) -> bool:
    """Whether these networks take one image as one tensor, so that one can look inside; unknown without weights."""
    return isinstance(gallery, str) or any(gallery.inputs(exhibit, 1) for exhibit in gallery.exhibits)


def _data_names(found: Study) -> list[str]:
    names = [str(run.recipe["data"].get("name")) for group in found.groups for run in group.runs]
    return list(dict.fromkeys(names))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
