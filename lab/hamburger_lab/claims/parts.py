"""Table 2: bread, ham, bread."""

from __future__ import annotations

from functools import partial

from hamburger_lab.claims.base import Claim
from hamburger_lab.claims.commands import ablate
from hamburger_lab.claims.method import Pair, Source, at_least, beating, compare

COMMAND = ablate("parts")
BREADS = ("upper", "lower")


def parts(ours: str, theirs: str) -> Source:
    return Source("ablation_parts_", (Pair(ours, theirs),))


def contexts(ours: str, theirs: str) -> list[Source]:
    """The same comparison among the contexts, whose `breads` are the burger without its ham."""
    pair = (Pair(ours, theirs),)
    return [Source("segmentation_", pair, "context"), Source("ablation_contexts_", pair)]


CLAIMS = (
    Claim(
        id="parts-whole",
        family="parts",
        statement="A Hamburger with NMF scores higher than the same network without a context module.",
        reference="Table 2",
        paper="with 77.8, without 75.7 (means of 5 runs; best 78.3, 75.9)",
        test="mIoU, whole minus baseline, paired by seed, above 0",
        command=COMMAND,
        judge=partial(compare, sources=[parts("whole", "baseline"), *contexts("nmf", "baseline")], rule=beating(2.1)),
    ),
    Claim(
        id="parts-ham",
        family="parts",
        statement="Taking the ham out of the Hamburger costs accuracy.",
        reference="Table 2",
        paper="with 77.8, without the ham 75.6 (means; best 78.3, 75.8)",
        test="mIoU, whole minus breads alone, paired by seed, above 0",
        command=COMMAND,
        judge=partial(compare, sources=[parts("whole", "without-ham"), *contexts("nmf", "breads")], rule=beating(2.2)),
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
            compare, sources=[parts("baseline", "without-ham"), *contexts("baseline", "breads")], rule=at_least
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
        judge=partial(compare, sources=[parts("whole", "without-upper")], rule=beating(1.0)),
    ),
    Claim(
        id="parts-lower",
        family="parts",
        statement="The lower bread contributes.",
        reference="Table 2",
        paper="with 77.8, without the lower bread 77.2 (means; best 78.3, 77.3)",
        test="mIoU, whole minus without-lower, paired by seed, above 0",
        command=COMMAND,
        judge=partial(compare, sources=[parts("whole", "without-lower")], rule=beating(0.6)),
    ),
    Claim(
        id="parts-ham-most",
        family="parts",
        statement="Of ham, upper and lower bread the ham is the part whose loss costs most.",
        reference="section 3.1, on Table 2",
        paper="without the ham 75.6, without the upper bread 76.8, without the lower 77.2 (means)",
        test="mIoU, without-upper and without-lower minus without-ham, paired by seed, above 0",
        command=COMMAND,
        judge=partial(
            compare,
            sources=[Source("ablation_parts_", tuple(Pair(f"without-{part}", "without-ham") for part in BREADS))],
            rule=beating(1.2),
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
        judge=partial(compare, sources=[parts("without-lower", "without-upper")], rule=beating(0.4)),
    ),
    Claim(
        id="parts-only-ham",
        family="parts",
        statement="The decomposition alone, without any weights of its own but those of a norm, already helps.",
        reference="Table 2",
        paper="only the ham 76.8, baseline 75.7 (means; best 77.0, 75.9)",
        test="mIoU, only-ham minus baseline, paired by seed, above 0",
        command=COMMAND,
        judge=partial(compare, sources=[parts("only-ham", "baseline")], rule=beating(1.1)),
    ),
)
