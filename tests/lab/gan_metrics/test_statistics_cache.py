"""Cached statistics and features: the same numbers come back, and never those of another key."""

from __future__ import annotations

import pytest
import torch

from hamburger.errors import CheckpointError
from hamburger_lab.gan_metrics.evaluate import cached_tensors

KEY = {"data": "0123456789abcdef", "size": 32, "extractor": "small@12 bilinear sha256:0011223344556677", "version": "1"}
CHANGES = {
    "data": "fedcba9876543210",
    "size": 64,
    "extractor": "small@13 bilinear sha256:0011223344556677",
    "version": "2",
}


@pytest.fixture
def tensors():
    return {"mean": torch.randn(5, dtype=torch.float64), "covariance": torch.randn(5, 5), "count": torch.tensor(30)}


@pytest.fixture
def file(tmp_path, tensors):
    cached_tensors(tmp_path, "statistics", KEY, lambda: tensors)
    (path,) = tmp_path.iterdir()  # no partial file left
    return path


def read(folder, key=KEY):
    return cached_tensors(folder, "statistics", key, lambda: pytest.fail("computed again"))


def test_every_bit_comes_back(file, tensors):
    again = read(file.parent)
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name], value) and again[name].dtype == value.dtype for name, value in tensors.items())


@pytest.mark.parametrize("field", CHANGES)
def test_computed_once_for_each_key(file, tensors, field):
    other = {**KEY, field: CHANGES[field]}
    cached_tensors(file.parent, "statistics", other, lambda: tensors)
    read(file.parent, other)
    assert len(list(file.parent.iterdir())) == 2


def test_a_failed_computation_leaves_no_file(tmp_path):
    with pytest.raises(ZeroDivisionError):
        cached_tensors(tmp_path, "statistics", KEY, lambda: 1 / 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cut", [0, 3, 20, 0.5, -1])
def test_truncated_files(file, cut):
    content = file.read_bytes()
    file.write_bytes(content[: int(cut * len(content)) if isinstance(cut, float) else cut])
    with pytest.raises(CheckpointError, match=r"is damaged .*; delete it"):
        read(file.parent)
