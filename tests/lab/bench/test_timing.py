"""Timing, races, growth exponents and rows; no test depends on speed."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest

from hamburger.environment import describe_environment
from hamburger.errors import OptionError
from hamburger.files import write_json_lines
from hamburger_lab.bench.common import growth_exponent
from hamburger_lab.bench.core import CorePlan, measure
from hamburger_lab.bench.timing import Contender, Timing, race

REQUIRED = {
    "ham",
    "contender",
    "b",
    "d",
    "n",
    "r",
    "steps",
    "dtype",
    "mode",
    "ms",
    "ms_iqr",
    "ratio",
    "device",
    "hardware",
    "torch",
    "threads",
    "commit",
    "date",
    "seed",
}


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_exponent_of_a_power_law(power: float) -> None:
    sizes = [1024, 2048, 8192]
    assert growth_exponent(sizes, [3.0 * n**power for n in sizes]) == pytest.approx(power)


def test_exponent_needs_two_sizes() -> None:
    assert math.isnan(growth_exponent([64, 64], [1.0, 2.0]))


def test_timing_is_the_median_and_the_quartiles() -> None:
    assert Timing.of([1.0, 2.0, 3.0, 4.0, 100.0]) == Timing(ms=3.0, ms_iqr=2.0)
    assert Timing.of([5.0]) == Timing(ms=5.0, ms_iqr=None)  # one call says nothing of the spread


def test_race_interleaves_contenders_on_the_same_inputs() -> None:
    calls: list[tuple[str, int]] = []
    inputs = iter(range(100))

    def runner(name: str) -> Contender:
        return Contender(lambda number: (number,), lambda number: calls.append((name, number)))

    race({name: runner(name) for name in "abc"}, lambda: next(inputs), repeats=5, warmup=1, pause=0)
    assert [number for _, number in calls] == [turn for turn in range(6) for _ in "abc"]
    rounds = ["".join(name for name, number in calls if number == turn) for turn in range(6)]
    assert all(sorted(order) == list("abc") for order in rounds)
    assert len(set(rounds)) > 1  # no contender always follows the same rival


def test_race_of_one_round_raises() -> None:
    with pytest.raises(OptionError, match="repeats must be a whole number of at least 2, got 1"):
        race({}, lambda: None, repeats=1)


def test_rows_have_the_fields_and_consistent_ratios() -> None:
    rows = measure(CorePlan(sizes=(32, 64), dim=16, rank=4, repeats=2))
    assert all(set(asdict(row)) >= REQUIRED for row in rows)
    for row in rows:
        ours = next(
            other
            for other in rows
            if (other.ham, other.mode, other.n, other.contender) == (row.ham, row.mode, row.n, "hamburger")
        )
        assert row.ratio == pytest.approx(row.ms / ours.ms, rel=1e-2)
    assert {(row.contender, row.mode) for row in rows if row.ham == "nmf"} == {
        ("hamburger", "infer"),
        ("authors-eager", "infer"),
        ("sklearn", "infer"),
        ("sdpa", "infer"),
        ("hamburger", "train"),
        ("authors-eager", "train"),
    }


def test_environment_names_hardware_and_versions() -> None:
    here = describe_environment("cpu")
    assert here["threads"] >= 1 and here["hardware"] and here["torch"]


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "rows.jsonl"
    write_json_lines(target, [{"a": 1}])
    with pytest.raises(TypeError):
        write_json_lines(target, [{"a": 2}, {"a": object()}])
    assert [json.loads(line) for line in target.read_text().splitlines()] == [{"a": 1}]
    assert list(tmp_path.iterdir()) == [target]
