"""The `folder` data set: layouts, kinds of labels, unusual files."""

from __future__ import annotations

import fake_datasets
import numpy as np
import pytest
from PIL import Image

from hamburger.errors import DataError, OptionError
from hamburger.segmentation.data import create_dataset
from hamburger.segmentation.data.checks import inspect_dataset


@pytest.mark.parametrize("layout", ["lists", "images/split", "split/images"])
@pytest.mark.parametrize("suffix", [".png", ".webp", ".JPG"])
def test_layouts_and_formats(tmp_path, layout, suffix):
    images, labels = {
        "lists": ("images", "labels"),
        "images/split": ("images/val", "labels/val"),
        "split/images": ("val/images", "val/labels"),
    }[layout]
    pixels = fake_datasets.write_image(tmp_path / images / f"one{suffix}")
    raw = fake_datasets.write_label(tmp_path / labels / "one.png", (0, 1), palette=True)
    (tmp_path / "classes.txt").write_text("# my classes\nleft side\n\nright side 1 2 3\n")
    if layout == "lists":
        fake_datasets.write_list(tmp_path / "val.txt", ["one"])
    data = create_dataset("folder", "val", tmp_path)
    assert data.ids == ["one"] and data.classes == ("left side", "right side") and data.palette[1] == (1, 2, 3)
    image, label = data[0]
    assert np.array_equal(label.numpy(), raw)
    if suffix != ".JPG":
        assert np.array_equal(image.numpy(), pixels.transpose(2, 0, 1))


def test_large_images_are_shrunk_with_their_labels(tmp_path):
    (tmp_path / "classes.txt").write_text("a\nb\n")
    fake_datasets.write_list(tmp_path / "val.txt", ["large", "small"])
    corner = np.zeros((60, 101), np.uint8)
    corner[:27, :44] = 255
    for name, pixels in (("large", corner), ("small", corner[:20, :32])):
        for folder, image in (("images", np.repeat(pixels[..., None], 3, -1)), ("labels", pixels // 255)):
            (tmp_path / folder).mkdir(exist_ok=True)
            Image.fromarray(image).save(tmp_path / folder / f"{name}.png")
    data = create_dataset("folder", "val", tmp_path, side=32)
    image, label = data[0]
    assert image.shape == (3, 19, 32) and label.shape == (19, 32)
    bright = (image[0] > 127).to(label.dtype)
    assert (bright != label).float().mean() < 0.01 and 0.15 < label.float().mean() < 0.25
    assert data[1].image.shape == (3, 20, 32)  # small enough already
    with pytest.raises(OptionError, match="side must be"):
        create_dataset("folder", "val", tmp_path, side=8)


def test_rgb_labels(tmp_path):
    fake_datasets.folder(tmp_path, ids=2, classes="sky 0 0 255\nroad 128 64 128\ntree 0 128 0\n")
    raw = np.array(Image.open(tmp_path / "labels" / "img0.png"))
    colours = np.zeros((256, 3), np.uint8)
    colours[[0, 1, 2, 255]] = [(0, 0, 255), (128, 64, 128), (0, 128, 0), (9, 9, 9)]
    Image.fromarray(colours[raw]).save(tmp_path / "labels" / "img0.png")
    data = create_dataset("folder", "train", tmp_path, ignore_colour=[9, 9, 9])
    assert np.array_equal(data[0].label.numpy(), raw)
    with pytest.raises(DataError, match=r"img0.png: 1 colours without a class \(9 9 9\)"):
        create_dataset("folder", "train", tmp_path)[0]
    (tmp_path / "classes.txt").write_text("sky\nroad\ntree\n")
    with pytest.raises(DataError, match="not every class has a colour"):
        create_dataset("folder", "train", tmp_path)[0]


def test_remap_and_ignore(tmp_path):
    fake_datasets.folder(tmp_path, ids=2)
    raw = fake_datasets.write_label(tmp_path / "labels" / "img0.png", (7, 26, 3, 255))
    data = create_dataset("folder", "train", tmp_path, remap={"7": 1, "26": 0}, ignore=[3], classes=("road", "sky"))
    expected = np.full_like(raw, 255)
    expected[raw == 7], expected[raw == 26] = 0, 1
    assert np.array_equal(data[0].label.numpy(), expected)
    with pytest.raises(DataError, match="label values 3 are not a class"):
        create_dataset("folder", "train", tmp_path, remap={7: 1, 26: 0})[0]
    for options, complaint in (({"ignore": 1}, "without a class"), ({"remap": {7: 3}}, "remap must map")):
        with pytest.raises(OptionError, match=complaint):
            create_dataset("folder", "train", tmp_path, **options)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("L", lambda grey: np.stack([grey] * 3)),
        ("RGBA", lambda grey: np.full((3, *grey.shape), 255)),  # fully transparent: the white below
        ("I;16", lambda grey: np.stack([grey] * 3)),
    ],
    ids=["grey", "transparent", "16 bits"],
)
def test_odd_images_become_rgb(tmp_path, mode, expected):
    fake_datasets.folder(tmp_path, ids=2)
    grey = fake_datasets.rng("grey").integers(0, 256, fake_datasets.SIZE, dtype=np.uint8)
    image = {
        "L": Image.fromarray(grey),
        "RGBA": Image.fromarray(np.dstack([grey, grey, grey, np.zeros_like(grey)])),
        "I;16": Image.fromarray(grey.astype(np.uint16) * 257),
    }[mode]
    image.save(tmp_path / "images" / "img0.png")
    assert np.array_equal(create_dataset("folder", "train", tmp_path)[0].image.numpy(), expected(grey))


