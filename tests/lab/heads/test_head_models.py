"""Networks with the heads of hamburger-lab: built by name, saved, loaded, trained."""

from __future__ import annotations

import pytest
import torch

import hamburger as hb
import hamburger_lab.heads  # noqa: F401  (registers)
from hamburger.errors import OptionError
from hamburger.segmentation.heads.base import LAB_HEADS
from hamburger.segmentation.model import save_weights


def small(name, **options):
    torch.manual_seed(0)
    tiny = {"backbone": "tiny", "output_stride": 4, "backbone_options": {"width": 16}}
    return hb.create_model(name, num_classes=3, **tiny, **options)


@pytest.mark.parametrize("name", LAB_HEADS)
def test_every_head_returns_logits_of_image_size(name):
    net = small(name).eval()
    with torch.no_grad():
        for size in ((37, 29), (20, 64)):
            assert net(torch.randn(1, 3, *size)).shape == (1, 3, *size)
    assert net.config["name"] == name


@pytest.mark.parametrize("name", LAB_HEADS)
def test_weights_load_into_the_same_network(name, tmp_path):
    net, image = small(name).eval(), torch.randn(1, 3, 20, 24)
    save_weights(tmp_path / "net.safetensors", net)
    with torch.no_grad():
        assert torch.equal(hb.load(tmp_path / "net.safetensors")(image), net(image))


@pytest.mark.parametrize("options", [{"context": "cd"}, {"context_options": {"rank": 3}}], ids=str)
def test_a_head_has_its_own_context(options):
    with pytest.raises(OptionError, match="has its own context"):
        small("pspnet", **options)


def test_a_recipe_trains_a_head_by_name(tmp_path):
    overrides = {"model.name": "danet", "model.context": None, "steps": 2, "eval_every": 2}
    hb.train("patchwork", tmp_path / "run", overrides=overrides, accelerator="cpu")
    assert hb.load(tmp_path / "run").config["name"] == "danet"
