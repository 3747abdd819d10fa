"""Claims about the initial dictionary: Table 8, columns of the input, and the stored dictionary in evaluation."""

from __future__ import annotations

import math
from functools import partial
from itertools import product

from hamburger.report.study import compare_paired
from hamburger_lab.claims.base import Claim, Finding, Trial, Verdict, ablate_command, combine_trials
from hamburger_lab.claims.rules import (
    MIN_RATIO,
    RATIO_FORMAT,
    CellPair,
    RowSource,
    beats_paper_gain,
    exceeds,
    is_at_least,
    judge_miou,
    keeps_paper_difference,
    widen_interval,
)
from hamburger_lab.rows import Results, Row

HAMS = ("nmf", "vq", "cd")
COMMAND = ablate_command("init")
COLUMNS_COMMAND = (
    "python lab/experiments/columns.py --images DIR --pretrained resnet50_v1_imagenet_int8.safetensors "
    "--errors results/columns_error_cpu.jsonl"
)
STAGES = ("layer3", "layer4", "bread")  # where contexts are inserted, and what a Hamburger makes of the last map
FEW, MANY = ("columns", 2), ("random", 6)  # start and steps


def init_source(ours: tuple[str, ...], theirs: tuple[str, ...], hams: tuple[str, ...] = HAMS) -> RowSource:
    pairs = [CellPair(f"{ham}-{one}", f"{ham}-{other}") for ham in hams for one in ours for other in theirs]
    return RowSource("ablation_init_", tuple(pairs))


def drawn_source() -> RowSource:
    return RowSource(
        "ablation_dictionary_", tuple(CellPair(ham, f"{ham}-drawn{draw}") for ham in HAMS for draw in (1, 2, 3))
    )


def judge_columns_error(results: Results, *, hams: tuple[str, ...]) -> Verdict:
    """Judge whether few steps from columns leave an error as small as many from random bases, paired by image."""
    trials = []
    for rows in results.with_prefix("columns_error_").values():
        rows = [row for row in rows if row["weights"] == "imagenet"]
        by_case = {(row["ham"], row["stage"], row["init"], row["steps"]): row for row in rows}
        differences, missing = {}, []
        for ham, stage in product(hams, STAGES):
            label = f"{ham}, {stage}"
            few, many = (by_case.get((ham, stage, *variant)) for variant in (FEW, MANY))
            difference = few and many and compare_paired(_log_errors(many), _log_errors(few))
            if difference:
                differences[label] = difference
            else:
                missing.append(label)
        findings = []
        for label, difference in differences.items():
            refuting = widen_interval(difference, len(differences))
            outcome = exceeds(difference.interval, refuting, limit=-math.log(MIN_RATIO), least=-math.log(MIN_RATIO))
            effect, interval = RATIO_FORMAT.value(difference.mean), RATIO_FORMAT.interval(difference.interval)
            unit = RATIO_FORMAT.unit, RATIO_FORMAT.template
            findings.append(
                Finding(label, effect, interval, difference.n, outcome, *unit, counted="image", limit=1 / MIN_RATIO)
            )
        if findings:
            trials.append(Trial(f"ResNet-50, {rows[0]['hardware']}", tuple(findings), missing=tuple(missing)))
    return combine_trials(trials)


def _log_errors(row: Row) -> dict[int, float]:
    return {image: math.log(error) for image, error in enumerate(row["errors"])}


def columns_error_claim(suffix: str, names: str, hams: tuple[str, ...]) -> Claim:
    return Claim(
        id=f"columns-error{suffix}",
        family="init",
        statement=(
            f"With {names}, two steps from columns of the input approximate features of a pretrained network as well "
            "as six from random bases."
        ),
        reference="our question",
        paper="not examined",
        test=(
            "relative error of D C at K = 6 from random bases over that at K = 2 from columns, paired by image, in the "
            f"last two stages and behind a bread: above 1 / {MIN_RATIO:g}"
        ),
        command=COLUMNS_COMMAND,
        judge=partial(judge_columns_error, hams=hams),
        ours=True,
    )


CLAIMS = (
    Claim(
        id="init-random",
        family="init",
        statement="A new random dictionary each time is the best of the four initialisations, or close to it.",
        reference="Table 8, appendix F",
        paper="random, fixed, learned, online: NMF 77.8 77.3 76.5 77.5; CD 77.3 77.4 73.7 77.5; VQ 77.4 76.9 75.8 77.2",
        test="mIoU, random minus each other initialisation for each ham: no loss of half a point or more",
        command=COMMAND,
        judge=partial(
            judge_miou,
            sources=[init_source(("random",), ("fixed", "learned", "online"))],
            rule=keeps_paper_difference(-0.2),
        ),
    ),
    Claim(
        id="init-learned",
        family="init",
        statement="A dictionary learned by back-propagation is the worst initialisation.",
        reference="Table 8, appendix F",
        paper="learned below every other initialisation by 0.8 to 3.8 points (means)",
        test="mIoU, each other initialisation minus learned for each ham, above 0",
        command=COMMAND,
        judge=partial(
            judge_miou, sources=[init_source(("random", "fixed", "online"), ("learned",))], rule=beats_paper_gain(0.8)
        ),
    ),
    Claim(
        id="init-online-cd",
        family="init",
        statement="A warm start that is updated online helps CD.",
        reference="Table 8, appendix F",
        paper="CD: online 77.5, random 77.3 (means of 5 runs; best 78.1, 77.9)",
        test="mIoU of CD, online minus random, above 0",
        command=COMMAND,
        judge=partial(judge_miou, sources=[init_source(("online",), ("random",), ("cd",))], rule=beats_paper_gain(0.2)),
    ),
    columns_error_claim("", "NMF", ("nmf",)),
    columns_error_claim("-cosine", "VQ and CD", ("vq", "cd")),
    Claim(
        id="columns-two-steps",
        family="init",
        statement="With NMF, two steps from columns of the input train as well as six from random bases.",
        reference="our question",
        paper="not examined",
        test="mIoU, K = 2 from columns minus K = 6 from random bases: no loss of half a point or more",
        command=ablate_command("columns"),
        judge=partial(
            judge_miou,
            sources=[RowSource("ablation_columns_", (CellPair("nmf-columns-k2", "nmf-random-k6"),))],
            rule=is_at_least,
        ),
        ours=True,
    ),
    Claim(
        id="evaluation-stored-dictionary",
        family="dictionary",
        statement=(
            "Evaluating from one stored dictionary, so that an image always gives the same bits, costs no accuracy "
            "against drawing a dictionary for every image as the authors' code does."
        ),
        reference="this library's own choice; the authors' code draws",
        paper="not examined",
        test="mIoU of the same weights, stored minus each of three series of draws: no loss of half a point or more",
        command=ablate_command("dictionary"),
        judge=partial(judge_miou, sources=[drawn_source()], rule=is_at_least),
        ours=True,
    ),
)
