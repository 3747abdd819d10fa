"""The cost volume, compared with numpy loops, and the network: any size, any context, in either place."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hamburger as hb
from hamburger.contexts import list_contexts
from hamburger.insertion.insert import POSITION_BLIND
from hamburger.stereo.model import (
    concatenation_volume,
    correlation_volume,
    create_stereo,
    smooth_l1_loss,
    soft_argmin,
    upsample_disparity,
)

SMALL = {"width": 16, "groups": 4, "volume_width": 4, "max_disparity": 32}


def features(seed=0, shape=(2, 6, 3, 9)):
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape), rng.normal(size=shape)


def test_correlation_is_the_mean_product_of_each_group():
    left, right = features()
    ours = correlation_volume(torch.from_numpy(left), torch.from_numpy(right), disparities=4, groups=3)
    assert ours.shape == (2, 3, 4, 3, 9)
    for g in range(3):
        for d in range(4):
            for x in range(9):
                expected = (left[:, 2 * g : 2 * g + 2, :, x] * right[:, 2 * g : 2 * g + 2, :, x - d]).mean(1)
                expected = expected if x >= d else np.zeros_like(expected)
                assert np.allclose(ours[:, g, d, :, x].numpy(), expected, rtol=1e-13, atol=1e-15)


def test_concatenation_stacks_both_features():
    left, right = features()
    ours = concatenation_volume(torch.from_numpy(left), torch.from_numpy(right), disparities=4).numpy()
    assert ours.shape == (2, 12, 4, 3, 9)
    for d in range(4):
        for x in range(9):
            met = x >= d
            assert np.array_equal(ours[:, :6, d, :, x], left[..., x] * met)
            assert np.array_equal(ours[:, 6:, d, :, x], right[..., x - d] * met)


def test_the_volume_is_largest_at_the_true_disparity():
    right = torch.randn(1, 32, 4, 40)
    left = torch.zeros_like(right)
    left[..., 5:] = right[..., :-5]  # left x shows what right x - 5 does
    disparity = correlation_volume(left, right, disparities=12, groups=1)[0, 0].argmax(0)
    assert (disparity[:, 12:] == 5).all()


def test_soft_argmin_is_the_mean_under_softmax():
    costs = np.random.default_rng(0).normal(size=(2, 7, 3, 4))
    weights = np.exp(-costs) / np.exp(-costs).sum(1, keepdims=True)
    expected = (weights * np.arange(7)[:, None, None]).sum(1)
    assert np.allclose(soft_argmin(torch.from_numpy(costs)).numpy(), expected, rtol=1e-12)
    certain = torch.full((1, 7, 1, 1), 100.0)
    certain[0, 3] = 0
    assert soft_argmin(certain.bfloat16()).item() == 3 and soft_argmin(certain.bfloat16()).dtype == torch.float32


def test_each_fine_pixel_is_a_mean_of_its_coarse_neighbours():
    rng = np.random.default_rng(1)
    disparity, scores = rng.random((2, 3, 4)), rng.normal(size=(2, 36, 3, 4))
    ours = upsample_disparity(torch.from_numpy(disparity), torch.from_numpy(scores), 2).numpy()
    assert ours.shape == (2, 6, 8)
    padded = np.pad(disparity, ((0, 0), (1, 1), (1, 1)), mode="edge")
    split = scores.reshape(2, 9, 2, 2, 3, 4)
    weights = np.exp(split) / np.exp(split).sum(1, keepdims=True)
    for y in range(6):
        for x in range(8):
            around = padded[:, y // 2 : y // 2 + 3, x // 2 : x // 2 + 3].reshape(2, 9)
            expected = (around * weights[:, :, y % 2, x % 2, y // 2, x // 2]).sum(1)
            assert np.allclose(ours[:, y, x], expected, rtol=1e-12)
    flat = upsample_disparity(torch.full((1, 3, 4), 7.0), torch.randn(1, 36, 3, 4), 2)
    assert torch.allclose(flat, torch.tensor(7.0))


def test_the_loss_counts_known_disparities_below_the_maximum():
    target = torch.tensor([[[0.0, 4, 10, 40]]])
    guess = torch.tensor([[[9.0, 4.5, 13, 1]]], requires_grad=True)
    loss = smooth_l1_loss(guess, target, most=32)
    assert loss.item() == pytest.approx((0.5 * 0.25 + 2.5) / 2)
    loss.backward()
    assert guess.grad.flatten().tolist() == [0, 0.25, 0.5, 0]
    assert smooth_l1_loss(guess, torch.zeros(1, 1, 4), most=32) == 0


@pytest.mark.parametrize("volume", ["correlation", "concatenation"])
@pytest.mark.parametrize("size", [(64, 128), (33, 47), (16, 16), (7, 90)])
def test_any_size_gives_a_disparity_for_every_pixel(volume, size):
    net = create_stereo(volume=volume, **SMALL).eval()
    left, right = torch.randn(2, 3, *size), torch.randn(2, 3, *size)
    with torch.no_grad():
        disparity = net(left, right)
        alone = net(left[1:], right[1:])
    assert disparity.shape == (2, *size) and disparity.min() >= 0 and disparity.max() <= 28
    assert torch.allclose(disparity[1:], alone, atol=1e-4)


def has_gradients(inserted):
    return any(p.grad is not None and p.grad.abs().max() > 0 for p in inserted.parameters())


@pytest.mark.parametrize("name", list_contexts())
def test_every_context_works_in_the_features(name):
    net = create_stereo(**{**SMALL, "width": 32}, context=name)
    plain = create_stereo(**{**SMALL, "width": 32})
    plain.load_state_dict({key: value for key, value in net.state_dict().items() if "inserted_context" not in key})
    left, right = torch.randn(2, 3, 32, 64), torch.randn(2, 3, 32, 64)
    with torch.no_grad():
        assert torch.equal(net.eval()(left, right), plain.eval()(left, right))  # the gate is closed
    net.train()(left, right, torch.rand(2, 32, 64) * 30)["smooth_l1"].backward()
    assert has_gradients(net.features.body.inserted_context)


@pytest.mark.parametrize("name", list_contexts())
def test_position_blind_contexts_work_in_the_volume(name):
    options = {**SMALL, "volume_width": 16, "context": name, "place": "volume"}
    if name not in POSITION_BLIND and name not in hb.hams:  # of the hams, those that use neighbours take volumes
        with pytest.raises(hb.ShapeError, match=r"looks at neighbours.*use one of .*nmf"):
            create_stereo(**options)
        return
    net = create_stereo(**options)
    shapes = []
    net.aggregation.coarse.register_forward_hook(lambda module, args, output: shapes.append(output.shape))
    net(torch.randn(1, 3, 32, 64), torch.randn(1, 3, 32, 64), torch.rand(1, 32, 64) * 30)["smooth_l1"].backward()
    assert shapes == [(1, 32, 4, 4, 8)]  # b c d h w: n = d h w positions
    assert has_gradients(net.aggregation.coarse.inserted_context)


def test_a_ham_in_the_volume_sees_all_positions_as_one_matrix():
    """A ham in the volume sees one matrix of c by d h w."""
    net = create_stereo(**SMALL, context="nmf", context_options={"rank": 2}, place="volume", gate="one").eval()
    inserted = net.aggregation.coarse.inserted_context
    x = torch.rand(1, 8, 4, 4, 8)
    flat = inserted.context(x.flatten(2).unsqueeze(-1))
    assert torch.allclose(inserted(x), flat.squeeze(-1).unflatten(2, (4, 4, 8)), atol=1e-6)


def test_it_overfits_one_pair():
    left = torch.randn(1, 3, 32, 64)
    right = torch.randn(1, 3, 32, 64)
    right[..., :-6] = left[..., 6:]  # right x shows what left x + 6 does
    target = torch.full((1, 32, 64), 6.0)
    target[..., :6] = 0  # outside the right image
    net = create_stereo(**SMALL)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(40):
        optimizer.zero_grad()
        loss = net(left, right, target)["smooth_l1"]
        loss.backward()
        optimizer.step()
    assert loss < 0.2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_disparity": 30}, "a multiple of 16 .got 30.; use 32"),
        ({"groups": 3}, "width 16 must be divisible by groups 3"),
        ({"volume": "corelation"}, "did you mean 'correlation'"),
        ({"place": "body"}, "no place 'body'"),
        ({"width": 0}, "width"),
        ({"context": "nmf", "context_options": {"rnk": 3}}, "did you mean 'rank'"),
    ],
)
def test_invalid_options_raise(options, message):
    with pytest.raises((hb.OptionError, hb.UnknownNameError), match=message):
        create_stereo(**{**SMALL, **options})


def test_invalid_inputs_raise():
    net = create_stereo(**SMALL)
    image = torch.zeros(1, 3, 16, 16)
    with pytest.raises(hb.ShapeError, match=r"StereoNet: w is 16 in left .* but 17 in right"):
        net(image, torch.zeros(1, 3, 16, 17))
    with pytest.raises(hb.ShapeError, match="right images must be"):
        net(image, image[0])
    with pytest.raises(hb.ShapeError, match="target must have 3 axes 'b h w'"):
        net(image, image, torch.zeros(1, 1, 16, 16))
    with pytest.raises(hb.InputError, match="floating point"):
        net(image.byte(), image)
