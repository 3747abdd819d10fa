"""Propositions are judged where their assumption holds; the other solves have separate claims."""

from __future__ import annotations

import pytest

from hamburger_lab.claims import CLAIMS, Results
from hamburger_lab.claims.base import CONFIRMED, NOT_CONFIRMED, NOT_RUN

JUDGED = {claim.id: claim for claim in CLAIMS}


def study(*cases):
    """Solves of three seeds each; `cases`: L_h, and whether all the conclusions hold."""
    rows = [
        {"input": "map", "ham": f"ham {place}", "temperature": None, "seed": seed, "L_h": lipschitz, "L_G": 1.0}
        | {"converged at": 9 if fine else None, "rate": 0.5, "radius final": 0.5, "at one": 0}
        | {"proposition-2 distance K=final": 0.0 if fine else 1.0, "dy/dh0": 0.0 if fine else 1.0}
        | {"through steps": 0.5 if fine else 2.0, "bound": 1.0 if lipschitz < 1 else None}
        | {"envelope": 0.5 if fine else 2.0, "one-step cosine K=6": 0.9, "truncated:1 cosine K=6": 0.9}
        for place, (lipschitz, fine) in enumerate(cases)
        for seed in range(3)
    ]
    return Results({}, {"propositions_cpu": {"rows": rows, "environment": {"hardware": "H"}}})


@pytest.mark.parametrize("name", ["propositions-1", "propositions-2", "propositions-3", "propositions-terms"])
def test_proposition_is_judged_only_where_its_assumption_holds(name):
    result = JUDGED[name].judge(study((0.9, True), (5.0, False)))
    assert result.outcome == CONFIRMED and "L_h < 1 in 3 of 6 solves, holds in 3 of 3" in result.here
    assert JUDGED[f"{name}-beyond"].judge(study((0.9, True), (5.0, False))).outcome == NOT_CONFIRMED
    assert JUDGED[name].judge(study((0.9, False), (5.0, True))).outcome == NOT_CONFIRMED
    assert JUDGED[f"{name}-beyond"].judge(study((0.9, False), (5.0, True))).outcome == CONFIRMED
    assert JUDGED[name].judge(study((5.0, True))).outcome == NOT_RUN


def test_bound_is_judged_only_where_it_exists():
    claim = JUDGED["propositions-3-bound"]
    assert claim.judge(study((0.9, True), (5.0, False))).outcome == CONFIRMED
    assert claim.judge(study((0.9, False))).outcome == NOT_CONFIRMED
