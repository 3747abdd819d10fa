"""Write the generated parts of the documents from `results/`; `make pages` runs this, a test checks it.

The text between `<!-- block: name -->` and `<!-- end -->` in a page comes from `BLOCKS`. Generated as a whole are the
pages in docs/generated, results/claims.json, results/ablations.csv and two figures.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hamburger.contexts import contexts, create_context
from hamburger.files import write_atomically
from hamburger_lab.bench.footprint import count_params_and_macs
from hamburger_lab.claims import summary
from hamburger_lab.claims import tables as claim_tables
from hamburger_lab.markdown import markdown_table
from hamburger_lab.pages import (
    classification,
    detection,
    generation,
    hams,
    readme,
    reproduction,
    segmentation,
    sharded,
    stereo,
    table3,
    voc_352,
)
from hamburger_lab.pages.table3_figure import draw_table3
from hamburger_lab.propositions.report import study_markdown
from hamburger_lab.rows import Results, csv_text, select_rows
from hamburger_lab.shipped_weights import write_card

BLOCK = re.compile(r"(<!-- block: ([a-z0-9-]+) -->\n)(.*?)(<!-- end -->)", flags=re.DOTALL)
TABLE3_SHAPE = (1, 512, 128, 128)


def contexts_table() -> str:
    """Return a table of all contexts: paper, options, parameters and multiply-adds at the size of Table 3."""
    lines = []
    for name in contexts.names():
        constructor: Any = contexts[name]
        described = constructor if inspect.isfunction(constructor) else inspect.getmodule(constructor)
        page = inspect.getdoc(described) or ""
        source = " ".join(page.split("\n\n")[0].split()).split("). ")[0]  # the first sentence names the paper
        source += ")" * (source.count("(") - source.count(")"))
        options = [
            parameter.name
            for parameter in inspect.signature(constructor).parameters.values()
            if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            and parameter.name != "channels"
        ]
        params, macs = count_params_and_macs(lambda name=name: create_context(name, 512), TABLE3_SHAPE)  # type: ignore[misc]
        takes_any = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(constructor).parameters.values())
        listed = ", ".join(f"`{option}`" for option in options) or ("those of `Hamburger`" if takes_any else "none")
        lines.append([f"`{name}`", source.rstrip("."), listed, f"{params:,}", f"{macs / 1e9:.2f}"])
    return markdown_table(["name", "paper", "options", "parameters", "MACs, 10^9"], lines)


# Block name -> function that returns its text.
BLOCKS: dict[str, Callable[[Results], str]] = {
    "contexts": lambda results: contexts_table(),
    "core-speed": lambda results: hams.core_speed_table(results.rows("core_cpu")),
    "core-table": lambda results: hams.core_table(results.rows("core_cpu")),
    "carried-steps": lambda results: hams.carried_table(results.rows("carried_dictionary_cpu")),
    "columns-error": lambda results: hams.columns_error_table(results.rows("columns_error_cpu")),
    "columns-time": lambda results: hams.columns_time_table(results.rows("columns_time_cpu")),
    "deploy-cpu": lambda results: hams.deploy_table(select_rows(results.rows("deploy_cpu"), threads=1)),
    "ham-costs": lambda results: hams.costs_table(results.rows("ham_costs_cpu")),
    "products-cpu": lambda results: hams.products_table(results.rows("products_cpu")),
    "ham-h200": lambda results: hams.roofline_table(results.rows("ham_h200")),
    "profile-h200": lambda results: hams.profile_markdown(results.rows("profile_h200")),
    "readme-accuracy": readme.accuracy_table,
    "table3-headline": lambda results: table3.headline(results.rows("table3_headline_h200")),
    "table3-rivals": lambda results: table3.against_ham(results.rows("table3_h200")),
    "table3-batch": lambda results: table3.against_ham(results.rows("table3_batch16_h200")),
    "table3-paper": lambda results: table3.against_paper(results.rows("table3_h200"), "float32"),
    "table3-h200-bfloat16": lambda results: table3.over_sizes(results.rows("table3_h200"), "bfloat16"),
    "table3-h200-tf32": lambda results: table3.over_sizes(results.rows("table3_h200"), "tf32"),
    "table3-h200-float32": lambda results: table3.over_sizes(results.rows("table3_h200"), "float32"),
    "table3-cpu": lambda results: table3.over_sizes(results.rows("table3_cpu"), "float32"),
    "large-image": lambda results: segmentation.large_image_table(results.rows("large_image_cpu")),
    "network-h200": lambda results: segmentation.network_speed_table(results.rows("network_h200")),
    "segmentation-patchwork-cpu": lambda results: segmentation.accuracy_table(
        results.rows("segmentation_patchwork_cpu")
    ),
    "segmentation-glyphs-cpu": lambda results: segmentation.accuracy_table(
        results.rows("segmentation_patchwork-glyphs_cpu")
    ),
    "segmentation-animals-h200": lambda results: segmentation.accuracy_table(
        results.rows("segmentation_voc-animals_h200")
    ),
    "segmentation-camvid-h200": lambda results: segmentation.accuracy_table(results.rows("segmentation_camvid_h200")),
    "segmentation-camvid-classes": lambda results: segmentation.class_table(results.rows("segmentation_camvid_h200")),
    "voc-352-final": lambda results: voc_352.final_table(results.rows("voc352_h200")),
    "voc-352-curves": lambda results: voc_352.curve_table(results.rows("voc352_h200")),
    "voc-352-steps": lambda results: voc_352.other_steps_table(results.rows("voc352_h200")),
    "voc-352-objects": lambda results: voc_352.object_table(results.rows("voc352_h200")),
    "voc-352-classes": lambda results: voc_352.class_table(results.rows("voc352_h200")),
    "classes-cifar10-h200": lambda results: classification.classification_table(
        results.rows("classes_cifar10-classes_h200")
    ),
    "classes-tiny-h200": lambda results: classification.classification_table(
        results.rows("classes_tiny-imagenet-classes_h200")
    ),
    "classes-speed-h200": lambda results: classification.classifier_speed_table(results.rows("classes_speed_h200")),
    "gan-figures-cpu": lambda results: generation.gan_distance_table(results.rows("gan_figures_cpu")),
    "gan-cifar10-h200": lambda results: generation.gan_distance_table(results.rows("gan_cifar10_h200")),
    "gan-tiny-h200": lambda results: generation.gan_distance_table(results.rows("gan_tiny-imagenet_h200")),
    "gan-speed-h200": lambda results: generation.gan_speed_table(results.rows("ganspeed_h200")),
    "gan-speed-graph-h200": lambda results: generation.gan_speed_table(results.rows("ganspeed_graph_h200")),
    "detection-shapes-cpu": lambda results: detection.detection_table(results.rows("detection_shapes-detect_cpu")),
    "detection-shapes-h200": lambda results: detection.detection_table(results.rows("detection_shapes_h200")),
    "detection-voc": lambda results: detection.detection_table(results.rows("detection_voc-instances_h200")),
    "detection-voc-sizes": lambda results: detection.detection_size_table(results.rows("detection_voc-instances_h200")),
    "detect-h200": lambda results: detection.detection_growth_table(results.rows("detect_h200")),
    "sharded-time": lambda results: sharded.time_table(results.rows("sharded_messages_cpu"), results.rows("ham_h200")),
    "stereo-planes-cpu": lambda results: stereo.stereo_table(results.rows("stereo_planes-tiny_cpu")),
    "stereo-real-cpu": lambda results: stereo.real_pairs_table(results.rows("stereo_middlebury_cpu")),
    "stereo-planes-h200": lambda results: stereo.stereo_table(results.rows("stereo_planes_h200")),
    "stereo-real-h200": lambda results: stereo.real_pairs_table(results.rows("stereo_middlebury_h200")),
    "reproduction": reproduction.overview_table,
    "reproduction-recipes": reproduction.recipe_table,
    "reproduction-systems": reproduction.systems_table,
    "claims-attention": summary.attention_answer,
    "claims-attention-table": summary.attention_table,
    "claims-topics": summary.topic_counts,
    "claims-unconfirmed": summary.unconfirmed_table,
    "readme-claims": summary.readme_claims,
    "propositions": lambda results: study_markdown(results.studies["propositions_cpu"]),
}


def render(text: str, results: Path) -> str:
    """Return the page with every block regenerated from the results folder."""
    if not BLOCK.search(text):
        return text
    rows = Results.read(results)

    def fill(match: re.Match[str]) -> str:
        begin, name, _, end = match.groups()
        return f"{begin}{BLOCKS[name](rows).rstrip()}\n{end}"

    return BLOCK.sub(fill, text)


def document_pages(root: Path) -> list[Path]:
    """Return the pages that may hold blocks."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def ablations_csv(results: Path) -> str:
    """Return every run of every grid as one CSV table."""
    return csv_text([row for rows in _ablation_files(results).values() for row in rows])


