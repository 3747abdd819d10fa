"""Image sets in common layouts, and the errors for broken ones."""

from __future__ import annotations

import codecs
import pickle
import resource

import fake_image_folders
import numpy as np
import pytest
from PIL import Image

from hamburger.classification.data.base import load_images, open_source
from hamburger.classification.data.cifar10 import read_batch
from hamburger.errors import DataError, OptionError, UnknownNameError


def load(name, root, tmp_path, *, size, split="train", **options):
    return load_images(open_source(name, split, size=size, root=root, **options), cache=tmp_path / "cache")


def test_a_directory_is_a_class(tmp_path):
    root = fake_image_folders.folders(tmp_path / "data")
    dataset = load("folder", root, tmp_path, size=16)
    assert dataset.classes == ("cats", "dogs")
    assert dataset.images.shape == (6, 3, 16, 16)
    assert dataset.labels.tolist() == [0, 0, 0, 1, 1, 1]
    path = root / "train" / "dogs" / "1.png"
    middle = Image.open(path).crop((5, 0, 25, 20)).resize((16, 16), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(dataset.images[4], np.asarray(middle).transpose(2, 0, 1))
    bare = load("folder", root / "train", tmp_path, size=16)
    np.testing.assert_array_equal(bare.images, dataset.images)


def test_a_missing_split_does_not_fall_back_to_its_parent(tmp_path):
    root = fake_image_folders.folders(tmp_path / "data")
    fake_image_folders.folders(root, split="val")
    with pytest.raises(DataError, match=r"no split 'test' in .*; it has train, val"):
        open_source("folder", "test", size=16, root=root)
    with pytest.raises(DataError, match=r"no split 'val' in .*; its classes are the split 'train'"):
        open_source("folder", "val", size=16, root=root / "train")
    vehicles = fake_image_folders.folders(tmp_path / "vehicles", split="", classes=("car", "test"))
    assert open_source("folder", "train", size=16, root=vehicles).classes == ("car", "test")


def test_imagenet_needs_its_thousand_classes(tmp_path):
    root = fake_image_folders.folders(tmp_path / "data", classes=("n01440764", "n01443537"), suffix=".jpeg")
    with pytest.raises(DataError, match="must have 1000 classes"):
        open_source("imagenet", "train", size=128, root=root)
    dataset = load("imagenet", root, tmp_path, size=32, any_classes=True)
    assert dataset.images.shape == (6, 3, 32, 32)
    fake_image_folders.folders(root, classes=("cats",))
    with pytest.raises(DataError, match="not WordNet ids"):
        open_source("imagenet", "train", size=128, root=root)


def test_python_batches(tmp_path):
    dataset = load("cifar10", fake_image_folders.cifar_batches(tmp_path / "a"), tmp_path, size=32)
    assert dataset.images.shape == (20, 3, 32, 32)
    assert dataset.labels[:6].tolist() == [0, 1, 2, 3, 1, 2]
    first = np.random.default_rng(0).integers(0, 256, (4, 3072), dtype=np.uint8)
    np.testing.assert_array_equal(dataset.images[:4], first.reshape(4, 3, 32, 32))
    assert len(load("cifar10", tmp_path / "a", tmp_path, size=32, split="test")) == 4


@pytest.mark.parametrize(("label", "message"), [(-5, r"-5 \.\.\. 2"), (2**70, rf"1 \.\.\. {2**70}")])
def test_batch_labels_outside_the_classes_are_named(tmp_path, label, message):
    path = fake_image_folders.cifar_batches(tmp_path / "a") / "cifar-10-batches-py" / "data_batch_2"
    content = {b"data": np.zeros((3, 3072), np.uint8), b"labels": [1, label, 2]}
    path.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(DataError, match=rf"data_batch_2: labels must be in 0 \.\.\. 9 .got {message}"):
        load("cifar10", tmp_path / "a", tmp_path, size=32)


def test_a_batch_file_executes_nothing(tmp_path):
    root = fake_image_folders.cifar_batches(tmp_path / "a")
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (type(marker).touch, (marker,))

    for name in ("data_batch_2", "data_batch_4"):
        path = root / "cifar-10-batches-py" / name
        path.write_bytes(pickle.dumps({b"data": Evil()}, protocol=2))
    with pytest.raises(DataError, match="2 files cannot be used") as error:
        load("cifar10", root, tmp_path, size=32)
    assert "data_batch_2" in str(error.value) and "data_batch_4" in str(error.value)
    assert "which no CIFAR batch contains" in str(error.value)
    assert not marker.exists()


class Call:
    """A call that a hostile pickle tries to make."""

    def __init__(self, *what):
        self.what = what

    def __reduce__(self):
        return self.what


_reconstruct = np.empty(0).__reduce__()[0]
FORGED = b"A" * 32  # bytes that would be taken for addresses of objects


@pytest.mark.parametrize(
    "data",
    [
        Call(np.ndarray, ((4,), "O", FORGED)),
        Call(np.ndarray, ((4,), [("a", "O")], FORGED)),
        Call(np.ndarray, ((4,), "u1", FORGED, 0, (-4096,))),
        Call(_reconstruct, (np.ndarray, (0,), b"b"), (1, (4,), np.dtype("O"), False, FORGED)),
        Call(_reconstruct, (np.ndarray, (0,), b"b"), (1, (4096,), np.dtype("u1"), False, FORGED)),
        Call(_reconstruct, (dict, (0,), b"b")),
        Call(_reconstruct, (np.ndarray, (0,), b"b")),
        Call(codecs.encode, ("x", "idna")),
        np.arange(4),
    ],
    ids=[
        "objects",
        "a record",
        "strides",
        "filled with objects",
        "too short",
        "a dict",
        "never filled",
        "text",
        "int64",
    ],
)
def test_a_batch_file_creates_only_byte_arrays(tmp_path, data):
    """numpy's own ndarray, called by a stream, takes bytes for objects: that ends the process, or worse."""
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({b"data": data, b"labels": []}, protocol=2))
    with pytest.raises(DataError, match="not a CIFAR batch"):
        read_batch(path)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02}K\x01" + b"q\x00h\x00\x86" * 60 + b"K\x01s.",
        b"\x80\x02}K\x01" + b"\x85" * 10**6 + b"K\x01s.",
        b"\x80\x02X\x00\x00\x10\x00" + b"a" * 2**20 + b"q\x00X\x06\x00\x00\x00latin1q\x01"
        b"c_codecs\nencode\nq\x02" + b"h\x02h\x00h\x01\x86R" * 2000 + b".",
    ],
    ids=["a key of 2^60 parts", "a key nested 10^6 times", "2 GB of bytes"],
)
def test_small_batches_that_ask_for_time_or_memory_are_refused(tmp_path, content):
    (tmp_path / "batch").write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match="not a CIFAR batch"):
        read_batch(tmp_path / "batch")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**19  # KiB


