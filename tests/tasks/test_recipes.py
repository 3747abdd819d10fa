"""Every recipe: stored and read back, checked before work; the paper's numbers."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import fields, replace

import pytest

from hamburger.errors import HamburgerError, InputError, OptionError, UnknownNameError
from hamburger.segmentation.recipe import SegmentationRecipe, check_segmentation_recipe, segmentation_recipes
from hamburger.tasks import find_gan_recipe, find_training, task_of
from hamburger.training.recipe import apply, differences, digest, flatten_fields, override, read_recipe, to_json


@pytest.mark.parametrize("name", segmentation_recipes)
def test_recipe_json_round_trips(name):
    recipe = segmentation_recipes.create(name)
    assert recipe.name == name
    check_segmentation_recipe(recipe)
    again = read_recipe(to_json(recipe), SegmentationRecipe)
    assert again == recipe
    assert digest(again) == digest(recipe)
    assert differences(again, recipe) == []


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("figures-classes", {"model.backbone_options": {"pretrained_cfg": {"url": "https://x.invalid/a.pth"}}}),
        ("figures-classes", {"model.backbone_options.checkpoint_path": "/x/a.pth"}),
        ("figures-classes", {"model.backbone": "hf-hub:somebody/net", "model.pretrained": True}),
        ("figures-classes", {"model.backbone": "local-dir:/x"}),
        ("folder", {"model.backbone": "timm:hf-hub:somebody/net", "model.pretrained": "timm"}),
        ("folder", {"model.backbone": "timm:resnet18", "model.backbone_options.pretrained_cfg.file": "/x/a.pth"}),
    ],
)
def test_a_recipe_names_no_source_of_weights_that_timm_would_open(recipe, settings):
    recipe = override(find_training(recipe), settings)
    with pytest.raises(OptionError, match=rf"recipe '{recipe.name}': model: backbone"):
        task_of(recipe).check(recipe)


@pytest.mark.parametrize(
    ("option", "value"),
    [("root", "/etc"), ("split", "x"), ("length", 2**31 - 1), ("width", 10**6)],
)
def test_options_of_the_data_set_in_a_recipe_are_bounded(option, value):
    recipe = override(find_training("planes-tiny"), {f"data.options.{option}": value})
    with pytest.raises(OptionError, match=f"recipe 'planes-tiny': .*{option}"):
        task_of(recipe).check(recipe)


def test_recipes_match_the_paper():
    ablation, voc, more, context = (
        segmentation_recipes.create(n) for n in ("voc-ablation", "voc", "voc-trainval", "context")
    )
    assert (ablation.model.backbone, ablation.model.output_stride) == ("resnet50", 16)
    assert (ablation.batch, ablation.steps, ablation.optim.lr, ablation.data.crop) == (12, 30_000, 9e-3, 513)
    assert (ablation.optim.momentum, ablation.optim.weight_decay, ablation.optim.power) == (0.9, 1e-4, 0.9)
    assert (ablation.data.scales, ablation.data.flip, ablation.bn_momentum) == ((0.5, 2.0), True, 3e-4)
    assert (voc.model.backbone, voc.model.output_stride, voc.batch, voc.steps) == ("resnet101", 8, 16, 60_000)
    assert (more.data.train_split, more.steps, more.optim.lr) == ("trainval", 20_000, pytest.approx(9e-4))
    assert (context.optim.lr, context.steps, context.data.name) == (2e-3, 25_000, "context")


def test_digest_depends_on_every_field():
    recipe = segmentation_recipes.create("patchwork")
    seen = {digest(recipe)}
    for path, value in flatten_fields(json.loads(to_json(recipe))).items():
        # text fields that allow anything, numbers moved by a little, flags turned
        other = not value if isinstance(value, bool) else value + 1 if isinstance(value, int | float) else "other"
        if path in ("optim.clip", "data.side"):
            other = 1  # a number that is not set
        if isinstance(value, list):
            other = ",".join(str(v + 1) for v in value)
        changed = apply(recipe, [f"{path}={other}"])
        assert differences(recipe, changed) != [], path
        seen.add(digest(changed))
    assert len(seen) == 1 + len(flatten_fields(json.loads(to_json(recipe))))


def test_recipe_differences_use_dotted_names():
    recipe = segmentation_recipes.create("patchwork")
    changed = apply(recipe, ["optim.lr=0.5", "model.context_options.rank=3"])
    assert differences(recipe, changed) == [
        "model.context_options.rank: not set here, 3 there",
        f"optim.lr: {recipe.optim.lr} here, 0.5 there",
    ]


@pytest.mark.parametrize(
    ("setting", "processes", "message"),
    [
        ("batch=0", 1, "batch must be a whole number"),
        ("batch=15", 2, "--set batch=16"),
        ("accumulate=3", 1, "--set batch=18"),
        ("precision=fp8", 1, "no precision 'fp8'"),
        ("optim.lr=-1", 1, "optim.lr"),
        ("optim.lr=inf", 1, "optim.lr"),
        ("optim.lr=nan", 1, "optim.lr"),
        ("optim.warmup=-1", 1, "optim.warmup"),
        ("optim.clip=0", 1, "optim.clip"),
        ("data.scales=2,1", 1, "small to large"),
        ("data.crop=0", 1, "data.crop"),
        ("data.resident=maybe", 1, "data.resident"),
        ("bn_momentum=2", 1, "bn_momentum"),
        ("seed=-1", 1, "seed"),
        ("log_every=0", 1, "log_every"),
        ("steps=2147483648", 1, "steps must be at most 2147483647, got 2147483648"),
        ("data.workers=9999999999", 1, "data.workers must be at most"),
        ("seed=9223372036854775808", 1, "64 bits"),
    ],
)
def test_invalid_recipes_raise_before_any_work(setting, processes, message):
    with pytest.raises(OptionError, match=message):
        check_segmentation_recipe(apply(segmentation_recipes.create("patchwork"), [setting]), processes=processes)


def test_start_and_pretrained_are_exclusive():
    recipe = apply(segmentation_recipes.create("voc"), ["start=runs/a", "model.pretrained=file.safetensors"])
    with pytest.raises(OptionError, match=r"start .* replaces all weights"):
        check_segmentation_recipe(recipe)


def test_json_of_another_kind_raises():
    stored = json.loads(to_json(segmentation_recipes.create("voc")))
    with pytest.raises(OptionError, match="did you mean 'batch'"):
        read_recipe(json.dumps({**stored, "btach": 3}), SegmentationRecipe)
    with pytest.raises(OptionError, match=r"recipe.steps: takes a whole number, got '3'"):
        read_recipe(json.dumps({**stored, "steps": "3"}), SegmentationRecipe)
    with pytest.raises(OptionError, match="not valid JSON"):
        read_recipe("{", SegmentationRecipe)
    with pytest.raises(OptionError, match="name"):
        read_recipe("{}", SegmentationRecipe)


def test_recipe_file_replaces_a_name(tmp_path):
    recipe = replace(segmentation_recipes.create("voc"), steps=7)
    (tmp_path / "recipe.json").write_text(to_json(recipe))
    assert find_training(str(tmp_path / "recipe.json")) == recipe
    with pytest.raises(InputError, match="no recipe file"):
        find_training(str(tmp_path / "none.json"))
    with pytest.raises(UnknownNameError, match="did you mean 'patchwork'"):
        find_training("pachwork")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe{}", "is not UTF-8 text .* at byte 0"),
        (b"{" * 100_000, "not valid JSON"),
        (b"[" * 100_000, "too many brackets"),
        (b'{"steps": ' + b"9" * 5000 + b"}", "a whole number of 5000 digits"),
        (b'{"steps": NaN}', "NaN is not a JSON number"),
        (b'{"steps": 1, "steps": 2}', "duplicate key 'steps'"),
        (
            b'{"name": "a", "data": {"name": "a", "options": {"a": 1e999}}}',
            "the number '1e999' is too large",
        ),
        (b" " * (2**20 + 1), "has 1,048,577 bytes; at most 1,048,576 are read"),
    ],
    ids=range(8),
)
def test_unreadable_recipe_files_raise(tmp_path, content, message):
    path = tmp_path / "recipe.json"
    path.write_bytes(content)
    for find in (find_training, find_gan_recipe):
        with pytest.raises(HamburgerError, match=message) as error:
            find(str(path))
        assert len(str(error.value)) < 1000


@pytest.mark.skipif(sys.platform == "win32", reason="needs FIFOs and sparse files")
def test_recipe_files_of_other_kinds_raise(tmp_path):
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "device.json").symlink_to("/dev/zero")
    for name in ("folder.json", "fifo.json", "device.json"):
        with pytest.raises(HamburgerError, match=r"is (a folder|not a regular file); expected a file"):
            find_training(str(tmp_path / name))
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(HamburgerError, match="at most 1,048,576 are read"):
        find_training(str(tmp_path / "large.json"))


def test_every_field_has_a_dotted_name():
    names = {path.split(".")[0] for path in flatten_fields(json.loads(to_json(segmentation_recipes.create("voc"))))}
    assert names == {field.name for field in fields(SegmentationRecipe)}
