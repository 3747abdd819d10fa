"""Settings for every test: one seed, the tiers, and which session runs the tests of Triton's interpreter.

Triton reads TRITON_INTERPRET when it is imported, so interpreted kernels need a session of their own:
`TRITON_INTERPRET=1 pytest` collects the files `test_*_interpreted.py` and nothing else; `pytest` collects the rest.
"""

from __future__ import annotations

import os
import signal

import pytest
import torch
from hypothesis import settings

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

# No deadline: the first example of a strategy may include torch's warm-up.
settings.register_profile("default", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("default")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def pytest_configure(config):
    # a shell starts background commands with Ctrl-C ignored, and the processes that tests start would inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # one thread unless asked otherwise: tests that compare bits with those of another process rely on it
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if torch.__version__.startswith("2.6."):  # whose reset crashes after some dozen calls
        torch._dynamo.reset = torch._dynamo.reset_code_caches
    if INTERPRETED:
        os.environ.pop("HAM_BACKEND", None)  # these tests choose the backend themselves
        import fast_interpreter

        fast_interpreter.install()


def pytest_ignore_collect(collection_path):
    """Ignore the files of the other session; None leaves the decision to pytest. A file named as argument is read."""
    if collection_path.name.startswith("test_") and collection_path.suffix == ".py":
        return (collection_path.stem.endswith("_interpreted") != INTERPRETED) or None
    return None


def pytest_collection_modifyitems(items):
    # Whole-program tests first: a long test that starts last would leave the other processes idle.
    items.sort(key=lambda item: item.get_closest_marker("full") is None)
    for item in items:
        if item.path.stem.endswith("_interpreted"):
            item.add_marker("kernels")
        # the marker, not the keyword: the folder of the clone is a keyword of every test
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
