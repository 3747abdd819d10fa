"""Verdicts on rows with known effects, and intervals computed by hand."""

from __future__ import annotations

import math

import pytest

from hamburger.report.study import compare_paired
from hamburger_lab.claims.base import CONFIRMED, INCONCLUSIVE, NOT_CONFIRMED, NOT_RUN, Finding, Trial, combine_trials
from hamburger_lab.claims.dictionaries import judge_columns_error
from hamburger_lab.claims.rules import (
    CellPair,
    RowSource,
    beats,
    beats_paper_gain,
    is_at_least,
    is_level,
    judge_miou,
    judge_ratios,
    keeps_paper_difference,
    widen_interval,
)
from hamburger_lab.claims.sizes import spread_ratio
from hamburger_lab.rows import Results

SOURCE = RowSource("ablation_toy_", (CellPair("a", "b"),))


def rows(recipe="voc-animals", device="cuda", **cells):
    """One row per cell and seed; scores in points."""
    return [
        {"recipe": recipe, "steps": 9, "hardware": "H", "device": device, "cell": cell, "seed": seed, "miou": s / 100}
        for cell, scores in cells.items()
        for seed, s in enumerate(scores)
    ]


def judge(rule, **files):
    return judge_miou(Results({f"ablation_toy_{name}": rows for name, rows in files.items()}), [SOURCE], rule)


def test_interval_matches_students_t_by_hand():
    # differences 1, 2, 3: mean 2, deviation 1, standard error 1 / sqrt 3; t(0.975, 2) = 4.302653 in every table
    result = judge(beats, x=rows(a=[51, 52, 53], b=[50, 50, 50])).decisive
    assert result.effect == pytest.approx(2)
    assert result.interval == pytest.approx((2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3)), abs=1e-5)
    assert result.n == 3


def test_collapsed_networks_are_named():
    made = rows(a=[60, 61, 62], b=[10, 10, 40])
    for row in made:
        whole = row["miou"] > 0.2
        row["per_class"] = {"ground": 0.7, "cat": 0.5 if whole else 0.09, "dog": None}
    result = judge(beats, x=made)
    assert result.outcome == CONFIRMED and "b predicts one class only with 2 of 3 seeds" in result.here
    assert "a answers" not in result.here and result.basis == "some trainings collapsed, small scale"
    made[3]["per_class"]["cat"] = 0.1
    assert "with 1 of 3 seeds" in judge(beats, x=made).here
    sound = judge(beats, x=rows(a=[60, 61, 62], b=[10, 10, 40]))
    assert "answers" not in sound.here and sound.basis == "small scale"
    with_scenes = judge(beats, x=made, y=rows("patchwork", a=[60, 61, 62], b=[10, 10, 40]))
    assert with_scenes.basis == "some trainings collapsed, small scale" and not with_scenes.generated


def test_training_with_other_optimiser_settings_is_not_shared():
    alone = [*rows(a=[60, 61, 62]), *rows(b=[10, 10, 40])]
    for row in alone:
        row |= {"settings": ["optim.lr=1"], "overrides": ["optim.lr=1", "model.context=nmf"]}
    alone[3]["overrides"].append("optim.clip=1")
    (trial,) = judge(beats, x=alone).trials
    assert [cell for _, cell in trial.trainings] == ["a", "b"]
    for row in alone[3:]:
        row["overrides"] = ["optim.lr=1", "model.context=nmf", "optim.clip=1"]
    (trial,) = judge(beats, x=alone).trials
    assert [cell for _, cell in trial.trainings] == ["a"]


def test_detectable_effect_uses_the_deciding_interval():
    # mean 2, deviation 1: t(0.975, 2) = 4.302653 confirms or leaves open; one of two that refutes has t(0.9875, 2)
    lone = judge(beats, x=rows(a=[51, 52, 53], b=[50, 50, 50])).decisive
    assert lone.outcome == INCONCLUSIVE and lone.detectable == pytest.approx(4.302653 / math.sqrt(3), abs=1e-5)
    assert lone.power == "2.48"
    source = RowSource("ablation_toy_", (CellPair("a", "b"), CellPair("a", "c")))
    made = rows(a=[31, 32, 33], b=[50, 50, 50], c=[32, 32, 32])
    two = judge_miou(Results({"ablation_toy_x": made}), [source], beats)
    assert two.decisive.label == "a - b" and two.decisive.detectable == pytest.approx(6.205347 / math.sqrt(3), abs=1e-5)
    assert judge(beats, x=rows(a=[52, 52], b=[50, 50])).decisive.power == ""


