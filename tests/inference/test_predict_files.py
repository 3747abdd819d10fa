"""Files of `ham predict`: label PNGs, overlays with a legend, and images that fail."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from fuzz_cases import limit_resources
from fuzz_weights import NETWORKS
from PIL import Image
from small_segmenter import CLASSES, PALETTE, ByColour, info

from hamburger.checkpoints.weights_file import Info
from hamburger.errors import OptionError
from hamburger.inference.predict_files import Summary, find_images, output_names, predict_folder
from hamburger.segmentation.predict import (
    SegmentationPredictor,
    draw_overlay_jpeg,
    encode_label_png,
    measure_class_shares,
)
from hamburger.tasks import tasks
from hamburger.training.image_files import UNLABELLED, full_palette


@pytest.fixture
def photos(tmp_path):
    """Left half red, right half blue; one broken file between them."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, size in (("a.png", (40, 20)), ("c.png", (1, 1)), ("d.jpg", (64, 48))):
        image = Image.new("RGB", size, (255, 0, 0))
        image.paste((0, 0, 255), (size[0] // 2, 0, size[0], size[1]))
        image.save(folder / name, **({"quality": 95} if name.endswith("jpg") else {}))
    (folder / "b.png").write_bytes((folder / "a.png").read_bytes()[:60])
    return folder


def run(folder, out, classes=CLASSES, overlay=True):
    predictor = SegmentationPredictor(ByColour(), info(classes), "cpu", overlay=overlay)
    return predict_folder(predictor, find_images([folder]), out)


def test_label_png_has_class_values_at_the_original_size(photos, tmp_path):
    summary = run(photos, tmp_path / "out")
    with Image.open(tmp_path / "out" / "a.png") as image:
        assert image.mode == "P" and image.size == (40, 20)
        label, palette = np.array(image), image.getpalette()
    assert (label[:, :20] == 1).all() and (label[:, 20:] == 3).all()
    assert palette[3:12] == [value for colour in PALETTE[1:] for value in colour]
    assert tuple(palette[765:]) == UNLABELLED
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("a.png", "c.png", "d.png"),
        *("a_overlay.jpg", "c_overlay.jpg", "d_overlay.jpg", "summary.json"),
    }
    assert summary.done[0]["shares"] == {"cat": 0.5, "person": 0.5}


@pytest.mark.parametrize(
    "content",
    [
        "[" * 10**6,
        '{"images": [], "failed": [], "files": 5}',
        '{"images": [{}], "failed": [], "files": [[]], "earlier": ["a\\u0000b", 3]}',
        '{"images": [{}], "failed": [], "earlier": 5}',
    ],
    ids=["deep", "files", "kinds", "earlier"],
)
def test_a_summary_of_somebody_else_is_read_safely(photos, tmp_path, content):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "summary.json").write_text(content)
    if content.startswith("["):
        with pytest.raises(OptionError, match="not a summary of predictions"):
            run(photos, tmp_path / "out")
    else:
        assert len(run(photos, tmp_path / "out").done) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have Unicode names only")
def test_a_file_whose_name_is_not_unicode_has_failed(photos, tmp_path):
    (photos / "d.jpg").rename(os.fsdecode(bytes(photos) + b"/\xff.jpg"))
    summary = run(photos, tmp_path / "out")
    assert len(summary.done) == 2 and len(summary.failed) == 2
    failed = json.loads((tmp_path / "out" / "summary.json").read_text())["failed"]
    assert any("\\udcff.jpg: its name is not valid Unicode" in each["reason"] for each in failed)


def test_an_image_whose_output_has_no_place_has_failed(photos, tmp_path):
    """A name that becomes too long, one that is taken by the summary, and one that is the folder of another output."""

    for name in ("n" * 251, "Summary"):
        shutil.copy(photos / "a.png", photos / f"{name}.png")
    (photos / "z.json").mkdir()
    shutil.copy(photos / "a.png", photos / "z.json")
    shutil.copy(photos / "a.png", photos / "z.png")
    predictor = SegmentationPredictor(ByColour(), info(CLASSES), "cpu", overlay=False)
    predictor.files = {"label": lambda name: Path(f"{name}.json")}
    summary = predict_folder(predictor, find_images([photos], recursive=True), tmp_path / "out")
    why = {Path(row["image"]).stem: row["reason"] for row in summary.failed}
    assert set(why) == {"b", "n" * 251, "Summary", "z"} and len(summary.done) == 4
    assert why["n" * 251].endswith("the names of its output would have more than 255 bytes; rename it")
    assert "its output would be summary.json" in why["Summary"] and "its output cannot be written" in why["z"]
    assert len(json.loads((tmp_path / "out" / "summary.json").read_text())["images"]) == 4


