"""PASCAL-Context's label PNGs from the official JSON, on a small tree in the official layout."""

from __future__ import annotations

import json

import fake_datasets
import pytest
import torch
from typer.testing import CliRunner

from hamburger.cli.app import app
from hamburger.detection.data.coco import encode_masks
from hamburger.errors import DataError
from hamburger.segmentation.data import create_dataset
from hamburger.segmentation.data.published import CONTEXT_CLASSES
from hamburger_lab.prepare_context import CATEGORY_IDS, prepare_context

SMALL = {"train": 2, "val": 1}


def write_tree(root, **changes):
    """A tree of VOC 2010 with three images; 284 is person, 113 dog, 3 none of the 59 classes."""
    tree = root / "VOCdevkit" / "VOC2010"
    phases = {"2008_000001": "train", "2008_000002": "train", "2008_000003": "val", "2008_000004": "test"}
    images, annotations = [], []
    for i, (name, phase) in enumerate(phases.items()):
        fake_datasets.write_image(tree / "JPEGImages" / f"{name}.jpg", size=(8, 10))
        images.append({"image_id": i, "file_name": f"{name}.jpg", "height": 8, "width": 10, "phase": phase})
        for category, rows in ((284, slice(0, 4)), (3, slice(3, 5)), (113, slice(4, 6))):
            mask = torch.zeros(1, 8, 10, dtype=torch.bool)
            mask[0, rows] = True
            annotations.append({"image_id": i, "category_id": category, "segmentation": encode_masks(mask)[0]})
    content = {"images": images, "annos_segmentation": annotations, **changes}
    (tree / "trainval_merged.json").write_text(json.dumps(content))
    return tree


def test_labels_and_lists_are_those_the_loader_reads(tmp_path):
    tree = write_tree(tmp_path)
    seen = []
    done = prepare_context(tmp_path, expected=SMALL, after=seen.append)
    assert done.counts == SMALL and done.already == 0 and seen == [3, 3, 3]
    assert done.notes == ("3 objects of category 3 are none of the 59 classes and count as background",)
    assert (tree / "ImageSets/SegmentationContext/train.txt").read_text() == "2008_000001\n2008_000002\n"
    label = create_dataset("context", "val", tmp_path)[0].label.numpy()
    person, dog = CONTEXT_CLASSES.index("person"), CONTEXT_CLASSES.index("dog")
    assert (label[:3] == person).all() and (label[3] == 0).all() and (label[4:6] == dog).all() and not label[6:].any()
    assert prepare_context(tmp_path, expected=SMALL).already == 3  # an interrupted call resumes


def test_category_ids_are_in_the_order_of_the_classes():
    """PASCAL-Context numbers its 459 categories alphabetically, and so do the 59 classes."""
    assert len(CATEGORY_IDS) == len(CONTEXT_CLASSES) and list(CATEGORY_IDS) == sorted(set(CATEGORY_IDS))
    known = {0: "background", 2: "aeroplane", 23: "bicycle", 113: "dog", 284: "person", 427: "tvmonitor", 458: "wood"}
    assert {id: CONTEXT_CLASSES[CATEGORY_IDS.index(id)] for id in known} == known


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "train has 2 images, not 4,998; val has 1 images, not 5,105"),
        ({"images": 3}, "not the annotations of PASCAL-Context"),
        ({"annos_segmentation": [{"image_id": 0}]}, "not the annotations of PASCAL-Context"),
        (
            {"images": [{"file_name": "a.jpg", "phase": "val", "height": float("inf"), "width": 9}]},
            "not the annotations of",
        ),
        ({"images": [{"file_name": "a.jpg", "phase": "val", "height": -1, "width": 9}]}, "not the annotations of"),
    ],
)
def test_other_files_are_refused_and_nothing_is_written(tmp_path, changes, message):
    tree = write_tree(tmp_path, **changes)
    with pytest.raises(DataError, match=message):
        prepare_context(tmp_path)
    assert not (tree / "SegmentationClassContext").exists()


def test_missing_images_are_all_named(tmp_path):
    tree = write_tree(tmp_path)
    for name in ("2008_000001", "2008_000003"):
        (tree / "JPEGImages" / f"{name}.jpg").unlink()
    with pytest.raises(DataError, match="2 images are missing") as refused:
        prepare_context(tmp_path, expected=SMALL)
    assert len(refused.value.problems) == 2


def test_a_broken_mask_names_its_image(tmp_path):
    broken = {"image_id": 1, "category_id": 284, "segmentation": {"size": [9, 9], "counts": [81]}}
    write_tree(tmp_path, annos_segmentation=[broken])
    with pytest.raises(DataError, match=r"2008_000002.*is for 9 x 9 pixels"):
        prepare_context(tmp_path, expected=SMALL)


def test_a_name_outside_the_folder_is_refused(tmp_path):
    outside = {"image_id": 1, "file_name": "../../x.jpg", "height": 8, "width": 10, "phase": "train"}
    write_tree(tmp_path, images=[outside])
    with pytest.raises(DataError, match="leaves the data folder"):
        prepare_context(tmp_path, expected=None)


def test_command(tmp_path):
    write_tree(tmp_path)
    arguments = ["data", "prepare", "context", "--root", str(tmp_path)]
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code != 0 and "4,998" in str(refused.exception)
    result = CliRunner().invoke(app, [*arguments, "--any-counts"])
    assert result.exit_code == 0 and "train 2, val 1" in result.stdout
    missing = CliRunner().invoke(
        app, ["data", "prepare", "context", "--root", str(tmp_path), "--annotations", "no.json"]
    )
    assert "there is no file no.json" in str(missing.exception)
