"""A loaded layer computes what the foreign burger computes."""

from __future__ import annotations

import pytest
import torch
from foreign_burgers import RANK, C, D, build, hamnet, lightham, paddleseg, run_hamnet, run_lightham
from torch import Tensor

import hamburger as hb
from hamburger.checkpoints import infer_options, load_hamburger


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, C, 5, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def bases_of(layer: hb.Hamburger) -> Tensor:
    bases = layer.state_dict()["ham.dictionary.bases"]
    assert bases.shape[0] == 1
    return bases[0]


@pytest.mark.parametrize("version", ["v1", "v2", "v2+"])
def test_hamnet_weights_give_the_authors_values(version: str, x: Tensor) -> None:
    net, layer = hamnet(version), build(version)
    before = layer(x)
    load_hamburger(layer, {"net": net, "step": 3})
    want = run_hamnet(version, net, x, bases_of(layer))
    torch.testing.assert_close(layer(x), want, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(before, want, rtol=1e-2, atol=1e-2)


def test_narrow_cheese_weights_give_the_authors_values(x: Tensor) -> None:
    net, layer = hamnet("v2+", slim=D // 2), build("v2+", cheese_factor=2)
    load_hamburger(layer, net)
    torch.testing.assert_close(layer(x), run_hamnet("v2+", net, x, bases_of(layer)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("source", ["auto", "lightham", "mmseg"])
@pytest.mark.parametrize(("norm", "ours"), [("gn", "group"), ("bn", "batch")])
def test_lightham_weights_give_the_authors_values(norm: str, ours: str, source: str, x: Tensor) -> None:
    model, layer = lightham(norm), build("v1", inner=C, norm=ours)
    report = load_hamburger(layer, {"state_dict": model, "meta": {"epoch": 1}}, source)
    torch.testing.assert_close(layer(x), run_lightham(model, x, bases_of(layer)), rtol=1e-6, atol=1e-6)
    assert report.source == ("lightham" if source == "auto" else source)


@pytest.mark.parametrize("source", ["auto", "paddleseg"])
def test_paddleseg_weights_give_the_values_of_lightham(source: str, x: Tensor) -> None:
    theirs, model = paddleseg()
    assert not {key for key in theirs if "hamburger" in key} & set(model)
    layer = build(**infer_options(theirs))
    report = load_hamburger(layer, theirs, source)
    torch.testing.assert_close(layer(x), run_lightham(model, x, bases_of(layer)), rtol=1e-6, atol=1e-6)
    assert report.loaded["norm.bias"] == "decode_head.hamburger.ham_out._group_norm.bias"


@pytest.mark.parametrize("source", ["auto", "otx"])
def test_otx_weights_evaluate_from_their_stored_bases(source: str, x: Tensor) -> None:
    bases = torch.rand(1, C, RANK, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    model = lightham() | {"decode_head.hamburger.ham.bases": bases}
    options = infer_options(model, source)
    assert (options["init"], options["rank"], options["heads"]) == ("fixed", RANK, 1)
    layer = build(**options)
    report = load_hamburger(layer, model, source)
    torch.testing.assert_close(layer(x), run_lightham(model, x, bases[0]), rtol=1e-6, atol=1e-6)
    assert report.loaded["ham.dictionary.bases"] == "decode_head.hamburger.ham.bases" and not report.kept


def test_stored_bases_replace_the_layers_own(x: Tensor) -> None:
    layer = build("v2")
    bases = torch.rand(1, *bases_of(layer).shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    net = hamnet("v2") | {"hamburger.ham.bases": bases}
    report = load_hamburger(layer, net)
    torch.testing.assert_close(layer(x), run_hamnet("v2", net, x, bases[0]), rtol=1e-6, atol=1e-6)
    assert report.loaded["ham.dictionary.bases"] == "hamburger.ham.bases"
    assert not report.kept
