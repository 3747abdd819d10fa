"""Code maps against `decompose` with the same dictionary, for every ham, with heads and along channels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hamburger as hb
from hamburger.contexts import create_context
from hamburger.errors import InputError, OptionError, ShapeError
from hamburger.inspect.solves import code_maps, list_ham_layers, solve_layer
from hamburger.layers.ham import HamLayer

IMAGE = (3, 12, 20)


def network(context):
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=4, padding=1), context, nn.Conv2d(8, 2, 1))


@pytest.mark.parametrize("name", hb.hams.names())
def test_code_maps_match_decompose(name):
    net = network(hb.Hamburger(8, ham=name, rank=3))
    image = torch.rand(IMAGE)
    burger = net[1].eval()
    with torch.no_grad():
        x = burger.lower(net[0](image[None]).flatten(2))
        x = torch.relu(x) if burger.rectify else x
    out = hb.decompose(x, burger.ham.ham, steps=6, bases=burger.ham.dictionary.bases, grid=(3, 5))
    result = code_maps(net.train(), image)
    assert result.maps.shape == (1, 1, 3, 3, 5)
    assert (result.energies.diff(dim=2) <= 0).all()
    # the energy of an atom is that of its own rank-one matrix
    parts = [torch.linalg.matrix_norm(out.bases[0, :, [i]] @ out.codes[0, [i]]) ** 2 for i in range(3)]
    order = torch.stack(parts).argsort(descending=True)
    torch.testing.assert_close(result.energies[0, 0], torch.stack(parts)[order])
    torch.testing.assert_close(result.maps[0, 0].flatten(1), out.codes[0, order])
    torch.testing.assert_close(result.bases[0, 0], out.bases[0][:, order])


def test_every_window_has_maps_of_its_own():
    net = network(hb.Hamburger(8, ham="windowed", rank=4, window=2, local_rank=1))
    result = code_maps(net, torch.rand(IMAGE))
    assert result.maps.shape == (1, 1, 3 + 6, 3, 5) and result.bases.shape == (1, 1, 8, 9)
    sizes = (result.maps[0, 0] > 0).flatten(1).sum(1)
    assert sorted(sizes.tolist())[:6] == [1, 2, 2, 2, 4, 4]  # six windows on a map of 3 x 5


@pytest.mark.parametrize("init", ["random", "columns"])
@pytest.mark.parametrize("axis", ["spatial", "channel"])
def test_factors_multiply_to_the_layer_output(axis, init):
    layer = HamLayer(hb.NMF(rank=3), 8, heads=2, axis=axis, init=init)
    x = torch.rand(2, 8, 15)
    solution = solve_layer(layer.train(), x)
    product = solution.bases @ solution.codes
    product = product if axis == "spatial" else product.mT
    torch.testing.assert_close(product.unflatten(0, (2, 2)).flatten(1, 2), layer.eval()(x))


def test_heads_and_dual_hams_are_distinguished():
    net = network(hb.Hamburger(8, ham="nmf", rank=3, heads=2, version="v2+", dual=True))
    assert code_maps(net, torch.rand(2, *IMAGE)).maps.shape == (2, 2, 3, 3, 5)
    along_channels = code_maps(net, torch.rand(IMAGE), layer="1.channel_ham")
    assert along_channels.maps.shape == (1, 2, 3, 3, 5)
    assert along_channels.bases.shape == (1, 2, 4, 3)
    assert (along_channels.energies.diff(dim=2) <= 0).all()


def test_nested_ham_is_found():
    net = network(create_context("lightham", 32, rank=3))
    net[0], net[2] = nn.Conv2d(3, 32, 3, stride=4, padding=1), nn.Conv2d(32, 2, 1)
    assert list(list_ham_layers(net)) == ["1.hamburger.ham"]
    assert code_maps(net, torch.rand(IMAGE), layer="1").maps.shape == (1, 1, 3, 3, 5)


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.burger = hb.Hamburger(6, ham="vq", rank=2, layout="tokens")

    def forward(self, x):
        return self.burger(nn.functional.pixel_unshuffle(x, 2)[:, :6].flatten(2).mT)


def test_token_maps_need_a_size():
    net, image = Tokens(), torch.rand(3, 4, 6)
    with pytest.raises(ShapeError, match=r"give size=\(h, w\)"):
        code_maps(net, image)
    with pytest.raises(ShapeError, match="does not fit the 6 positions"):
        code_maps(net, image, size=(2, 2))
    assert code_maps(net, image, size=(2, 3)).maps.shape == (1, 1, 2, 2, 3)


def test_class_tokens_are_excluded_from_maps():
    timm = pytest.importorskip("timm", reason="needs timm")
    vit = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=1, embed_dim=24, num_heads=3)
    hb.replace_attention(vit, "nmf", rank=4)
    image = torch.rand(3, 32, 32)
    whole = code_maps(vit, image, size=(1, 17))
    result = code_maps(vit, image, layer="blocks.0", size=(4, 4))
    assert torch.equal(result.maps.flatten(3), whole.maps.flatten(3)[..., 1:])
    assert torch.equal(result.energies, whole.energies)
    with pytest.raises(ShapeError, match="size 3 x 4 does not fit the 17 positions"):
        code_maps(vit, image, size=(3, 4))


def test_mistakes_are_named():
    with pytest.raises(InputError, match="the model contains no ham"):
        code_maps(network(nn.Identity()), torch.rand(IMAGE))
    with pytest.raises(InputError, match="layer '0' contains no ham"):
        code_maps(network(hb.Hamburger(8, rank=2)), torch.rand(IMAGE), layer="0")
    two = network(nn.Sequential(hb.Hamburger(8, rank=2), hb.Hamburger(8, rank=2)))
    with pytest.raises(OptionError, match=r"name one with layer=: 1\.0\.ham, 1\.1\.ham"):
        code_maps(two, torch.rand(IMAGE))
    assert code_maps(two, torch.rand(IMAGE), layer="1.0").maps.shape == (1, 1, 2, 3, 5)
