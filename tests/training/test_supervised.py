"""Code that the supervised tasks share."""

from __future__ import annotations

import pytest

from hamburger import distributed
from hamburger.training.supervised import read_share


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world", [1, 3])
def test_the_processes_divide_a_data_set(monkeypatch, workers, world):
    data = [f"sample {i}" for i in range(8)]
    monkeypatch.setattr(distributed, "world_size", lambda: world)
    seen, calls = [], []
    for rank in range(world):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        share = list(read_share(data, workers, lambda done, total: calls.append((done, total))))
        assert share == [(i, data[i]) for i in range(rank, 8, world)]
        assert calls[-1] == (len(share), len(share))
        seen += share
    assert sorted(seen) == list(enumerate(data))
