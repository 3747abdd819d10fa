"""Which axis holds the channels, in networks whose weights do not determine it."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

import hamburger as hb
from hamburger.insertion import InsertedContext


def inserted_layouts(net, places, example=None):
    """Layout and channels of the context at each place."""
    hb.insert_context(net, dict.fromkeys(places, "efficient"), example=example)
    inserted = [net.get_submodule(place).inserted_context for place in places]
    return [(each.adapter.layout, each.context.channels) for each in inserted]


class Joins(nn.Module):
    """As an Inception block: no weight is as long as the output has channels, one is as long as its map is wide."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 16, 1), nn.Conv2d(3, 8, 1)

    def forward(self, x):
        return torch.cat([self.one(x), self.two(x)], dim=1)


class Permutes(nn.Module):
    """A convolution whose output is turned to channels last."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 12, 1)

    def forward(self, x):
        return self.conv(x).movedim(1, -1)


class Norms(Permutes):
    """Channels last, as many as the map is high and wide."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(12)

    def forward(self, x):
        return self.norm(super().forward(x))


@pytest.mark.parametrize(
    ("module", "example", "expected"),
    [
        (Joins(), (1, 3, 16, 16), ("channels", 24)),
        (nn.Sequential(nn.Conv2d(3, 32, 1), nn.PixelShuffle(2)), (1, 3, 16, 16), ("channels", 8)),
        (nn.ConvTranspose2d(3, 6, 1, bias=False), (1, 3, 3, 3), ("channels", 6)),
        (nn.Conv2d(3, 16, 1), (1, 3, 16, 24), ("channels", 16)),
        (Permutes(), (1, 3, 9, 9), ("tokens", 12)),
        (Permutes(), (1, 3, 7, 9), ("tokens", 12)),
    ],
)
def test_maps_of_any_rank_get_contexts(module, example, expected):
    assert inserted_layouts(nn.Sequential(module), ["0"], torch.rand(example)) == [expected]


def test_cubic_map_layout_is_inferred_from_layers():
    norms = Norms()
    assert inserted_layouts(norms, ["norm"], torch.rand(1, 3, 12, 12)) == [("tokens", 12)]
    assert inserted_layouts(Norms(), ["conv"], torch.rand(1, 3, 12, 12)) == [("channels", 12)]


def test_swin_layout_is_inferred_for_nonsquare_images():
    timm = pytest.importorskip("timm", reason="needs timm")
    sizes = {"window_size": 4, "embed_dim": 16, "depths": (1, 1), "num_heads": (1, 2), "num_classes": 5}
    for size in (64, (32, 64)):  # 16 x 16 x 16 after the first stage; a size that no other network has
        net = timm.create_model("swin_tiny_patch4_window7_224", img_size=size, **sizes)
        assert inserted_layouts(net, ["layers.0", "layers.1"]) == [("tokens", 16), ("tokens", 32)]


class Recurrent(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        self.rnn, self.norm = nn.GRU(4, 8, batch_first=batch_first), nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(self.rnn(x)[0])


def test_sequence_first_layout_must_be_given():
    """A context along the wrong axis would silently mix the samples of a batch."""
    x = torch.randn(5, 2, 4)
    for place in ("norm", "rnn"):
        part = {"output": 0} if place == "rnn" else {}
        with pytest.raises(hb.InputError, match=rf"'{place}'.*\(5, 2, 8\).*batch_first=False.*'layout': 'sequence'"):
            hb.insert_context(Recurrent(False), {place: ("nmf", part)}, example=x)
        first, middle = Recurrent(True).eval(), Recurrent(False).eval()
        middle.load_state_dict(first.state_dict())
        hb.insert_context(first, {place: ("nmf", {"rank": 2, **part})}, example=x.transpose(0, 1), gate="one")
        hb.insert_context(middle, {place: ("nmf", {"rank": 2, **part, "layout": "sequence"})}, example=x, gate="one")
        middle.load_state_dict(first.state_dict())
        torch.testing.assert_close(middle(x), first(x.transpose(0, 1)).transpose(0, 1))
        torch.testing.assert_close(middle(x[:, :1]), middle(x)[:, :1])
    with pytest.raises(hb.ShapeError, match=r"'sequence' is \(n, b, c\), and the features are \(1, 8, 4, 4\)"):
        hb.insert_context(
            nn.Sequential(nn.Conv2d(3, 8, 1)), {"0": ("nmf", {"layout": "sequence"})}, example=torch.rand(1, 3, 4, 4)
        )


class Encoder(nn.Module):
    def __init__(self, nested=True):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)

    def forward(self, x, padded=None):
        return self.layers(x, src_key_padding_mask=padded)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensor_sequences_raise():
    """With a padding mask it passes nested tensors between layers in evaluation."""
    x, padded = torch.rand(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    place = {"layers.layers.0": "efficient"}
    with pytest.raises(hb.InputError, match=r"'layers\.layers\.0' returns nested tensors.*enable_nested_tensor=False"):
        hb.insert_context(Encoder(), place, example=(x, padded))
    net = hb.insert_context(Encoder().eval(), place, example=x)
    with torch.no_grad(), pytest.raises(hb.InputError, match=r"cannot take nested tensors.*enable_nested_tensor=False"):
        net(x, padded)
    open_ = Encoder(nested=False).eval()
    with torch.no_grad():
        before = open_(x, padded)
        hb.insert_context(open_, place, example=(x, padded))
        torch.testing.assert_close(open_(x, padded)[~padded], before[~padded])


def test_encoder_fast_path_runs_contexts():
    """torch computes a whole layer in one call in evaluation, unless there are hooks in it."""
    x, net = torch.rand(2, 5, 8), Encoder().eval()
    with torch.no_grad():
        before = net(x)
        hb.insert_context(net, {"layers.layers.0.linear2": "efficient"}, example=x)
        torch.testing.assert_close(net(x), before)
        for module in net.modules():
            if isinstance(module, InsertedContext):
                nn.init.ones_(module.gate)
        assert not torch.allclose(net(x), before)


@torch.no_grad()
@pytest.mark.parametrize("compiled", [False, True])
def test_grid_raises_for_another_number_of_tokens(compiled):
    net = nn.Sequential(nn.Linear(8, 8))
    hb.insert_context(net, {"0": ("psp", {"grid": (4, 4)})}, example=torch.rand(1, 17, 8), gate="one")
    copied = pickle.loads(pickle.dumps(net)).eval()
    if compiled:
        torch._dynamo.reset()
        copied = torch.compile(copied, backend="eager")
    assert copied(torch.rand(2, 17, 8)).shape == (2, 17, 8)
    for n in (16, 37):
        with pytest.raises(hb.ShapeError, match=rf"'0': .* \(4, 4\) after 1 other positions, 17 in all \(got {n}\)"):
            copied(torch.rand(2, n, 8))


def test_dynamic_size_transformer_with_a_grid():
    timm = pytest.importorskip("timm", reason="needs timm")
    net = timm.create_model(
        "vit_tiny_patch16_224", img_size=64, depth=1, embed_dim=48, num_classes=3, dynamic_img_size=True
    ).eval()
    hb.insert_context(net, {"blocks.0": ("psp", {"grid": (4, 4)})})
    assert net(torch.rand(1, 3, 64, 64)).shape == (1, 3)
    with pytest.raises(hb.ShapeError, match=r"'blocks\.0': .*17 in all \(got 37\)"):
        net(torch.rand(1, 3, 96, 96))
