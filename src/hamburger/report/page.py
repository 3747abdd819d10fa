"""`write_report`: one HTML page about training runs."""

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
    """Write one HTML file about these runs; a folder of run folders stands for all of them.

    `data_root` is the data folder of data sets on disk; without it, their report has no images and says so.
    """
    check_writable(out)
    study = group_runs(read_runs([Path(folder) for folder in run_folders]))
    write_atomically(out, render_page(study, open_gallery(study, data_root, device=device)).encode())
    return out


def render_page(study: Study, gallery: Gallery | str) -> str:
    """The page as HTML; `gallery` may be the reason why there are no images."""
    title = f"{study.task.networks} on {', '.join(_data_names(study))}"
    runs = sum(len(group.runs) for group in study.groups)
    contents = {
        "results": _results(study),
        "curves": plot_curves(study),
        "predictions": _if_open(gallery, lambda opened: render_predictions(study, opened)),
        "measured": tables.conditions_table(study) + tables.run_table(study),
    }
    if _takes_one_tensor(gallery):
        contents["atoms"] = _if_open(gallery, render_atoms)
        contents["spectra"] = _if_open(gallery, lambda opened: render_spectra(study, opened))
    shown = {name: words for name, words in SECTIONS.items() if name in contents}
    head = (
        f"<h1>{title}</h1>"
        + paragraph(f"{runs} runs of {len(study.groups)} networks. Written {_now()}.", kind="soft")
        + f'<div class="verdict">{tables.verdict_text(study)}</div>'
        + "<nav>"
        + "".join(f'<a href="#{name}">{words}</a>' for name, words in shown.items())
        + "</nav>"
    )
    return document(title, head + "".join(section(name, words, contents[name]) for name, words in shown.items()))


def _results(study: Study) -> Markup:
    parts: list[str] = []
    if study.mixed:
        fields = ", ".join(study.mixed)
        parts.append(
            paragraph(
                f"Careful: these networks differ in more than their context ({fields}), so a difference between them "
                "is not due to the context alone.",
                kind="note",
            )
        )
    parts += [tables.score_table(study), paragraph(_reading_guide(study), kind="soft"), plot_scores(study)]
    parts += [tables.further_scores(study), tables.per_seed_table(study), tables.per_member_table(study)]
    return Markup("".join(parts))


def _reading_guide(study: Study) -> str:
    text = (
        f"The {study.task.score.words} is that of the last step, {study.task.pooled}. "
        "Mean and sample standard deviation are over seeds, which change initial weights, data order and "
        "augmentation together. "
    )
    if len(study.groups) > 1:
        text += (
            f"Differences to {study.reference.name} are paired by seed; the interval is Student's t, at 95 % for each "
            "row by itself: among many rows some will exclude zero by chance. "
        )
    return text + "Parameters, images/s (training) and peak memory are means over seeds."


def _if_open(gallery: Gallery | str, make: Callable[[Gallery], Markup]) -> Markup:
    return paragraph(gallery, kind="soft") if isinstance(gallery, str) else make(gallery)


def _takes_one_tensor(gallery: Gallery | str) -> bool:
    """Whether these networks take one tensor per image, which atoms and spectra need; True without weights."""
    return isinstance(gallery, str) or any(gallery.inputs(exhibit, 1) for exhibit in gallery.exhibits)


def _data_names(study: Study) -> list[str]:
    names = [str(run.recipe["data"].get("name")) for group in study.groups for run in group.runs]
    return list(dict.fromkeys(names))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
