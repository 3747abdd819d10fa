"""The CSV writer: text that a spreadsheet would run is neutralised, numbers stay numbers."""

from __future__ import annotations

import csv
import io

from hamburger_lab.rows import csv_text


def test_formulas_become_text_and_numbers_stay():
    formulas = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", '=HYPERLINK("x")']
    rows = [{"context": text, "score": -1.5, "=name": "a-b"} for text in formulas]
    rows.append({"context": "nmf", "score": -2, "list": ["=1", 2]})
    header, *lines = csv.reader(io.StringIO(csv_text(rows), newline=""))
    assert header == ["context", "score", "'=name", "list"]
    assert [line[0] for line in lines] == [*("'" + text.replace("\r", " ") for text in formulas), "nmf"]
    assert [line[1] for line in lines] == ["-1.5"] * len(formulas) + ["-2"]
    assert lines[0][2:] == ["a-b", ""] and lines[-1][2:] == ["", '["=1", 2]']