def test_refuting_interval_is_corrected_for_several_comparisons():
    # t(0.9875, 2) = 6.205347
    result = compare_paired({0: 1.0, 1: 2.0, 2: 3.0}, dict.fromkeys(range(3), 0.0))
    assert widen_interval(result, 1) == pytest.approx(result.interval)
    assert widen_interval(result, 2)[1] == pytest.approx(2 + 6.205347 / math.sqrt(3), abs=1e-5)


@pytest.mark.parametrize(
    ("rule", "scores", "word"),
    [
        (beats, [52.0, 52.1, 51.9], CONFIRMED),
        (beats, [48.0, 48.1, 47.9], NOT_CONFIRMED),
        (beats, [50.1, 50.0, 49.9], NOT_CONFIRMED),  # a gain of half a point is ruled out
        (beats, [58.0, 44.0, 52.0], INCONCLUSIVE),
        (beats, [52.0, 52.1], INCONCLUSIVE),  # two seeds
        (is_at_least, [50.1, 50.0, 49.9], CONFIRMED),
        (is_at_least, [48.0, 48.1, 47.9], NOT_CONFIRMED),
        (is_at_least, [58.0, 44.0, 52.0], INCONCLUSIVE),
        (is_level, [50.1, 50.0, 49.9], CONFIRMED),
        (is_level, [52.0, 52.1, 51.9], NOT_CONFIRMED),
        (is_level, [48.0, 48.1, 47.9], NOT_CONFIRMED),
        (is_level, [58.0, 44.0, 52.0], INCONCLUSIVE),
    ],
)
def test_rules_return_the_right_verdict(rule, scores, word):
    assert judge(rule, x=rows(a=scores, b=[50.0] * len(scores))).outcome == word


@pytest.mark.parametrize(
    ("rule", "scores", "word"),
    [
        (beats_paper_gain(0.2), [50.2, 50.1, 50.0], INCONCLUSIVE),  # 0.1 +- 0.25 holds 0.2, and ends below half a point
        (beats, [50.2, 50.1, 50.0], NOT_CONFIRMED),
        (beats_paper_gain(0.2), [49.8, 49.7, 49.6], NOT_CONFIRMED),
        (beats_paper_gain(2.0), [50.2, 50.1, 50.0], NOT_CONFIRMED),  # no more is required than what matters
        (keeps_paper_difference(-0.2), [49.3, 49.5, 49.7], INCONCLUSIVE),  # -0.5 +- 0.5 holds -0.2
        (is_at_least, [49.3, 49.4, 49.5], NOT_CONFIRMED),
        (keeps_paper_difference(-0.2), [49.3, 49.4, 49.5], NOT_CONFIRMED),
        (keeps_paper_difference(0.3), [49.3, 49.4, 49.5], NOT_CONFIRMED),
    ],
)
def test_paper_sized_effects_do_not_refute(rule, scores, word):
    assert judge(rule, x=rows(a=scores, b=[50.0] * len(scores))).outcome == word


def test_pairing_removes_what_seeds_share():
    scatter = [40.0, 50.0, 60.0, 70.0]
    result = judge(beats, x=rows(a=[value + 1.0 + 0.01 * i for i, value in enumerate(scatter)], b=scatter))
    assert result.outcome == CONFIRMED
    assert result.decisive.effect == pytest.approx(1.015)


def test_only_shared_seeds_count():
    result = judge(beats, x=rows(a=[52, 52, 52, 52], b=[50, 50, 50]))
    assert result.decisive.n == 3
    assert judge(beats).outcome == NOT_RUN
    assert judge(beats, x=rows(a=[52, 52, 52])).outcome == NOT_RUN


def test_photographs_decide_over_generated_scenes():
    win, lose = rows(a=[52.0, 52.1, 51.9], b=[50] * 3), rows("patchwork", a=[48.0, 48.1, 47.9], b=[50] * 3)
    both = judge(beats, photos=win, scenes=lose)
    assert both.outcome == CONFIRMED and both.decisive.effect > 0
    assert [trial.decides for trial in both.trials] == [True, False]
    assert judge(beats, scenes=lose).outcome == NOT_CONFIRMED
    assert both.basis == "small scale" and judge(beats, scenes=lose).basis == "generated scenes alone, small scale"


