"""`Predictor`: label size, tiles, windows, scales and errors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from small_segmenter import ByColour, info, segmenter

from hamburger.devices import pick_device
from hamburger.errors import InputError, OptionError
from hamburger.segmentation.predict import Predictor, resize_labels, split_image
from hamburger.training.image_files import normalise


def random_image(height, width, seed=0):
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
    strongest = random_image(height, width)[0] % 3
    image = torch.stack([(strongest == colour).to(torch.uint8) * 255 for colour in range(3)])
    labels = Predictor(ByColour(), info(), "cpu", max_pixels=4096, **options)(image)
    assert labels.dtype == torch.uint8
    assert torch.equal(labels, strongest + 1)


@pytest.mark.parametrize("scales", [(0.5,), (0.5, 1.0, 2.0)], ids=str)
def test_scales_keep_size_and_position(scales):
    image = torch.zeros(3, 60, 90, dtype=torch.uint8)
    image[0, :30], image[1, 30:, :45], image[2, 30:, 45:] = 255, 255, 255
    labels = Predictor(ByColour(), info(), "cpu", scales=scales)(image)
    assert (labels[:27] == 1).all() and (labels[33:, :42] == 2).all() and (labels[33:, 48:] == 3).all()


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (31, 46), (64, 64)], ids=str)
def test_a_window_larger_than_the_image_changes_nothing(size):
    net, image = segmenter(), random_image(*size)
    plain = Predictor(net, info(), "cpu")(image)
    assert torch.equal(Predictor(net, info(), "cpu", window=64)(image), plain)
    assert torch.equal(Predictor(net, info(), "cpu", max_pixels=4096)(image), plain)
    assert torch.equal(plain, net(normalise(image, info().mean, info().std)[None])[0].argmax(0).to(torch.uint8))


def test_two_calls_give_the_same_bits():
    predictor, image = (
        Predictor(segmenter(), info(), "cpu", scales=(0.75, 1.0), flip=True, window=48),
        random_image(70, 90),
    )
    assert torch.equal(predictor(image), predictor(image))


def test_tiles_barely_change_a_local_network():
    """Two convolutions see less far than the margin, so their labels are those of the whole image."""
    net, image = segmenter(context=None), random_image(256, 256)
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

    Predictor(Watched(), info(), "cpu", scales=(1.0, 2.0), max_pixels=40_000)(random_image(500, 400))
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
    with pytest.raises(OptionError, match="use auto"):
        pick_device("gpu")
    with pytest.raises(InputError, match="255 classes"):
        Predictor(ByColour(), info(classes=tuple(map(str, range(300)))), "cpu")


# -- images are resized to the size seen in training -------------------------------------------------------------------


class Sizes(ByColour):
    """Records the size of every image that the network sees."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(tuple(x.shape[-2:]))
        return super().forward(x)


def quarters(height, width):
    image = torch.zeros(3, height, width, dtype=torch.uint8)
    image[0, : height // 2], image[1, height // 2 :, : width // 2], image[2, height // 2 :, width // 2 :] = (
        255,
        255,
        255,
    )
    return image


@pytest.mark.parametrize(
    ("trained", "side", "seen"),
    [(None, None, (300, 400)), (64, None, (48, 64)), (64, 0, (300, 400)), (64, 32, (24, 32)), (None, 800, (600, 800))],
)
def test_the_longer_side_is_that_of_the_training_unless_chosen(trained, side, seen):
    net, image = Sizes(), quarters(300, 400)
    label = Predictor(net, replace(info(), side=trained), "cpu", side=side)(image)
    assert net.seen == [seen]
    truth = image.argmax(0) + 1
    assert label.shape == truth.shape and (label == truth).float().mean() > 0.95  # wrong only along the edges
    assert (label[:140] == 1).all() and (label[160:, :190] == 2).all() and (label[160:, 210:] == 3).all()


@pytest.mark.parametrize("size", [(1, 1), (1, 700), (700, 3), (9, 5)])
def test_images_of_any_shape_can_be_resized(size):
    for side in (16, 200):
        assert Predictor(segmenter(), info(), "cpu", side=side)(random_image(*size)).shape == size


def test_resized_images_are_tiled_without_shifting_pixels():
    net, image = Sizes(), quarters(900, 1200)
    label = Predictor(net, info(), "cpu", side=400, max_pixels=128 * 128)(image)
    assert len(net.seen) > 4 and max(height * width for height, width in net.seen) <= 128 * 128
    assert (label[:440] == 1).all() and (label[460:, :590] == 2).all() and (label[460:, 610:] == 3).all()
    assert Predictor(net, info(), "cpu", side=400, max_pixels=128 * 128).count_tiles(900, 1200) == len(net.seen)


def test_shrinking_averages_pixels():
    """Stripes of red and half as much blue, one pixel wide: without antialiasing whole regions turn blue."""
    image = torch.zeros(3, 64, 1024, dtype=torch.uint8)
    image[0, :, ::2], image[2, :, 1::2] = 255, 120
    assert (Predictor(ByColour(), replace(info(), mean=(0, 0, 0), std=(1, 1, 1)), "cpu", side=60)(image) == 1).all()


@pytest.mark.parametrize(("height", "width"), [(5, 7), (40, 33), (13, 90), (64, 128)])
def test_labels_are_those_of_interpolated_scores(height, width, monkeypatch):
    monkeypatch.setattr("hamburger.segmentation.predict.BAND", 500)  # many bands
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 11, 16, generator=generator)
    label = scores.argmax(0)
    assert torch.equal(resize_labels(scores, 11, 16), label)
    expected = F.interpolate(scores[None], size=(height, width), mode="bilinear")[0].argmax(0)
    assert (resize_labels(scores, height, width) == expected).float().mean() > 0.999  # rounding may decide ties


def test_a_class_that_wins_nowhere_does_not_compete():
    scores = torch.stack([torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 3.0]]), torch.tensor([[2.0, 2.0]])])
    assert resize_labels(scores, 1, 40).unique().tolist() == [0, 1]


@pytest.mark.parametrize("side", [-1, 15, 8193, 2.5, True])
def test_sides_that_cannot_work_are_refused(side):
    with pytest.raises(OptionError, match="side must be"):
        Predictor(ByColour(), info(), "cpu", side=side)
