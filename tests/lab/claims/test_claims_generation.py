"""Verdicts on GANs: ratios of distances over seeds, and times of a step."""

from __future__ import annotations

import pytest

from hamburger_lab.claims import CLAIMS, Results
from hamburger_lab.claims.base import CONFIRMED, INCONCLUSIVE, NOT_CONFIRMED
from hamburger_lab.claims.tables import result_tables
from hamburger_lab.paper import STEPS_PER_SECOND, TABLE4, TABLE5, TABLE6

BY_ID = {claim.id: claim for claim in CLAIMS if claim.family == "generation"}


def distance_rows(**distances):
    common = {"recipe": "cifar10", "steps": 9, "hardware": "H", "device": "cuda", "overrides": ["graph=true"]}
    return [
        common | {"context": context, "seed": seed, "frechet": mean + 0.1 * seed}
        for context, mean in distances.items()
        for seed in range(3)
    ]


@pytest.mark.parametrize(
    ("rival", "ours", "word"), [(30.0, 20.0, CONFIRMED), (20.0, 30.0, NOT_CONFIRMED), (20.0, 20.0, NOT_CONFIRMED)]
)
@pytest.mark.parametrize("name", ["sagan", "ylg", "none"])
def test_distances_are_judged_by_their_ratio(name, rival, ours, word):
    rows = distance_rows(**{name: rival, "hamgan": ours})
    verdict = BY_ID[f"generation-{name}"].judge(Results({"gan_cifar10_h200": rows}))
    assert verdict.outcome == word and verdict.decisive.label == f"{name} / hamgan"
    assert verdict.decisive.effect == pytest.approx(rival / ours, rel=1e-2)


def test_one_seed_decides_nothing():
    rows = [row for row in distance_rows(sagan=30.0, hamgan=20.0) if row["seed"] == 0]
    assert BY_ID["generation-sagan"].judge(Results({"gan_cifar10_h200": rows})).outcome == INCONCLUSIVE


def speed_rows(iqr=0.1, **steps):
    none = steps["none"]
    return [
        {"context": name, "step_ms": ms, "step_ms_iqr": iqr, "added_ms": ms - none, "repeats": 10, "hardware": "H"}
        | {"graph": True}
        for name, ms in steps.items()
    ]


@pytest.mark.parametrize(
    ("times", "iqr", "words"),
    [
        ({"none": 50.0, "hamgan": 60.0, "ylg": 90.0}, 0.1, (CONFIRMED, CONFIRMED)),
        ({"none": 50.0, "hamgan": 60.0, "ylg": 75.0}, 0.1, (CONFIRMED, NOT_CONFIRMED)),  # a fifth less; 2.5 times
        ({"none": 50.0, "hamgan": 52.0, "ylg": 60.0}, 0.1, (NOT_CONFIRMED, CONFIRMED)),  # an eighth less; 5 times
        ({"none": 50.0, "hamgan": 60.0, "ylg": 90.0}, 40.0, (INCONCLUSIVE, INCONCLUSIVE)),
    ],
)
def test_times_are_judged_by_quartiles_against_the_papers_ratio(times, iqr, words):
    results = Results({"ganspeed_graph_h200": speed_rows(iqr, **times)})
    verdicts = [BY_ID[name].judge(results) for name in ("generation-step", "generation-module")]
    assert tuple(verdict.outcome for verdict in verdicts) == words
    assert verdicts[0].decisive.effect == pytest.approx(times["ylg"] / times["hamgan"])
    assert verdicts[1].decisive.effect == pytest.approx((times["ylg"] - 50) / (times["hamgan"] - 50))
    assert "CUDA graphs" in verdicts[0].here


def test_a_file_without_ylg_decides_nothing():
    results = Results({"ganspeed_h200": speed_rows(none=50.0, hamgan=60.0)})
    assert BY_ID["generation-step"].judge(results).outcome == "not run"


def test_printed_numbers_agree_with_each_other():
    """Section 3.5 prints 15 % and 3.6, which its steps per second give; Tables 4 and 5 are led by HamNet."""
    none, ylg, hamgan = (1 / STEPS_PER_SECOND[name] for name in ("none", "ylg", "hamgan"))
    assert round(1 - hamgan / ylg, 2) == 0.15 and round((ylg - none) / (hamgan - none), 1) == 3.6
    assert max(TABLE4, key=TABLE4.get) == max(TABLE5, key=TABLE5.get) == "HamNet"
    assert min(TABLE6, key=TABLE6.get) == "HamGAN-strong" and 1 - TABLE6["HamGAN-strong"] / TABLE6["YLG"] > 0.05


def test_table_6_is_next_to_our_distances():
    results = Results({"gan_cifar10_h200": distance_rows(sagan=30.0, hamgan=20.0)})
    (table,) = result_tables(results, "generation")
    assert table.lines == [["sagan", "SAGAN 18.28", "30.10 ± 0.10"], ["hamgan", HAMGAN, "20.10 ± 0.10"]]


HAMGAN = "HamGAN-baby 16.05; HamGAN-strong 14.77"
