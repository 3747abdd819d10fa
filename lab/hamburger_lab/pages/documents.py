"""Blocks of the documents that are made from result files: `make docs` writes them, a test compares them.

A page holds `<!-- block: name -->` and `<!-- end -->`; what stands between is this module's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hamburger.files import csv_text, write_atomically
from hamburger_lab.claims import Results
from hamburger_lab.claims import tables as claim_tables
from hamburger_lab.pages import classification, contexts, core, detection, generation, ham, segmentation, stereo, table3
from hamburger_lab.pages.table3_figure import draw
from hamburger_lab.propositions import report

BLOCK = re.compile(r"(<!-- block: ([a-z0-9-]+) -->\n)(.*?)(<!-- end -->)", flags=re.DOTALL)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def lines_so_far(path: Path) -> list[dict[str, Any]]:
    """Of an experiment that may not have been made yet."""
    return lines_of(path) if path.exists() else []


def _h200(dtype: str) -> Callable[[Path], str]:
    return lambda results: table3.over_sizes(lines_of(results / "table3_h200.jsonl"), dtype)


# Block name -> its text, from the folder of results.
BLOCKS: dict[str, Callable[[Path], str]] = {
    "contexts": lambda results: contexts.table(),
    "core-speed": lambda results: core.speed(lines_of(results / "core_cpu.jsonl")),
    "core-table": lambda results: core.table(lines_of(results / "core_cpu.jsonl")),
    "table3-headline": lambda results: table3.headline(lines_of(results / "table3_h200.jsonl")),
    "table3-rivals": lambda results: table3.against_ham(lines_of(results / "table3_h200.jsonl")),
    "table3-batch": lambda results: table3.against_ham(lines_of(results / "table3_batch16_h200.jsonl")),
    "ham-h200": lambda results: ham.floors(lines_of(results / "ham_h200.jsonl")),
    "profile-h200": lambda results: ham.profile(lines_of(results / "profile_h200.jsonl")),
    "table3-paper": lambda results: table3.against_paper(lines_of(results / "table3_h200.jsonl"), "float32"),
    **{f"table3-h200-{dtype}": _h200(dtype) for dtype in ("bfloat16", "tf32", "float32")},
    "table3-cpu": lambda results: table3.over_sizes(lines_of(results / "table3_cpu.jsonl"), "float32"),
    "network-h200": lambda results: segmentation.speed(lines_of(results / "network_h200.jsonl")),
    "segmentation-patchwork-cpu": lambda results: segmentation.accuracy(
        lines_of(results / "segmentation_patchwork_cpu.jsonl")
    ),
    "segmentation-glyphs-cpu": lambda results: segmentation.accuracy(
        lines_of(results / "segmentation_patchwork-glyphs_cpu.jsonl")
    ),
    "segmentation-animals-h200": lambda results: segmentation.accuracy(
        lines_of(results / "segmentation_voc-animals_h200.jsonl")
    ),
    "segmentation-camvid-h200": lambda results: segmentation.accuracy(
        lines_of(results / "segmentation_camvid_h200.jsonl")
    ),
    "segmentation-camvid-classes": lambda results: segmentation.classes(
        lines_of(results / "segmentation_camvid_h200.jsonl")
    ),
    "classes-cifar10-h200": lambda results: classification.compared(
        lines_so_far(results / "classes_cifar10-classes_h200.jsonl")
    ),
    "classes-tiny-h200": lambda results: classification.compared(
        lines_so_far(results / "classes_tiny-imagenet-classes_h200.jsonl")
    ),
    "classes-speed-h200": lambda results: classification.speed(lines_so_far(results / "classes_speed_h200.jsonl")),
    "gan-figures-cpu": lambda results: generation.distances(lines_so_far(results / "gan_figures_cpu.jsonl")),
    "gan-cifar10-h200": lambda results: generation.distances(lines_so_far(results / "gan_cifar10_h200.jsonl")),
    "gan-tiny-h200": lambda results: generation.distances(lines_so_far(results / "gan_tiny-imagenet_h200.jsonl")),
    "gan-speed-h200": lambda results: generation.speed(lines_so_far(results / "ganspeed_h200.jsonl")),
    "gan-speed-graph-h200": lambda results: generation.speed(lines_so_far(results / "ganspeed_graph_h200.jsonl")),
    "detection-shapes-cpu": lambda results: detection.compared(
        lines_so_far(results / "detection_shapes-detect_cpu.jsonl")
    ),
    "detection-shapes-h200": lambda results: detection.compared(lines_so_far(results / "detection_shapes_h200.jsonl")),
    "detect-h200": lambda results: detection.growth(lines_so_far(results / "detect_h200.jsonl")),
    "stereo-planes-cpu": lambda results: stereo.compared(lines_so_far(results / "stereo_planes-tiny_cpu.jsonl")),
    "stereo-real-cpu": lambda results: stereo.real(lines_so_far(results / "stereo_middlebury_cpu.jsonl")),
    "stereo-planes-h200": lambda results: stereo.compared(lines_so_far(results / "stereo_planes_h200.jsonl")),
    "stereo-real-h200": lambda results: stereo.real(lines_so_far(results / "stereo_middlebury_h200.jsonl")),
    "claims": lambda results: claim_tables.markdown(Results.of(results)),
    "claims-commands": lambda results: claim_tables.commands(Results.of(results)),
    "propositions": lambda results: report.markdown(json.loads((results / "propositions_cpu.json").read_text())),
}


def render(text: str, results: Path) -> str:
    """The page with every block made anew."""

    def made(match: re.Match[str]) -> str:
        begin, name, _, end = match.groups()
        return f"{begin}{BLOCKS[name](results).rstrip()}\n{end}"

    return BLOCK.sub(made, text)


def pages(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def runs_of_ablations(results: Path) -> str:
    """Every run of every grid as one table with commas, for who would rather read that."""
    return csv_text([row for path in sorted(results.glob("ablation_*.jsonl")) for row in lines_of(path)])


def main() -> None:
    root = Path.cwd()
    for dtype in ("bfloat16", "float32"):
        rows = lines_of(root / "results" / "table3_h200.jsonl")
        draw([row for row in rows if row["dtype"] == dtype], root / "docs" / "figures" / f"table3_h200_{dtype}.png")
    verdicts = claim_tables.as_json(claim_tables.judged(Results.of(root / "results")))
    write_atomically(root / "results" / "claims.json", verdicts.encode())
    write_atomically(root / "results" / "ablations.csv", runs_of_ablations(root / "results").encode())
    for page in pages(root):
        write_atomically(page, render(page.read_text(encoding="utf-8"), root / "results").encode())


if __name__ == "__main__":
    main()
