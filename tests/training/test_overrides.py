"""Dotted changes to recipes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hamburger.errors import OptionError
from hamburger.segmentation.recipe import check_segmentation_recipe, segmentation_recipes
from hamburger.training.recipe import apply, override

BASE = segmentation_recipes.create("patchwork")


@pytest.mark.parametrize(
    ("setting", "read", "value"),
    [
        ("model.context=vq", lambda r: r.model.context, "vq"),
        ("model.context=none", lambda r: r.model.context, None),
        ("optim.lr=1e-2", lambda r: r.optim.lr, 0.01),
        ("optim.lr=1", lambda r: r.optim.lr, 1.0),
        ("steps=30_000", lambda r: r.steps, 30_000),
        ("data.scales=0.5, 2", lambda r: r.data.scales, (0.5, 2.0)),
        ("data.flip=yes", lambda r: r.data.flip, True),
        ("precision=32", lambda r: r.precision, "32"),
        ("start=runs/a=b", lambda r: r.start, "runs/a=b"),
        ("model.context_options.rank=32", lambda r: r.model.context_options, {"rank": 32}),
        ("model.context_options.parts=lower,upper", lambda r: r.model.context_options, {"parts": ["lower", "upper"]}),
        ("model.head_options.dropout=0.5", lambda r: r.model.head_options["dropout"], 0.5),
        ("model.head_options=none", lambda r: r.model.head_options, {}),
        ('data.options={"size": 32}', lambda r: r.data.options, {"size": 32}),
        ("data.options.a.b=true", lambda r: r.data.options, {"a": {"b": True}}),
    ],
)
def test_override_values_are_parsed_by_field_type(setting, read, value):
    actual = read(apply(BASE, [setting]))
    assert actual == value
    assert type(actual) is type(value)


def test_later_overrides_win_and_the_recipe_is_unchanged():
    changed = apply(BASE, ["steps=3", "steps=4", "model.head_options.a=1", "model.head_options.b=2"])
    assert changed.steps == 4
    assert changed.model.head_options == {**BASE.model.head_options, "a": 1, "b": 2}
    assert "a" not in BASE.model.head_options
    assert BASE.steps != 4


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("lr=0.1", r"--set lr=0.1: no field 'lr' \(did you mean optim.lr\?\)"),
        ("model.contxt=vq", r"no field 'model.contxt' \(did you mean model.context\?\)"),
        ("optm.lr=1", r"no field 'optm.lr' \(did you mean optim.lr\?\)"),
        ("croop=1", r"did you mean data.crop\?"),
        ("zzz=1", "no field 'zzz'; fields: name, batch"),
        ("optim.lr=fast", "takes a number, got 'fast'"),
        ("steps=1.5", "takes a whole number"),
        ("steps=none", "takes a whole number"),
        ("data.flip=maybe", "true or false"),
        ("data.scales=1", "2 comma-separated values"),
        ("model=hamnet", "'model' is a group"),
        ("steps.more=1", "has no field 'more'"),
        ("steps", "path=value"),
        ("=3", "path=value"),
        ("data.options=3", "options by name"),
        ("data.options.a={", "none"),
        ("steps=" + "9" * 5000, "takes a whole number, got '999"),
        ("steps=" + "9" * 30, "recipe.steps: takes whole numbers of at most 64 bits"),
        ("optim.lr=1e999", "recipe.optim.lr: takes finite numbers"),
        ("data.options.a=" + "9" * 5000, "recipe.data.options.a: takes finite numbers"),
        ("data.options.a=" + "9" * 30, "takes whole numbers of at most 64 bits"),
        ("data.options.a=nan", "takes finite numbers, got nan"),
        ("data.options.a=[NaN]", "NaN is not a JSON number"),
        ("data.options.a=[-Infinity]", "-Infinity is not a JSON number"),
        ("data.options.a=[" + "9" * 5000 + "]", "a whole number of 5000 digits"),
        ('data.options={"size": 1, "size": 2}', "duplicate key 'size'"),
        ("data.options.a=" + "[" * 20 + "]" * 20, "at most 16 levels"),
        ("data.options.a=" + "[" * 99_999, "too many brackets inside each other"),
        ("data.options." + "a." * 9_999 + "a=1", "at most 16 levels"),
    ],
    ids=lambda text: text[:40],
)
def test_invalid_overrides_name_the_setting_and_the_rule(setting, message):
    with pytest.raises(OptionError, match=message) as error:
        apply(BASE, [setting])
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize("value", [10**5000, float("nan"), object(), [object()], {"a": {1, 2}}], ids=range(5))
def test_values_that_json_cannot_hold_are_refused(value):
    with pytest.raises(OptionError, match=r"recipe.data.options.a"):
        override(BASE, {"data.options.a": value})
    made = replace(BASE, data=replace(BASE.data, options={"a": value}))  # not by override, which checks it
    with pytest.raises(OptionError, match=r"recipe 'patchwork'.data.options.a"):
        check_segmentation_recipe(made)
