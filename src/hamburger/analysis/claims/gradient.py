"""Table 1: what is differentiated."""

from __future__ import annotations

from functools import partial

from hamburger.analysis.claims.base import Claim
from hamburger.analysis.claims.commands import ablate
from hamburger.analysis.claims.method import Pair, Source, at_least, beats, compare, level, ratios

HAMS = ("nmf", "vq", "cd")
FILES = "ablation_gradient_"
COMMAND = ablate("gradient")
PRINTED = {
    "nmf": "one-step 77.8, BPTT 77.0 (means of 5 runs; best 78.3, 77.4)",
    "vq": "one-step 77.4, BPTT 76.3 (means of 5 runs; best 77.7, 76.6)",
    "cd": "one-step 77.5, BPTT 74.6 (means of 5 runs; best 78.1, 75.0)",
}


def against(*grads: str, hams: tuple[str, ...] = HAMS) -> Source:
    """One-step minus the others."""
    return Source(FILES, tuple(Pair(f"{ham}-one-step", f"{ham}-{grad}") for ham in hams for grad in grads))


def memory() -> Source:
    return Source(FILES, tuple(Pair(f"{ham}-bptt", f"{ham}-one-step") for ham in HAMS))


CLAIMS = (
    *(
        Claim(
            id=f"gradient-{ham}",
            family="gradient",
            statement=f"With {ham.upper()} the one-step gradient scores higher than BPTT through all sweeps.",
            reference="Table 1, section 2.3",
            paper=PRINTED[ham],
            test="mIoU, one-step minus BPTT, paired by seed, above 0",
            command=COMMAND,
            judge=partial(compare, sources=[against("bptt", hams=(ham,))], rule=beats),
        )
        for ham in HAMS
    ),
    Claim(
        id="gradient-more-terms",
        family="gradient",
        statement="Keeping more terms of the gradient series than one step does not help.",
        reference="section 2.3, after Eq. 13",
        paper="said to be worse, no numbers given",
        test="mIoU, one-step minus truncated:1 and truncated:2 for each ham: no loss of half a point or more",
        command=COMMAND,
        judge=partial(compare, sources=[against("truncated1", "truncated2")], rule=at_least),
    ),
    Claim(
        id="gradient-equation-13",
        family="gradient",
        statement=(
            "The authors' code, which differentiates the last codes alone, trains as well as Eq. 13 read literally, "
            "which differentiates the last sweep."
        ),
        reference="Eq. 13 against the authors' code",
        paper="the two are not told apart",
        test="mIoU, one-step minus truncated:1 for each ham: within half a point either way",
        command=COMMAND,
        judge=partial(compare, sources=[against("truncated1")], rule=level),
    ),
    Claim(
        id="gradient-memory",
        family="gradient",
        statement="The one-step gradient keeps no graph of the sweeps, so that training needs less memory than BPTT.",
        reference="section 2.3: O(1) against O(K)",
        paper="orders alone, no numbers given",
        test="peak memory of the card over the whole training, BPTT over one-step, above 1 for each ham",
        command=COMMAND,
        judge=partial(ratios, sources=[memory()], field="peak_mb", device="cuda"),
    ),
)
