"""Contract of every claim, and the committed verdicts."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from claim_rows import gradient_rows, two_sets

from hamburger.tasks import find_training
from hamburger_lab.ablations.context_statistics import COUNTS
from hamburger_lab.ablations.grids import ablations
from hamburger_lab.claims import CLAIMS, Results
from hamburger_lab.claims.base import CONFIRMED, INCONCLUSIVE, NOT_CONFIRMED, NOT_RUN, OUTCOMES
from hamburger_lab.claims.registry import FAMILIES
from hamburger_lab.claims.tables import (
    PRINTED,
    as_json,
    as_rows,
    claims_markdown,
    judge_all,
    missing_commands,
    shared_trainings,
)

ROOT = Path(__file__).parents[3]
FIELDS = {"id", "statement", "paper", "here", "effect", "ci", "n_seeds", "verdict"}

PLACES, NAMES = ("input", "weights"), ("one_step", "truncated1", "bptt")
ABLATED = [claim for claim in CLAIMS if claim.command.startswith("ham ablate")]
INSIDE = {
    **{"rank_before": 2.0, "rank_after": 1.0, "silent_before": 0.0, "silent_after": 0.1},
    **{"cosine_one_step": 0.6, "cosine_truncated1": 0.6},
    **{"rank_ham": 3.0, "bound": 8.0, "rank_attention": 4.0, "rank90_attention": 1.0, "rank90_centred": 5.0},
    "angles": [
        {f"{kind}_{place}_{name}": 0.6 for kind in ("norm", "cosine") for place in PLACES for name in NAMES}
        | {"step": step, **{f"norm_{place}_bptt": 1.0 + step for place in PLACES}}
        for step in range(3)
    ],
}


def rows_of(claim, scores):
    """Return rows of the grid of the claim's command, four seeds; `scores`: cell -> mIoU in points, else 50."""
    name = shlex.split(claim.command)[2]
    common = {"recipe": "voc-animals", "steps": 9, "hardware": "H", "device": "cuda", "peak_mb": 1.0, **INSIDE}
    rows = [
        common | {"cell": cell, "seed": seed, "miou": scores.get(cell, 50.0) / 100}
        for cell in ablations.create(name, find_training("voc-animals"))
        for seed in range(4)
    ]
    return Results({f"ablation_{name}_x": rows})


def one_difference(claim):
    findings = claim.judge(rows_of(claim, {})).trials[0].findings
    return len(findings) == 1 and " - " in findings[0].label


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_every_claim_has_all_its_texts(claim):
    for field in ("statement", "reference", "paper", "test", "command"):
        assert getattr(claim, field).strip(), field
    assert claim.family in FAMILIES
    assert claim.statement.endswith(".")
    assert claim.command.startswith(("ham ", "python lab/experiments/"))
    assert claim.judge(Results({})).outcome == NOT_RUN


def test_claim_ids_are_unique():
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)


@pytest.mark.parametrize("claim", ABLATED, ids=lambda claim: claim.id)
def test_cells_of_a_claim_exist_in_the_grid_of_its_command(claim):
    (trial,) = claim.judge(rows_of(claim, {})).trials
    assert not trial.missing


@pytest.mark.parametrize("claim", [*filter(one_difference, ABLATED)], ids=lambda claim: claim.id)
def test_scores_that_agree_with_the_paper_confirm_and_others_refute(claim):
    ours, theirs = claim.judge(rows_of(claim, {})).decisive.label.split(" - ")
    assert claim.judge(rows_of(claim, {ours: 54.0})).outcome == CONFIRMED
    assert claim.judge(rows_of(claim, {theirs: 54.0})).outcome == NOT_CONFIRMED


def test_cells_of_the_papers_tables_exist():
    for name, printed in PRINTED.items():
        assert set(printed) <= set(ablations.create(name, find_training("voc-animals")))


def test_committed_verdicts_match_the_committed_rows(committed):
    assert as_json(judge_all(committed)) == (ROOT / "results" / "claims.json").read_text(), "run `make pages`"
    rows = json.loads((ROOT / "results" / "claims.json").read_text())
    for row in rows:
        assert not FIELDS - set(row)
        assert row["verdict"] in OUTCOMES
        assert (row["effect"] is None) == (row["n_seeds"] == 0) == (row["verdict"] == NOT_RUN)


COMPARED = ("inside-spectrum-ham", "inside-spectrum-attention")  # both sides are measured in the same way


