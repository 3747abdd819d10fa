"""Cached statistics: the same numbers come back, and never those of another key."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

pytest.importorskip("safetensors")
from safetensors.torch import save_file

from hamburger.errors import CheckpointError, OptionError
from hamburger.generation.metrics import cache
from hamburger.generation.metrics.cache import (
    STATISTICS_ENTRY,
    StatisticsKey,
    cached_statistics,
    load_statistics,
    save_statistics,
)
from hamburger.generation.metrics.extractors import module_extractor
from hamburger.generation.metrics.frechet import fit_gaussian

KEY = StatisticsKey("0123456789abcdef", 32, 32, "small@12 bilinear sha256:0011223344556677")
OTHERS = [
    dataclasses.replace(KEY, data="fedcba9876543210"),
    dataclasses.replace(KEY, height=64),
    dataclasses.replace(KEY, width=64),
    dataclasses.replace(KEY, extractor="small@12 bilinear-antialias sha256:0011223344556677"),
    dataclasses.replace(KEY, extractor="small@13 bilinear sha256:0011223344556677"),
    dataclasses.replace(KEY, extractor="small@12 bilinear sha256:1011223344556677"),
    dataclasses.replace(KEY, version="2"),
]


def same(a, b):
    return a.count == b.count and torch.equal(a.mean, b.mean) and torch.equal(a.covariance, b.covariance)


@pytest.fixture
def statistics():
    return fit_gaussian(torch.randn(30, 5))


@pytest.fixture
def file(tmp_path, statistics):
    save_statistics(tmp_path / "s.safetensors", KEY, statistics)
    return tmp_path / "s.safetensors"


def test_every_bit_comes_back(file, statistics):
    assert same(load_statistics(file, KEY), statistics)
    assert [p.name for p in file.parent.iterdir()] == [file.name]  # no partial file left


@pytest.mark.parametrize("key", OTHERS, ids=range(len(OTHERS)))
def test_another_key_is_refused(file, key):
    with pytest.raises(CheckpointError, match="was saved for another key"):
        load_statistics(file, key)
    assert key.file_name != KEY.file_name


def test_the_message_names_the_difference(file):
    with pytest.raises(CheckpointError, match="height is 32, expected 64"):
        load_statistics(file, dataclasses.replace(KEY, height=64))


def test_computed_once_per_key(tmp_path, statistics):
    calls = []

    def compute():
        calls.append(1)
        return statistics

    for _ in range(3):
        assert same(cached_statistics(tmp_path / "cache", KEY, compute), statistics)
    assert len(calls) == 1
    for key in OTHERS:
        cached_statistics(tmp_path / "cache", key, compute)
    assert len(calls) == 1 + len(OTHERS)
    (tmp_path / "cache" / KEY.file_name).unlink()
    (tmp_path / "cache" / OTHERS[0].file_name).rename(tmp_path / "cache" / KEY.file_name)
    with pytest.raises(CheckpointError, match="another key"):
        cached_statistics(tmp_path / "cache", KEY, compute)


def test_a_failed_computation_leaves_no_file(tmp_path):
    with pytest.raises(ZeroDivisionError):
        cached_statistics(tmp_path, KEY, lambda: 1 / 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cut", [0, 3, 20, 0.5, -1])
def test_truncated_files(file, cut):
    content = file.read_bytes()
    file.write_bytes(content[: int(cut * len(content)) if isinstance(cut, float) else cut])
    with pytest.raises(CheckpointError, match="is damaged"):
        load_statistics(file, KEY)


def test_one_flipped_bit(file):
    content = bytearray(file.read_bytes())
    for place in (len(content) - 1, len(content) - 200):
        changed = content.copy()
        changed[place] ^= 1
        file.write_bytes(changed)
        with pytest.raises(CheckpointError, match="does not match its checksum"):
            load_statistics(file, KEY)


def test_damage_in_the_cache_is_reported(tmp_path, statistics):
    cached_statistics(tmp_path, KEY, lambda: statistics)
    (tmp_path / KEY.file_name).write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="delete it"):
        cached_statistics(tmp_path, KEY, lambda: statistics)


def test_files_of_other_programs(tmp_path, statistics):
    path = tmp_path / "x.safetensors"
    save_file({"mean": torch.zeros(3)}, path)
    with pytest.raises(CheckpointError, match="not written by"):
        load_statistics(path, KEY)
    save_file({"mean": torch.zeros(3)}, path, metadata={STATISTICS_ENTRY: "{"})
    with pytest.raises(CheckpointError, match="metadata"):
        load_statistics(path, KEY)
    save_file(
        {"mean": torch.zeros(3)},
        path,
        metadata={STATISTICS_ENTRY: json.dumps({"version": 9, "key": {}, "content": ""})},
    )
    with pytest.raises(CheckpointError, match="format 9"):
        load_statistics(path, KEY)
    with pytest.raises(CheckpointError, match="no file"):
        load_statistics(tmp_path / "none", KEY)
    tensors = {"count": torch.tensor(1), "mean": torch.zeros(2), "covariance": torch.eye(2)}
    digest = cache._content_digest(tensors)
    entry = {"version": 1, "key": dataclasses.asdict(KEY), "content": digest}
    save_file(tensors, path, metadata={STATISTICS_ENTRY: json.dumps(entry)})
    with pytest.raises(CheckpointError, match="count"):
        load_statistics(path, KEY)


def test_a_key_uses_the_extractors_label():
    extractor = module_extractor(torch.nn.Flatten(), "pixels", size=4)
    key = StatisticsKey.of("0123456789", (32, 24), extractor)
    assert (key.height, key.width, key.extractor) == (32, 24, extractor.label)
    with pytest.raises(OptionError, match="digest"):
        StatisticsKey.of("short", (32, 24), extractor)
    with pytest.raises(OptionError):
        StatisticsKey.of("0123456789", (0, 24), extractor)