def test_exif_rotation_is_applied_to_the_image(tmp_path):
    """Stored lying (w and h swapped), shown standing: the label was drawn on what is shown."""
    fake_datasets.folder(tmp_path, ids=2)
    h, w = fake_datasets.SIZE
    shown = np.zeros((h, w, 3), np.uint8)
    shown[: h // 2] = 255  # the upper half is white
    exif = Image.Exif()
    exif[0x0112] = 6  # shown after a quarter turn clockwise
    Image.fromarray(np.rot90(shown)).save(tmp_path / "images" / "img0.jpg", exif=exif, quality=95)
    (tmp_path / "images" / "img0.png").unlink()
    image = create_dataset("folder", "train", tmp_path)[0].image
    assert image.shape == (3, h, w)
    assert image[:, : h // 2 - 1].min() > 200 and image[:, h // 2 + 1 :].max() < 50


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "missing; it must list the classes"),
        ("a\na\n", "listed twice"),
        ("a 1 2 300\n", "0 ... 255"),
        ("# no\n", "got 0"),
    ],
    ids=["missing", "twice", "colour", "empty"],
)
def test_class_file_mistakes(tmp_path, text, complaint):
    fake_datasets.folder(tmp_path)
    (tmp_path / "classes.txt").unlink()
    if text is not None:
        (tmp_path / "classes.txt").write_text(text)
    with pytest.raises(DataError, match=complaint):
        create_dataset("folder", "train", tmp_path)


def test_a_split_without_a_list(tmp_path):
    fake_datasets.folder(tmp_path)
    with pytest.raises(DataError, match=r"the images of 'test'.*test\.txt"):
        create_dataset("folder", "test", tmp_path)


def binary_folder(root, values=(0, 255)):
    root = fake_datasets.folder(root, classes="background\ncell\n")
    for path in (root / "labels").iterdir():
        fake_datasets.write_label(path, values)
    return root


def test_masks_of_0_and_255_are_refused_with_the_option_that_reads_them(tmp_path):
    """255 means unlabelled: all other pixels are of one class, and any network would reach an mIoU of 100."""
    (problem,) = inspect_dataset(create_dataset("folder", "train", binary_folder(tmp_path))).problems
    assert "split 'train': every labelled pixel is 'background'" in problem and "data.options.binary=true" in problem


@pytest.mark.parametrize("values", [(0, 255), (0, 1), (0, 1, 255)])
def test_binary_maps_255_and_1_to_the_second_class(tmp_path, values):
    data = create_dataset("folder", "train", binary_folder(tmp_path, values), binary=True)
    raw = np.array(Image.open(tmp_path / "labels" / "img0.png"))
    assert np.array_equal(data[0].label.numpy(), raw > 0)
    assert inspect_dataset(data).problems == []


def test_binary_refuses_other_values_and_other_numbers_of_classes(tmp_path):
    data = create_dataset("folder", "train", binary_folder(tmp_path, (0, 128, 255)), binary=True)
    with pytest.raises(DataError, match=r"label values 128 are not a class; expected 0 \.\.\. 1, or 255 for 'cell'"):
        data[0]
    with pytest.raises(OptionError, match="binary must be True or False"):
        create_dataset("folder", "train", tmp_path, binary="yes")
    (tmp_path / "classes.txt").write_text("a\nb\nc\n")
    with pytest.raises(OptionError, match="binary needs two classes"):
        create_dataset("folder", "train", tmp_path, binary=True)


def test_remap_may_give_255_a_class(tmp_path):
    data = create_dataset("folder", "train", binary_folder(tmp_path), remap={"0": 1, "255": 0})
    raw = np.array(Image.open(tmp_path / "labels" / "img0.png"))
    assert np.array_equal(data[0].label.numpy(), raw == 0)


def test_classes_without_pixels_are_noted(tmp_path):
    root = fake_datasets.folder(tmp_path, classes="sky\nroad\ntree\ncar\nbus\n")
    findings = inspect_dataset(create_dataset("folder", "train", root))
    assert findings.problems == [] and findings.notes == ["folder: split 'train': no pixel of 2 classes: car, bus"]
