"""Spectral norm, conditional batch norm, residual blocks, attention and losses against explicit formulas."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from gan_cases import small
from tolerances import assert_close
from torch import nn
from torch.utils.checkpoint import checkpoint

from hamburger.errors import ShapeError
from hamburger.generation.gan_steps import discriminator_hinge, generator_hinge
from hamburger.generation.networks.contexts import HamBlock, SelfAttention, SparseAttention, UniformDictionary
from hamburger.generation.networks.layers import (
    ConditionalBatchNorm2d,
    DownBlock,
    LayerFactory,
    UpBlock,
    downsample,
    upsample,
)
from hamburger.generation.networks.spectral import (
    SpectralNorm,
    freeze_power_iterations,
    run_power_iterations,
    spectral_norm,
)
from hamburger_lab.bench.footprint import count_params_and_macs

PLAIN = LayerFactory()


def stretched(layer, scale):
    """Double precision and a known gap between singular values, so that power iterations converge."""
    layer = layer.double()
    matrix = layer.weight.detach().flatten(1)
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    s = torch.linspace(1, 0.1, len(s), dtype=s.dtype) * scale
    layer.weight.data = (u @ s.diag() @ v).view_as(layer.weight)
    return layer


LAYERS = [nn.Conv2d(6, 10, 3), nn.Conv2d(12, 4, 1), nn.Linear(9, 1), nn.Linear(5, 8), nn.Embedding(7, 5)]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("scale", [3.0, 0.2])
@pytest.mark.parametrize("convention", ["equality", "inequality"])
def test_spectral_norm_against_singular_values(layer, scale, convention):
    layer = stretched(type(layer)(*_arguments(layer)), scale)
    original = layer.weight.detach().clone()
    spectral_norm(layer, convention)
    for _ in range(300):
        _ = layer.weight
    largest = torch.linalg.svdvals(original.flatten(1))[0]
    expected = original / (largest if convention == "equality" else largest.clamp_min(1))
    assert_close(layer.weight, expected)
    top = torch.linalg.svdvals(layer.weight.flatten(1))[0].item()
    assert top == pytest.approx(1 if convention == "equality" or scale > 1 else scale)


def _arguments(layer):
    if isinstance(layer, nn.Conv2d):
        return layer.in_channels, layer.out_channels, layer.kernel_size
    return (layer.in_features, layer.out_features) if isinstance(layer, nn.Linear) else tuple(layer.weight.shape)


def test_spectral_norm_matches_torch():
    """Its power iteration, step by step, and its gradient."""
    torch.manual_seed(3)
    mine, torchs = nn.Conv2d(5, 7, 3).double(), nn.Conv2d(5, 7, 3).double()
    torchs.load_state_dict(mine.state_dict())
    spectral_norm(mine)
    nn.utils.parametrizations.spectral_norm(torchs)
    actual, other = mine.parametrizations.weight[0], torchs.parametrizations.weight[0]
    other._u.copy_(actual.u)
    other._v.copy_(actual.v)
    x = torch.randn(2, 5, 6, 6, dtype=torch.float64)
    for _ in range(3):
        outs = [layer(x) for layer in (mine, torchs)]
        assert_close(*outs)
        grads = [
            torch.autograd.grad(out.square().sum(), layer.parametrizations.weight.original)[0]
            for out, layer in zip(outs, (mine, torchs), strict=True)
        ]
        assert_close(*grads)


def test_vectors_change_only_in_training_and_two_calls_can_be_differentiated():
    layer = spectral_norm(nn.Linear(6, 4))
    vector = layer.parametrizations.weight[0].u
    before = vector.clone()
    layer.eval()
    assert torch.equal(layer.weight, layer.weight)
    assert torch.equal(vector, before)
    layer.train()
    x = torch.randn(2, 6)
    (layer(x).sum() + layer(2 * x).sum()).backward()
    assert not torch.equal(vector, before)
    assert layer.parametrizations.weight.original.grad.isfinite().all()


@pytest.mark.parametrize("name", ["sngan", "sagan"])
def test_power_iterations_of_all_norms_at_once_match_those_of_each(name):
    one, two = (small(name)[1].double().train() for _ in range(2))
    two.load_state_dict(one.state_dict())
    x, y = torch.randn(2, 3, one.resolution, one.resolution, dtype=torch.float64), torch.tensor([0, 1])
    expected = one(x, y)
    before = {key: value.clone() for key, value in two.named_buffers()}
    run_power_iterations(two)
    moved = {key: value.clone() for key, value in two.named_buffers() if not torch.equal(value, before[key])}
    assert {key.rsplit(".", 1)[1] for key in moved} == {"u", "v"}
    with freeze_power_iterations(two):
        assert_close(two(x, y), expected)
    for key, value in one.named_buffers():
        if key in moved:
            assert_close(moved[key], value)
            assert torch.equal(two.get_buffer(key), moved[key])
    for net in (one, two):
        net.zero_grad()
    one(x, y).sum().backward()
    run_power_iterations(two)
    with freeze_power_iterations(two):
        two(x, y).sum().backward()
    for mine, other in zip(two.parameters(), one.parameters(), strict=True):
        assert_close(mine.grad, other.grad)


def test_vectors_are_constant_in_evaluation_and_when_frozen():
    layer = spectral_norm(nn.Linear(6, 4))
    vector = layer.parametrizations.weight[0].u
    before = vector.clone()
    run_power_iterations(layer.eval())
    with freeze_power_iterations(layer.train()):
        run_power_iterations(layer)
    assert torch.equal(vector, before)
    run_power_iterations(layer)
    assert not torch.equal(vector, before)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_does_not_iterate_a_second_time(reentrant):
    results = []
    for checkpointed in (False, True):
        torch.manual_seed(0)
        layer, x = spectral_norm(nn.Linear(6, 5)), torch.randn(3, 6, requires_grad=True)
        with torch.no_grad():
            layer.parametrizations.weight[0].u.copy_(F.normalize(torch.randn(5), dim=0))  # far from a fixed point
        y = checkpoint(layer, x, use_reentrant=reentrant) if checkpointed else layer(x)
        (y * torch.arange(5.0)).sum().backward()
        results.append([x.grad, layer.parametrizations.weight.original.grad, *layer.buffers()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_nested_freezing_ends_with_the_outer_context():
    layer = spectral_norm(nn.Linear(6, 4))
    norm = layer.parametrizations.weight[0]
    with freeze_power_iterations(layer):
        with freeze_power_iterations(layer):
            assert norm.frozen
        assert norm.frozen
    assert not norm.frozen


def test_backward_after_a_power_iteration_raises():
    layer = spectral_norm(nn.Linear(6, 4))
    with freeze_power_iterations(layer):
        out = layer(torch.randn(2, 6)).sum()
    run_power_iterations(layer)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_upsampling_and_downsampling(layout):
    x = torch.randn(2, 6, 8, 4, dtype=torch.float64).contiguous(memory_format=layout).requires_grad_()
    for mine, torchs in (
        (upsample, lambda t: F.interpolate(t, scale_factor=2, mode="nearest")),
        (downsample, lambda t: F.avg_pool2d(t, 2)),
    ):
        out, expected = mine(x), torchs(x)
        assert_close(out, expected)
        assert out.is_contiguous(memory_format=layout)
        cotangent = torch.randn_like(expected)
        (actual,), (want,) = (torch.autograd.grad(t, x, cotangent) for t in (out, expected))
        assert_close(actual, want)
        assert actual.is_contiguous(memory_format=layout)


@pytest.mark.gpu
def test_maps_keep_their_dtype_under_autocast():
    """torch's interpolate does not, and everything after it would be float32."""
    x = torch.randn(1, 2, 4, 4, dtype=torch.bfloat16, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert upsample(x).dtype == downsample(x).dtype == torch.bfloat16


def test_conventions_in_the_networks():
    """Inequality in SAGAN's layers, equality in its attention and in SNGAN's discriminator, nothing in SNGAN's G."""
    for net in small("sagan"):
        for key, module in net.named_modules():
            if isinstance(module, SpectralNorm):
                assert module.convention == ("equality" if key.startswith("context") else "inequality")
        plain = [
            key
            for key, module in net.named_modules()
            if isinstance(module, (nn.Conv2d, nn.Linear, nn.Embedding)) and "ParametrizationList" not in repr(module)
        ]
        assert plain == []
    generator, discriminator = small("sngan")
    assert not any(isinstance(module, SpectralNorm) for module in generator.modules())
    assert {m.convention for m in discriminator.modules() if isinstance(m, SpectralNorm)} == {"equality"}


def test_conditional_batch_norm():
    layer = ConditionalBatchNorm2d(4, num_classes=3, eps=1e-3, momentum=0.25).double()
    x, y = torch.randn(5, 4, 3, 2, dtype=torch.float64) * 2 + 1, torch.tensor([0, 2, 2, 1, 0])
    mean, var = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), unbiased=False, keepdim=True)
    expected = (x - mean) / (var + 1e-3).sqrt()
    assert_close(layer(x, y), expected)  # gains one, biases zero
    layer.gain.data.normal_()
    layer.bias.data.normal_()
    for i, k in enumerate(y):
        one = expected[i] * layer.gain[k][:, None, None] + layer.bias[k][:, None, None]
        assert_close(layer(x, y)[i], one)
    layer.norm.reset_running_stats()
    layer(x, y)
    layer.eval()
    share = 0.25 * x.var((0, 2, 3)) + 0.75, 0.25 * x.mean((0, 2, 3))
    still = (x - share[1][:, None, None]) / (share[0] + 1e-3).sqrt()[:, None, None]
    assert_close(layer(x, y)[3], still[3] * layer.gain[1][:, None, None] + layer.bias[1][:, None, None])


