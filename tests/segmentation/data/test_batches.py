"""Batches depend on seed and step alone, for any number of processes and workers, on any device."""

from __future__ import annotations

import shutil
import threading

import fake_datasets
import pytest
import torch

from hamburger.errors import DataError
from hamburger.segmentation.data import create_dataset, datasets
from hamburger.segmentation.data.batches import SegmentationBatches
from hamburger.training import loader
from hamburger.training.image_files import normalise
from hamburger.training.loader import samples_of

SCENES = datasets.create("patchwork", "train", length=10, size=32)


def batches(data=SCENES, **options):
    return SegmentationBatches(data, **{"batch": 4, "crop": 24, "seed": 3} | options)


def same(parts, others):
    return all(
        torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels) and a.ids == b.ids
        for a, b in zip(parts, others, strict=True)
    )


def concatenate(parts):
    return torch.cat([p.images for p in parts]), torch.cat([p.labels for p in parts]), [i for p in parts for i in p.ids]


def test_shapes_and_ids():
    (part,) = batches().at(0)
    assert part.images.shape == (4, 3, 24, 24) and part.images.dtype == torch.float32
    assert part.labels.shape == (4, 24, 24) and part.labels.dtype == torch.int64
    assert len(part.ids) == 4 and set(part.ids) <= set(SCENES.ids)
    assert set(part.labels.unique().tolist()) <= {*range(10), 255}


def test_colour_changes_alter_images_only():
    (plain,), (changed,) = batches().at(0), batches(photometric=0.3).at(0)
    assert torch.equal(plain.labels, changed.labels) and not torch.equal(plain.images, changed.images)
    assert same([plain], batches(photometric=0.0).at(0))


@pytest.mark.parametrize(("world", "accumulate"), [(2, 1), (4, 1), (1, 2), (2, 2)])
def test_processes_and_micro_batches_form_the_global_batch(world, accumulate):
    whole = concatenate(batches(batch=8).at(5))
    ranks = [batches(batch=8, rank=rank, world=world, accumulate=accumulate).at(5) for rank in range(world)]
    pieces = concatenate([ranks[rank][part] for part in range(accumulate) for rank in range(world)])
    assert torch.equal(whole[0], pieces[0]) and torch.equal(whole[1], pieces[1]) and whole[2] == pieces[2]


@pytest.mark.parametrize(
    "options", [{"resident": "no"}, {"resident": "no", "workers": 3}, {"resident": "yes"}], ids=str
)
def test_resident_data_and_workers_give_the_same_bits(options):
    first, second = batches(), batches(**options)
    for parts, others in zip(first.run(2, 9), second.run(2, 9), strict=True):
        assert same(parts, others)
    assert second.waited > 0


def test_a_step_needs_no_history():
    run = list(batches().run(0, 12))
    [seventh] = batches().run(7, 8)
    assert same(run[11], batches().at(11)) and same(run[7], seventh)
    assert not torch.equal(run[0][0].images, batches(seed=4).at(0)[0].images)


def test_an_epoch_has_every_sample_once_in_its_own_order():
    epochs = [[i for s in (2 * e, 2 * e + 1) for i in samples_of(0, s, n=10, batch=5)] for e in range(3)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    # a batch that does not divide the set runs on into the next epoch
    flowing = [i for s in range(5) for i in samples_of(0, s, n=10, batch=4)]
    assert flowing == epochs[0] + epochs[1]
    # a set smaller than the batch is seen more than once in it
    assert sorted(samples_of(0, 0, n=2, batch=4)) == [0, 0, 1, 1]


def test_the_same_sample_has_another_view_each_time():
    data = datasets.create("patchwork", "train", length=1, size=32)
    (part,) = batches(data, batch=6).at(0)
    assert len({image.numpy().tobytes() for image in part.images}) == 6


def test_without_augmentation_batches_are_the_images():
    (part,) = batches(crop=32, scales=(1, 1), flip=False).at(0)
    for image, label, id in zip(*part, strict=True):
        expected = SCENES[SCENES.ids.index(id)]
        assert torch.equal(image, normalise(expected.image)) and torch.equal(label, expected.label.long())


def test_auto_keeps_what_fits(monkeypatch):
    assert batches().resident_samples is not None
    monkeypatch.setattr(loader, "CPU_BYTES", 10 * 32 * 32 * 4 + 1)
    assert batches().resident_samples is not None
    monkeypatch.setattr(loader, "CPU_BYTES", 10 * 32 * 32 * 4)
    assert batches().resident_samples is None  # not less than the limit


@pytest.mark.parametrize("workers", [0, 2])
def test_a_missing_folder_raises_its_path_and_leaves_no_thread(tmp_path, workers):
    data = create_dataset("folder", "train", fake_datasets.folder(tmp_path / "set", ids=6))
    run = batches(data, batch=2, resident="no", workers=workers).run(0, 1000)
    next(run)
    shutil.rmtree(tmp_path / "set")
    with pytest.raises(DataError, match=r"changed during training, at step \d+: .*img\d.*missing"):
        for _ in run:
            pass
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("hamburger-data")]


def test_a_loop_that_ends_early_leaves_no_thread():
    run = batches(resident="no", workers=3).run(0, 1000)
    next(run)
    assert [thread for thread in threading.enumerate() if thread.name.startswith("hamburger-data")]
    run.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("hamburger-data")]


def test_an_empty_split_cannot_train(tmp_path):
    fake_datasets.folder(tmp_path)
    (tmp_path / "train.txt").write_text("")
    with pytest.raises(DataError, match="is empty"):
        batches(create_dataset("folder", "train", tmp_path))


@pytest.mark.gpu
def test_the_gpu_keeps_the_set_and_gives_the_same_batches():
    here, there = batches(), batches(device="cuda")
    assert there.resident_samples is not None and there.resident_samples.pixels.is_cuda
    for (a,), (b,), (c,) in zip(
        here.run(0, 4), there.run(0, 4), batches(device="cuda", resident="no", workers=2).run(0, 4), strict=True
    ):
        assert a.ids == b.ids == c.ids and torch.equal(b.images, c.images) and torch.equal(b.labels, c.labels)
        torch.testing.assert_close(a.images, b.images.cpu(), atol=1e-3, rtol=0)
