from __future__ import annotations

import os

import pytest
import torch
from hypothesis import settings

# The first example of a strategy may wait for torch to warm up; a deadline would only measure that.
settings.register_profile("default", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("default")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def pytest_configure(config):
    if "OMP_NUM_THREADS" in os.environ:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if os.environ.get("TRITON_INTERPRET") == "1":
        import quick_interpreter

        quick_interpreter.install()


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: "slow" not in item.keywords)  # first: at the end the other process would wait for them
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
