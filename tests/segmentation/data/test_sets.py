"""Every layout that a loader accepts, on small trees, and on real files if available."""

from __future__ import annotations

import fake_datasets
import numpy as np
import pytest
import torch
from paths import SHARED
from PIL import Image

from hamburger.detection.data import create_detection_set
from hamburger.errors import DataError, OptionError, UnknownNameError
from hamburger.segmentation.data import create_dataset, datasets
from hamburger.segmentation.data.checks import inspect_dataset
from hamburger.segmentation.data.published import CONTEXT_CLASSES as CONTEXT
from hamburger.stereo.data import create_stereo_set
from hamburger.training.image_files import voc_palette

DATA = SHARED / "data"
ANIMALS = ("background", "cat", "cow", "dog", "horse", "person", "sheep")


@pytest.mark.parametrize("name", datasets.names())
def test_every_set_names_what_its_folder_must_contain(name, tmp_path):
    if name.startswith("patchwork"):
        with pytest.raises(OptionError, match="reads no folder"):
            create_dataset(name, "train", tmp_path)
        return
    with pytest.raises(OptionError, match="needs its folder"):
        create_dataset(name, "train")
    with pytest.raises(DataError, match="there is no folder"):
        create_dataset(name, "train", tmp_path / "nowhere")
    with pytest.raises(DataError, match=str(tmp_path)):
        create_dataset(name, "train", tmp_path)


def test_an_unknown_set_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'camvid'"):
        create_dataset("camvdi", "train")


@pytest.mark.parametrize("below", ["", "VOCdevkit", "VOCdevkit/VOC2012"])
def test_voc_finds_the_official_tree_from_parent_folders(tmp_path, below):
    tree = fake_datasets.voc(tmp_path)
    data = create_dataset("voc", "train", tmp_path / below)
    assert data.ids == ["a", "b"] and len(data.classes) == len(data.palette) == 21
    image, label = data[1]
    assert np.array_equal(label.numpy(), np.array(Image.open(tree / "SegmentationClass" / "b.png")))
    assert np.array_equal(image.numpy(), np.array(Image.open(tree / "JPEGImages" / "b.jpg")).transpose(2, 0, 1))
    assert len(create_dataset("voc", "trainval", tmp_path)) == 3


@pytest.mark.parametrize("classes", [("background", "person", "cat"), (0, 15, 8), "background,person,8"], ids=str)
def test_a_subset_of_classes_leaves_the_rest_unlabelled(tmp_path, classes):
    tree = fake_datasets.voc(tmp_path)
    data = create_dataset("voc", "train", tmp_path, classes=classes)
    assert data.classes == ("background", "person", "cat") and data.palette[1] == voc_palette(21)[15]
    raw = np.array(Image.open(tree / "SegmentationClass" / "a.png"))
    expected = np.full_like(raw, 255)
    for new, old in enumerate((0, 15, 8)):
        expected[raw == old] = new
    assert np.array_equal(data[0].label.numpy(), expected)


def test_subset_mistakes(tmp_path):
    fake_datasets.voc(tmp_path)
    for classes, complaint in (
        (("cta",), "did you mean 'cat'"),
        ((0, 0), "different"),
        ((21,), "no class 21"),
        ((), "least"),
    ):
        with pytest.raises(OptionError, match=complaint):
            create_dataset("voc", "train", tmp_path, classes=classes)


SETS = {"folder": create_dataset, "coco": create_detection_set, "middlebury": create_stereo_set}


@pytest.mark.parametrize("name", SETS)
def test_a_split_stays_inside_the_data_folder(name, tmp_path):
    """It may come from the recipe of a run that others sent."""
    for split in ("../other/val", "/other/val", "..", "", "a\0b", "val/../../x"):
        with pytest.raises(DataError, match=f"'{name}': split: .*(leaves the data folder|is not a file name)"):
            SETS[name](name, split, tmp_path)


def test_voc_palette_is_the_official_one():
    assert voc_palette(21)[1] == (128, 0, 0) and voc_palette(21)[15] == (192, 128, 128)
    assert voc_palette(21)[20] == (0, 64, 128) and voc_palette(256)[255] == (224, 224, 192)


def test_a_split_without_labels_is_for_prediction_only(tmp_path):
    tree = fake_datasets.voc(tmp_path)
    data = create_dataset("voc", "test", tmp_path)
    assert data.image_paths() == [tree / "JPEGImages" / "t.jpg"] and not data.labelled
    with pytest.raises(DataError, match=r"has no labels.*ham predict"):
        data[0]
    assert "has no labels" in inspect_dataset(data).problems[0]


def test_missing_trainaug_names_the_prepare_command(tmp_path):
    fake_datasets.voc(tmp_path)
    with pytest.raises(OptionError, match="ham data prepare voc"):
        create_dataset("voc", "trainaug", tmp_path)


@pytest.mark.parametrize("flat", [False, True])
def test_context_has_59_classes_and_background(tmp_path, flat):
    images, labels, lists = ("images", "labels", "") if flat else ("JPEGImages", "SegmentationClassContext", "")
    tree = tmp_path if flat else tmp_path / "VOCdevkit" / "VOC2010"
    lists = tree if flat else tree / "ImageSets" / "SegmentationContext"
    fake_datasets.write_image(tree / images / "x.jpg")
    raw = fake_datasets.write_label(tree / labels / "x.png", (0, 1, 59))
    fake_datasets.write_list(lists / "val.txt", ["x"])
    data = create_dataset("context", "val", tmp_path)
    assert len(data.classes) == 60 and np.array_equal(data[0].label.numpy(), raw)
    without = create_dataset("context", "val", tmp_path, background=False)
    assert len(without.classes) == 59 and without.classes[0] == "aeroplane"
    assert np.array_equal(without[0].label.numpy(), np.where(raw == 0, 255, raw - 1))
    assert sorted(CONTEXT[1:]) == list(CONTEXT[1:]) and len(set(CONTEXT)) == 60


@pytest.mark.parametrize("layout", ["segnet", "split folders"])
@pytest.mark.parametrize("listed", [True, False])
def test_camvid_layouts(tmp_path, layout, listed):
    image, label = ("CamVid/train", "CamVid/trainannot") if layout == "segnet" else ("images/train", "labels/train")
    raws = {}
    for name in ("f2", "f1"):
        fake_datasets.write_image(tmp_path / image / f"{name}.png")
        raws[name] = fake_datasets.write_label(tmp_path / label / f"{name}.png", (0, 10, 11))
    if listed:  # SegNet's lists name both files with folders of their machine
        place = tmp_path / ("CamVid" if layout == "segnet" else "")
        fake_datasets.write_list(
            place / "train.txt", [f"/SegNet/train/{n}.png /SegNet/trainannot/{n}.png" for n in ("f2", "f1")]
        )
    data = create_dataset("camvid", "train", tmp_path)
    assert data.ids == (["f2", "f1"] if listed else ["f1", "f2"]) and len(data.classes) == 11
    for i, name in enumerate(data.ids):
        assert np.array_equal(data[i].label.numpy(), np.where(raws[name] == 11, 255, raws[name]))


@pytest.mark.skipif(not (DATA / "camvid").is_dir(), reason="the real images are not on this machine")
def test_real_camvid_loads():
    train, val = (create_dataset("camvid", split, DATA / "camvid") for split in ("train", "val"))
    assert (len(train), len(val)) == (367, 101)
    assert train[0].image.shape == (3, 360, 480) and train[0].label.dtype == torch.uint8
