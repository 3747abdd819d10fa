"""Weights by name: a small network in a registry of its own, for `hb.load`, `hb.Predictor` and `ham`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image
from typer.testing import CliRunner

import hamburger as hb
from hamburger.checkpoints.weights_file import Info
from hamburger.cli.app import app
from hamburger.inference import find_weights
from hamburger.segmentation import save_weights

ROOT = Path(__file__).parents[2]
INFO = Info(classes=("background", "cat", "dog"), palette=((0, 0, 0), (255, 0, 0), (0, 255, 0)), side=48)


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """A folder of shipped weights that holds `hamnet-tiny`; the current folder is empty."""
    folder, here = tmp_path / "weights", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    torch.manual_seed(0)
    net = hb.create_model("hamnet", num_classes=3, backbone="tiny", output_stride=4, head_options={"width": 32})
    save_weights(folder / "hamnet-tiny.safetensors", net, INFO, int8=True)
    (folder / "hamnet-tiny.md").write_text("# hamnet-tiny\n")
    monkeypatch.setattr(find_weights, "SHIPPED", folder)
    monkeypatch.chdir(here)
    return folder


def run(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


def test_names_are_listed(registry):
    assert hb.list_weights() == ["hamnet-tiny"]
    assert run("list", "weights").output.split() == ["hamnet-tiny"]
    assert "weights: hamnet-tiny\n" in run("list").output
    (registry / "hamnet-tiny.safetensors").unlink()
    assert hb.list_weights() == []


def test_a_name_is_found_before_a_path_of_the_same_name(registry):
    Path("hamnet-tiny").mkdir()
    assert hb.load("hamnet-tiny").info.classes == INFO.classes
    with pytest.raises(hb.InputError, match="holds neither"):
        hb.load("./hamnet-tiny")
    with pytest.raises(hb.InputError, match="leave out revision"):
        hb.load("hamnet-tiny", revision="v1")


def test_unknown_names_are_an_error_with_a_suggestion(registry):
    suggestion = "did you mean 'hamnet-tiny'[?] known: hamnet-tiny"
    for call in (hb.load, find_weights.find_weights):
        with pytest.raises(hb.InputError, match=f"there is no .*hamnet-tny.*{suggestion}"):
            call("hamnet-tny")
    (registry / "hamnet-tiny.safetensors").unlink()
    with pytest.raises(hb.InputError, match=r"or a name of hb\.list_weights\(\)$"):
        hb.load("hamnet-tny")


def test_ham_predict_takes_a_name(registry):
    Image.new("RGB", (90, 60), "red").save("photo.jpg")
    result = run("predict", "hamnet-tiny", "photo.jpg", "--out", "labelled", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert {path.name for path in Path("labelled").iterdir()} == {"photo.png", "photo_overlay.jpg", "summary.json"}


def test_a_predictor_takes_a_name_a_path_or_a_network(registry):
    image = torch.randint(0, 256, (3, 60, 90), dtype=torch.uint8)
    expected = hb.Predictor(hb.load("hamnet-tiny"), device="cpu")(image)
    for weights in ("hamnet-tiny", registry / "hamnet-tiny.safetensors"):
        predictor = hb.Predictor(weights, device="cpu")
        assert predictor.side == INFO.side and predictor.info.classes == INFO.classes
        assert torch.equal(predictor(image), expected)
    with pytest.raises(hb.InputError, match="did you mean 'hamnet-tiny'"):
        hb.Predictor("hamnet-tny")


@pytest.mark.parametrize(("option", "side"), [((), 48), (("--side", "64"), 64), (("--side", "none"), None)])
def test_ham_predict_resizes_photos_to_the_side_of_the_training(registry, option, side):
    Image.new("RGB", (1300, 1000), "red").save("photo.jpg")
    result = run("predict", "hamnet-tiny", "photo.jpg", "--out", "out", "--device", "cpu", *option)
    assert result.exit_code == 0, result.output
    summary = json.loads(Path("out/summary.json").read_text())
    assert summary["side"] == side and summary["images"][0]["tiles"] == (1 if side else 2)
    with Image.open("out/photo.png") as label:
        assert label.size == (1300, 1000)


def test_a_side_that_is_no_number_is_refused(registry):
    result = run("predict", "hamnet-tiny", "photo.jpg", "--out", "out", "--side", "big")
    assert "--side takes a number of pixels, or none" in f"{result.exception}"


def test_the_size_check_of_commits_exempts_shipped_weights_only():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    (hook,) = [hook for hook in config["repos"][0]["hooks"] if hook["id"] == "file-size"]
    exempt = re.compile(hook["exclude"]).search
    relative = find_weights.SHIPPED.relative_to(Path(hb.__file__).parents[2]).as_posix()
    assert exempt(f"{relative}/hamnet-lite0-voc.safetensors") and not exempt(f"{relative}/hamnet-lite0-voc.md")
    assert not exempt("src/hamburger/tasks/load.py")
