"""Claims about section 2.3 over a training: angle between one-step gradient and BPTT, and variation of their norms."""

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
MIN_SPREAD = 0.05  # smallest difference in the spread of log norms that counts
Value = Callable[[list[Row]], float | None]  # maps the measurements of one training to a number


def mean_cosine(series: list[Row], wrt: str, strategy: str) -> float | None:
    """Return the mean cosine over the measured steps; None if one of them has no angle."""
    cosines = [value for row in series if (value := row.get(f"cosine_{wrt}_{strategy}")) is not None]
    return statistics.fmean(cosines) if len(cosines) == len(series) else None


def norm_spread_difference(series: list[Row], wrt: str, strategy: str) -> float | None:
    """Return the spread of the log norm over the training, BPTT minus another strategy."""
    spreads = []
    for grad in ("bptt", strategy):
        norms = [norm for row in series if (norm := row.get(f"norm_{wrt}_{grad}"))]
        if len(norms) < len(series):
            return None
        spreads.append(statistics.stdev(math.log(norm) for norm in norms))
    return spreads[0] - spreads[1]


def judge_over_training(
    results: Results, value: Value, label: str, limit: float, number_format: NumberFormat
) -> Verdict:
    cases = []
    for rows in results.with_prefix(FILES).values():
        differences: dict[str, PairedDifference | None] = {}
        for ham in HAMS:
            measured = [row for row in rows if row["cell"] == f"{ham}-angles" and row.get("angles")]
            values = {row["seed"]: mean for row in measured if (mean := value(row["angles"])) is not None}
            differences[f"{ham}, {label}"] = compare_paired(values, dict.fromkeys(values, 0.0))
        cases.append(RunComparison(rows, differences, tuple(f"{ham}-angles" for ham in HAMS)))
    return judge_comparisons(cases, partial(exceeds, limit=limit), number_format, limit=limit)


def reading_claims(reading: GradientReading) -> tuple[Claim, ...]:
    cosines = f"cosine of {reading.grad} and BPTT at every twelfth of a training, its mean above 0.5 for each ham"
    return (
        Claim(
            id=reading.id("angles-input"),
            family="angles",
            statement=(
                f"During a training, {reading.phrase} points in about the same direction as BPTT at the ham's input."
            ),
            reference="section 2.3, before Eq. 13",
            paper="an argument, no numbers given",
            test=cosines,
            command=COMMAND,
            judge=partial(
                judge_over_training,
                value=partial(mean_cosine, wrt="input", strategy=reading.field),
                label="cosine at the input",
                limit=0.5,
                number_format=NumberFormat("cosine", "{:.2f}"),
            ),
        ),
        Claim(
            id=reading.id("angles-weights"),
            family="angles",
            statement=f"During a training, the gradient of all weights by {reading.phrase} points in about the same "
            "direction as BPTT's.",
            reference="section 2.3, before Eq. 13",
            paper="an argument, no numbers given",
            test=cosines,
            command=COMMAND,
            judge=partial(
                judge_over_training,
                value=partial(mean_cosine, wrt="weights", strategy=reading.field),
                label="cosine of the weights",
                limit=0.5,
                number_format=NumberFormat("cosine", "{:.2f}"),
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
                value=partial(norm_spread_difference, wrt="input", strategy=reading.field),
                label=f"variation of BPTT - {reading.grad}",
                limit=MIN_SPREAD,
                number_format=NumberFormat("(spread of log norm)", "{:+.2f}"),
            ),
        ),
    )


CLAIMS = tuple(claim for reading in READINGS for claim in reading_claims(reading))