@pytest.mark.parametrize("family", ["inside", "angles"])
def test_measurements_that_agree_with_a_claim_confirm_and_others_refute(family):
    """Return rows with every measurement inverted: large becomes small and small becomes large."""
    for claim in (claim for claim in ABLATED if claim.family == family and claim.id not in COMPARED):
        for word, turned in ((CONFIRMED, False), (NOT_CONFIRMED, True)):
            (rows,) = rows_of(claim, {}).files.values()
            made = [row | turn(row) if turned else row for row in rows]
            assert claim.judge(Results({f"ablation_{family}_x": made})).outcome == word, claim.id


def turn(row):
    """Return rows where ranks rise, no channel is silenced, gradients are orthogonal and BPTT is steady."""
    series = [
        {key: {"step": value}.get(key, 0.1 if "cosine" in key else 1.0) for key, value in each.items()}
        | {f"norm_{place}_{name}": 1.0 + each["step"] for place in PLACES for name in NAMES[:2]}
        for each in row["angles"]
    ]
    swapped = {"rank_before": 1.0, "rank_after": 2.0, "silent_before": 0.1, "silent_after": 0.0}
    swapped |= {"cosine_one_step": 0.1, "cosine_truncated1": 0.1}
    return swapped | {
        "rank_ham": 4.0,
        "rank_attention": 3.0,
        "rank90_attention": 1.0,
        "rank90_centred": 9.0,
        "angles": series,
    }


def test_spectrum_claim_needs_more_than_the_breads():
    claim = next(claim for claim in ABLATED if claim.id == "inside-spectrum-ham")
    (rows,) = rows_of(claim, {}).files.values()

    def judged_with(rank):
        made = [row | {"rank_after": rank} if row["cell"] == "breads-inside" else row for row in rows]
        return claim.judge(Results({"ablation_inside_x": made}))

    assert judged_with(2.0).outcome == CONFIRMED and judged_with(2.0).decisive.effect == pytest.approx(2.0)
    assert judged_with(0.5).outcome == NOT_CONFIRMED


def test_spectrum_claim_needs_more_than_each_attention():
    claim = next(claim for claim in ABLATED if claim.id == "inside-spectrum-attention")
    (rows,) = rows_of(claim, {}).files.values()

    def judged_with(rank, *names):
        made = [row | {"rank_after": rank} if row["cell"] in names else row for row in rows]
        return claim.judge(Results({"ablation_inside_x": made}))

    names = [f"{name}-inside" for name in ("sa-flash", "da", "nonlocal")]
    assert judged_with(2.0, *names).outcome == CONFIRMED and len(judged_with(2.0, *names).trials[0].findings) == 9
    assert judged_with(2.0, *names[:2]).outcome == NOT_CONFIRMED


def test_ratios_near_one_and_fractions_of_a_channel_do_not_count():
    result = {claim.id: claim for claim in ABLATED}
    (rows,) = rows_of(result["inside-spectrum"], {}).files.values()

    def words(name, **change):
        return result[name].judge(Results({"ablation_inside_x": [row | change for row in rows]})).outcome

    assert words("inside-spectrum", rank_before=1.001, rank_after=1.0) == NOT_CONFIRMED
    assert words("inside-spectrum", rank_before=1.06, rank_after=1.0) == CONFIRMED
    # 512 channels in the recipe, unless the row says how many
    assert words("inside-silent", silent_before=0.0, silent_after=0.9 / 512) == NOT_CONFIRMED
    assert words("inside-silent", silent_before=0.0, silent_after=1.1 / 512) == CONFIRMED
    assert words("inside-silent", silent_before=0.0, silent_after=1.1 / 512, channels=64.0) == NOT_CONFIRMED
    assert words("inside-silent", recipe="of my own") == NOT_RUN
    assert words("gradient-memory") == NOT_RUN
    (rows,) = rows_of(result["gradient-memory"], {}).files.values()
    made = [row | {"peak_mb": 1.001 if row["cell"].endswith("bptt") else 1.0} for row in rows]
    assert result["gradient-memory"].judge(Results({"ablation_gradient_x": made})).outcome == NOT_CONFIRMED


def test_generated_scenes_decide_without_photographs(committed):
    kept = {name: rows for name, rows in committed.files.items() if not name.startswith("ablation_") or "cpu" in name}
    result = shared_trainings(judge_all(Results(kept, committed.studies)))
    cells, claims = result["nmf of patchwork, 400 steps"]
    assert {"whole", "nmf-one-step", "nmf-random", "d64-r8", "nmf-k6", "nmf"} <= set(cells)
    assert {"gradient-nmf", "parts-upper", "init-random", "latent-eightfold", "steps-six"} <= set(claims)
    assert "parts-whole" not in claims  # photographs decide there
    assert "parts-whole" in result[next(name for name in result if name.startswith("nmf of voc-animals, 1000"))][1]