def test_tiny_imagenet_from_its_folder_or_the_one_above(tmp_path):
    tree = tmp_path / "tiny-imagenet-200"
    fake_image_folders.folders(tree, classes=("n01", "n02"), size=(64, 64), suffix=".jpeg")
    (tree / "train" / "n01" / "._0.jpeg").write_bytes(b"what some systems put next to a file")
    for root in (tree, tmp_path):
        assert load("tiny-imagenet", root, tmp_path, size=64).labels.tolist() == [0, 0, 0, 1, 1, 1]
    with pytest.raises(DataError, match=r"there is no split 'test' in .*tiny-imagenet-200; it has train"):
        open_source("tiny-imagenet", "test", size=64, root=tree)


def test_the_official_val_of_tiny_imagenet_has_the_classes_of_train(tmp_path):
    tree = fake_image_folders.folders(tmp_path / "tree", classes=("n01", "n02", "n03"), size=(64, 64), suffix=".JPEG")
    fake_image_folders.official_val(tree, classes=("n03", "n02"))

    def load_val():
        return load("tiny-imagenet", tree, tmp_path, size=64, split="val")

    dataset = load_val()
    assert dataset.classes == ("n01", "n02", "n03")
    assert dataset.labels.tolist() == [1, 1, 2, 2]
    for image, name in zip(dataset.images, ("val_0", "val_2", "val_1", "val_3"), strict=True):
        pixels = np.asarray(Image.open(tree / "val" / "images" / f"{name}.JPEG"))
        np.testing.assert_array_equal(image, pixels.transpose(2, 0, 1))
    text = tree / "val" / "val_annotations.txt"
    whole = text.read_text()
    for content, complaint in {
        "": r"val_0.JPEG has no line.*unpack the archive again",
        whole + "val_9.JPEG\tn02\n": "val_9.JPEG has a line but no file",
        whole + "val_0.JPEG\n": "line 5 has no class",
        whole + "val_0.JPEG\tn03\n": "line 5 gives val_0.JPEG the class n03, another line n02",
        whole.replace("n03", "n07"): r"1 of its 2 classes have no folder in train \(n07\)",
    }.items():
        text.write_text(content)
        with pytest.raises(DataError, match=complaint):
            load_val()
    text.unlink()
    with pytest.raises(DataError, match=r"no val/val_annotations.txt.*'test' is published without"):
        load_val()


