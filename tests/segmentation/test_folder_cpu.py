"""The recipe `folder-cpu`: the user's photos on a CPU, from the network that ships with the package."""

from __future__ import annotations

from dataclasses import asdict

import fake_datasets
import pytest
import torch

import hamburger as hb
from hamburger.checkpoints.weights_file import Info
from hamburger.inference import find_weights
from hamburger.segmentation import save_weights
from hamburger.segmentation.model import create_model
from hamburger.segmentation.recipe import segmentation_recipes
from hamburger.segmentation.task import SEGMENTATION
from hamburger.training.recipe import override

RECIPE = segmentation_recipes.create("folder-cpu")
SMALL = {"steps": 1, "batch": 2, "data.crop": 64, "optim.warmup": 0}
ABSENT = f"the weights {RECIPE.start} are not part of the package yet"


def build(recipe, root):
    data = SEGMENTATION.open(recipe, root, check=False, note=print)
    torch.manual_seed(0)
    return SEGMENTATION.build(recipe, data)


def test_it_trains_from_the_weights_that_ship(tmp_path, monkeypatch):
    torch.manual_seed(1)
    shipped = create_model(**asdict(RECIPE.model), num_classes=21)
    names, colours = zip(*((f"class {i}", (i, i, i)) for i in range(21)), strict=True)
    path = tmp_path / "weights" / f"{RECIPE.start}.safetensors"
    path.parent.mkdir()
    save_weights(path, shipped, Info(classes=names, palette=colours, side=352), int8=True)
    monkeypatch.setattr(find_weights, "SHIPPED", path.parent)
    root = fake_datasets.folder(tmp_path / "data")
    state, stored = build(RECIPE, root).state_dict(), hb.load(RECIPE.start).state_dict()
    replaced = [name for name, value in state.items() if not torch.equal(value, stored[name])]
    assert replaced and all(len(state[name]) == 3 for name in replaced)  # the classifier alone
    result = hb.train("folder-cpu", tmp_path / "run", data=root, overrides=SMALL, accelerator="cpu")
    assert result.values["steps"] == 1 and hb.load(tmp_path / "run").info.side == 352


def test_it_says_what_to_do_where_the_weights_do_not_ship(tmp_path, monkeypatch):
    monkeypatch.setattr(find_weights, "SHIPPED", tmp_path)
    root = fake_datasets.folder(tmp_path / "data")
    (root / "labels/img0.png").unlink()  # the data are read later
    with pytest.raises(hb.InputError, match=rf"got start={RECIPE.start}.* --set start=none --set model.pretrained"):
        hb.train("folder-cpu", tmp_path / "run", data=root, overrides=SMALL, accelerator="cpu")
    assert not (tmp_path / "run" / "recipe.json").exists()


def test_without_them_it_takes_an_encoder(tmp_path):
    recipe = override(RECIPE, {"start": None})
    SEGMENTATION.check(recipe)
    assert build(recipe, fake_datasets.folder(tmp_path)).num_classes == 3


@pytest.mark.skipif(RECIPE.start not in hb.list_weights(), reason=ABSENT)
def test_the_shipped_weights_fit_the_recipe(tmp_path):
    state = build(RECIPE, fake_datasets.folder(tmp_path)).state_dict()
    info = hb.load(RECIPE.start).info
    assert info.side == RECIPE.data.side == RECIPE.data.options["side"]
    assert all(value.isfinite().all() for value in state.values() if value.is_floating_point())
