"""The committed study, its document, its figure and its command."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from hamburger_lab.propositions.figure import draw_study
from hamburger_lab.propositions.report import CLAIMS, count_verdicts, format_range, rows_by_case, study_markdown
from hamburger_lab.propositions.study import INPUTS, StudyProtocol

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def committed():
    return json.loads((ROOT / "results" / "propositions_cpu.json").read_text())


def ham(*arguments):
    from hamburger import cli

    before, sys.argv = sys.argv, ["ham", *arguments]
    try:
        cli.main()
    finally:
        sys.argv = before


def test_result_contains_protocol_and_environment(committed):
    assert set(committed["environment"]) == {"device", "hardware", "torch", "threads", "commit", "date"}
    assert committed["protocol"]["seeds"] == StudyProtocol().seeds
    assert len(rows_by_case(committed)) == len(INPUTS) * len(StudyProtocol().hams())
    assert all(len(rows) == StudyProtocol().seeds for rows in rows_by_case(committed).values())


def test_verdicts_count_seeds(committed):
    result = count_verdicts(committed)
    assert set(result) == set(CLAIMS)
    assert all(0 <= held <= message <= 5 for by_case in result.values() for held, message in by_case.values())
    broken = {"rows": [row | {"L_h": 0.5 if row["seed"] == 0 else 2.0} for row in committed["rows"]]}
    assert set(count_verdicts(broken)["L_h < 1 on the path"].values()) == {(1, 5)}


def test_format_range_shows_spread_and_missing_seeds():
    assert format_range([1.0, 3.0]) == "2 [1, 3]"
    assert format_range([2.0, None]) == "2 (1 of 2)"
    assert format_range([None]) == "-"
    assert format_range([1 - 1e-7]) == "1-1.0e-07"


def test_draw_study_writes_a_png(committed, tmp_path):
    draw_study(committed, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_propositions_command_writes_its_files(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with pytest.raises(SystemExit) as left:
        ham("propositions", "--quick", "--out", str(tmp_path))
    assert not left.value.code
    result = json.loads((tmp_path / "propositions.json").read_text())
    assert result["protocol"]["seeds"] == 1
    assert {entry.name for entry in tmp_path.iterdir()} == {"propositions.json", "propositions.png"}
    out, err = capsys.readouterr()
    assert "wrote" in out and "solves" in err and re.search(r"left.*\d:\d\d:\d\d", err)  # with rate and remaining time
    study_markdown(result)


@pytest.mark.parametrize("arguments", [("--seeds", "0"), ("--out", __file__)], ids=["seeds", "out"])
def test_a_mistake_is_one_line_and_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as left:
        ham("propositions", *arguments)
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("ham: ")
    assert error.count("\n") == 1
