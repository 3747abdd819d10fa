"""`ham predict` and `ham export`, from weights on disk."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from fuzz_weights import edit_model, good_file, replace_metadata, split
from PIL import Image
from typer.testing import CliRunner

from hamburger.checkpoints.weights_file import Info
from hamburger.cli.app import app
from hamburger.errors import OptionError
from hamburger.segmentation import load_weights, save_weights
from hamburger.segmentation.model import create_model
from hamburger.segmentation.predict import Predictor


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    torch.manual_seed(0)
    net = create_model(
        "hamnet", num_classes=3, backbone="tiny", output_stride=4, context="nmf", head_options={"width": 32}
    )
    info = Info(classes=("sky", "sea", "land"), palette=((0, 0, 255), (0, 255, 255), (0, 255, 0)))
    save_weights(folder / "best.safetensors", net.eval(), info)
    return folder


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (30, 44, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    Image.fromarray(noise).save(folder / "turned.jpg", exif=exif.tobytes())
    Image.fromarray(noise[..., 0]).save(folder / "grey.png")
    return folder


def read(path):
    with Image.open(path) as image:
        return image.mode, np.array(image)


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_predict_a_folder(run_folder, photos, tmp_path):
    result = invoke("predict", run_folder, photos, "--out", tmp_path / "out", "--scales", "0.5,1", "--flip")
    assert result.exit_code == 0, result.output
    mode, label = read(tmp_path / "out/turned.png")
    assert mode == "P" and label.shape == (44, 30)  # upright
    assert read(tmp_path / "out/grey.png")[1].shape == (30, 44)
    assert (tmp_path / "out/turned_overlay.jpg").exists()
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary["protocol"] == "scales 0.5,1, flip" and summary["classes"] == ["sky", "sea", "land"]
    assert "predicted 2, failed 0" in result.output


def test_predict_in_two_shards(run_folder, photos, tmp_path, monkeypatch):
    assert invoke("predict", run_folder, photos, "--out", tmp_path / "one").exit_code == 0
    for k in (1, 2):
        result = invoke("predict", run_folder, photos, "--out", tmp_path / "two", "--shard", f"{k}/2")
        assert result.exit_code == 0 and ("left to other shards" in result.output) == (k == 1)
    (photos / "grey.webp").write_bytes(b"broken")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for k in (1, 2):  # as torchrun starts them; a status other than 0 would stop the other process
        monkeypatch.setenv("RANK", str(k - 1))
        result = invoke("predict", run_folder, photos, "--out", tmp_path / "three", "--resume")
        assert result.exit_code == 0 and ("grey.webp" in result.output) == (k == 2)
    (photos / "grey.webp").unlink()
    monkeypatch.undo()
    assert invoke("predict", run_folder, photos, "--out", tmp_path / "three", "--resume").exit_code == 0
    first, *others = ({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("one", "two", "three"))
    assert all(other == first for other in others)


def test_predict_the_images_of_a_list(run_folder, photos, tmp_path):
    for name in ("2008_000001", "2008_000002", "2008_000003"):
        shutil.copy(photos / "grey.png", tmp_path / f"{name}.png")
    (tmp_path / "test.txt").write_text("2008_000003\n2008_000001\n")
    arguments = ["predict", run_folder, tmp_path, "--list", tmp_path / "test.txt", "--out", tmp_path / "out"]
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert [Path(row["image"]).stem for row in summary["images"]] == ["2008_000003", "2008_000001"]
    assert "left out" not in result.output
    (tmp_path / "test.txt").write_text("2008_000001\nnot_there\nnor_this\n")
    refused = invoke(*arguments)
    assert "2 of the 3 images of" in str(refused.exception) and "not_there" in str(refused.exception)


def test_labels_are_those_of_the_network(run_folder, photos, tmp_path):
    assert invoke("predict", run_folder / "best.safetensors", photos / "grey.png", "--out", tmp_path).exit_code == 0
    net, info = load_weights(run_folder / "best.safetensors")
    grey = read(photos / "grey.png")[1][..., None].repeat(3, axis=2) / 255
    x = torch.from_numpy((grey - info.mean) / info.std).float().permute(2, 0, 1)[None]
    with torch.no_grad():
        expected = net(x)[0].argmax(0).numpy()
    assert np.array_equal(read(tmp_path / "grey.png")[1], expected)


def test_a_bad_image_is_listed_and_the_status_is_2(ham, run_folder, photos, tmp_path):
    (photos / "broken.jpg").write_bytes(b"\xff\xd8\xff garbage")
    status, _, err = ham("predict", run_folder, photos, photos / "gone.webp", "--out", tmp_path / "out")
    assert status == 2 and "Traceback" not in err
    lines = err.strip().splitlines()
    assert len(lines) == 2 and "broken.jpg" in lines[0] and "gone.webp" in lines[1]
    assert len(list((tmp_path / "out").glob("*.png"))) == 2


def test_an_existing_image_is_not_overwritten(run_folder, photos, tmp_path):
    (photos / "grey.png").rename(photos / "grey.webp")
    (photos / "grey.png").write_bytes(b"mine")
    result = invoke("predict", run_folder, photos / "grey.webp", tmp_path / "gone", "--out", photos)
    assert result.exit_code != 0 and "grey.png would overwrite" in str(result.exception)
    assert (photos / "grey.png").read_bytes() == b"mine" and not (photos / "summary.json").exists()
    (photos / "grey.png").unlink()
    for _ in range(2):
        assert invoke("predict", run_folder, photos / "grey.webp", "--out", photos).exit_code == 0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--scales", "1,big"], "comma-separated numbers"),
        (["--window", "1"], "at least 16"),
        (["--device", "gpu"], "; use auto"),
    ],
    ids=str,
)
def test_errors_come_before_any_work(run_folder, photos, tmp_path, options, complaint):
    result = invoke("predict", run_folder, photos, "--out", tmp_path / "out", *options)
    assert result.exit_code != 0 and complaint in str(result.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.full
def test_export_to_onnx(run_folder, photos, tmp_path):
    path = tmp_path / "net.onnx"
    result = invoke(
        "export", run_folder, "--format", "onnx", "--out", path, "--size", 64, "--image", photos / "turned.jpg"
    )
    assert result.exit_code == 0, result.output
    assert "labels agree in 100.000%" in result.output and "dynamic axes: batch, height, width" in result.output
    net, _ = load_weights(run_folder / "best.safetensors")
    x = torch.randn(2, 3, 37, 50)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    [actual] = session.run(None, {"image": x.numpy()})
    with torch.no_grad():
        assert np.abs(actual - net(x).numpy()).max() < 1e-4


@pytest.mark.parametrize("change", [{"num_classes": 7}, {"widht": 3}, {"pretrained": "timm"}, {"task": "nothing"}])
def test_a_malformed_weights_file_is_one_line_and_status_2(change, ham, photos, tmp_path):
    path = tmp_path / "net.safetensors"
    path.write_bytes(edit_model(good_file("classification"), **change))
    commands = (
        ("predict", path, photos, "--out", tmp_path / "out"),
        ("eval", path),
        ("export", path, "--format", "onnx", "--out", tmp_path / "net.onnx"),
    )
    for words in commands:
        status, out, err = ham(*words)
        assert (status, out) == (2, "")
        assert err.startswith("ham: ") and err.count("\n") == 1 and "net.safetensors" in err


@pytest.mark.parametrize(
    "extra",
    [
        {"data": ["x"]},
        {"data_options": {"root": "/etc"}},
        {"data_options": 5},
        {"data_options": {"name": 1}},
        {"val_split": 7},
        {"data": "x"},
        {"data_options": {"x": 1}},
        {"val_split": "x"},
    ],
)
def test_weights_that_describe_their_data_badly_are_one_line(extra, ham, tmp_path):
    header, _ = split(good_file("segmentation"))
    values = json.loads(header["__metadata__"]["hamburger"])
    values["extra"] = {"data": "patchwork", "data_options": {}, "val_split": "val", **extra}
    path = tmp_path / "net.safetensors"
    path.write_bytes(replace_metadata(good_file("segmentation"), json.dumps(values)))
    status, out, err = ham("eval", path, "--device", "cpu")
    assert (status, out) == (2, "") and err.startswith(f"ham: eval: {path}") and err.count("\n") == 1


def test_a_terminal_without_a_size_shows_tables(ham, monkeypatch):
    monkeypatch.setenv("COLUMNS", "0")
    assert "List the registered names" in ham("list", "--help")[1]


def test_class_names_are_no_markup_in_the_table_of_scores(run_folder, monkeypatch):
    row = {"data": "[/x]", "split": "val", "images": 1, "protocol": "single scale", "miou": 0.5, "pixel_accuracy": 0.5}
    row["per_class"] = {"[/red]": 0.5, "[link=file:///x]a": None}
    monkeypatch.setattr("hamburger.tasks.evaluate.evaluate_weights", lambda path, **options: row)
    result = CliRunner().invoke(app, ["eval", str(run_folder)])
    assert result.exit_code == 0, result.exception
    assert all(text in result.stdout for text in ("[/red]", "[link=file:///x]a", "[/x] val"))


def test_app_without_gradio_names_the_extra(ham, run_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.delitem(sys.modules, "hamburger.app.page", raising=False)
    status, out, err = ham("app", run_folder)
    assert (status, out) == (2, "") and "needs gradio; run pip install 'hamburger[app]', in a clone" in err


def test_predict_exactly(run_folder, tmp_path):
    """`--exact` gives the labels of the whole image at its own size."""
    pixels = np.random.default_rng(0).integers(0, 256, (90, 200, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "large.tif")
    options = ("--out", tmp_path / "out", "--exact", "--max-pixels", 72 * 72, "--device", "cpu")
    result = invoke("predict", run_folder, tmp_path / "large.tif", *options)
    assert result.exit_code == 0, result.output
    assert "limits context" not in result.output
    whole = Predictor(load_weights(run_folder / "best.safetensors")[0], device="cpu", side=0)
    mode, label = read(tmp_path / "out/large.png")
    assert mode == "P" and (label == whole(torch.from_numpy(pixels).permute(2, 0, 1)).numpy()).mean() > 0.999
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    (row,) = summary["images"]
    assert summary["exact"] is True and row["tiles"] > 1 and abs(sum(row["shares"].values()) - 1) < 1e-9
    assert read(tmp_path / "out/large_overlay.jpg")[1].shape[1] >= 200
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "large.png",
        "large_overlay.jpg",
        "summary.json",
    ]


def test_predict_exactly_excludes_options_of_whole_images(run_folder, tmp_path):
    result = invoke("predict", run_folder, "a.png", "--out", tmp_path / "out", "--exact", "--flip")
    assert isinstance(result.exception, OptionError) and "--exact does not apply together with" in str(result.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.full
def test_predict_exactly_continues_after_a_kill(run_folder, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (200, 300, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "large.png")
    shared = ("predict", run_folder, tmp_path / "large.png", "--exact", "--max-pixels", 72 * 72, "--device", "cpu")
    command = [sys.executable, "-m", "hamburger", *map(str, shared)]
    assert subprocess.run([*command, "--out", tmp_path / "expected"], check=False).returncode == 0
    seen: list[int] = []
    while not seen or seen[-1] < 180:  # of two passes over 117 tiles and seven steps between them
        with subprocess.Popen([*command, "--out", tmp_path / "out"]) as process:
            begun = seen[-1] if seen else 0
            while process.poll() is None and (not seen or seen[-1] < begun + 50):
                time.sleep(0.01)
                seen += [json.loads(path.read_text())["done"] for path in tmp_path.glob("out/.exact/*/journal.json")]
            process.kill()
        assert seen[-1] > begun
    assert subprocess.run([*command, "--out", tmp_path / "out"], check=False).returncode == 0
    for name in ("large.png", "large_overlay.jpg", "summary.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "expected" / name).read_bytes()
    assert sorted(seen) == seen  # nothing was done again from the start
