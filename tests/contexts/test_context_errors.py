"""Wrong options and inputs of every context raise errors that name the context and the rule."""

from __future__ import annotations

import inspect

import pytest
import torch

import hamburger as hb
from hamburger.errors import HamburgerError, InputError, OptionError, ShapeError

HAMS = tuple(hb.hams.names())
NAMES = hb.list_contexts()


def named(name, message):
    return ("hamburger" if name in HAMS else name) in message.lower()


@pytest.mark.parametrize("name", NAMES)
def test_wrong_number_of_channels_names_both_numbers(name):
    layer = hb.create_context(name, channels=32)
    with pytest.raises(ShapeError) as error:
        layer(torch.randn(2, 48, 6, 7))
    message = str(error.value)
    assert named(name, message) and "32" in message and "48" in message


@pytest.mark.parametrize("name", [name for name in NAMES if name not in HAMS])
def test_input_that_is_not_a_map_raises(name):
    layer = hb.create_context(name, channels=32)
    with pytest.raises(ShapeError) as error:
        layer(torch.randn(32, 6, 7))
    assert named(name, str(error.value)) and "(32, 6, 7)" in str(error.value)
    with pytest.raises(InputError, match="floating point"):
        layer(torch.ones(1, 32, 6, 7, dtype=torch.int64))


def flags():
    for name in NAMES:
        for option in inspect.signature(hb.contexts[name]).parameters.values():
            if "bool" in str(option.annotation):
                yield name, option.name


@pytest.mark.parametrize(("name", "option"), list(flags()))
@pytest.mark.parametrize("value", ["no", 3, 1.0], ids=str)
def test_flags_must_be_bool(name, option, value):
    with pytest.raises(OptionError, match=f"{option} must be True or False, got") as error:
        hb.create_context(name, channels=32, **{option: value})
    assert named(name, str(error.value))


@pytest.mark.parametrize("channels", ["32", 32.0, True, 0, None], ids=repr)
@pytest.mark.parametrize("name", NAMES)
def test_channels_must_be_an_integer(name, channels):
    with pytest.raises(OptionError, match="channels must be a whole number"):
        hb.create_context(name, channels)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("psp", {"scales": 3}, r"PSP: scales must name at least one size, such as \(1, 2, 3, 6\), got 3"),
        ("psp", {"scales": ()}, "at least one size"),
        ("psp", {"scales": "12"}, "got '12'"),
        ("psp", {"scales": (1, 2.0)}, "each of the scales must be a whole number"),
        ("apc", {"scales": 3}, "APC: scales must name"),
        ("dm", {"sizes": 3}, r"DM: sizes must name at least one size, such as \(1, 3, 5, 7\), got 3"),
        ("lightham", {"in_channels": 3}, "LightHam: in_channels must name at least one size"),
        ("lightham", {"in_channels": ()}, "LightHam: in_channels must name at least one size"),
        ("ema", {"momentum": "a"}, "EMAU: momentum.* at most 1, got 'a'"),
        ("ema", {"seed": "a"}, "EMAU: seed"),
        ("acf", {"dropout": "x"}, "ACF: dropout must be a number of at least 0 and below 1, got 'x'"),
        ("ocr", {"dropout": 1}, "OCR: dropout must be a number of at least 0 and below 1, got 1"),
        ("sgr", {"embeddings": [[1.0]]}, "SGR: embeddings must be a tensor, one row per node, got list"),
        ("sgr", {"adjacency": [[1.0]]}, "SGR: no adjacency"),
        ("sgr", {"seed": -1}, "SGR: seed"),
        ("nonlocal", {"scale": 3}, "nonlocal: scale must be True or False, got 3"),
        ("sanet", {"squash": "no"}, "SANet: squash must be True or False, got 'no'"),
        ("da", {"inner": "8"}, "da: inner must be a whole number"),
    ],
)
def test_invalid_values_raise_with_the_rule(name, options, message):
    with pytest.raises(OptionError, match=message):
        hb.create_context(name, channels=32, **options)


def test_list_of_other_than_maps_raises():
    layer = hb.create_context("lightham", channels=32, in_channels=[32, 64])
    with pytest.raises(HamburgerError, match=r"LightHam: every map must be a torch\.Tensor, got int"):
        layer([1, 2])
    with pytest.raises(ShapeError, match="LightHam: built for 2"):
        layer([torch.randn(32), torch.randn(64)])
