"""Claims about the gradient: Table 1."""

from __future__ import annotations

from functools import partial

from hamburger_lab.claims.base import CODE, EQUATION, READINGS, Claim, GradientReading, ablate_command
from hamburger_lab.claims.rules import (
    MIN_RATIO,
    CellPair,
    RowSource,
    beats_paper_gain,
    is_at_least,
    is_level,
    judge_miou,
    judge_ratios,
)

HAMS = ("nmf", "vq", "cd")
FILES = "ablation_gradient_"
COMMAND = ablate_command("gradient")
GAINS = {"nmf": 0.8, "vq": 1.1, "cd": 2.9}
PRINTED = {
    "nmf": "one-step 77.8, BPTT 77.0 (means of 5 runs; best 78.3, 77.4)",
    "vq": "one-step 77.4, BPTT 76.3 (means of 5 runs; best 77.7, 76.6)",
    "cd": "one-step 77.5, BPTT 74.6 (means of 5 runs; best 78.1, 75.0)",
}


def against(reading: GradientReading, *grads: str, hams: tuple[str, ...] = HAMS) -> RowSource:
    """Return the comparisons of one reading of the one-step gradient with other gradients."""
    return RowSource(FILES, tuple(CellPair(f"{ham}-{reading.cell}", f"{ham}-{grad}") for ham in hams for grad in grads))


def memory(reading: GradientReading) -> RowSource:
    return RowSource(FILES, tuple(CellPair(f"{ham}-bptt", f"{ham}-{reading.cell}") for ham in HAMS))


CLAIMS = (
    *(
        Claim(
            id=reading.id(f"gradient-{ham}"),
            family="gradient",
            statement=f"With {ham.upper()} {reading.phrase} scores higher than BPTT through all steps.",
            reference="Table 1, section 2.3",
            paper=PRINTED[ham],
            test=f"mIoU, {reading.grad} minus BPTT, paired by seed, above 0",
            command=COMMAND,
            judge=partial(
                judge_miou, sources=[against(reading, "bptt", hams=(ham,))], rule=beats_paper_gain(GAINS[ham])
            ),
        )
        for reading in READINGS
        for ham in HAMS
    ),
    Claim(
        id="gradient-more-terms",
        family="gradient",
        statement="Keeping more terms of the gradient series than the first, which is Eq. 13, does not help.",
        reference="section 2.3, after Eq. 13",
        paper="said to be worse; no numbers given",
        test="mIoU, truncated:1 minus truncated:2 for each ham: no loss of half a point or more",
        command=COMMAND,
        judge=partial(judge_miou, sources=[against(EQUATION, "truncated2")], rule=is_at_least),
    ),
    Claim(
        id="gradient-more-terms-code",
        family="gradient",
        statement="Keeping more terms of the gradient series than the authors' code, which has only a part of the "
        "first, does not help.",
        reference="section 2.3, after Eq. 13, as the authors' code has it",
        paper="said to be worse; no numbers given",
        test="mIoU, one-step minus truncated:2 for each ham: no loss of half a point or more",
        command=COMMAND,
        judge=partial(judge_miou, sources=[against(CODE, "truncated2")], rule=is_at_least),
    ),
    Claim(
        id="gradient-equation-13",
        family="gradient",
        statement=(
            "The authors' code, which differentiates the last codes alone, trains as well as Eq. 13 read literally, "
            "which differentiates the last step."
        ),
        reference="Eq. 13 against the authors' code",
        paper="not examined: the two are not distinguished",
        test="mIoU, one-step minus truncated:1 for each ham: within half a point either way",
        command=COMMAND,
        judge=partial(judge_miou, sources=[against(CODE, "truncated1")], rule=is_level),
        ours=True,
    ),
    Claim(
        id="gradient-clipped",
        family="gradient",
        statement=(
            "BPTT is worse because its gradients explode: with their norm clipped to 1 it trains as well as the "
            "one-step gradient."
        ),
        reference="our question on section 2.3, after Proposition 3",
        paper="not examined: unstable gradients are its reason for the one-step gradient, and clipping is not tried",
        test="mIoU, BPTT minus one-step, both clipped, for each ham: no loss of half a point or more",
        command=ablate_command("clip"),
        judge=partial(
            judge_miou,
            sources=[
                RowSource("ablation_clip_", tuple(CellPair(f"{ham}-bptt-clip", f"{ham}-one-step-clip") for ham in HAMS))
            ],
            rule=is_at_least,
        ),
        ours=True,
    ),
    *(
        Claim(
            id=reading.id("gradient-memory"),
            family="gradient",
            statement=(
                f"Training a whole network by {reading.phrase} needs less memory than by BPTT, which keeps a graph of "
                f"all steps."
            ),
            reference="section 2.3: O(1) against O(K)",
            paper="orders alone, no numbers given",
            test=f"peak GPU memory of a training, BPTT over {reading.grad}, above {MIN_RATIO:g} for each ham",
            command=COMMAND,
            judge=partial(judge_ratios, sources=[memory(reading)], field="peak_mb", device="cuda"),
        )
        for reading in READINGS
    ),
)
