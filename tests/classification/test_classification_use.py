"""`ham predict`, `ham export` and `ham report` of classifiers, with the same files and page as segmentation."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from small_classifier import FORMS, save_small
from tiers import not_on_torch_2_6
from torch import nn
from typer.testing import CliRunner

import hamburger as hb
from hamburger.checkpoints.weights_file import Info
from hamburger.classification.data.base import load_images, open_source
from hamburger.classification.recipe import classification_recipes
from hamburger.classification.task import CLASSIFICATION
from hamburger.cli.app import app
from hamburger.inference.export import ExportSpec, compare_single_output, export
from hamburger.inference.predict_files import (
    FilePrediction,
    FilePredictor,
    FoundImages,
    InputImage,
    Summary,
    predict_folder,
)
from hamburger.report.page import SECTIONS, write_report
from hamburger.training.recipe import apply, to_json


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifier")
    save_small(folder / "best.safetensors")
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    noise = np.random.default_rng(0).integers(0, 256, (2, 60, 90, 3), dtype=np.uint8)
    Image.fromarray(noise[0]).save(folder / "wide.png")
    Image.fromarray(noise[1].transpose(1, 0, 2)).save(folder / "tall.png")
    return folder


def ham(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def chances(net, path):
    """Central square, triangle filter, [-1, 1], softmax; written anew, in float64 where it is ours."""
    with Image.open(path) as image:
        side, (w, h) = min(image.size), image.size
        box = ((w - side) // 2, (h - side) // 2, (w - side) // 2 + side, (h - side) // 2 + side)
        pixels = np.asarray(image.crop(box).resize((32, 32), Image.Resampling.BILINEAR), np.float64)
    with torch.no_grad():
        logits = net(torch.from_numpy(pixels.transpose(2, 0, 1)[None] / 127.5 - 1).float())[0].double().numpy()
    parts = np.exp(logits - logits.max())
    return parts / parts.sum()


def test_predict_writes_classes_and_probabilities(run, photos, tmp_path):
    (photos / "broken.jpg").write_bytes(b"\xff\xd8\xff garbage")
    result = ham("predict", run, photos, "--out", tmp_path / "out", "--device", "cpu")
    (photos / "broken.jpg").unlink()
    assert result.exit_code == 2 and "predicted 2, failed 1" in result.output
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["summary.json"]
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary["classes"] == list(FORMS) and "broken.jpg" in summary["failed"][0]["reason"]
    net, _ = CLASSIFICATION.load(run / "best.safetensors")
    for row, name in zip(summary["images"], ("tall.png", "wide.png"), strict=True):
        expected = chances(net, photos / name)
        assert row["image"].endswith(name)
        assert list(row["probabilities"].values()) == pytest.approx(sorted(expected)[::-1], abs=1e-5)
        assert row["class"] == FORMS[expected.argmax()] == next(iter(row["probabilities"]))
        assert row["probability"] == pytest.approx(expected.max(), abs=1e-5)
        assert row["class"] in result.output and f"{row['probability']:.1%}" in result.output
    again = ham("predict", run, photos, "--out", tmp_path / "out", "--device", "cpu")
    assert (
        again.exit_code == 0 and json.loads((tmp_path / "out/summary.json").read_text())["images"] == summary["images"]
    )


@pytest.mark.parametrize("options", [["--flip"], ["--scales", "1,2"], ["--max-pixels", "9999"], ["--overlay"]])
def test_options_of_another_task_are_refused_before_any_work(run, photos, tmp_path, options):
    result = ham("predict", run, photos, "--out", tmp_path / "out", *options)
    assert isinstance(result.exception, hb.OptionError)
    assert f"{options[0]} does not apply to the task 'classification'" in str(result.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("format", [pytest.param("onnx", marks=pytest.mark.full), "pt2"])
def test_an_exported_classifier_matches_torch(run, photos, tmp_path, format):
    path = tmp_path / f"net.{format}"
    result = ham("export", run, "--format", format, "--out", path, "--image", photos / "wide.png")
    assert result.exit_code == 0, result.output
    assert "labels agree in 100.000% of the images" in result.output and "dynamic axes: batch" in result.output
    net, _ = CLASSIFICATION.load(run / "best.safetensors")
    x = torch.randn(3, 3, 32, 32)
    if format == "onnx":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        actual = torch.from_numpy(session.run(["logits"], {"image": x.numpy()})[0])
        metadata = session.get_modelmeta().custom_metadata_map
        assert json.loads(metadata["classes"]) == list(FORMS) and json.loads(metadata["mean"]) == [0.5] * 3
    else:
        actual = torch.export.load(path).module()(x)
    with torch.no_grad():
        assert (actual - net(x)).abs().max() < 1e-4


@not_on_torch_2_6
def test_a_two_image_network_is_exported_with_two_inputs(tmp_path):
    class Shift(nn.Module):
        def forward(self, left, right):
            return (left - right).mean(1, keepdim=True)

    def close(ours, theirs):
        return (ours - theirs).abs() < 1e-3

    spec = ExportSpec(
        size=(32, 40), inputs=("left", "right"), outputs=("disparity",), compare=compare_single_output(close)
    )
    made = export(Shift().eval(), Info(), tmp_path / "net.onnx", format="onnx", spec=spec)
    assert made.dynamic == ("batch", "height", "width") and made.size == (32, 40)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    left, right = torch.randn(2, 2, 3, 40, 48)
    [actual] = session.run(["disparity"], {"left": left.numpy(), "right": right.numpy()})
    assert np.allclose(actual, (left - right).mean(1, keepdim=True).numpy(), atol=1e-6)


def test_the_task_of_every_weights_file_is_recognised(tmp_path, photos):
    class Maps(FilePredictor):
        columns = ("map", "size")
        files = {"map": lambda name: tmp_path.relative_to(tmp_path) / f"{name}.pfm"}  # noqa: RUF012

        def __call__(self, path):
            return FilePrediction({"size": 3}, ("3",), {"map": b"abc"})

    maps = Maps(nn.Identity(), Info(), torch.device("cpu"))
    inputs = FoundImages((InputImage(photos / "wide.png", "wide"),), (), (), ())
    for _ in range(2):
        predict_folder(maps, inputs, tmp_path)
    assert (tmp_path / "wide.pfm").read_bytes() == b"abc"
    Summary().write(tmp_path / "summary.json", files=["map"])
    assert json.loads((tmp_path / "summary.json").read_text())["earlier"] == ["wide.pfm"]


def test_a_report_of_classifiers(tmp_path):
    accuracies = {None: (0.5, 0.6, 0.7), "nmf": (0.8, 0.8, 0.9)}
    for context, values in accuracies.items():
        for seed, value in enumerate(values):
            folder = tmp_path / "runs" / f"{context}-{seed}"
            save_small(folder / "best.safetensors", context, seed=seed)
            settings = [f"model.context={context or 'none'}", f"seed={seed}", "data.options.length=40"]
            (folder / "recipe.json").write_text(
                to_json(apply(classification_recipes.create("figures-classes"), settings))
            )
            rows = [{"step": 1, "loss": 2.0}, {"step": 1, "accuracy": value}]
            (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            scores = {"accuracy": value, "per_class": dict.fromkeys(FORMS, value), "images": 40}
            (folder / "result.json").write_text(json.dumps(scores))
    text = write_report([tmp_path / "runs"], tmp_path / "report.html", device="cpu").read_text()
    assert "Classifiers on figures" in text and "mIoU" not in text
    assert "nmf minus baseline is +23.33 points over 3 shared seeds" in text
    assert all(f'id="{name}"' in text for name in SECTIONS)
    assert text.count("data-figure") == 5  # dots, two curves, two spectra
    # the images of the draw, under their true names, with what each network takes them for
    data = load_images(open_source("figures", "val", size=32, length=40))
    drawn = torch.randperm(40, generator=torch.Generator().manual_seed(0)).tolist()[:12]
    shown = [unescape(words).split("\n") for words in re.findall(r"<span>(true: [^<]*)</span>", text)]
    assert [words[0] for words in shown[:12]] == [f"true: {FORMS[data.labels[i]]}" for i in drawn]
    for context, line in ((None, 1), ("nmf", 2)):
        net, _ = CLASSIFICATION.load(tmp_path / "runs" / f"{context}-0" / "best.safetensors")
        with torch.no_grad():
            best = net(torch.tensor(data.images[drawn]).float() / 127.5 - 1).softmax(1).max(1)
        name = context or "baseline"
        expected_lines = [
            f"{name}: {FORMS[i]} {p:.0%}" for p, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]
        assert [words[line] for words in shown[:12]] == expected_lines
    assert "Where nmf gains most over baseline" in text and "atom 1:" in text


def test_weights_and_data_of_other_classes_are_refused(run, photos, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for form in ("disc", "square"):
        (tmp_path / "data" / "val" / form).mkdir(parents=True)
        (tmp_path / "data" / "val" / form / "a.png").write_bytes((photos / "wide.png").read_bytes())
    result = ham("eval", run, "--data", tmp_path / "data", "--dataset", "folder", "--device", "cpu")
    assert isinstance(result.exception, hb.ShapeError)
    assert "the weights know 4 classes, the data set 'folder' has 2" in str(result.exception)


def test_a_report_refuses_runs_of_two_tasks(tmp_path):
    from hamburger.segmentation.recipe import segmentation_recipes

    for name, recipe in (
        ("a", segmentation_recipes.create("patchwork")),
        ("b", classification_recipes.create("figures-classes")),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.json").write_text(to_json(replace(recipe, seed=1)))
    with pytest.raises(hb.HamburgerError, match="classification and segmentation; give runs of one task"):
        write_report([tmp_path], tmp_path / "report.html")