def test_up_block_repeats_pixels_before_both_paths():
    block = UpBlock(6, 4, num_classes=2, layers=PLAIN).double()
    x, y = torch.randn(3, 6, 4, 4, dtype=torch.float64), torch.tensor([0, 1, 0])
    twice = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
    z = F.relu(block.norm1(x, y)).repeat_interleave(2, 2).repeat_interleave(2, 3)
    z = block.conv2(F.relu(block.norm2(block.conv1(z), y)))
    assert_close(block(x, y), z + block.shortcut(twice))


@pytest.mark.parametrize(("down", "out"), [(True, 6), (True, 4), (False, 4), (False, 6)])
@pytest.mark.parametrize("hidden", ["in", "out"])
def test_down_block(down, out, hidden):
    block = DownBlock(6, out, hidden=hidden, down=down, layers=PLAIN).double()
    assert block.conv1.out_channels == (6 if hidden == "in" else out)
    x = torch.randn(3, 6, 4, 4, dtype=torch.float64)
    z, skip = block.conv2(F.relu(block.conv1(F.relu(x)))), x
    if down or out != 6:
        skip = block.shortcut(x)
    if down:
        z, skip = (t.unflatten(2, (2, 2)).unflatten(4, (2, 2)).mean((3, 5)) for t in (z, skip))
    assert_close(block(x), z + skip)


