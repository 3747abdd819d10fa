"""Claims about the parts of a Hamburger: Table 2."""

from __future__ import annotations

from functools import partial

from hamburger_lab.claims.base import Claim, ablate_command
from hamburger_lab.claims.rules import CellPair, RowSource, beats_paper_gain, is_at_least, judge_miou

COMMAND = ablate_command("parts")
BREADS = ("upper", "lower")


def parts_source(ours: str, theirs: str) -> RowSource:
    return RowSource("ablation_parts_", (CellPair(ours, theirs),))


def contexts_sources(ours: str, theirs: str) -> list[RowSource]:
    """Return the same comparison among contexts; their `breads` is the Hamburger without its ham."""
    pair = (CellPair(ours, theirs),)
    return [RowSource("segmentation_", pair, "context"), RowSource("ablation_contexts_", pair)]


CLAIMS = (
    Claim(
        id="parts-whole",
        family="parts",
        statement="A Hamburger with NMF scores higher than the same network without a context module.",
        reference="Table 2",
        paper="with 77.8, without 75.7 (means of 5 runs; best 78.3, 75.9)",
        test="mIoU, whole minus baseline, paired by seed, above 0",
        command=COMMAND,
        judge=partial(
            judge_miou,
            sources=[
                parts_source("whole", "baseline"),
                *contexts_sources("nmf", "baseline"),
                RowSource("voc352_", (CellPair("nmf", "none"),)),
            ],
            rule=beats_paper_gain(2.1),
        ),
    ),
    Claim(
        id="parts-ham",
        family="parts",
        statement="Removing the ham from the Hamburger costs accuracy.",
        reference="Table 2",
        paper="with 77.8, without the ham 75.6 (means; best 78.3, 75.8)",
        test="mIoU, whole minus breads alone, paired by seed, above 0",
        command=COMMAND,
        judge=partial(
            judge_miou,
            sources=[parts_source("whole", "without-ham"), *contexts_sources("nmf", "breads")],
            rule=beats_paper_gain(2.2),
        ),
    ),
    Claim(
        id="parts-breads-alone",
        family="parts",
        statement="The two breads without a ham do not help.",
        reference="Table 2",
        paper="breads alone 75.6, baseline 75.7 (means; best 75.8, 75.9)",
        test="mIoU, baseline minus breads alone, paired by seed: no loss of half a point or more",
        command=COMMAND,
        judge=partial(
            judge_miou,
            sources=[parts_source("baseline", "without-ham"), *contexts_sources("baseline", "breads")],
            rule=is_at_least,
        ),
    ),
    Claim(
        id="parts-upper",
        family="parts",
        statement="The upper bread contributes.",
        reference="Table 2",
        paper="with 77.8, without the upper bread 76.8 (means; best 78.3, 77.0)",
        test="mIoU, whole minus without-upper, paired by seed, above 0",
        command=COMMAND,
        judge=partial(judge_miou, sources=[parts_source("whole", "without-upper")], rule=beats_paper_gain(1.0)),
    ),
    Claim(
        id="parts-lower",
        family="parts",
        statement="The lower bread contributes.",
        reference="Table 2",
        paper="with 77.8, without the lower bread 77.2 (means; best 78.3, 77.3)",
        test="mIoU, whole minus without-lower, paired by seed, above 0",
        command=COMMAND,
        judge=partial(judge_miou, sources=[parts_source("whole", "without-lower")], rule=beats_paper_gain(0.6)),
    ),
    Claim(
        id="parts-ham-most",
        family="parts",
        statement="Of ham, upper bread and lower bread, removing the ham costs most.",
        reference="section 3.1, on Table 2",
        paper="without the ham 75.6, without the upper bread 76.8, without the lower 77.2 (means)",
        test="mIoU, without-upper and without-lower minus without-ham, paired by seed, above 0",
        command=COMMAND,
        judge=partial(
            judge_miou,
            sources=[
                RowSource("ablation_parts_", tuple(CellPair(f"without-{part}", "without-ham") for part in BREADS))
            ],
            rule=beats_paper_gain(1.2),
        ),
    ),
    Claim(
        id="parts-upper-more",
        family="parts",
        statement="The upper bread contributes more than the lower.",
        reference="section 3.1, on Table 2",
        paper="without the upper bread 76.8, without the lower 77.2 (means)",
        test="mIoU, without-lower minus without-upper, paired by seed, above 0",
        command=COMMAND,
        judge=partial(judge_miou, sources=[parts_source("without-lower", "without-upper")], rule=beats_paper_gain(0.4)),
    ),
    Claim(
        id="parts-only-ham",
        family="parts",
        statement="The decomposition alone, without weights except those of a norm, already helps.",
        reference="Table 2",
        paper="only the ham 76.8, baseline 75.7 (means; best 77.0, 75.9)",
        test="mIoU, only-ham minus baseline, paired by seed, above 0",
        command=COMMAND,
        judge=partial(judge_miou, sources=[parts_source("only-ham", "baseline")], rule=beats_paper_gain(1.1)),
    ),
)