def test_bad_image_does_not_stop_the_others(photos, tmp_path):
    summary = run(photos, tmp_path / "out", overlay=False)
    assert [row["label"] for row in summary.done] == ["a.png", "c.png", "d.png"]
    [failed] = summary.failed
    assert failed["image"].endswith("b.png") and "b.png: " in failed["reason"]


def test_out_of_memory_fails_one_image_only(photos, tmp_path):
    class Hungry(ByColour):
        def forward(self, x):
            if x.shape[-1] == 40:
                raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ...")
            return super().forward(x)

    predictor = SegmentationPredictor(Hungry(), info(), "cpu")
    summary = predict_folder(predictor, find_images([photos]), tmp_path / "o")
    reasons = {row["image"]: row["reason"] for row in summary.failed}
    assert len(summary.done) == 2 and "--max-pixels" in reasons[str(photos / "a.png")]


def test_programming_errors_are_not_reported_as_bad_images(photos, tmp_path):
    class Broken(ByColour):
        def forward(self, x):
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1"):
        predict_folder(SegmentationPredictor(Broken(), info(), "cpu"), find_images([photos]), tmp_path / "o")


def test_inputs_are_never_overwritten(photos):
    before = (photos / "a.png").read_bytes()
    with pytest.raises(OptionError, match="would overwrite"):
        run(photos, photos)
    assert (photos / "a.png").read_bytes() == before


def test_only_our_own_files_are_overwritten(photos, tmp_path):
    """Only what a summary lists is ours, whichever earlier call wrote it."""
    out = tmp_path / "out"
    out.mkdir()
    mine = out / "d.png"
    mine.write_bytes(b"an image of mine")
    with pytest.raises(OptionError, match=r"d\.png would overwrite a file.*--out"):
        run(photos, out)
    assert [path.name for path in out.iterdir()] == ["d.png"] and mine.read_bytes() == b"an image of mine"
    mine.unlink()
    for _ in range(2):
        run(photos, out)
    assert "earlier" not in json.loads((out / "summary.json").read_text())
    other = tmp_path / "other"
    other.mkdir()
    Image.new("RGB", (5, 4)).save(other / "e.png")
    run(other, out)
    assert len(json.loads((out / "summary.json").read_text())["earlier"]) == 6
    run(photos, out)
    (out / "summary.json").write_text('{"of": "something else"}')
    with pytest.raises(OptionError, match=r"summary\.json would overwrite|listed in summary\.json"):
        run(photos, out)


def test_foreign_summary_json_is_kept(photos, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "summary.json").write_text('{"of": "something else"}')
    with pytest.raises(OptionError, match="not a summary of predictions"):
        run(photos, tmp_path / "out")


def test_files_of_a_killed_call_may_be_overwritten(photos, tmp_path):
    predictor, images = SegmentationPredictor(ByColour(), info(), "cpu"), find_images([photos]).photos
    Summary().write(tmp_path / "out" / "summary.json", planned=output_names(images, predictor))
    (tmp_path / "out" / "a.png").write_bytes(b"written before the kill")
    run(photos, tmp_path / "out")
    assert "earlier" not in json.loads((tmp_path / "out" / "summary.json").read_text())