def test_first_block():
    block = DownBlock(3, 5, first=True, layers=PLAIN).double()
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    halved = F.avg_pool2d(x, 2)
    assert_close(block(x), F.avg_pool2d(block.conv2(F.relu(block.conv1(x))), 2) + block.shortcut(halved))


def attention_by_hand(layer, x, *, heads, mask):
    """Query by query; heads are split in order and concatenated with the head index running fastest."""
    product = lambda conv, t: torch.einsum("oc,chw->ohw", conv.weight[:, :, 0, 0], t)  # noqa: E731
    images = []
    for image in x:
        q = product(layer.queries, image).flatten(1)
        k, v = (F.max_pool2d(product(conv, image)[None], 2)[0].flatten(1) for conv in (layer.keys, layer.values))
        e, width = q.shape[0] // heads, v.shape[0] // heads
        mixed = torch.zeros(v.shape[0], q.shape[1], dtype=x.dtype)
        for head in range(heads):
            for i in range(q.shape[1]):
                scores = k[head * e : (head + 1) * e].T @ q[head * e : (head + 1) * e, i]
                weights = scores.exp() * (1 if mask is None else mask[head, i])
                mean = v[head * width : (head + 1) * width] @ (weights / weights.sum())
                mixed[torch.arange(width) * heads + head, i] = mean
        images.append(product(layer.out, mixed.unflatten(1, image.shape[1:])))
    return x + layer.gate * torch.stack(images)


