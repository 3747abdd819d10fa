"""All fuzzers by name, one for each reader of untrusted input. `make fuzz` and `tests/test_fuzz.py` run them."""

from __future__ import annotations

from fuzz_cases import Fuzzer
from fuzz_checkpoints import CHECKPOINTS
from fuzz_data import DATA
from fuzz_runs import RUNS
from fuzz_weights import WEIGHTS

FUZZERS: dict[str, Fuzzer] = {**DATA, **WEIGHTS, **CHECKPOINTS, **RUNS}
