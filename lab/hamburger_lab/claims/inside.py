"""Figs. 5 and 6, and the angle of the one-step gradient, on trained networks: each row is one network over images."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

from hamburger.errors import HamburgerError
from hamburger.report.study import PairedDifference, compare_paired
from hamburger.tasks import find_training
from hamburger_lab.ablations.grids import head_width
from hamburger_lab.claims.base import READINGS, Claim, Verdict, ablate_command
from hamburger_lab.claims.rules import (
    MIN_RATIO,
    RATIO_FORMAT,
    NumberFormat,
    RunComparison,
    Series,
    exceeds,
    judge_comparisons,
)
from hamburger_lab.rows import Results, Row

HAMS = ("nmf", "vq", "cd")
ATTENTIONS = ("sa-flash", "da", "nonlocal")
COMMAND = ablate_command("inside")
FEWER = math.log(MIN_RATIO)  # smallest log ratio of ranks that counts
ONE = 1.0  # channel: the smallest change that counts
Value = Callable[[Row], float | None]
Differences = dict[str, PairedDifference | None]


def concentration(row: Row) -> float | None:
    """Return the log ratio of the effective rank before the context to that after it."""
    return math.log(row["rank_before"] / row["rank_after"]) if row.get("rank_after") else None


def silenced_channels(row: Row) -> float | None:
    """Return the number of almost-zero channels after the context minus those before it, mean over images."""
    width = row.get("channels") or _width(str(row["recipe"]))
    return width * (row["silent_after"] - row["silent_before"]) if width and "silent_after" in row else None


@cache
def _width(recipe: str) -> int | None:
    """Return the channels of the context of a recipe, which older rows do not state; None for an unknown recipe."""
    try:
        return head_width(find_training(recipe), "inside")
    except HamburgerError:
        return None


def cosine(row: Row, strategy: str) -> float | None:
    """Return the cosine between a gradient and BPTT."""
    return row.get(f"cosine_{strategy}")


def logarithm(field: str) -> Value:
    return lambda row: math.log(row[field]) if row.get(field) else None


def each_ham(rows: list[Row], value: Value, label: str, than: str | None = None) -> Differences:
    """Return the value for each ham; with `than`, minus the value of that cell, paired by seed."""
    differences: Differences = {}
    for ham in HAMS:
        ours = _by_seed(rows, ham, value)
        theirs = dict.fromkeys(ours, 0.0) if than is None else _by_seed(rows, than, value)
        differences[f"{ham}, {label}" if than is None else f"{ham} / {than}, {label}"] = compare_paired(ours, theirs)
    return differences


def each_pair(rows: list[Row], value: Value, label: str) -> Differences:
    """Return the differences of the (logarithmic) value between each ham and each attention."""
    return {
        f"{ham} / {name}, {label}": compare_paired(_by_seed(rows, ham, value), _by_seed(rows, name, value))
        for ham in HAMS
        for name in ATTENTIONS
    }


def each_attention(rows: list[Row], ours: Value, ham: Value, label: str, *, over_ham: bool) -> Differences:
    """Return the differences of (logarithmic) values between each attention and the NMF ham, in either order."""
    theirs = _by_seed(rows, "nmf", ham)
    differences: Differences = {}
    for name in ATTENTIONS:
        values = _by_seed(rows, name, ours)
        differences[f"{name}, {label}"] = compare_paired(values, theirs) if over_ham else compare_paired(theirs, values)
    return differences


def judge_above(
    results: Results, find: Callable[[list[Row]], Differences], limit: float, number_format: NumberFormat
) -> Verdict:
    cells = tuple(f"{ham}-inside" for ham in HAMS)
    cases = [RunComparison(rows, find(rows), cells) for rows in results.with_prefix("ablation_inside_").values()]
    return judge_comparisons(cases, partial(exceeds, limit=limit), number_format, limit=limit)


def _by_seed(rows: list[Row], cell: str, value: Value) -> Series:
    return {
        row["seed"]: measured
        for row in rows
        if row["cell"] == f"{cell}-inside" and (measured := value(row)) is not None
    }


CLAIMS = (
    Claim(
        id="inside-spectrum",
        family="inside",
        statement="A Hamburger concentrates the spectrum of its feature map.",
        reference="Fig. 5",
        paper="a figure without numbers",
        test=f"effective rank of the context's input over that of its output, above {MIN_RATIO:g} for each ham",
        command=COMMAND,
        judge=partial(
            judge_above,
            find=partial(each_ham, value=concentration, label="rank before / after"),
            limit=FEWER,
            number_format=RATIO_FORMAT,
        ),
    ),
    Claim(
        id="inside-spectrum-ham",
        family="inside",
        statement="It is the ham that concentrates the spectrum, more than the breads do without it.",
        reference="Fig. 5, with a control that the paper does not have",
        paper="not examined",
        test=f"the same ratio, that of each ham over that of the breads alone, paired by seed, above {MIN_RATIO:g}",
        command=COMMAND,
        judge=partial(
            judge_above,
            find=partial(each_ham, value=concentration, label="rank before / after", than="breads"),
            limit=FEWER,
            number_format=RATIO_FORMAT,
        ),
        ours=True,
    ),
    Claim(
        id="inside-spectrum-attention",
        family="inside",
        statement="A Hamburger concentrates the spectrum of its feature map more than attention does.",
        reference="our question, next to Fig. 5",
        paper="not examined",
        test=(
            "the same ratio, that of each ham over that of self-attention, DANet's module and the non-local block, "
            f"paired by seed, above {MIN_RATIO:g}"
        ),
        command=COMMAND,
        judge=partial(
            judge_above,
            find=partial(each_pair, value=concentration, label="rank before / after"),
            limit=FEWER,
            number_format=RATIO_FORMAT,
        ),
        ours=True,
    ),
    Claim(
        id="inside-silent",
        family="inside",
        statement="A Hamburger silences uninformative channels.",
        reference="Fig. 6",
        paper="images without numbers",
        test="channels below 1 % of the mean channel, after minus before, one or more for each ham",
        command=COMMAND,
        judge=partial(
            judge_above,
            find=partial(each_ham, value=silenced_channels, label="silent channels"),
            limit=ONE,
            number_format=NumberFormat("(channels)", "{:+.2f}"),
        ),
    ),
    *(
        Claim(
            id=reading.id("inside-direction"),
            family="inside",
            statement=f"In a trained network {reading.phrase} points in about the same direction as BPTT.",
            reference="section 2.3, after Eq. 13",
            paper="an argument, no numbers given",
            test=(
                f"cosine of {reading.grad} and BPTT, gradients of the ham's input under the network's own loss, "
                "above 0.5 for each ham"
            ),
            command=COMMAND,
            judge=partial(
                judge_above,
                find=partial(each_ham, value=partial(cosine, strategy=reading.field), label="cosine"),
                limit=0.5,
                number_format=NumberFormat("cosine", "{:.2f}"),
            ),
        )
        for reading in READINGS
    ),
    Claim(
        id="inside-attention-rank",
        family="inside",
        statement="The n x n matrices of attention are of low rank too: a ham's r would hold most of their energy.",
        reference="section 4 on efficient attention; next to Fig. 5",
        paper="stated about other work, no numbers given",
        # a matrix with equal rows has rank one, whatever it was trained for: that part is removed
        test=(
            "r of the ham over the singular values that hold 90 % of the energy of the matrix minus the row that all "
            "positions share, above 1 for each attention"
        ),
        command=COMMAND,
        judge=partial(
            judge_above,
            find=partial(
                each_attention,
                ours=logarithm("rank90_centred"),
                ham=logarithm("bound"),
                label="r of the ham / values for 90 %",
                over_ham=False,
            ),
            limit=0.0,  # whether r holds it is exact: no margin
            number_format=RATIO_FORMAT,
        ),
    ),
    Claim(
        id="inside-attention-ham",
        family="inside",
        statement="The output of a ham is spread over fewer directions than the matrix of an attention.",
        reference="next to Fig. 5: rank of attention maps, for comparison",
        paper="not examined",
        test=(
            "effective rank of each attention's matrix over that of D C of the NMF ham, paired by seed, "
            f"above {MIN_RATIO:g}"
        ),
        command=COMMAND,
        judge=partial(
            judge_above,
            find=partial(
                each_attention,
                ours=logarithm("rank_attention"),
                ham=logarithm("rank_ham"),
                label="rank of A / of D C",
                over_ham=True,
            ),
            limit=FEWER,
            number_format=RATIO_FORMAT,
        ),
        ours=True,
    ),
)
