"""Lists of ids as editors and other tools write them."""

from __future__ import annotations

import time

import fake_datasets
import pytest

from hamburger.segmentation.data import create_dataset
from hamburger.segmentation.data.base import ImageIndex, read_ids
from hamburger.segmentation.data.checks import inspect_dataset


@pytest.fixture
def images(tmp_path):
    for name in ("a.jpg", "b.png", "my photo 1.jpg", "my.jpg", "x.v2.webp", "A/0001.png", "B/0001.png", "B/c d.png"):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).touch()
    return ImageIndex(tmp_path / "images")


@pytest.mark.parametrize(
    ("line", "id"),
    [
        ("a", "a"),
        ("  a.jpg\t", "a"),
        ("x.v2", "x.v2"),
        ("my photo 1", "my photo 1"),
        ("my photo 1.jpg", "my photo 1"),
        ("my -1", "my"),
        ("a  1", "a"),
        ("A/0001", "A/0001"),
        ("images/B/0001.png", "B/0001"),
        ("./B/0001.png", "B/0001"),
        ("images/B/c d.png", "B/c d"),
        ("B/c d", "B/c d"),
        ("/JPEGImages/a.jpg /SegmentationClassAug/a.png", "a"),
        ("images/B/0001.png labels/B/0001.png", "B/0001"),
        ("a.jpg labels/b.png", "a"),
        ("/data/elsewhere/a.jpg", "a"),
        ("../images/a.jpg", "a"),
        ("gone", "gone"),
        ("gone.png", "gone"),
        ("gone -1", "gone"),
        ("my photo 2", "my photo 2"),
        ("your photo.jpg", "your photo"),
        ("A/0002", "A/0002"),
        ("C/0002.jpg", "0002"),
        ("C/0002.jpg D/0002.png", "0002"),
    ],
)
def test_a_line_resolves_to_an_existing_image(images, tmp_path, line, id):
    fake_datasets.write_list(tmp_path / "train.txt", ["", line, " "])
    assert read_ids(tmp_path / "train.txt", images) == [id]


@pytest.mark.parametrize(
    ("line", "id"), [("a -1", "a"), ("/x/a.jpg /y/a.png", "a"), ("x/a.jpg", "a"), ("a b c", "a b c")]
)
def test_without_images_a_line_is_its_name(tmp_path, line, id):
    fake_datasets.write_list(tmp_path / "train.txt", [line])
    assert read_ids(tmp_path / "train.txt") == [id]


@pytest.mark.parametrize(
    "line", ["gone{}", "gone/{}.png", "gone{}/x.png", "A/{}.png labels/{}.png", "A/" + "gone/" * 500 + "{}"]
)
def test_long_lists_of_missing_images_are_read_in_linear_time(images, tmp_path, line):
    fake_datasets.write_list(tmp_path / "train.txt", [line.format(i, i) for i in range(5_000)])
    begun = time.process_time()
    assert len(read_ids(tmp_path / "train.txt", images)) == 5_000
    assert time.process_time() - begun < 10
    assert len(images.listed) <= 2  # nothing is kept of missing folders


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["unix", "windows"])
def test_byte_order_marks_and_windows_line_endings(images, tmp_path, start, end):
    (tmp_path / "train.txt").write_bytes(start + end.join([b"a", b"my photo 1", b"B/0001", b""]))
    assert read_ids(tmp_path / "train.txt", images) == ["a", "my photo 1", "B/0001"]


def test_equal_names_in_different_folders_are_different_samples(tmp_path):
    (tmp_path / "classes.txt").write_text("sky\nroad\n")
    sizes = {"A/0001": (5, 6), "B/0001": (7, 8)}
    for id, size in sizes.items():
        fake_datasets.write_image(tmp_path / "images" / f"{id}.png", size)
        fake_datasets.write_label(tmp_path / "labels" / f"{id}.png", (0, 1), size)
    fake_datasets.write_list(tmp_path / "train.txt", list(sizes))
    data = create_dataset("folder", "train", tmp_path)
    assert data.ids == list(sizes) and [tuple(sample.label.shape) for sample in data] == list(sizes.values())
    assert inspect_dataset(data).problems == []
