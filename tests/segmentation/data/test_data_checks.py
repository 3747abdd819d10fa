"""Checks of bad data folders list every defect with its path, before training."""

from __future__ import annotations

import fake_datasets
import numpy as np
import pytest
from PIL import Image

from hamburger.errors import DataError
from hamburger.segmentation.data import create_dataset, datasets
from hamburger.segmentation.data.checks import check_dataset, inspect_dataset
from hamburger.training.datasets import raise_problems


def broken(root):
    """Nine images, seven of them bad, one listed twice."""
    fake_datasets.folder(root, ids=10)
    images, labels = root / "images", root / "labels"
    (images / "img0.png").unlink()
    (labels / "img1.png").unlink()
    content = (images / "img2.png").read_bytes()
    (images / "img2.png").write_bytes(content[: len(content) // 2])
    (images / "img3.png").write_bytes(b"")
    fake_datasets.write_label(labels / "img4.png", (0, 77, 200))
    fake_datasets.write_label(labels / "img5.png", (0, 1), size=(10, 11))
    Image.fromarray(np.zeros((*fake_datasets.SIZE, 3), np.uint8)).save(labels / "img6.png")
    with (root / "train.txt").open("a") as file:
        file.write("img7\n")
    return create_dataset("folder", "train", root)


def test_every_defect_is_listed_with_its_path(tmp_path):
    data = broken(tmp_path)
    with pytest.raises(DataError) as caught:
        check_dataset(data)
    problems = caught.value.problems
    for path, what in {
        "images/img0": "missing",
        "labels/img1.png": "missing",
        "images/img2.png": "damaged or incomplete",
        "images/img3.png": "empty file",
        "labels/img4.png": "77, 200 are not a class",
        "labels/img5.png": "11 x 10 pixels for an image of 32 x 24",
        "labels/img6.png": "an RGB label",
        "img7": "listed 2 times",
    }.items():
        assert sum(path in problem and what in problem for problem in problems) == 1, (path, problems)
    assert len(problems) == 8 and "8 problems" in str(caught.value)
    assert all(problem in str(caught.value) for problem in problems)
    assert inspect_dataset(data).problems == list(problems)


def test_the_message_shows_twenty_problems_and_counts_the_rest(tmp_path):
    fake_datasets.folder(tmp_path, ids=26)
    for path in (tmp_path / "labels").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="and 5 more") as caught:
        check_dataset(create_dataset("folder", "train", tmp_path))
    assert len(caught.value.problems) == 25 and str(caught.value).count("missing") == 20


def test_the_suggested_command_lists_all_problems(tmp_path):
    folder = create_dataset("folder", "train", fake_datasets.folder(tmp_path))
    generated = create_dataset("patchwork", "val", length=1)
    for data, command in ((folder, "folder --data DIR"), (generated, "patchwork")):
        with pytest.raises(DataError, match=f"`ham data check {command}` lists them all"):
            raise_problems(data, ["bad"] * 21)


def test_labels_of_another_format_are_explained(tmp_path):
    fake_datasets.folder(tmp_path, ids=3)
    (tmp_path / "labels" / "img0.png").rename(tmp_path / "labels" / "img0.jpg")
    [problem] = inspect_dataset(create_dataset("folder", "train", tmp_path)).problems
    assert "img0.png: missing, but img0.jpg exists; convert labels to PNG" in problem


def test_two_images_of_one_id_are_ambiguous(tmp_path):
    fake_datasets.folder(tmp_path, ids=3)
    fake_datasets.write_image(tmp_path / "images" / "img0.webp")
    [problem] = inspect_dataset(create_dataset("folder", "train", tmp_path)).problems
    assert "img0.png: has the same id as img0.webp" in problem
    for part in ("images", "labels"):
        (tmp_path / part).rename(tmp_path / "moved")
        (tmp_path / part).mkdir()
        (tmp_path / "moved").rename(tmp_path / part / "train")
    (tmp_path / "train.txt").unlink()  # all images of the folder: still one sample, and still ambiguous
    data = create_dataset("folder", "train", tmp_path)
    assert data.ids == ["img0", "img1", "img2"] and len(inspect_dataset(data).problems) == 1


def test_a_single_pixel_is_valid(tmp_path):
    fake_datasets.folder(tmp_path, ids=3)
    fake_datasets.write_image(tmp_path / "images" / "img0.png", (1, 1))
    fake_datasets.write_label(tmp_path / "labels" / "img0.png", (1,), (1, 1))
    data = create_dataset("folder", "train", tmp_path)
    assert data[0].image.add_(1).shape == (3, 1, 1) and inspect_dataset(data).problems == []


def test_empty_split_raises(tmp_path):
    fake_datasets.folder(tmp_path)
    (tmp_path / "train.txt").write_text("\n")
    with pytest.raises(DataError, match="'train' is empty"):
        check_dataset(create_dataset("folder", "train", tmp_path))


def test_labels_without_any_class(tmp_path):
    fake_datasets.folder(tmp_path, ids=2)
    fake_datasets.write_label(tmp_path / "labels" / "img0.png", (255,))
    with pytest.raises(DataError, match="no pixel"):
        check_dataset(create_dataset("folder", "train", tmp_path))


def test_a_mismatch_by_exif_rotation_is_explained(tmp_path):
    fake_datasets.folder(tmp_path, ids=2)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.zeros((*fake_datasets.SIZE, 3), np.uint8)).save(tmp_path / "images" / "img0.jpg", exif=exif)
    (tmp_path / "images" / "img0.png").unlink()
    assert "EXIF" in inspect_dataset(create_dataset("folder", "train", tmp_path)).problems[0]


def test_findings_count_pixels_and_sizes(tmp_path):
    fake_datasets.folder(tmp_path, ids=4)
    findings = check_dataset(create_dataset("folder", "train", tmp_path))
    labels = np.stack([np.array(Image.open(tmp_path / "labels" / f"img{i}.png")) for i in range(3)])
    assert findings.pixels == [int((labels == value).sum()) for value in (0, 1, 2, 255)]
    assert findings.sizes == {fake_datasets.SIZE: 3}


def test_every_check_reads_the_files_again(tmp_path):
    fake_datasets.folder(tmp_path, ids=6)
    data = create_dataset("folder", "train", tmp_path)
    assert inspect_dataset(data).problems == []
    fake_datasets.write_label(tmp_path / "labels" / "img2.png", (0, 99), size=(5, 5))
    assert len(inspect_dataset(data).problems) == 2


@pytest.mark.parametrize("name", [n for n in datasets.names() if n.startswith("patchwork")])
def test_generated_sets_are_valid(name):
    findings = check_dataset(create_dataset(name, "val", length=12))
    assert sum(findings.pixels) == 12 * 64 * 64 and findings.pixels[-1] == 0 and findings.sizes == {(64, 64): 12}
