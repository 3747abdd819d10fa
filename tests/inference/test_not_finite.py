"""Networks that return NaN or infinity, or cannot take an image: it counts as failed, and no file claims a result."""

from __future__ import annotations

import json

import pytest
import small_tasks
import torch
from fuzz_weights import TASKS_WITH_FILES, good_file
from PIL import Image

import hamburger as hb
from hamburger.errors import HamburgerError, NotFiniteError
from hamburger.generation.predict import SampleRequest, write_samples
from hamburger.inference.predict_files import find_images, predict_folder
from hamburger.stereo.predict import find_pairs
from hamburger.tasks import tasks
from hamburger.tasks.evaluate import evaluate_weights


def refuse_constant(name):
    raise AssertionError(f"{name} in a JSON file")


def overflow(net: torch.nn.Module) -> torch.nn.Module:
    """Make all weights finite and so large that the outputs are not."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(1e38)
    return net


@pytest.mark.parametrize("task", TASKS_WITH_FILES)
def test_an_image_without_a_finite_prediction_has_failed(task, tmp_path):
    path = tmp_path / "net.safetensors"
    path.write_bytes(good_file(task))
    images = [tmp_path / name for name in ("left.png", "right.png")]
    for image in images:
        Image.new("RGB", (32, 32), (200, 100, 50)).save(image)
    net, info = tasks[task].load(path)
    for count in (0, 1):
        net = overflow(net) if count else net
        predictor = tasks[task].predictor(net, info, torch.device("cpu"))
        inputs = find_pairs(images) if predictor.pairs else find_images(images[:1])
        summary = predict_folder(predictor, inputs, tmp_path / f"out{count}")
        assert (len(summary.done), len(summary.failed)) == (1 - count, count)
        text = (tmp_path / f"out{count}" / "summary.json").read_text()
        failed = json.loads(text, parse_constant=refuse_constant)["failed"]
        assert len(failed) == count
        assert all("left.png: predict: " in each["reason"] and "NaN or infinite" in each["reason"] for each in failed)
    assert [file.name for file in (tmp_path / "out1").iterdir()] == ["summary.json"]


@pytest.mark.parametrize(("task", "width"), [("detection", 5000), ("stereo", 2**23)])
def test_an_image_of_one_row_has_failed(task, width, tmp_path):
    """Resized for a detector it would have no row; padded for a stereo network, 16 times as many."""
    (tmp_path / "net.safetensors").write_bytes(good_file(task))
    Image.new("L", (width, 1)).save(tmp_path / "left.png")
    Image.new("L", (width, 1)).save(tmp_path / "right.png")
    net, info = tasks[task].load(tmp_path / "net.safetensors")
    predictor = tasks[task].predictor(net, info, torch.device("cpu"))
    with pytest.raises(HamburgerError, match=r"left\.png: .*(would have none|are more than)"):
        predictor(*[tmp_path / name for name in ("left.png", "right.png")][: 1 + predictor.pairs])


@pytest.mark.parametrize("task", TASKS_WITH_FILES)
def test_outputs_that_are_not_finite_have_no_score(task, tmp_path):
    recipe, path = small_tasks.small(task), tmp_path / "net.safetensors"
    data = tasks[task].open(recipe, None, check=False, note=lambda text: None)
    net, info = tasks[task].build(recipe, data), tasks[task].info(recipe, data)
    tasks[task].save(path, net, info)
    assert evaluate_weights(path, device="cpu")["images"] > 0
    tasks[task].save(path, overflow(net), info)
    with pytest.raises(NotFiniteError, match=r"eval: .*net\.safetensors: predict: .* NaN or infinite"):
        evaluate_weights(path, device="cpu")


def test_samples_that_are_not_finite_are_not_written(tmp_path):
    path = tmp_path / "net.safetensors"
    path.write_bytes(good_file("generation"))
    generator = hb.load(path)
    with torch.no_grad():
        generator.out.bias.fill_(float("nan"))
    with pytest.raises(NotFiniteError, match="pixels are NaN or infinite"):
        write_samples(generator, generator.info.classes, tmp_path / "out", SampleRequest(count=2))
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").rglob("*.png"))
