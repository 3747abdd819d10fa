"""Generated planes: exact disparity and occlusion, the same bits everywhere."""

from __future__ import annotations

import hashlib
from functools import partial

import numpy as np
import pytest

from hamburger.errors import OptionError
from hamburger.stereo.data import create_stereo_set
from hamburger.stereo.data.planes import (
    EXPOSURE,
    PlanesSet,
    Surface,
    find_visible,
    flat_texture,
    noise_texture,
    paint_view,
    render_view,
    wave_texture,
)


def test_the_same_bits_on_every_machine():
    digest = hashlib.sha256()
    for split in ("train", "val"):
        for sample in PlanesSet(split, length=2):
            for part in sample:
                digest.update(part.numpy().tobytes())
    assert digest.hexdigest()[:16] == "95af253834bd9947"


def test_a_scene_is_a_function_of_seed_split_and_index():
    one, again = PlanesSet("val", seed=3, length=4), PlanesSet("val", seed=3, length=9)
    assert all((a == b).all() for a, b in zip(one[2], again[2], strict=True))
    assert (one[2].left != one[1].left).any()
    assert (one[2].left != PlanesSet("train", seed=3)[2].left).any()
    assert (one[2].left != PlanesSet("val", seed=4)[2].left).any()


def warp_right(sample):
    """The right image at x - d, linear between its pixels: the left image, where both cameras see it.   3 h w"""
    right, d = sample.right.numpy().astype(np.float64), sample.disparity.numpy().astype(np.float64)
    h, w = d.shape
    at = (np.arange(w) - d).clip(0, w - 1)
    low = np.floor(at).astype(int)
    high, share = np.minimum(low + 1, w - 1), at - low
    rows = np.arange(h)[:, None]
    return right[:, rows, low] * (1 - share) + right[:, rows, high] * share


@pytest.mark.parametrize("index", range(4))
def test_right_pixels_are_where_the_disparity_says(index):
    """To what linear interpolation loses between pixels; by a disparity that is one off, much more is lost."""
    sample = PlanesSet("train", height=96, width=192, max_disparity=48, noise=0, length=4)[index]
    left, seen = sample.left.numpy().astype(np.float64), sample.seen.numpy()

    def error(sample):
        other = warp_right(sample)
        gain = np.median((other / left)[:, seen])
        assert abs(gain - 1) < EXPOSURE
        return np.mean(np.abs(other / gain - left)[:, seen])

    exact = error(sample)
    assert exact < 0.4 * error(sample._replace(disparity=sample.disparity + 1))
    assert exact < 0.4 * error(sample._replace(disparity=sample.disparity - 1))


def make_surfaces(*boxes):
    """Upright planes of whole disparities, 1 row high: a ground at 1 and boxes (from, to, disparity)."""
    colours = np.array([[10.0, 20, 30], [200.0, 210, 220]])
    rough = partial(noise_texture, (np.random.default_rng(0).random((127, 127)),) * 3)
    ground = Surface(0, 0, 1, rough, colours)
    return [
        ground,
        *(Surface(0, 0, d, rough, colours + 1, ((a + b) / 2, 0), ((b - a) / 2, 1)) for a, b, d in boxes),
    ]


def test_whole_disparities_copy_values_exactly():
    surfaces = make_surfaces((6, 9, 4), (14, 20, 7))
    y, x = np.zeros((1, 24)), np.arange(24.0)[None]
    nearest, points, disparity = render_view(surfaces, x, y, right=False)
    other, points_right, _ = render_view(surfaces, x, y, right=True)
    left, right = paint_view(surfaces, nearest, points, y), paint_view(surfaces, other, points_right, y)
    seen = find_visible(surfaces, nearest, x - disparity, y)
    assert disparity[0].tolist() == [1] * 6 + [4] * 4 + [1] * 4 + [7] * 7 + [1] * 3
    # by hand: box 6 ... 9 hides 2 ... 5 of the right view, box 14 ... 20 hides 7 ... 13
    hidden = {*range(3, 6), *range(10, 14), 0}
    assert [bool(v) for v in seen[0]] == [x not in hidden for x in range(24)]
    for column in range(24):
        if column not in hidden:
            assert (left[:, 0, column] == right[:, 0, column - int(disparity[0, column])]).all()


def test_visibility_matches_the_right_view():
    """Slanted planes: a left pixel is seen where the right camera, looking at that very place, finds its surface."""
    data = PlanesSet("train", planes=8, length=3)
    for index in range(3):
        sample = data[index]
        surfaces = data.surfaces(make_rng(data, index))
        y, x = np.meshgrid(np.arange(64.0), np.arange(128.0), indexing="ij")
        nearest, _, disparity = render_view(surfaces, x, y, right=False)
        there = x - disparity
        surface, points, _ = render_view(surfaces, there, y, right=True)
        inside = (there >= 0) & (there <= 127)
        expected = inside & (surface == nearest)
        assert np.mean(expected != sample.seen.numpy()) < 1e-3  # on an edge, rounding decides
        same = expected & (surface == nearest)
        assert np.abs(points - x)[same].max() < 1e-9
        assert np.array_equal(sample.disparity.numpy(), disparity.astype(np.float32))


@pytest.mark.parametrize("right", [False, True])
def test_no_surface_extends_beyond_its_rows(right, monkeypatch):
    data = PlanesSet("train", height=48, width=96, planes=12, length=20)
    y, x = np.meshgrid(np.arange(48.0), np.arange(96.0), indexing="ij")
    scenes = [data.surfaces(make_rng(data, index)) for index in range(20)]
    views = [render_view(surfaces, x, y, right=right) for surfaces in scenes]
    rows = [surface.rows(48) for surfaces in scenes for surface in surfaces]
    assert sum(each.stop - each.start < 48 for each in rows) > 200
    monkeypatch.setattr(Surface, "rows", lambda self, height: slice(0, height))
    for surfaces, view in zip(scenes, views, strict=True):
        assert all(map(np.array_equal, render_view(surfaces, x, y, right=right), view))


def make_rng(data, index):
    from hamburger.training.loader import KeyedRng

    return KeyedRng(data.seed, 0, index)


def test_disparities_stay_in_range_and_all_textures_occur():
    data = create_stereo_set("planes", "train", length=30)
    kinds = set()
    for index, sample in enumerate(data):
        assert sample.disparity.min() >= 1 and sample.disparity.max() <= 31
        assert 0.4 < sample.seen.float().mean() < 1
        ground, *planes = data.surfaces(make_rng(data, index))
        assert ground.texture.func is noise_texture
        kinds |= {getattr(plane.texture, "func", plane.texture) for plane in planes}
    assert kinds == {noise_texture, wave_texture, flat_texture}


def test_a_repeated_texture_repeats_within_the_disparities():
    texture = partial(wave_texture, 8.0, 11.0)
    x, y = np.arange(40.0), np.zeros(40)
    assert np.allclose(texture(x, y), texture(x + 8, y)) and not np.allclose(texture(x, y), texture(x + 4, y))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"height": 8}, "height"),
        ({"max_disparity": 65}, "max_disparity <= 64"),
        ({"noise": -1}, "noise"),
        ({"length": 0}, "length"),
        ({"planess": 3}, "did you mean 'planes'"),
        ({"split": "test"}, "split"),
    ],
)
def test_invalid_options_raise(options, message):
    with pytest.raises(OptionError, match=message):
        create_stereo_set("planes", options.pop("split", "train"), **options)
