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

Regime = Callable[[Row], bool]  # whether a solve belongs to it
COMMAND = (
    "ham propositions --out runs/propositions && cp runs/propositions/propositions.json results/propositions_cpu.json"
)


def is_contraction(row: Row) -> bool:
    """Return whether the assumption of the propositions holds: every step of the path is a contraction."""
    return bool(row["L_h"] < 1)


def is_no_contraction(row: Row) -> bool:
    return not is_contraction(row)


REGIMES: dict[Regime, str] = {is_contraction: "L_h < 1", is_no_contraction: "L_h >= 1"}


def judge_proposition(results: Results, name: str, regime: Regime | None = None) -> Verdict:
    """Judge the share of solves in which a proposition holds, of all solves or of one `regime`: L_h below 1 or not.

    Confirmed if it holds in every solve; refuted if some case (input, ham, temperature) fails with all seeds.
    """
    trials = []
    for stem, study in results.studies.items():
        if not stem.startswith("propositions_"):
            continue
        proposition = report.CLAIMS[name]
        solves = [row for row in study["rows"] if regime is None or regime(row)]
        checked: list[tuple[Row, bool]] = [(row, holds) for row in solves if (holds := proposition(row)) is not None]
        if not checked:
            continue
        seeds = sorted({row["seed"] for row, _ in checked})
        shares = {seed: _share([holds for row, holds in checked if row["seed"] == seed]) for seed in seeds}
        cases = [counts for counts in report.count_verdicts(study | {"rows": solves})[name].values() if counts[1]]
        failed_cases = sum(holding == 0 for holding, _ in cases)
        holding = sum(holds for _, holds in checked)
        outcome = CONFIRMED if holding == len(checked) else NOT_CONFIRMED if failed_cases else INCONCLUSIVE
        share = compare_paired(shares, dict.fromkeys(shares, 0.0))
        interval = None
        if share is not None and share.interval is not None:
            low, high = share.interval
            interval = max(0.0, low), min(1.0, high)  # Student's interval may leave [0, 1]
        scope = f"{REGIMES[regime]} in {len(solves)} of {len(study['rows'])} solves, " if regime else ""
        solves_held = f"holds in {holding} of {len(checked)}{'' if regime else ' solves'}"
        finding = Finding(
            f"{scope}{solves_held}, never in {failed_cases} of {len(cases)} cases; share of solves",
            holding / len(checked),
            interval,
            len(seeds),
            outcome,
            unit="share of solves",
            template="{:.2f}",
            limit=1.0,
            short_label="share of solves",
        )
        trials.append(Trial(f"float64, {study['environment']['hardware']}", (finding,)))
    return combine_trials(trials)


def _share(holds: list[bool]) -> float:
    return sum(holds) / len(holds)


def proposition_claim(
    id: str,
    statement: str,
    reference: str,
    name: str,
    test: str,
    regime: Regime | None = None,
    paper: str = "an assumption or a proof, no numbers given",
    *,
    ours: bool = False,
) -> Claim:
    where = f" where {REGIMES[regime]}" if regime else ""
    return Claim(
        id=id,
        family="propositions",
        statement=statement,
        reference=reference,
        paper=paper,
        test=f"{test}, over inputs, hams, temperatures and seeds{where}",
        command=COMMAND,
        judge=partial(judge_proposition, name=name, regime=regime),
        ours=ours,
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
            paper="not examined",
            ours=True,
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
