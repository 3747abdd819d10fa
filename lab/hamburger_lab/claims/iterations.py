"""Claims about the number of steps: Figs. 4 and 7 to 9."""

from __future__ import annotations

from functools import partial

from hamburger_lab.claims.base import Claim, ablate_command
from hamburger_lab.claims.rules import CellPair, RowSource, beats, is_at_least, judge_miou

HAMS = ("nmf", "vq", "cd")
TRAINED, TESTED, MANY = (1, 3, 6), (1, 3, 6, 12, 50), 50
OTHERS = ("k1", "k3", "k8", "k6-at12")
COMMAND = ablate_command("steps")


def steps_source(pairs: list[tuple[str, str]]) -> list[RowSource]:
    return [RowSource("ablation_steps_", tuple(CellPair(ours, theirs) for ours, theirs in pairs))]


CLAIMS = (
    Claim(
        id="steps-six",
        family="steps",
        statement="Six steps are enough for NMF and CD, and as good as fewer.",
        reference="Figs. 4, 7 and 8",
        paper="figures without numbers; K = 6 is used throughout",
        test="mIoU of K = 6 minus K = 1, 3 and 8 (trained so) and 12 (in evaluation): no loss of half a point or more",
        command=COMMAND,
        judge=partial(
            judge_miou,
            sources=steps_source([(f"{h}-k6", f"{h}-{other}") for h in ("nmf", "cd") for other in OTHERS]),
            rule=is_at_least,
        ),
    ),
    Claim(
        id="steps-vq-one",
        family="steps",
        statement="For VQ a single step is enough.",
        reference="Figs. 4 and 9",
        paper="a figure without numbers",
        test="mIoU of VQ, K = 1 minus K = 6 (each trained so): no loss of half a point or more",
        command=COMMAND,
        judge=partial(judge_miou, sources=steps_source([("vq-k1", "vq-k6")]), rule=is_at_least),
    ),
    Claim(
        id="steps-same",
        family="steps",
        statement="Evaluation does best with the number of steps of the training.",
        reference="section 3.1, Figs. 7 to 9",
        paper="figures without numbers",
        test="mIoU of the same weights, own K minus other K: no loss of half a point or more, for each ham and K",
        command=COMMAND,
        judge=partial(
            judge_miou,
            sources=steps_source(
                [(f"{h}-k{k}", f"{h}-k{k}-at{t}") for h in HAMS for k in TRAINED for t in TESTED if t != k]
            ),
            rule=is_at_least,
        ),
    ),
    Claim(
        id="steps-many",
        family="steps",
        statement="Many more steps in evaluation than in training are harmful: a converged solve is not better.",
        reference="section 3.1, appendix F",
        paper="figures without numbers",
        test=f"mIoU of the same weights trained at K = 6, K = 6 minus K = {MANY}, above 0 for each ham",
        command=COMMAND,
        judge=partial(judge_miou, sources=steps_source([(f"{h}-k6", f"{h}-k6-at{MANY}") for h in HAMS]), rule=beats),
    ),
)