def test_level_is_corrected_for_several_data_sets():
    """Differences 1.4, 2, 2.6: 2 - 4.302653 x 0.6 / sqrt 3 = 0.51 is above 0, with 6.205347 it is 2 - 2.15 and not."""
    alone, other = rows(a=[51.4, 52, 52.6], b=[50] * 3), rows("camvid-short", a=[58, 44, 52], b=[50] * 3)
    assert judge(beats, one=alone).outcome == CONFIRMED
    both = judge(beats, one=alone, other=other)
    assert both.outcome == INCONCLUSIVE
    assert [trial.findings[0].interval for trial in both.trials if trial.where.startswith("voc")] == [
        pytest.approx((2 - 4.302653 * 0.6 / math.sqrt(3), 2 + 4.302653 * 0.6 / math.sqrt(3)), abs=1e-5)
    ]
    scenes = rows("patchwork", a=[58, 44, 52], b=[50] * 3)
    assert judge(beats, one=alone, other=scenes).outcome == CONFIRMED  # scenes that do not decide cost nothing


def test_missing_seeds_are_noted():
    result = judge(beats, x=rows(a=[52.0, 52.1, 51.9, 52.0], b=[50] * 3))
    assert "1 of 1 lack a seed that other cells have" in result.here
    assert "lack" not in judge(beats, x=rows(a=[52, 52, 52], b=[50] * 3)).here


def test_rows_of_two_machines_are_noted():
    made = rows(a=[52, 52, 52], b=[50] * 3)
    assert "9 steps, H and I:" in judge(beats, x=[*made[:3], *(row | {"hardware": "I"} for row in made[3:])]).here


def test_contradicting_data_sets_are_inconclusive():
    win, lose = rows(a=[52.0, 52.1, 51.9], b=[50] * 3), rows("camvid-short", a=[48.0, 48.1, 47.9], b=[50] * 3)
    result = judge(beats, one=win, other=lose)
    assert result.outcome == INCONCLUSIVE and "contradict" in result.here


def test_repeated_runs_count_once_from_the_larger_file():
    small, large = rows(a=[52, 52, 52], b=[50] * 3), rows(a=[48, 48, 48, 48], b=[50] * 4)
    result = judge(beats, small=small, large=large)
    assert len(result.trials) == 1 and result.decisive.n == 4 and result.outcome == NOT_CONFIRMED


def test_grid_and_comparison_of_the_same_runs_count_once():
    """Settings are stored under two names, and the evaluation interval does not change a score."""
    made = rows(a=[52.0, 52.1, 51.9], b=[50] * 3)
    grid = [row | {"settings": ["steps=9", "model.pretrained=x"], "overrides": ["keep=last"]} for row in made]
    output = ["model.pretrained=x", "steps=9", "eval_every=9", "model.context=a"]
    compared = [row | {"context": row["cell"], "overrides": output} for row in made]
    sources = [SOURCE, RowSource("segmentation_", SOURCE.pairs, "context")]
    assert len(judge_miou(Results({"ablation_toy_x": grid, "segmentation_x": compared}), sources, beats).trials) == 1
    other = [row | {"overrides": ["optim.lr=1", *output]} for row in compared]
    result = judge_miou(Results({"ablation_toy_x": grid, "segmentation_x": other}), sources, beats)
    assert [trial.where.partition(", ")[0] for trial in result.trials] == [
        "voc-animals (model.pretrained=x)",
        "voc-animals (model.pretrained=x optim.lr=1)",
    ]


def test_runs_with_other_steps_are_separate():
    short, long = (rows(a=[52.0, 52.1, 51.9], b=[50] * 3), [*rows(a=[48.0, 48.1, 47.9], b=[50] * 3)])
    result = judge(beats, short=short, long=[row | {"steps": 90} for row in long])
    assert [trial.outcome for trial in result.trials] == [CONFIRMED, NOT_CONFIRMED]
    assert result.outcome == INCONCLUSIVE and "contradict" in result.here


def test_differing_parameter_counts_are_noted():
    made = rows(a=[52.0, 52.1, 51.9], b=[50] * 3)
    sized = [row | {"parameters": 34_400_000 + 1_000_000 * (row["cell"] == "b")} for row in made]
    assert "parameters: a 34.40M, b 35.40M" in judge(beats, x=sized).here
    assert "parameters" not in judge(beats, x=[row | {"parameters": 5} for row in made]).here


def test_only_unusual_parameter_counts_are_listed():
    made = rows(**{cell: [50] * 3 for cell in "abcdef"})
    sized = [row | {"parameters": 1_000_000 + 500_000 * (row["cell"] == "f")} for row in made]
    pairs = tuple(CellPair("a", cell) for cell in "bcdef")
    result = judge_miou(Results({"ablation_toy_x": sized}), [RowSource("ablation_toy_", pairs)], beats)
    assert "parameters: f 1.50M, the others 1.00M" in result.here


