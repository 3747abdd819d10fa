"""VOC's augmented set from SBD's files, on trees in the official layouts."""

from __future__ import annotations

import json

import fake_datasets
import numpy as np
import pytest
from PIL import Image
from scipy.io import loadmat

from hamburger.errors import DataError, HamburgerError, OptionError
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


def write_predictions(folder, classes, ids=("a", "b")):
    folder.mkdir(exist_ok=True)
    rows = [{"image": f"photos/{number}/{id}.jpg", "label": f"{number}.png"} for number, id in enumerate(ids)]
    for row in rows:
        Image.fromarray(np.array([[0, 1]], np.uint8)).save(folder / row["label"])
    (folder / "summary.json").write_text(json.dumps({"classes": classes, "images": rows, "failed": []}))
    return folder


def test_server_results_have_voc_ids_and_colours(tmp_path):
    predicted = write_predictions(tmp_path / "predicted", ["cat", "person"])
    written = prepare.write_server_results(predicted, tmp_path / "out")
    assert [path.name for path in written] == ["a.png", "b.png"]
    with Image.open(tmp_path / "out/results/VOC2012/Segmentation/comp6_test_cls/a.png") as image:
        label, palette = np.array(image), image.getpalette()
    assert label.tolist() == [[8, 15]]  # cat and person, as VOC numbers them
    assert palette[8 * 3 : 9 * 3] == [64, 0, 0] and palette[15 * 3 : 16 * 3] == [192, 128, 128]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"label": "../../x.png"}, "leaves the data folder"),
        ({"label": 3}, "lists no images"),
        ({"image": None}, "lists no"),
        ({"image": "a\0b.png"}, "is not a file name"),
    ],
)
def test_server_results_read_labels_of_the_folder_only(tmp_path, row, says):
    predicted = write_predictions(tmp_path / "one", ["cat", "dog"])
    summary = json.loads((predicted / "summary.json").read_text())
    summary["images"][0] |= row
    (predicted / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(HamburgerError, match=says):
        prepare.write_server_results(predicted, tmp_path / "out")


def test_server_results_need_voc_classes_and_different_ids(tmp_path):
    with pytest.raises(OptionError, match="unicorn"):
        prepare.write_server_results(write_predictions(tmp_path / "one", ["cat", "unicorn"]), tmp_path / "out")
    with pytest.raises(OptionError, match="the id a"):
        prepare.write_server_results(write_predictions(tmp_path / "two", ["cat", "dog"], "aa"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
