"""`Predictor`: label size, tiles, windows, scales and errors."""

from __future__ import annotations

import pytest
import torch
from small_segmenter import ByColour, info, segmenter

from hamburger.errors import InputError, OptionError
from hamburger.segmentation.predict import Predictor, split_image
from hamburger.tensors import pick_device
from hamburger.training.image_files import normalise


def picture(height, width, seed=0):
    return torch.randint(0, 256, (3, height, width), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 50), (33, 47), (1000, 1100), (3, 5000), (2500, 900)])
@pytest.mark.parametrize("limit", [4096, 100_000])
def test_tiles_cover_every_pixel_once_and_stay_small(height, width, limit):
    seen = torch.zeros(height, width, dtype=torch.int)
    for rows, columns in split_image(height, width, limit):
        assert 0 <= rows.begin <= rows.first < rows.last <= rows.end <= height
        assert 0 <= columns.begin <= columns.first < columns.last <= columns.end <= width
        assert (rows.end - rows.begin) * (columns.end - columns.begin) <= limit
        # a margin on every side where the image goes on
        assert rows.begin == 0 or rows.first - rows.begin >= 8
        assert columns.end == width or columns.end - columns.last >= 8
        seen[rows.first : rows.last, columns.first : columns.last] += 1
    assert (seen == 1).all()


@pytest.mark.parametrize("options", [{}, {"flip": True}, {"window": 64}, {"window": 64, "flip": True}], ids=str)
@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 301), (37, 53), (150, 131)])
def test_tiling_does_not_shift_pixels(height, width, options):
    """A pointwise network gives the same label through tiles, windows and flips."""
    strongest = picture(height, width)[0] % 3
    image = torch.stack([(strongest == colour).to(torch.uint8) * 255 for colour in range(3)])
    found = Predictor(ByColour(), info(), "cpu", max_pixels=4096, **options)(image)
    assert found.dtype == torch.uint8
    assert torch.equal(found, strongest + 1)


@pytest.mark.parametrize("scales", [(0.5,), (0.5, 1.0, 2.0)], ids=str)
def test_scales_keep_size_and_position(scales):
    image = torch.zeros(3, 60, 90, dtype=torch.uint8)
    image[0, :30], image[1, 30:, :45], image[2, 30:, 45:] = 255, 255, 255
    found = Predictor(ByColour(), info(), "cpu", scales=scales)(image)
    assert (found[:27] == 1).all() and (found[33:, :42] == 2).all() and (found[33:, 48:] == 3).all()


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (31, 46), (64, 64)], ids=str)
def test_a_window_larger_than_the_image_changes_nothing(size):
    net, image = segmenter(), picture(*size)
    plain = Predictor(net, info(), "cpu")(image)
    assert torch.equal(Predictor(net, info(), "cpu", window=64)(image), plain)
    assert torch.equal(Predictor(net, info(), "cpu", max_pixels=4096)(image), plain)
    assert torch.equal(plain, net(normalise(image, info().mean, info().std)[None])[0].argmax(0).to(torch.uint8))


def test_two_calls_give_the_same_bits():
    predictor, image = Predictor(segmenter(), info(), "cpu", scales=(0.75, 1.0), flip=True, window=48), picture(70, 90)
    assert torch.equal(predictor(image), predictor(image))


def test_tiles_barely_change_a_local_network():
    """Two convolutions see less far than the margin, so their labels are those of the whole image."""
    net, image = segmenter(context=None), picture(256, 256)
    whole = net(normalise(image, info().mean, info().std)[None])[0].argmax(0)
    predictor = Predictor(net, info(), "cpu", max_pixels=128 * 128)
    assert predictor.count_tiles(256, 256) == 9
    # logits are resized with aligned corners, tile by tile: a shift below the stride, felt where classes meet
    assert (predictor(image) == whole).float().mean() > 0.8


def test_memory_is_bounded_by_the_tile():
    sizes = []

    class Watched(ByColour):
        def forward(self, x):
            sizes.append(x.shape[-2] * x.shape[-1])
            return super().forward(x)

    Predictor(Watched(), info(), "cpu", scales=(1.0, 2.0), max_pixels=40_000)(picture(500, 400))
    assert max(sizes) <= 40_000 * 1.02  # sizes are rounded after scaling
    assert len(sizes) > 2


@pytest.mark.parametrize(
    "image",
    [torch.zeros(3, 4, 4), torch.zeros(1, 3, 4, 4, dtype=torch.uint8), torch.zeros(3, 0, 4, dtype=torch.uint8)],
    ids=["float", "batch", "empty"],
)
def test_invalid_images_are_refused(image):
    with pytest.raises(InputError, match="read_image"):
        Predictor(ByColour(), info(), "cpu")(image)


def test_bad_options_are_refused():
    for options in ({"scales": ()}, {"scales": (0.0,)}, {"window": 3}, {"max_pixels": 10}, {"flip": 1}):
        with pytest.raises(OptionError):
            Predictor(ByColour(), info(), "cpu", **options)
    with pytest.raises(OptionError, match="use auto, cpu or cuda"):
        pick_device("gpu")
    with pytest.raises(InputError, match="255 classes"):
        Predictor(ByColour(), info(classes=tuple(map(str, range(300)))), "cpu")