def test_self_attention():
    layer = SelfAttention(16, size=4, layers=PLAIN).double()
    layer.gate.data.fill_(0.7)
    x = torch.randn(2, 16, 4, 4, dtype=torch.float64)
    assert_close(layer(x), attention_by_hand(layer, x, heads=1, mask=None))


def test_sparse_attention():
    layer = SparseAttention(64, size=8, layers=PLAIN).double()
    layer.gate.data.fill_(0.7)
    x = torch.randn(1, 64, 8, 8, dtype=torch.float64)
    assert_close(layer(x), attention_by_hand(layer, x, heads=8, mask=layer.mask))
    assert "mask" not in layer.state_dict()
    with pytest.raises(ShapeError, match="its masks are for maps of 8 x 8"):
        layer(torch.randn(1, 64, 16, 16, dtype=torch.float64))


@pytest.mark.parametrize("classes", [None, 3])
def test_ham_block(classes):
    """NMF with its updates written out, from bases with columns of any length."""
    layer = HamBlock(16, size=4, layers=PLAIN, num_classes=classes, inner=12, rank=3, steps=4).double().eval()
    layer.gate.data.fill_(0.7)
    x, y = torch.randn(2, 16, 4, 4, dtype=torch.float64), torch.tensor([2, 0])
    z = torch.einsum("oc,bcn->bon", layer.lower.weight[:, :, 0, 0], x.flatten(2)).clamp_min(0)
    bases = layer.ham.dictionary.bases.expand(2, -1, -1)
    codes = (bases.mT @ z).softmax(1)
    for _ in range(4):
        codes = codes * (bases.mT @ z) / (bases.mT @ bases @ codes + 1e-6)
        bases = bases * (z @ codes.mT) / (bases @ (codes @ codes.mT) + 1e-6)
    codes = codes * (bases.mT @ z) / (bases.mT @ bases @ codes + 1e-6)
    out = torch.einsum("oc,bcn->bon", layer.upper.weight[:, :, 0, 0], bases @ codes).view_as(x)
    if classes:
        layer.norm.gain.data.normal_()
        out = layer.norm(out, y)
    assert_close(layer(x, y), x + 0.7 * out)


class WithClass(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return self.block(x, torch.zeros(x.shape[0], dtype=torch.long, device=x.device))


@pytest.mark.parametrize(
    ("kind", "channels", "classes", "macs"),
    [
        (HamBlock, 256, 1000, 277_086_208),
        (HamBlock, 128, None, 68_845_568),
        (SelfAttention, 256, None, 125_829_120),
        (SelfAttention, 128, None, 41_943_040),
    ],
)
def test_work_of_the_blocks_at_32_pixels(kind, channels, classes, macs):
    def build():
        return WithClass(kind(channels, size=32, layers=PLAIN, num_classes=classes)).eval()

    assert count_params_and_macs(build, (1, channels, 32, 32))[1] == macs


def test_bases_of_hamgan_are_not_normalised():
    block = HamBlock(64, size=4, layers=PLAIN)
    dictionary = block.ham.dictionary
    assert isinstance(dictionary, UniformDictionary)
    drawn = dictionary(torch.zeros(5, 64, 9))
    for bases in (drawn, dictionary.bases):
        assert bases.min() >= 0 and bases.max() <= 1
        assert (bases.norm(dim=1) > 3).all()  # sqrt(64 / 3) or so
    assert not torch.equal(drawn[0], drawn[1])
    assert HamBlock(64, size=4, layers=PLAIN, ham="cd").ham.ham.beta == 0.01


def test_hinge_by_hand():
    real, made = torch.tensor([2.0, 0.5, -1.0]), torch.tensor([-3.0, 0.25])
    assert discriminator_hinge(real, made).item() == pytest.approx((0 + 0.5 + 2) / 3 + (0 + 1.25) / 2)
    assert generator_hinge(made).item() == pytest.approx(1.375)
    real.requires_grad_()
    made.requires_grad_()
    discriminator_hinge(real, made).backward()
    assert_close(real.grad, torch.tensor([0, -1 / 3, -1 / 3]))
    assert_close(made.grad, torch.tensor([0, 1 / 2]))
    with pytest.raises(ShapeError, match="made must have 1 axes"):
        generator_hinge(torch.zeros(3, 1))
