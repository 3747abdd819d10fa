"""Result files that cannot be read or used raise errors that name them."""

from __future__ import annotations

import json
import os

import pytest
from claim_rows import gradient_rows

from hamburger.errors import DataError
from hamburger_lab.claims import Results
from hamburger_lab.claims.base import NOT_RUN
from hamburger_lab.claims.page import claims_page
from hamburger_lab.claims.tables import as_rows, judge_all


def test_empty_results_folder_gives_not_run_for_every_claim(tmp_path):
    assert {row["verdict"] for row in as_rows(judge_all(Results.read(tmp_path)))} == {NOT_RUN}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"cell": "who', "claims: line 1 of .*ablation_parts_x.jsonl is not a JSON object"),
        ("[" * 10**5, "claims: line 1 of .*ablation_parts_x.jsonl is not a JSON object .too many brackets"),
        ("\udcff", "claims: .*ablation_parts_x.jsonl is not UTF-8 text"),
        ('{"cell": "whole", "seed": 0, "miou": 0.5}', "line 1 of .* has no hardware, recipe, steps"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, content, message):
    (tmp_path / "ablation_parts_x.jsonl").write_bytes(content.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(DataError, match=message):
        Results.read(tmp_path)


SCORE = {"cell": "whole", "seed": 0, "recipe": "planes", "steps": 9, "hardware": "H"}


COST = gradient_rows(one_step=(1, 4, 2, 2))[0] | {"d": 8, "r": 2, "b": 1, "dtype": "float32", "refused": None}


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        (
            "ablation_parts_x",
            SCORE | {"miou": "0.74"},
            "line 2 of .*ablation_parts_x.jsonl: miou is '0.74', not a number",
        ),
        (
            "ablation_parts_x",
            SCORE | {"miou": float("nan")},
            r"line 2 of .* is not a JSON object \(NaN is not a JSON number",
        ),
        ("ablation_parts_x", SCORE | {"seed": "0"}, "line 2 of .*: seed is '0'"),
        ("ablation_angles_x", SCORE | {"angles": [{"cosine_input_one_step": float("inf")}]}, "Infinity is not"),
        ("ablation_inside_x", SCORE | {"spectrum_after": [0.5, float("nan")]}, "NaN is not"),
        ("ablation_angles_x", SCORE | {"angles": "x"}, "line 2 of .*: angles cannot be 'x'"),
        ("ablation_angles_x", SCORE | {"angles": [{"norm_input_bptt": [1]}]}, r"norm_input_bptt cannot be \[1\]"),
        ("ablation_parts_x", SCORE | {"seed": [0]}, r"line 2 of .*: seed cannot be \[0\]"),
        ("ablation_parts_x", SCORE | {"recipe": [1]}, r"line 2 of .*: recipe cannot be \[1\]"),
        ("ablation_parts_x", SCORE | {"overrides": [1]}, r"line 2 of .*: overrides cannot be \[1\]"),
        ("gradients_x", {"module": "nmf"}, "line 2 of .*gradients_x.jsonl has no .*ham.*`ham bench gradients` writes"),
        ("gradients_x", COST | {"ms": "fast"}, "line 2 of .*: ms is 'fast'"),
        ("table3_h200", SCORE, "line 1 of .*table3_h200.jsonl has no .*module.*`ham bench table3` writes"),
    ],
)
def test_rows_with_invalid_numbers_are_named(tmp_path, name, row, message):
    first = COST if name.startswith("gradients") else SCORE
    (tmp_path / f"{name}.jsonl").write_text(json.dumps(first) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(DataError, match=f"claims: .*{message}"):
        Results.read(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x.jsonl")
    with pytest.raises(DataError, match=r"x\.jsonl: is not a regular file"):
        Results.read(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not valid JSON"),
        ("[" * 10**5, "is not valid JSON"),
        ("[]", "was not written by"),
        ('{"rows": [1], "environment": 5}', "was not written by"),
        ('{"rows": []}', "was not written by"),
        (None, "row 1 of .* has no L_G"),
    ],
)
def test_unreadable_study_is_named(tmp_path, content, message):
    content = content or json.dumps({"rows": [{"L_h": 1}], "environment": {"hardware": "H"}})
    (tmp_path / "propositions_x.json").write_text(content)
    with pytest.raises(DataError, match=f"claims: .*propositions_x.json {message}|{message}"):
        Results.read(tmp_path)


def test_ablation_of_another_task_is_ignored(tmp_path):
    row = {"cell": "whole", "seed": 0, "recipe": "planes", "steps": 9, "hardware": "H", "error": 2.0}
    (tmp_path / "ablation_parts_x.jsonl").write_text(json.dumps(row) + "\n")
    results = Results.read(tmp_path)
    assert {verdict.outcome for _, verdict in judge_all(results)} == {NOT_RUN}
    assert "bars-ablation" not in claims_page(results)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 90, "cell": "baseline"}, "mixes numbers of steps: 9 and 90"),
        ({"recipe": "camvid", "cell": "baseline"}, "mixes recipes: planes and camvid"),
        ({"settings": ["optim.lr=1"], "cell": "baseline"}, "mixes settings: none and optim.lr=1"),
        ({"recipe_hash": "b"}, r"has whole, seed 0 twice, from two recipes \(a and b\)"),
    ],
)
def test_rows_of_two_experiments_in_one_file_raise(tmp_path, change, message):
    row = {"cell": "whole", "seed": 0, "recipe": "planes", "steps": 9, "hardware": "H", "recipe_hash": "a"}
    path = tmp_path / "ablation_parts_x.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps(row | {"settings": ["eval_every=3"]}) + "\n")
    Results.read(tmp_path)
    path.write_text(json.dumps(row) + "\n" + json.dumps(row | change) + "\n")
    with pytest.raises(DataError, match=f"claims: .*ablation_parts_x.jsonl {message}"):
        Results.read(tmp_path)