def test_val_alone_uses_its_own_classes(tmp_path):
    dataset = load("tiny-imagenet", fake_image_folders.official_val(tmp_path / "tree"), tmp_path, size=64, split="val")
    assert dataset.classes == ("n01", "n02") and dataset.labels.tolist() == [0, 0, 1, 1]


def test_all_broken_files_are_listed_at_once(tmp_path):
    root = fake_image_folders.folders(tmp_path / "data", each=30)
    for i in range(25):
        (root / "train" / "cats" / f"{i}.png").write_bytes(b"" if i else b"not an image")
    with pytest.raises(DataError, match="25 files cannot be used") as error:
        load("folder", root, tmp_path, size=16)
    assert len(error.value.problems) == 25
    assert "0.png: no JPEG, PNG, WebP, BMP, GIF, TIFF, AVIF or HEIC image" in str(error.value)
    assert "... and 5 more" in str(error.value)
    assert not list((tmp_path / "cache").glob("*.images")), "nothing half-made is kept"
    assert not list((tmp_path / "cache").glob("*.partial"))


def test_invalid_folders_are_named(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean 'cifar10'"):
        open_source("cifar", "train", size=32)
    with pytest.raises(OptionError, match="--data DIR"):
        open_source("cifar10", "train", size=32)
    with pytest.raises(OptionError, match="generated"):
        open_source("figures", "train", size=32, root=tmp_path)
    with pytest.raises(OptionError, match="got size=64"):
        open_source("cifar10", "train", size=64, root=tmp_path)
    with pytest.raises(DataError, match="does not contain data_batch_1"):
        open_source("cifar10", "train", size=32, root=tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="one directory per class"):
        open_source("folder", "train", size=32, root=tmp_path / "empty")
    root = fake_image_folders.cifar_batches(tmp_path / "a")
    (root / "cifar-10-batches-py" / "data_batch_3").unlink()
    with pytest.raises(DataError, match=r"missing: .*data_batch_3"):
        open_source("cifar10", "train", size=32, root=root)


def test_figures_are_the_same_everywhere():
    dataset = load_images(open_source("figures", "train", size=32, length=40))
    assert dataset.images.shape == (40, 3, 32, 32)
    assert dataset.classes == ("disc", "square", "cross", "ring")
    assert dataset.labels.tolist() == [i % 4 for i in range(40)]
    again = load_images(open_source("figures", "train", size=32, length=40))
    assert again.digest == dataset.digest == "3148652474b62c0f702163a36ae40b16ca83eb995cf0cbdb2b8692ed74e86272"
    other = load_images(open_source("figures", "train", size=32, length=40, seed=1))
    assert other.digest != dataset.digest
    flat = dataset.images.reshape(40, -1)
    assert len(np.unique(flat, axis=0)) == 40