def _ablation_files(results: Path) -> dict[str, list[dict[str, Any]]]:
    files = Results.read(results).files
    return {name: rows for name, rows in sorted(files.items()) if name.startswith("ablation_")}


def generated_files(root: Path) -> dict[Path, str]:
    """Return the files that are written as a whole, with their text."""
    results = Results.read(root / "results")
    return {
        root / "results" / "claims.json": claim_tables.as_json(claim_tables.judge_all(results)),
        root / "results" / "ablations.csv": ablations_csv(root / "results"),
        root / "docs" / "generated" / "claims.md": claim_tables.full_page(results),
        **{
            root / "src/hamburger/checkpoints/weights" / f"{row['name']}.md": write_card(row)
            for row in results.files.get("shipped_weights", [])
        },
    }


def main() -> None:
    root = Path.cwd()
    rows = Results.read(root / "results").rows("table3_h200")
    for dtype in ("bfloat16", "float32"):
        draw_table3(select_rows(rows, dtype=dtype), root / "docs" / "figures" / f"table3_h200_{dtype}.png")
    for path, text in generated_files(root).items():
        write_atomically(path, text.encode())
    for page in document_pages(root):
        write_atomically(page, render(page.read_text(encoding="utf-8"), root / "results").encode())


if __name__ == "__main__":
    main()
