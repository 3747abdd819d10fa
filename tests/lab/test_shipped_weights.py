"""A toy network goes from training to a shipped file with its model card, and loads by name."""

from __future__ import annotations

import json

import fake_datasets
import pytest
import torch
from paths import SHARED

import hamburger as hb
from hamburger.backbones import create_backbone
from hamburger.checkpoints.read import read_checkpoint
from hamburger.inference import find_weights
from hamburger.training.image_files import normalise
from hamburger_lab import shipped_weights
from hamburger_lab.efficientnet import EfficientNetLite0, backbone_state

REAL = SHARED / "data" / "weights" / "efficientnet_lite0_imagenet_fp16.safetensors"
SMALL = ["model.backbone=tiny", "model.output_stride=4", "model.head_options.width=32", "data.crop=33", "batch=4"]
SMALL += ["steps=4", "eval_every=2", "checkpoint_every=2", "precision=32", "channels_last=false", "data.workers=0"]


@pytest.fixture
def arguments(tmp_path):
    data = fake_datasets.folder(tmp_path / "data", ids=5)
    fake_datasets.write_list(data / "train_aug.txt", [f"img{i}" for i in range(4)])
    paths = {"data": data, "run": tmp_path / "run", "out": tmp_path / "weights", "json": tmp_path / "rows.jsonl"}
    settings = [word for setting in SMALL for word in ("--set", setting)]
    return ["hamnet-lite0-voc", *(word for name, path in paths.items() for word in (f"--{name}", str(path))), *settings]


def ship(arguments, *more):
    shipped_weights.main([*arguments, "--device", "cpu", "--tolerance", "100", *more])


def test_one_command_trains_and_ships(arguments, tmp_path, monkeypatch):
    ship(arguments)
    ship(arguments)  # finished: shipped again, its row replaced
    (row,) = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    card = (tmp_path / "weights" / "hamnet-lite0-voc.md").read_text()
    assert card == shipped_weights.write_card(row)
    for words in ("| sky | ", f"| mIoU | {100 * row['miou']:.1f} %", "4 images, longer side 352", "4 steps of 4 crops"):
        assert words in card, words
    monkeypatch.setattr(find_weights, "SHIPPED", tmp_path / "weights")
    assert hb.list_weights() == ["hamnet-lite0-voc"]
    predictor = hb.Predictor("hamnet-lite0-voc", device="cpu")
    assert predictor.side == 352 and predictor.net.head.context.ham.dictionary.init == "online"
    assert predictor(torch.zeros(3, 30, 50, dtype=torch.uint8)).shape == (30, 50)


def test_a_file_that_is_too_large_or_inaccurate_does_not_ship(arguments, tmp_path):
    ship(arguments, "--only", "train")
    assert not (tmp_path / "weights").exists()
    for limits in (("--max-mb", "0.001"), ("--tolerance", "-100.1")):
        with pytest.raises(SystemExit, match="must have at most"):
            ship(arguments, "--only", "ship", *limits)
        assert not (tmp_path / "weights").exists() and not (tmp_path / "rows.jsonl").exists()


def test_other_weights_are_passed_on_as_they_are(tmp_path):
    torch.save({"conv1.weight": torch.zeros(1)}, tmp_path / "w.pth")
    recipe = shipped_weights.build_recipe("hamnet-r50-voc", tmp_path / "run", tmp_path / "w.pth", ["steps=7"])
    assert recipe.model.pretrained == str(tmp_path / "w.pth") and recipe.steps == 7


@pytest.mark.skipif(not REAL.exists(), reason="the weights of EfficientNet-Lite0 are not next to the checkout")
def test_the_backbone_absorbs_the_normalisation_of_its_package(tmp_path):
    from safetensors.torch import save_file

    state = read_checkpoint(REAL)
    save_file(backbone_state(state), tmp_path / "w.safetensors")
    backbone = create_backbone("timm:tf_efficientnet_lite0", pretrained=tmp_path / "w.safetensors").eval()
    assert backbone.report.ok
    whole = EfficientNetLite0().eval()
    whole.load_state_dict(whole.rename(state))
    image = torch.randint(0, 256, (1, 3, 225, 225), dtype=torch.uint8)
    with torch.no_grad():
        expected = whole.net.blocks[0](whole.net.bn1(whole.net.conv_stem((image.float() - 127) / 128)))
        actual = backbone.net.blocks[0](backbone.net.bn1(backbone.net.conv_stem(normalise(image))))
    inner = (..., slice(4, -4), slice(4, -4))
    assert (actual - expected)[inner].abs().max() < 1e-3 * expected.abs().max()
