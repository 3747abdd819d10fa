"""Batches of images of equal size: every image once, and few of them waiting in memory."""

from __future__ import annotations

import fake_datasets
import pytest
import torch

from hamburger.segmentation.data import create_dataset
from hamburger.segmentation.data.base import SegmentationSet
from hamburger.training.datasets import Sample
from hamburger.training.image_files import normalise
from hamburger_lab import size_batches as lab_batches
from hamburger_lab.size_batches import size_batches


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch", [1, 3])
def test_each_image_comes_once_in_its_own_size(tmp_path, workers, batch):
    fake_datasets.folder(tmp_path, ids=8)
    for i, size in {2: (20, 22), 3: (20, 22), 6: (9, 40)}.items():
        fake_datasets.write_image(tmp_path / "images" / f"img{i}.png", size)
        fake_datasets.write_label(tmp_path / "labels" / f"img{i}.png", (0, 2), size)
    data = create_dataset("folder", "train", tmp_path)
    alone = list(size_batches(data, batch=batch, workers=workers))
    assert sorted(id for part in alone for id in part.ids) == sorted(data.ids)
    assert [len(part.ids) for part in alone] == ([1] * 7 if batch == 1 else [3, 2, 1, 1])
    assert batch > 1 or [id for part in alone for id in part.ids] == data.ids
    for part in alone:
        for image, label, id in zip(*part, strict=True):
            expected = data[data.ids.index(id)]
            assert torch.equal(image, normalise(expected.image)) and torch.equal(label, expected.label.long())


def test_waiting_images_are_bounded(monkeypatch):
    """Alternating sizes would otherwise all wait in memory; batches hold the same images each time."""
    sizes = [(4, 4 + i % 5) for i in range(23)]  # 6 x 4 x 4 bytes on average
    held = []

    class Turns(SegmentationSet):
        name, split, ids, classes, palette = "turns", "val", [str(i) for i in range(23)], ("a",), ((0, 0, 0),)

        def __getitem__(self, index):
            held.append(index)
            return Sample(
                torch.zeros(3, *sizes[index], dtype=torch.uint8), torch.zeros(sizes[index], dtype=torch.uint8)
            )

    monkeypatch.setattr(lab_batches, "MAX_WAITING_BYTES", 8 * 4 * 4 * 6)
    seen, most = [], 0
    for part in size_batches(Turns(), batch=4):
        most = max(most, len(held) - sum(map(len, seen)))
        seen.append(part.ids)
        assert len({sizes[int(id)] for id in part.ids}) == 1
    assert sorted(int(id) for ids in seen for id in ids) == list(range(23))
    assert 8 <= most <= 10, "eight wait, and the one that came"
    assert seen == [part.ids for part in size_batches(Turns(), batch=4)]
