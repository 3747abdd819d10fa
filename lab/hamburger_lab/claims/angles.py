"""Section 2.3 over a training: how far the one-step gradient is from BPTT's, and how erratic each is in size."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from functools import partial

from hamburger.report.study import PairedDifference, compare_paired
from hamburger_lab.claims.base import READINGS, Claim, GradientReading, Verdict, ablate_command
from hamburger_lab.claims.rules import NumberFormat, RunComparison, exceeds, judge_comparisons
from hamburger_lab.rows import Results, Row

HAMS = ("nmf", "vq", "cd")
FILES = "ablation_angles_"
COMMAND = ablate_command("angles")
MIN_SPREAD = 0.05  # of the spread of logarithms: a norm that varies by 5 % more
Value = Callable[[list[Row]], float | None]  # of the series of one training


def mean_cosine(series: list[Row], place: str, strategy: str) -> float | None:
    """Over the steps that were looked at; None where one of them has no angle."""
    cosines = [value for row in series if (value := row.get(f"cosine_{place}_{strategy}")) is not None]
    return statistics.fmean(cosines) if len(cosines) == len(series) else None


def norm_spread_difference(series: list[Row], place: str, strategy: str) -> float | None:
    """How much more BPTT's norm varies over the training than that of another: spread of logarithms, natural."""
    spreads = []
    for each in ("bptt", strategy):
        norms = [norm for row in series if (norm := row.get(f"norm_{place}_{each}"))]
        if len(norms) < len(series):
            return None
        spreads.append(statistics.stdev(math.log(norm) for norm in norms))
    return spreads[0] - spreads[1]


def judge_over_training(results: Results, value: Value, what: str, limit: float, shown: NumberFormat) -> Verdict:
    cases = []
    for rows in results.with_prefix(FILES).values():
        differences: dict[str, PairedDifference | None] = {}
        for ham in HAMS:
            measured = [row for row in rows if row["cell"] == f"{ham}-angles" and row.get("angles")]
            values = {row["seed"]: mean for row in measured if (mean := value(row["angles"])) is not None}
            differences[f"{ham}, {what}"] = compare_paired(values, dict.fromkeys(values, 0.0))
        cases.append(RunComparison(rows, differences, tuple(f"{ham}-angles" for ham in HAMS)))
    return judge_comparisons(cases, partial(exceeds, limit=limit), shown, limit=limit)


def reading_claims(reading: GradientReading) -> tuple[Claim, ...]:
    cosines = f"cosine of {reading.grad} and BPTT at every twelfth of a training, its mean above 0.5 for each ham"
    return (
        Claim(
            id=reading.id("angles-input"),
            family="angles",
            statement=f"All through a training {reading.phrase} points about where BPTT points, at the ham's input.",
            reference="section 2.3, before Eq. 13",
            paper="an argument, no numbers given",
            test=cosines,
            command=COMMAND,
            judge=partial(
                judge_over_training,
                value=partial(mean_cosine, place="input", strategy=reading.field),
                what="cosine at the input",
                limit=0.5,
                shown=NumberFormat("", "{:.2f}"),
            ),
        ),
        Claim(
            id=reading.id("angles-weights"),
            family="angles",
            statement=f"So does the gradient of all weights, as the optimiser gets it, by {reading.phrase}.",
            reference="section 2.3, before Eq. 13",
            paper="an argument, no numbers given",
            test=cosines,
            command=COMMAND,
            judge=partial(
                judge_over_training,
                value=partial(mean_cosine, place="weights", strategy=reading.field),
                what="cosine of the weights",
                limit=0.5,
                shown=NumberFormat("", "{:.2f}"),
            ),
        ),
        Claim(
            id=reading.id("angles-scale"),
            family="angles",
            statement=f"The scale of BPTT's gradient is erratic, that of {reading.phrase} is not.",
            reference="section 2.3, after Proposition 3",
            paper="an argument, no numbers given",
            test=(
                "spread of the logarithm of the norm over a training, "
                f"BPTT minus {reading.grad} at the ham's input, above {MIN_SPREAD:g}"
            ),
            command=COMMAND,
            judge=partial(
                judge_over_training,
                value=partial(norm_spread_difference, place="input", strategy=reading.field),
                what=f"unrest of BPTT - {reading.grad}",
                limit=MIN_SPREAD,
                shown=NumberFormat("(spread of log norm)", "{:+.2f}"),
            ),
        ),
    )


CLAIMS = tuple(claim for reading in READINGS for claim in reading_claims(reading))