def test_two_runs_write_the_same_bits(photos, tmp_path):
    for name in ("one", "two"):
        run(photos, tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert len(files) == 7
    assert all((tmp_path / "one" / n).read_bytes() == (tmp_path / "two" / n).read_bytes() for n in files)
    summary = json.loads((tmp_path / "one" / "summary.json").read_text())
    assert summary["protocol"] == "single scale" and len(summary["images"]) == 3 and len(summary["failed"]) == 1
    assert sum(summary["images"][2]["shares"].values()) == pytest.approx(1)


def test_every_label_value_survives_a_png(tmp_path):
    label = torch.arange(256, dtype=torch.uint8).view(16, 16)
    (tmp_path / "a.png").write_bytes(encode_label_png(label, full_palette(PALETTE, 4)))
    with Image.open(tmp_path / "a.png") as image:
        assert np.array_equal(np.array(image), label.numpy())


@pytest.mark.parametrize("size", [(1, 1), (3, 700), (300, 200)], ids=str)
def test_overlay_shows_image_and_legend(tmp_path, size):
    image = torch.full((3, *size), 200, dtype=torch.uint8)
    label = torch.full(size, 2, dtype=torch.uint8)
    (tmp_path / "a.jpg").write_bytes(draw_overlay_jpeg(image, label, CLASSES, full_palette(PALETTE, 4)))
    with Image.open(tmp_path / "a.jpg") as overlay:
        pixels = np.array(overlay).astype(int)
    factor = 256 if size == (1, 1) else 1
    assert pixels.shape[0] > size[0] * factor and pixels.shape[1] >= size[1] * factor
    assert np.abs(pixels[0, 0] - [90, 230, 90]).max() < 20  # 45 % grey, 55 % green
    below = pixels[size[0] * factor + 4 :]
    assert (below.min(axis=(0, 1)) < 60).all()  # words in black
    assert ((below - [0, 255, 0]).__abs__().max(axis=2) < 40).any()  # the square of the class


def test_long_names_and_many_classes_leave_the_legend_small(tmp_path):
    """254 names of 1,000 letters made a legend of 70,000 pixels and 7 GB under an image of 8,192."""
    names = [f"{i:03}" + "W" * 997 for i in range(254)]
    label = (torch.arange(4096, dtype=torch.int32) % 254).to(torch.uint8).expand(64, 4096)
    with limit_resources():
        content = draw_overlay_jpeg(torch.zeros(3, 64, 4096, dtype=torch.uint8), label, names, full_palette((), 254))
    with Image.open(io.BytesIO(content)) as overlay:
        assert overlay.width == 4096 and overlay.height < 4096


def test_class_0_is_transparent_in_overlays(tmp_path):
    image = torch.full((3, 300, 400), 200, dtype=torch.uint8)
    label = torch.zeros(300, 400, dtype=torch.uint8)
    label[:, 200:] = 1
    (tmp_path / "a.jpg").write_bytes(draw_overlay_jpeg(image, label, CLASSES, full_palette(PALETTE, 4)))
    with Image.open(tmp_path / "a.jpg") as overlay:
        pixels = np.array(overlay).astype(int)
    assert np.abs(pixels[:300, :190] - 200).max() < 8 and np.abs(pixels[10, 390] - [230, 90, 90]).max() < 20


@pytest.mark.parametrize("height", [200, 4000])
def test_the_legend_grows_with_the_image(height, tmp_path):
    image, label = torch.full((3, height, height), 200, dtype=torch.uint8), torch.zeros(height, height).byte()
    (tmp_path / "a.jpg").write_bytes(draw_overlay_jpeg(image, label, CLASSES, full_palette(PALETTE, 4)))
    with Image.open(tmp_path / "a.jpg") as overlay:
        below = np.array(overlay.convert("L"))[-(overlay.height - max(height, 256)) :]
    rows = np.flatnonzero((below < 100).any(axis=1))  # squares and words
    assert 0.015 < (rows[-1] - rows[0]) / max(height, 256) < 0.1


def test_class_shares_omit_unlabelled_pixels():
    label = torch.tensor([[0, 1, 1, 255]], dtype=torch.uint8)
    assert measure_class_shares(label, CLASSES) == {"background": 0.25, "cat": 0.5}


def test_an_empty_summary_is_valid_json(tmp_path):
    Summary().write(tmp_path / "s.json")
    assert json.loads((tmp_path / "s.json").read_text()) == {"images": [], "failed": []}


@pytest.mark.parametrize("task", ["segmentation", "classification", "detection"])
def test_weights_without_names_of_classes_number_them(task, tmp_path):
    path = tmp_path / "net.safetensors"
    tasks[task].save(path, NETWORKS[task](), Info())
    Image.new("RGB", (32, 32), (200, 100, 50)).save(tmp_path / "a.png")
    net, known = tasks[task].load(path)
    assert known.classes == ("0", "1", "2")
    predictor = tasks[task].predictor(net, known, torch.device("cpu"))
    assert not predict_folder(predictor, find_images([tmp_path / "a.png"]), tmp_path / "out").failed
