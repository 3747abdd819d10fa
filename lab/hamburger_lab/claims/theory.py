"""Claims about section 2.3: assumptions and conclusions of the propositions, on small solves with dense Jacobians."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hamburger.report.study import compare_paired
from hamburger_lab.claims.base import (
    CONFIRMED,
    INCONCLUSIVE,
    NOT_CONFIRMED,
    READINGS,
    Claim,
    Finding,
    Trial,
    Verdict,
    combine_trials,
)
from hamburger_lab.propositions import report
from hamburger_lab.rows import Results, Row

Side = Callable[[Row], bool]
COMMAND = (
    "ham propositions --out runs/propositions && cp runs/propositions/propositions.json results/propositions_cpu.json"
)


def is_contraction(row: Row) -> bool:
    """Return whether the assumption of the propositions holds: every step of the path is a contraction."""
    return bool(row["L_h"] < 1)


def is_no_contraction(row: Row) -> bool:
    return not is_contraction(row)


SIDES: dict[Side, str] = {is_contraction: "L_h < 1", is_no_contraction: "L_h >= 1"}


def judge_proposition(results: Results, name: str, side: Side | None = None) -> Verdict:
    """Judge the share of solves in which a proposition holds, of all solves or of one `side` of L_h = 1.

    Confirmed if it holds in every solve; refuted if some case (input, ham, temperature) fails with all seeds.
    """
    trials = []
    for stem, study in results.studies.items():
        if not stem.startswith("propositions_"):
            continue
        says = report.CLAIMS[name]
        solves = [row for row in study["rows"] if side is None or side(row)]
        answers: list[tuple[Row, bool]] = [(row, answer) for row in solves if (answer := says(row)) is not None]
        if not answers:
            continue
        seeds = sorted({row["seed"] for row, _ in answers})
        shares = {seed: _share([answer for row, answer in answers if row["seed"] == seed]) for seed in seeds}
        cases = [counts for counts in report.count_verdicts(study | {"rows": solves})[name].values() if counts[1]]
        never = sum(held == 0 for held, _ in cases)
        word = CONFIRMED if all(answer for _, answer in answers) else NOT_CONFIRMED if never else INCONCLUSIVE
        share = compare_paired(shares, dict.fromkeys(shares, 0.0))
        interval = None
        if share is not None and share.interval is not None:
            low, high = share.interval
            interval = max(0.0, low), min(1.0, high)  # Student's interval may leave [0, 1]
        held = sum(answer for _, answer in answers)
        of = f"{SIDES[side]} in {len(solves)} of {len(study['rows'])} solves, " if side else ""
        what = (
            f"{of}holds in {held} of {len(answers)}{'' if side else ' solves'}, never in {never} of {len(cases)} cases;"
        )
        about = (held / len(answers), interval, len(seeds), word, "", "{:.2f}")
        finding = Finding(f"{what} share", *about, limit=1.0, short="share of solves")
        trials.append(Trial(f"float64, {study['environment']['hardware']}", (finding,)))
    return combine_trials(trials)


def _share(answers: list[bool]) -> float:
    return sum(answers) / len(answers)


def proposition_claim(
    id: str,
    statement: str,
    reference: str,
    name: str,
    test: str,
    side: Side | None = None,
    paper: str = "an assumption or a proof, no numbers given",
) -> Claim:
    where = f" where {SIDES[side]}" if side else ""
    return Claim(
        id=id,
        family="propositions",
        statement=statement,
        reference=reference,
        paper=paper,
        test=f"{test}, over inputs, hams, temperatures and seeds{where}",
        command=COMMAND,
        judge=partial(judge_proposition, name=name, side=side),
    )


def proposition_claims(id: str, statement: str, reference: str, name: str, test: str) -> tuple[Claim, Claim]:
    """Return the claim that the paper proves for contractions, and our question whether it holds without them."""
    ours = f"Also where a step is no contraction: {statement[0].lower()}{statement[1:]}"
    return (
        proposition_claim(
            id,
            f"Where a step is a contraction: {statement[0].lower()}{statement[1:]}",
            reference,
            name,
            test,
            is_contraction,
        ),
        proposition_claim(
            f"{id}-beyond",
            ours,
            f"our question, next to {reference}",
            name,
            test,
            is_no_contraction,
            paper="not claimed",
        ),
    )


CLAIMS = (
    proposition_claim(
        "propositions-contraction",
        "A step is a contraction: its Lipschitz constant in the factors is below 1.",
        "section 2.3, the assumption",
        "L_h < 1 on the path",
        "largest operator norm of dF/dh along the path below 1",
    ),
    *proposition_claims(
        "propositions-1",
        "The steps converge linearly.",
        "Proposition 1",
        "Prop. 1: linear convergence",
        "updates shrink by a factor below 1 until they are 1e-10 of the factors",
    ),
    *proposition_claims(
        "propositions-2",
        "The gradient of many steps reaches that of the implicit function theorem.",
        "Proposition 2",
        "Prop. 2: BPTT reaches the implicit gradient",
        "distance of the two, relative, at most 0.1 % at the final K",
    ),
    *proposition_claims(
        "propositions-3",
        "The influence of the initial factors on the output vanishes.",
        "Proposition 3",
        "Prop. 3: dy/dh0 -> 0",
        "norm of dy/dh0 at most 0.1 % of that of the read-out after 50 steps",
    ),
    proposition_claim(
        "propositions-3-bound",
        "Where a step is a contraction: what the steps add to the gradient stays below L_G L_x / (1 - L_h).",
        "Proposition 3",
        "Prop. 3: bound, where L_h < 1",
        "norm of the part of dy/dx that passes through the steps, at most the bound",
        is_contraction,
    ),
    *proposition_claims(
        "propositions-terms",
        "The terms of the gradient series shrink geometrically, so that the first ones dominate.",
        "section 2.3, before Eq. 13",
        "terms of Eq. 12 decay (q < 1)",
        "an exponential envelope of the terms' norms with factor below 1",
    ),
    *(
        proposition_claim(
            reading.id("propositions-direction"),
            f"{reading.phrase[0].upper()}{reading.phrase[1:]} points in about the same direction as BPTT.",
            "section 2.3, after Eq. 13",
            f"{reading.grad} within 60 degrees of BPTT, K=6",
            f"angle of {reading.grad} to BPTT below 60 degrees at K = 6",
        )
        for reading in READINGS
    ),
)
