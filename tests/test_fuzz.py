"""Damaged and hostile input: every reader refuses cleanly or returns a valid result (`helpers/fuzz.py`)."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from fuzz import FUZZERS
from fuzz_cases import NASTY, Case, Fuzzer
from fuzz_checkpoints import mutate_state

from hamburger.errors import DataError

ALL = 2000  # cases of all readers together in `make test-all`


def run_cases(reader, seed, numbers):
    fuzzer, outcomes = FUZZERS[reader], []
    for number in numbers:
        case = fuzzer.case(seed, number)
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcomes.append(fuzzer.check(case, Path(folder) / "files"))
            except AssertionError as error:
                raise AssertionError(f"{reader}, seed {seed}, case {number} ({case.note}): {error}") from error
    return outcomes


@pytest.mark.parametrize("reader", FUZZERS)
def test_damaged_input_is_refused_or_read(reader):
    count = FUZZERS[reader].quick
    outcomes = run_cases(reader, 0, range(count))
    refused = sum(outcome != "read" for outcome in outcomes)
    assert refused >= count / 10, f"{refused} of {count} cases were refused; do the mutations reach the reader?"


@pytest.mark.full
@pytest.mark.parametrize("reader", FUZZERS)
def test_more_damaged_input_is_refused_or_read(reader):
    run_cases(reader, 1, range(ALL // len(FUZZERS)))


# -- the fuzzer itself -------------------------------------------------------------------------------------------------


def test_cases_do_not_change_the_values_that_later_ones_draw():
    before = repr(NASTY)
    for number in range(1000):
        mutate_state(random.Random(number), {"a": {}})
    assert repr(NASTY) == before


def fail_with(error):
    def read(folder):
        raise error(f"{folder}: bad")

    return read


def allocate(folder):
    return bytearray(700 * 2**20) and None


def spin(folder):
    while True:
        pass


def wait(folder):
    time.sleep(60)


@pytest.mark.parametrize(
    ("read", "says"),
    [
        (fail_with(KeyError), "KeyError instead of a HamburgerError"),
        (lambda folder: fail_with(DataError)("x"), "names no file"),
        (lambda folder: fail_with(DataError)(f"{folder}\x1b"), "characters"),
        (lambda folder: object(), "second reading differs"),
        (allocate, "raised the peak memory by"),
        (spin, "no result after 1 s"),
        (wait, "no result after 1 s"),
    ],
)
def test_other_outcomes_are_failures(tmp_path, monkeypatch, read, says):
    monkeypatch.setattr("fuzz_cases.MAX_SECONDS", 1)
    fuzzer = Fuzzer(list, lambda source, files: (files, ""), read)
    with pytest.raises(AssertionError, match=says):
        fuzzer.check(Case({"a.bin": b""}, True, "changed"), tmp_path)


def test_cases_depend_on_seed_and_number_alone():
    for reader in ("png", "recipe", "foreign"):
        one, again, other = (FUZZERS[reader].case(*place) for place in ((0, 7), (0, 7), (1, 7)))
        assert one == again != other


@pytest.mark.full
def test_the_script_reports_and_replays_a_failure(tmp_path):
    root = Path(__file__).parents[1]
    script = [sys.executable, str(root / "tests" / "run_fuzz.py")]
    words = [*script, "--cases", "20", "--readers", "pfm", "recipe", "--out", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    assert "20 cases of 2 readers, seed 0: 0 failures" in done.stdout and "cases/s" in done.stderr
    stored = tmp_path / "pfm-0-3"
    (stored / "files").mkdir(parents=True)
    (stored / "files" / "d.pfm").write_bytes(b"PF")
    about = {"reader": "pfm", "seed": 0, "number": 3, "note": ""}
    for changed, status in ((True, 0), (False, 1)):  # damaged files that pass for valid ones are a failure
        (stored / "case.json").write_text(json.dumps({**about, "changed": changed}))
        done = subprocess.run(
            [*script, "--replay", str(stored)], capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == status, done.stderr
        assert "d.pfm" in done.stdout + done.stderr
