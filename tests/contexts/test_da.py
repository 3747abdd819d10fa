"""DANet's two attentions against loops, and the unit that Table 3 counts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tolerances import assert_close, relative_error

from hamburger.contexts.da import ChannelAttention, DualAttention, PositionAttention, attend_fused


def linear(conv, x):
    return torch.einsum("oc,cn->on", conv.weight[:, :, 0, 0], x) + conv.bias[:, None]


def position_by_hand(layer, x):
    out = []
    for image in x:
        z = image.flatten(1)
        q, k, v = linear(layer.queries, z), linear(layer.keys, z), linear(layer.values, z)
        columns = []
        for i in range(z.shape[1]):
            weights = torch.exp(k.T @ q[:, i])  # no 1/sqrt(d)
            columns.append(v @ (weights / weights.sum()))
        out.append((layer.gate * torch.stack(columns, 1) + z).view_as(image))
    return torch.stack(out)


def channel_by_hand(layer, x):
    """As the authors' code writes it, with the maximum of each row; or the paper's plain softmax."""
    out = []
    for image in x:
        z = image.flatten(1)
        energy = torch.stack([torch.stack([(a * b).sum() for b in z]) for a in z])
        if layer.invert:
            energy = energy.max(1, keepdim=True)[0] - energy
        weights = torch.exp(energy - energy.max(1, keepdim=True)[0])
        weights = weights / weights.sum(1, keepdim=True)
        out.append((layer.gate * weights @ z + z).view_as(image))
    return torch.stack(out)


@pytest.mark.parametrize("materialise", [False, True])
def test_position_attention(materialise):
    layer = PositionAttention(8, inner=3, materialise=materialise).double()
    layer.gate.data.fill_(0.7)
    x = torch.randn(2, 8, 3, 5, dtype=torch.float64)
    assert_close(layer(x), position_by_hand(layer, x))


@pytest.mark.parametrize("inner", [2, 3, 8])
def test_chunked_half_precision_attention_matches(inner):
    """Values cut under shared weights, where the widths divide (2 and 8 of 8 channels), and whole where not (3)."""
    q, k, v = (torch.randn(2, 30, d).bfloat16() for d in (inner, inner, 8))
    exact = (q.double() @ k.double().mT).softmax(2) @ v.double()
    assert_close(attend_fused(q, k, v), exact)
    assert_close(attend_fused(q.double(), k.double(), v.double()), exact)


@pytest.mark.parametrize("invert", [True, False])
def test_channel_attention(invert):
    layer = ChannelAttention(invert=invert).double()
    layer.gate.data.fill_(0.7)
    x = torch.randn(2, 6, 3, 4, dtype=torch.float64) * 0.5
    assert_close(layer(x), channel_by_hand(layer, x))


def test_cam_invert_switches_between_code_and_paper():
    a, b = torch.ones(9), torch.tensor([1.0, -1] * 4 + [0])  # nearly orthogonal
    x = torch.stack([a, a, b]).view(1, 3, 3, 3)

    def context(invert):
        layer = ChannelAttention(invert=invert)
        layer.gate.data.fill_(1.0)
        return (layer(x) - x)[0, 0].flatten()  # what channel 0 receives

    assert_close(context(False), a, slack=1e3)
    assert relative_error(context(True), b) < 0.01


@pytest.mark.parametrize("layer", [PositionAttention(16, inner=2), ChannelAttention(), ChannelAttention(invert=False)])
def test_closed_gate_is_the_exact_identity(layer):
    x = torch.randn(2, 16, 5, 7)
    assert torch.equal(layer(x), x)
    layer(x).square().sum().backward()
    assert layer.gate.grad.abs() > 0
    assert all(not p.grad.any() for key, p in layer.named_parameters() if key != "gate")


def cbr(block, x):
    n = block[1]
    y = F.conv2d(x, block[0].weight, padding=1)
    return F.batch_norm(y, n.running_mean, n.running_var, n.weight, n.bias, eps=n.eps).clamp_min(0)


@pytest.mark.parametrize("cam_invert", [True, False])
@pytest.mark.parametrize("convs", ["in", "out", "both"])
def test_the_unit_is_the_sum_of_its_branches(convs, cam_invert):
    layer = DualAttention(8, inner=2, convs=convs, cam_invert=cam_invert).double().eval()
    for tensor in (*layer.parameters(), *(b for b in layer.buffers() if b.is_floating_point())):
        tensor.data = torch.rand_like(tensor) * 0.5 + 0.1 if tensor.dim() < 2 else torch.randn_like(tensor) * 0.2
    x = torch.randn(2, 8, 4, 5, dtype=torch.float64)
    total = 0
    for branch, attention in ((layer.position, position_by_hand), (layer.channel, channel_by_hand)):
        y = cbr(branch[0], x) if convs != "out" else x
        y = attention(branch[1], y)
        total = total + (cbr(branch[2], y) if convs != "in" else y)
    assert_close(layer(x), total)


def test_parameter_counts():
    def count(**options):
        return sum(p.numel() for p in DualAttention(512, **options).parameters())

    block = 512 * 512 * 9 + 2 * 512
    assert count() == 5_048_962
    assert round(count() / 2**20, 2) in (4.81, 4.82)  # Table 3 prints 4.82M; 4.815 sits on the edge
    assert count(convs="out") == count(cam_invert=False) == count(materialise=True) == count(inner=64) == count()
    assert count(convs="both") == count() + 2 * block


def test_permuting_pixels_permutes_both_attentions():
    order = torch.randperm(20)
    x = torch.randn(1, 8, 1, 20, dtype=torch.float64)
    for layer in (PositionAttention(8, inner=2), ChannelAttention()):
        layer.double().gate.data.fill_(1.0)
        assert_close(layer(x[..., order]), layer(x)[..., order])


@pytest.mark.parametrize("layer", [PositionAttention(8, inner=8, materialise=m) for m in (False, True)], ids=str)
def test_unscaled_scores_beyond_float16_stay_finite(layer):
    layer.gate.data.fill_(1.0)
    for part in (layer.queries, layer.keys):
        part.weight.data = torch.eye(8)[:, :, None, None]
        part.bias.data.zero_()
    x = 150 * torch.randn(1, 8, 6, 6)  # |x|² is near 180,000
    assert x.flatten(2).square().sum(1).max() > torch.finfo(torch.float16).max
    with torch.autocast("cpu", dtype=torch.float16):
        out = layer(x)
    assert out.isfinite().all()
    assert relative_error(out, layer(x)) < 0.05


def test_gram_matrix_is_computed_in_float32():
    layer = ChannelAttention(invert=False)
    layer.gate.data.fill_(1.0)
    x = (10 * torch.randn(1, 4, 40, 40)).half().float()
    assert x.flatten(2).square().sum(2).max() > torch.finfo(torch.float16).max
    with torch.autocast("cpu", dtype=torch.float16):
        out = layer(x.half())
    assert_close(out, layer(x))


@pytest.mark.parametrize(
    ("channels", "options", "message"),
    [
        (8, {"convs": "bot"}, "da: no convs 'bot'; did you mean 'both'"),
        (8, {"inner": 0}, "da: inner must be a whole number of at least 1"),
    ],
)
def test_messages(channels, options, message):
    with pytest.raises(ValueError, match=message):
        DualAttention(channels, **options)
