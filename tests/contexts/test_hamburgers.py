"""The Hamburgers by name, and the defaults that all ways to build one share."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import hamburger as hb


def build_directly(name, channels, **options):
    return hb.Hamburger(channels, ham=name, **options)


def build_by_insertion(name, channels, **options):
    net = nn.Sequential(nn.Conv2d(3, channels, 1))
    hb.insert_context(net, {"0": (name, options)}, example=torch.rand(1, 3, 4, 4))
    (layer,) = (module for module in net.modules() if isinstance(module, hb.Hamburger))
    return layer


BUILDERS = pytest.mark.parametrize("build", [build_directly, hb.create_context, build_by_insertion])


@BUILDERS
@pytest.mark.parametrize("name", ["nmf", "vq", "cd"])
@pytest.mark.parametrize(("channels", "options"), [(512, {}), (64, {}), (16, {}), (64, {"inner": 256})])
def test_defaults_are_equal_in_every_entry_point(build, name, channels, options):
    layer, inner = build(name, channels, **options), options.get("inner", channels)
    assert layer.version == "paper"
    assert layer.ham.ham == hb.hams.create(name, rank=max(8, inner // 8))
    assert layer.ham.dim == inner


@BUILDERS
def test_given_options_win_over_the_defaults(build):
    layer = build("cd", 64, rank=5, version="v1")
    assert (layer.ham.ham.rank, layer.version) == (5, "v1")


@BUILDERS
@pytest.mark.parametrize(("channels", "options"), [(16, {"rank": 16}), (64, {"rank": 40, "inner": 32})])
def test_rank_without_compression_warns_once(build, channels, options):
    with pytest.warns(UserWarning) as caught:
        build("nmf", channels, **options)
    inner, rank = options.get("inner", channels), options["rank"]
    (message,) = (str(warning.message) for warning in caught)
    assert message.startswith(f"Hamburger: rank {rank} is not below the inner width {inner}")
    assert f"pass a rank below {inner} or a larger inner" in message


@BUILDERS
def test_the_default_rank_of_a_narrow_network_does_not_warn(build):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build("nmf", 8).ham.ham.rank == 8


def test_no_rank_warning_without_a_ham_or_below_the_width():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hb.Hamburger(8, rank=8, parts={"lower", "upper"})
        hb.Hamburger(8, rank=7)
        hb.Hamburger(8, ham=hb.NMF(rank=7))
        assert hb.create_context("lightham", 32).hamburger.ham.ham.rank == 8
        assert hb.create_context("lightham", 96).hamburger.ham.ham.rank == 64  # as published
    for options in ({"ham": hb.NMF(rank=32)}, {"ham_options": {"rank": 32}}):
        with pytest.warns(UserWarning, match="rank 32 is not below the inner width 8"):
            hb.Hamburger(8, **options)
    with pytest.warns(UserWarning, match="rank 64 is not below the inner width 8"):
        hb.Hamburger(8, ham=hb.NMF())
    with pytest.warns(UserWarning, match="rank 40 is not below the inner width 32"):
        hb.create_context("lightham", 32, rank=40)


@pytest.mark.parametrize("name", ["nmf", "vq", "cd"])
def test_networks_after_the_authors_code_keep_their_final_relu(name):
    tiny = {"num_classes": 3, "backbone": "tiny", "output_stride": 4, "head_options": {"width": 64}, "context": name}
    assert hb.create_model("hamnet", **tiny).head.context.version == "v1"
    paper_net = hb.create_model("hamnet", **tiny, context_options={"version": "paper"})
    assert paper_net.head.context.version == "paper"
    for net in hb.create_gan("sagan", context=name, resolution=32, num_classes=2, width=8):
        assert {module.version for module in net.modules() if isinstance(module, hb.Hamburger)} == {"v1"}


@pytest.mark.parametrize("name", ["nmf", "vq", "cd"])
@pytest.mark.parametrize(
    ("channels", "options", "rank"),
    [(512, {}, 64), (64, {}, 8), (16, {}, 8), (64, {"inner": 256}, 32), (64, {"rank": 5}, 5)],
)
def test_the_rank_follows_the_width_as_in_the_paper(name, channels, options, rank):
    layer = hb.create_context(name, channels, **options)
    assert layer.ham.ham.rank == rank
    assert layer.ham.dictionary.bases.shape == (1, options.get("inner", channels), rank)


def test_bad_widths_are_named():
    with pytest.raises(hb.OptionError, match="channels must be a whole number"):
        hb.create_context("nmf", 0)
    with pytest.raises(hb.OptionError, match="inner must be a whole number"):
        hb.create_context("vq", 64, inner="wide")
