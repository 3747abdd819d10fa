"""Figs. 5 and 6, and the angle of the one-step gradient, on trained networks: each row is one network over images."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hamburger.analysis.claims.base import (
    CONFIRMED,
    INCONCLUSIVE,
    NOT_CONFIRMED,
    Claim,
    Finding,
    Trial,
    Verdict,
    combined,
)
from hamburger.analysis.claims.commands import ablate
from hamburger.analysis.claims.method import GENERATED, widened
from hamburger.analysis.claims.results import Results, Row
from hamburger.analysis.report.statistics import paired

HAMS = ("nmf", "vq", "cd")
COMMAND = ablate("inside", out="contexts")
Value = Callable[[Row], float | None]


def concentration(row: Row) -> float | None:
    """Effective rank before the context over that after it."""
    return row["rank_before"] / row["rank_after"] if row.get("rank_after") else None


def silenced(row: Row) -> float | None:
    """Share of channels next to zero after the context minus that before it, in percent."""
    return None if row.get("silent_after") is None else 100 * (row["silent_after"] - row["silent_before"])


def cosine(row: Row) -> float | None:
    return row.get("cosine_one_step")


def above(results: Results, value: Value, limit: float, *, what: str, unit: str, than: str | None = None) -> Verdict:
    """The mean over seeds lies above the limit for each ham; with `than`, that of the difference to this cell."""
    trials = []
    for rows in results.beginning("ablation_inside_").values():
        findings = []
        for ham in HAMS:
            ours = _by_seed(rows, f"{ham}-inside", value)
            theirs = dict.fromkeys(ours, 0.0) if than is None else _by_seed(rows, f"{than}-inside", value)
            found = paired(ours, theirs)
            if found is None:
                continue
            wide, word = widened(found, len(HAMS)), INCONCLUSIVE
            if found.interval is not None and wide is not None:
                word = CONFIRMED if found.interval[0] > limit else NOT_CONFIRMED if wide[1] < limit else INCONCLUSIVE
            label = f"{ham}, {what}" if than is None else f"{ham} - {than}, {what}"
            findings.append(Finding(label, found.mean, found.interval, found.n, word, unit, "{:.2f}"))
        if findings:
            first = rows[0]
            place = f"{first['recipe']}, {first['steps']} steps, {first['hardware']}"
            missing = HAMS[len(findings) :]
            decides = not first["recipe"].startswith(GENERATED)
            trials.append(Trial(place, tuple(findings), decides=decides, missing=missing))
    return combined(trials)


def _by_seed(rows: list[Row], cell: str, value: Value) -> dict[int, float]:
    return {row["seed"]: found for row in rows if row["cell"] == cell and (found := value(row)) is not None}


CLAIMS = (
    Claim(
        id="inside-spectrum",
        family="inside",
        statement="A Hamburger concentrates the spectrum of its feature map.",
        reference="Fig. 5",
        paper="a figure without numbers",
        test="effective rank of the context's input over that of its output, above 1 for each ham",
        command=COMMAND,
        judge=partial(above, value=concentration, limit=1.0, what="rank before / after", unit="times"),
    ),
    Claim(
        id="inside-spectrum-ham",
        family="inside",
        statement="It is the ham that concentrates the spectrum, more than the breads do without it.",
        reference="Fig. 5, with a control that the paper does not have",
        paper="not examined",
        test="the same ratio, each ham minus the breads alone, paired by seed, above 0",
        command=COMMAND,
        judge=partial(above, value=concentration, limit=0.0, what="rank before / after", unit="", than="breads"),
    ),
    Claim(
        id="inside-silent",
        family="inside",
        statement="A Hamburger silences channels that say nothing.",
        reference="Fig. 6",
        paper="pictures without numbers",
        test="share of channels below 1 % of the mean channel, after minus before, above 0 for each ham",
        command=COMMAND,
        judge=partial(above, value=silenced, limit=0.0, what="silent channels", unit="%"),
    ),
    Claim(
        id="inside-direction",
        family="inside",
        statement="In a trained network the one-step gradient points about where BPTT points.",
        reference="section 2.3, after Eq. 13",
        paper="an argument, no numbers given",
        test="cosine of the two gradients of the ham's input under the network's own loss, above 0.5 for each ham",
        command=COMMAND,
        judge=partial(above, value=cosine, limit=0.5, what="cosine", unit=""),
    ),
)
