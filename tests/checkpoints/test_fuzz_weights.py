"""Loading mutated weights files: a clean error, or exactly the tensors of the file."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from fuzz_weights import Case, cases, check, good_file

CASES = int(os.environ.get("HAM_FUZZ_CASES", "200"))
SEED = int(os.environ.get("HAM_FUZZ_SEED", "0"))
PARTS = 4  # so that several processes share the work


@pytest.mark.parametrize("task", ["segmentation", "classification", "detection", "stereo", "generation"])
def test_the_files_that_are_mutated_load(task):
    assert check(Case(task, task, good_file(task))) == "loaded"


@pytest.mark.parametrize("part", range(PARTS))
def test_mutated_files_load_exactly_or_are_refused(part):
    outcomes = Counter(check(case) for index, case in enumerate(cases(SEED, CASES)) if index % PARTS == part)
    assert outcomes.total() == len(range(part, CASES, PARTS))
    if CASES >= 200:
        assert outcomes["refused"] and outcomes["loaded"]  # otherwise the mutators are too weak or too strong