def test_spread_ratio_matches_a_calculation_by_hand():
    """Uncorrelated series, deviations in the ratio 2, n = 5: k = 1 + 2 t^2 / 3 with t(0.975, 3) = 3.182446."""
    first, second = [-2.0, -1.0, 0.0, 1.0, 2.0], [1.0, -0.5, -1.0, -0.5, 1.0]
    ratio, interval = spread_ratio([2 * x for x in second], first, 0.975)
    expected = 2 * math.sqrt(3.5 / 10)
    k = 1 + 2 * 3.182446**2 / 3
    reach = math.sqrt(k + math.sqrt(k * k - 1))
    assert ratio == pytest.approx(expected)
    assert interval == pytest.approx((expected / reach, expected * reach), rel=1e-5)
    same = spread_ratio([2 * x for x in first], first, 0.975)  # seeds that move together tell the ratio exactly
    assert same[0] == pytest.approx(2) and same[1] == pytest.approx((2, 2), rel=1e-6)
    assert spread_ratio([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], 0.975) == (1.0, None)
    assert spread_ratio([1.0, 2.0, 3.0], [1.0, 1.0, 1.0], 0.975) is None


def test_all_comparisons_of_a_claim_must_hold():
    source = RowSource("ablation_toy_", (CellPair("a", "b"), CellPair("a", "c")))
    fine = rows(a=[52.0, 52.1, 51.9], b=[50] * 3, c=[50] * 3)
    assert judge_miou(Results({"ablation_toy_x": fine}), [source], beats).outcome == CONFIRMED
    half = judge_miou(Results({"ablation_toy_x": fine[:6]}), [source], beats)
    assert half.outcome == INCONCLUSIVE and "not run: a - c" in half.here
    worse = rows(a=[52.0, 52.1, 51.9], b=[50] * 3, c=[54] * 3)
    refuted = judge_miou(Results({"ablation_toy_x": worse}), [source], beats)
    assert refuted.outcome == NOT_CONFIRMED and refuted.decisive.label == "a - c"


def test_ratios_match_a_calculation_by_hand():
    # 2, 2 and 2: no spread; 1, 2 and 4: mean 2, but its interval holds 1
    def result(ours):
        made = [row | {"peak_mb": 100 * row["miou"]} for row in rows(a=ours, b=[10, 10, 10])]
        return judge_ratios(Results({"ablation_toy_x": made}), [SOURCE], field="peak_mb", device="cuda")

    sure, loose = result([20, 20, 20]), result([10, 20, 40])
    assert sure.outcome == CONFIRMED and sure.decisive.interval == pytest.approx((2, 2))
    assert loose.outcome == INCONCLUSIVE and loose.decisive.effect == pytest.approx(2)
    reach = math.exp(4.302653 * math.log(2) / math.sqrt(3))
    assert loose.decisive.interval == pytest.approx((2 / reach, 2 * reach), rel=1e-5)
    assert loose.decisive.detectable == pytest.approx(reach, rel=1e-5)  # times


def test_decisive_finding_supports_the_claim_least():
    cheap = [Finding("x", 0.4, None, 1, CONFIRMED, against=True), Finding("y", 1.0, None, 1, CONFIRMED, against=True)]
    assert combine_trials([Trial("here", tuple(cheap))]).decisive.label == "y"


@pytest.mark.parametrize(
    ("few", "outcome"),
    [
        ([0.40, 0.50, 0.60], CONFIRMED),
        ([0.41, 0.515, 0.61], CONFIRMED),  # larger by less than 5 %
        ([0.40, 0.55, 0.62], INCONCLUSIVE),
        ([0.50, 0.62, 0.75], NOT_CONFIRMED),
    ],
)
def test_errors_from_columns_are_paired_by_image(few, outcome):
    common = {"weights": "imagenet", "ham": "nmf", "hardware": "H"}
    cells = {("random", 6): [0.40, 0.50, 0.60], ("columns", 2): few, ("columns", 6): [9.0, 9.0, 9.0]}
    made = [
        common | {"stage": stage, "init": start, "steps": count, "errors": errors}
        for stage in ("layer3", "layer4", "bread")
        for (start, count), errors in cells.items()
    ]
    made += [row | {"weights": "random", "errors": [1.0, 2.0, 3.0]} for row in made]
    verdict = judge_columns_error(Results({"columns_error_x": made}), hams=("nmf",))
    assert verdict.outcome == outcome and verdict.decisive.n == 3 and len(verdict.trials[0].findings) == 3
    ratio = math.exp(sum(math.log(a / b) for a, b in zip([0.40, 0.50, 0.60], few, strict=True)) / 3)
    assert verdict.decisive.effect == pytest.approx(ratio)
    del made[0]  # without it a stage is missing
    assert "not run: nmf, layer3" in judge_columns_error(Results({"columns_error_x": made}), hams=("nmf",)).here
