"""Stereo pairs on the command line; no input file is overwritten."""

from __future__ import annotations

import fake_stereo
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import hamburger as hb
from hamburger.checkpoints.weights_file import Info
from hamburger.inference.predict_files import FilePrediction, FilePredictor, InputImage, predict_folder
from hamburger.stereo.predict import find_pairs


@pytest.fixture
def images(tmp_path):
    for name in ("left", "right", "other"):
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / f"{name}.png")
    return tmp_path


def test_pairs_of_files_and_folders(images):
    left, right, other = (images / f"{name}.png" for name in ("left", "right", "other"))
    fake_stereo.middlebury(images / "tree")
    pairs = find_pairs([left, right, images / "tree", other, right]).photos
    assert pairs[:2] == (InputImage(left, "left", right), InputImage(other, "other", right))
    assert [pair.name for pair in pairs[2:]] == ["aloe", "art", "cones", "motorcycle", "piano"]
    assert pairs[4].paths == tuple(images / "tree" / "cones" / name for name in ("im2.png", "im6.png"))
    without = find_pairs([images / "tree"], outside=images / "tree" / "cones").photos
    assert [pair.name for pair in without] == ["aloe", "art", "motorcycle", "piano"]


@pytest.mark.parametrize(
    ("names", "recursive", "message"),
    [
        (["left", "right", "other"], False, "got 3 images"),
        (["left", "right", "left", "other"], False, "named twice"),
        (["left", "right"], True, "leave out --recursive"),
    ],
)
def test_invalid_pairs_raise(images, names, recursive, message):
    with pytest.raises(hb.OptionError, match=message):
        find_pairs([images / f"{name}.png" for name in names], recursive=recursive)


def test_pairs_with_the_same_name_raise(images):
    for folder in ("a", "b"):
        fake_stereo.middlebury(images / folder)
    with pytest.raises(hb.OptionError, match="several pairs are called aloe, art"):
        find_pairs([images / "a", images / "b"])


def test_neither_image_is_overwritten(images):
    class Maps(FilePredictor):
        columns = ("map",)
        pairs = True
        files = {"map": lambda name: images.relative_to(images) / "right.png"}  # noqa: RUF012

        def __call__(self, *paths):
            return FilePrediction({}, (), {"map": b"abc"})

    with pytest.raises(hb.OptionError, match=r"right\.png would overwrite an image"):
        predict_folder(
            Maps(nn.Identity(), Info(), torch.device("cpu")),
            find_pairs([images / "left.png", images / "right.png"]),
            images,
        )