def test_claims_markdown_and_missing_commands(committed):
    text = claims_markdown(committed)
    assert all(claim.statement in text for claim in CLAIMS)
    empty = missing_commands(Results({}))
    assert all(claim.command in empty for claim in CLAIMS)


def everything():
    """Return rows of every grid on photographs and every benchmark: a complete results folder."""
    shares = {f"spectrum_{part}": [0.5] * len(COUNTS) for part in ("before", "after", "ham", "attention")}
    files = {}
    for claim in ABLATED:
        name = shlex.split(claim.command)[2]
        (rows,) = rows_of(claim, {}).files.values()
        files[f"ablation_{name}_voc-animals_h200"] = [
            {key: value for key, value in row.items() if key not in INSIDE or name in ("inside", "angles")}
            | ({**shares, "positions": 9.0, "numerical_attention": 4.0} if name == "inside" else {})
            for row in rows
        ]
    about = {"d": 8, "r": 2, "b": 1, "dtype": "float32", "refused": None}
    files["gradients_h200"] = [row | about for row in gradient_rows(one_step=(1, 4, 2, 2), bptt=(2, 8, 3, 9))]
    entry = {"run": "nmf-seed0", "image": "val-1", "pixels": None, "channels": [], "atoms": []}
    entry["channels"] = [{"place": 1, "of": 8, "sizes": [1.0, 2.0], "maps": "data:image/png;base64,AAAA"}]
    return Results(files, {"feature_maps_patchwork_cpu": {"data": "patchwork", "entries": [entry]}})


def test_every_claim_gets_a_verdict_from_complete_rows():
    results = everything()
    written = claims_markdown(results)
    assert "of D C" in written and "X: truncated:1" in written and "peak MiB" in written
    words = {row["id"]: row["verdict"] for row in as_rows(judge_all(results))}
    assert NOT_RUN not in {
        word
        for name, word in words.items()
        if not name.startswith(("columns-error", "cost", "generation", "propositions"))
    }


@pytest.mark.parametrize(("width", "words"), [(512, {CONFIRMED}), (64, {NOT_RUN})])
def test_rank_of_one_does_not_test_a_rank_of_eight(width, words):
    """In a head of 64 channels, rank 8 of 512 corresponds to rank 1."""
    common = {"recipe": "patchwork", "steps": 9, "hardware": "H", "miou": 0.5}
    rows = [
        common | {"cell": f"d{width}-r{width // part}", "seed": seed}
        for part in (64, 32, 16, 8, 4)
        for seed in range(3)
    ]
    verdicts = {claim.id: claim.judge(Results({"ablation_latent_x": rows})).outcome for claim in CLAIMS}
    assert verdicts["latent-eightfold"] == CONFIRMED
    assert {verdicts["latent-small-rank"]} == words


def test_both_readings_of_equation_13_have_verdicts():
    """One-step is cheap with a wrong direction, Eq. 13 is neither: no claim mixes the two."""
    names = [claim.id for claim in CLAIMS]
    twice = [name for name in names if f"{name}-equation" in names]
    stems = {name.rpartition("-")[0] for name in twice}
    assert {"gradient", "angles", "inside", "propositions", "cost-gradient"} <= stems
    result = {claim.id: claim for claim in ABLATED}
    for ours, theirs in (("gradient-nmf", "gradient-nmf-equation"), ("gradient-nmf-equation", "gradient-nmf")):
        cell = result[ours].judge(rows_of(result[ours], {})).decisive.label.partition(" - ")[0]
        results = rows_of(result[ours], {cell: 54.0, "nmf-bptt": 52.0})
        assert (result[ours].judge(results).outcome, result[theirs].judge(results).outcome) == (
            CONFIRMED,
            NOT_CONFIRMED,
        )
    (rows,) = rows_of(result["inside-direction"], {}).files.values()
    results = Results({"ablation_inside_x": [row | {"cosine_one_step": 0.1} for row in rows]})
    assert result["inside-direction"].judge(results).outcome == NOT_CONFIRMED
    assert result["inside-direction-equation"].judge(results).outcome == CONFIRMED
    grown = gradient_rows(one_step=(10, 40, 20, 20), truncated_1=(30, 90, 40, 80), bptt=(20, 80, 30, 90))
    results = Results({"gradients_h200": [row | {"grad": row["grad"].replace("-1", ":1")} for row in grown]})
    words = {claim.id: claim.judge(results).outcome for claim in CLAIMS if claim.id.startswith("cost-gradient")}
    assert {word for name, word in words.items() if "equation" not in name} == {CONFIRMED}
    assert {word for name, word in words.items() if "equation" in name} == {NOT_CONFIRMED}


