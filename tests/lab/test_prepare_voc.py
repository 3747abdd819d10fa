"""VOC's augmented set from SBD's files, on trees in the official layouts."""

from __future__ import annotations

import fake_datasets
import numpy as np
import pytest
from PIL import Image
from scipy.io import loadmat

from hamburger.errors import DataError
from hamburger.segmentation.data import create_dataset
from hamburger_lab import prepare_voc as prepare
from hamburger_lab.prepare_voc import EXPECTED, prepare_voc

SMALL = {"trainaug": 4, "val": 1, "test": 1}


def test_trainaug_is_the_union_without_val(tmp_path):
    tree, sbd = fake_datasets.voc(tmp_path), fake_datasets.sbd(tmp_path)
    seen = []
    done = prepare_voc(tmp_path, expected=SMALL, after=seen.append)
    assert (tree / "ImageSets/Segmentation/trainaug.txt").read_text().split() == ["a", "b", "d", "e"]
    assert (done.from_voc, done.from_sbd, done.already, seen) == (2, 2, 0, [4, 4, 4, 4])
    assert done.counts == SMALL and done.notes == ()
    data = create_dataset("voc", "trainaug", tmp_path)
    for i, name in enumerate("abde"):
        label = data[i].label.numpy()
        if name in "ab":
            assert np.array_equal(label, np.array(Image.open(tree / "SegmentationClass" / f"{name}.png")))
        else:
            assert np.array_equal(label, loadmat(sbd / "cls" / f"{name}.mat")["GTcls"]["Segmentation"][0][0])
            image = Image.open(tree / "SegmentationClassAug" / f"{name}.png")
            assert image.mode == "P" and tuple(image.getpalette()[45:48]) == (192, 128, 128)  # 15, person


def test_an_interrupted_run_resumes(tmp_path, monkeypatch):
    tree = fake_datasets.voc(tmp_path)
    fake_datasets.sbd(tmp_path)
    real, written = prepare.write_label, []

    def stops(labels, target, id):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(id)
        real(labels, target, id)

    monkeypatch.setattr(prepare, "write_label", stops)
    with pytest.raises(KeyboardInterrupt):
        prepare_voc(tmp_path, expected=SMALL, workers=0)
    assert not (tree / "ImageSets/Segmentation/trainaug.txt").exists()
    monkeypatch.setattr(prepare, "write_label", real)
    assert prepare_voc(tmp_path, expected=SMALL).already == 2
    assert prepare_voc(tmp_path, expected=SMALL).already == 4


def test_counts_that_differ_are_named_and_nothing_is_written(tmp_path):
    tree = fake_datasets.voc(tmp_path)
    fake_datasets.sbd(tmp_path)
    with pytest.raises(DataError, match=r"trainaug has 4 images, not 10,582; val has 1 images, not 1,449; test has 1"):
        prepare_voc(tmp_path)
    assert not (tree / "SegmentationClassAug").exists()
    assert dict(EXPECTED) == {"trainaug": 10_582, "val": 1_449, "test": 1_456}
    (tree / "ImageSets/Segmentation/test.txt").unlink()
    assert "no test.txt" in prepare_voc(tmp_path, expected=SMALL).notes[0]


def test_missing_and_broken_files_are_named(tmp_path):
    tree, sbd = fake_datasets.voc(tmp_path), fake_datasets.sbd(tmp_path)
    content = (sbd / "cls" / "d.mat").read_bytes()
    (sbd / "cls" / "d.mat").unlink()
    (tree / "JPEGImages" / "e.jpg").unlink()
    with pytest.raises(DataError, match="2 files are missing") as caught:
        prepare_voc(tmp_path, sbd, expected=None)
    assert [problem.split("/")[-1] for problem in caught.value.problems] == ["d.mat: missing", "e.jpg: missing"]
    fake_datasets.write_image(tree / "JPEGImages" / "e.jpg")
    (sbd / "cls" / "d.mat").write_bytes(content[:100])
    with pytest.raises(DataError, match=r"d\.mat: not an SBD label"):
        prepare_voc(tmp_path, sbd, expected=None)


def test_prepare_without_sbd_raises(tmp_path):
    fake_datasets.voc(tmp_path)
    with pytest.raises(DataError, match="--sbd"):
        prepare_voc(tmp_path)
    with pytest.raises(DataError, match="no SBD in"):
        prepare_voc(tmp_path, tmp_path / "nowhere")
