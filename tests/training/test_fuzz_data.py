"""Damaged data files: every reader refuses cleanly or returns a valid result (`fuzz_data`)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from fuzz_data import FUZZERS

CASES = 200


@pytest.mark.parametrize("name", FUZZERS)
def test_damaged_files_are_refused_or_read(name):
    fuzzer = FUZZERS[name]
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        for i, case in enumerate(fuzzer.cases(seed=0, n=CASES)):
            outcomes.append(fuzzer.check(case, Path(folder) / str(i)))
    assert outcomes[0] == "read"
    refused = sum(outcome != "read" for outcome in outcomes)
    assert refused >= CASES / 10, f"{refused} of {CASES} cases were refused; do the mutations reach the reader?"
