"""Double attention, pixel by pixel, and as efficient attention under other names."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tolerances import assert_close

from hamburger.contexts.a2 import NORMS, DoubleAttention
from hamburger.contexts.efficient import EfficientAttention


def randomised(channels, **options):
    layer = DoubleAttention(channels, **options).double().eval()
    for tensor in (*layer.parameters(), *(b for b in layer.buffers() if b.is_floating_point())):
        tensor.data = torch.rand_like(tensor) * 0.5 + 0.1 if tensor.dim() < 2 else torch.randn_like(tensor)
    return layer


def linear(block, x):
    y = torch.einsum("oc,bcn->bon", block[0].weight[:, :, 0, 0], x) + block[0].bias[:, None]
    n = block[1]
    if not hasattr(n, "running_mean"):
        return y
    return F.batch_norm(y, n.running_mean, n.running_var, n.weight, n.bias, eps=n.eps)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("inner", "maps"), [(None, None), (3, 5), (7, 2)])
def test_formula(norm, inner, maps):
    layer = randomised(6, norm=norm, inner=inner, maps=maps)
    x = torch.randn(2, 6, 3, 5, dtype=torch.float64)
    z = x.flatten(2)
    features, gather, distribute = linear(layer.features, z), linear(layer.gather, z), linear(layer.distribute, z)
    mixed = torch.zeros_like(features)
    for image in range(2):
        descriptors = []
        for k in range(gather.shape[1]):  # one weighted mean over the pixels for each map
            weights = gather[image, k].exp() / gather[image, k].exp().sum()
            descriptors.append(sum(w * features[image, :, i] for i, w in enumerate(weights)))
        for i in range(15):  # one weighted mean over the descriptors for each pixel
            weights = distribute[image, :, i].exp() / distribute[image, :, i].exp().sum()
            mixed[image, :, i] = sum(w * g for w, g in zip(weights, descriptors, strict=True))
    assert_close(layer(x), (z + linear(layer.out, mixed)).view_as(x))


def test_parameter_counts():
    def count(**options):
        return sum(p.numel() for p in DoubleAttention(512, **options).parameters())

    assert count(norm="none") == 4 * (512 * 512 + 512) == 1_050_624
    assert count(norm="out") == 1_050_624 + 1_024
    assert count() == count(norm="all") == 1_050_624 + 4 * 1_024 == 1_054_720
    # only four norms round to what Table 3 prints
    assert [round(count(norm=norm) / 2**20, 2) for norm in NORMS] == [1.01, 1.0, 1.0]
    narrow = count(norm="none", inner=128, maps=64)
    assert narrow == (512 * 128 + 128) + 2 * (512 * 64 + 64) + (128 * 512 + 512)


def test_a2_matches_one_head_of_efficient_attention():
    a2 = randomised(6, norm="none", inner=4, maps=5)
    efficient = EfficientAttention(6, key_channels=5, value_channels=4).double()
    pairs = {"values": a2.features, "keys": a2.gather, "queries": a2.distribute, "out": a2.out}
    for name, block in pairs.items():
        getattr(efficient, name).load_state_dict(block[0].state_dict())
    x = torch.randn(2, 6, 4, 5, dtype=torch.float64)
    assert_close(a2(x), efficient(x))


def test_images_of_a_batch_do_not_mix():
    """Softmax without an axis would normalise over the batch."""
    layer = randomised(6)
    x = torch.randn(3, 6, 4, 4, dtype=torch.float64)
    assert_close(torch.cat([layer(image[None]) for image in x]), layer(x))


def test_output_is_a_mean_of_features():
    """Both softmaxes sum to one: constant features come back as they were, plus the residual."""
    layer = randomised(5, norm="none")
    layer.features[0].weight.data.zero_()
    layer.out[0].weight.data = torch.eye(5, dtype=torch.float64)[:, :, None, None]
    layer.out[0].bias.data.zero_()
    x = torch.randn(2, 5, 4, 3, dtype=torch.float64)
    assert_close(layer(x), x + layer.features[0].bias[:, None, None])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "al"}, "a2: no norm 'al'; did you mean 'all'"),
        ({"inner": 0}, "a2: inner must be a whole number of at least 1"),
        ({"maps": 2.0}, "a2: maps must be a whole number of at least 1"),
    ],
)
def test_messages(options, message):
    with pytest.raises(ValueError, match=message):
        DoubleAttention(8, **options)