def test_more_terms_are_compared_with_the_first():
    claim = next(claim for claim in ABLATED if claim.id == "gradient-more-terms")
    seen = {finding.label for trial in claim.judge(rows_of(claim, {})).trials for finding in trial.findings}
    assert seen == {f"{ham}-truncated1 - {ham}-truncated2" for ham in ("nmf", "vq", "cd")}
    better = {f"{ham}-truncated1": 54.0 for ham in ("nmf", "vq", "cd")}
    assert claim.judge(rows_of(claim, better)).outcome == CONFIRMED  # better than one-step, and no more terms


def test_effects_as_small_as_the_papers_never_refute():
    """Runs around the paper's means, without half a point, refute none of its claims."""
    for claim in (claim for claim in ABLATED if shlex.split(claim.command)[2] in PRINTED):
        name = shlex.split(claim.command)[2]
        (rows,) = rows_of(claim, {cell: mean for cell, (_, mean) in PRINTED[name].items()}).files.values()
        (trial,) = claim.judge(Results({f"ablation_{name}_x": rows})).trials
        pairs = [finding.label.split(" - ") for finding in trial.findings]
        if not {cell for pair in pairs for cell in pair} <= set(PRINTED[name]):
            continue
        noise = {cell: [-0.002, -0.001, 0.001, 0.002] for cell, *_ in pairs}
        made = [row | {"miou": row["miou"] + noise.get(row["cell"], [0.0] * 4)[row["seed"]]} for row in rows]
        assert claim.judge(Results({f"ablation_{name}_x": made})).outcome != NOT_CONFIRMED, claim.id


def test_temperature_variance_compares_spreads_over_seeds():
    claim = next(claim for claim in ABLATED if claim.id == "temperature-variance")
    (rows,) = rows_of(claim, {}).files.values()

    def judged_with(**scales):
        scatter = {"cd-t0.01": scales["cold"], "cd-t0.1": scales["warm"]}
        made = [row | {"miou": row["miou"] + 0.01 * scatter.get(row["cell"], 0) * row["seed"]} for row in rows]
        return claim.judge(Results({"ablation_temperature_x": made}))

    assert judged_with(cold=3, warm=1).outcome == CONFIRMED
    assert judged_with(cold=1, warm=3).outcome == NOT_CONFIRMED
    assert judged_with(cold=0, warm=0).outcome == INCONCLUSIVE
    assert claim.judge(Results({"ablation_temperature_x": rows[:4]})).outcome == NOT_RUN


def test_parts_ham_most_compares_with_both_breads():
    claim = next(claim for claim in ABLATED if claim.id == "parts-ham-most")
    printed = {cell: mean for cell, (_, mean) in PRINTED["parts"].items()}
    assert claim.judge(rows_of(claim, printed)).outcome == CONFIRMED
    assert claim.judge(rows_of(claim, printed | {"without-lower": 70.0})).outcome == NOT_CONFIRMED


def test_accuracy_nmf_uses_the_rows_of_table_1():
    """They are the trainings of the three hams among the contexts, under other names, and count once."""
    claim = next(claim for claim in CLAIMS if claim.id == "accuracy-nmf")
    results = two_sets("gradient", ("nmf-one-step", "vq-one-step", "cd-one-step"))
    (ours,) = results.with_prefix("ablation_gradient_voc").values()
    verdict = claim.judge(Results({"ablation_gradient_x": ours}))
    assert verdict.outcome == CONFIRMED
    assert [finding.label for finding in verdict.trials[0].findings] == [
        "nmf-one-step - vq-one-step",
        "nmf-one-step - cd-one-step",
    ]
    again = [row | {"cell": row["cell"].removesuffix("-one-step")} for row in ours]
    assert len(claim.judge(Results({"ablation_gradient_x": ours, "ablation_contexts_x": again})).trials) == 1


@pytest.mark.parametrize(("gain", "word"), [(0.0, CONFIRMED), (9.0, NOT_CONFIRMED)])
def test_latent_narrow_compares_with_larger_ranks(gain, word):
    claim = next(claim for claim in CLAIMS if claim.id == "latent-eightfold-narrow")
    verdict = claim.judge(rows_of(claim, {"d128-r64": 50 + gain}))
    assert [one.label for one in verdict.trials[0].findings] == ["d256-r32 - d256-r64", "d128-r16 - d128-r64"]
    assert verdict.outcome == word
