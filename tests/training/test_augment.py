"""Scale, crop and flip in one gather, against resizing, mirroring, padding and cutting one after another."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from hamburger.training.augment import AugmentedView, draw_view, join, random_offset, render, to_pixels
from hamburger.training.datasets import Sample
from hamburger.training.image_files import normalise
from hamburger.training.loader import KeyedRng


def sample(h, w, values=(0, 1, 7, 255)):
    return Sample(
        torch.randint(256, (3, h, w), dtype=torch.uint8),
        torch.tensor(values, dtype=torch.uint8)[torch.randint(len(values), (h, w))],
    )


def reference_view(one, view, crop):
    """The reference: torch's resizing, a flip, and a copy into zeros and label 255."""
    size = (view.h, view.w)
    image = F.interpolate(one.image[None].float(), size, mode="bilinear", align_corners=False)[0]
    label = F.interpolate(one.label[None, None].float(), size, mode="nearest-exact")[0, 0].long()
    image = normalise(image)
    if view.flip:
        image, label = image.flip(-1), label.flip(-1)
    images, labels = torch.zeros(3, crop, crop), torch.full((crop, crop), 255)
    for i in range(crop):
        for j in range(crop):
            y, x = i + view.top, j + view.left
            if 0 <= y < view.h and 0 <= x < view.w:
                images[:, i, j], labels[i, j] = image[:, y, x], label[y, x]
    return images, labels


VIEWS = [
    AugmentedView(30, 41, 3, 7, False),
    AugmentedView(30, 41, 0, 25, True),
    AugmentedView(15, 20, -1, 2, True),  # half size, and lower than the crop
    AugmentedView(60, 82, 44, 5, False),
    AugmentedView(11, 9, -5, -3, True),
    AugmentedView(37, 53, 20, 30, False),
]


@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_augmentation_matches_the_reference_implementation(view):
    crop, one = 16, sample(30, 41)
    packed = join([to_pixels(sample(5, 5)), to_pixels(one)])
    images, labels = render(packed, [1], [view], crop=crop)
    expected, expected_labels = reference_view(one, view, crop)
    assert images.shape == (1, 3, crop, crop) and images.dtype == torch.float32 and labels.dtype == torch.int64
    assert torch.equal(labels[0], expected_labels)
    torch.testing.assert_close(images[0], expected, atol=2e-4, rtol=0)


def test_crop_at_scale_one_copies_the_image():
    one = sample(40, 50)
    packed = join([to_pixels(one)])
    view = AugmentedView(40, 50, 9, 13, False)
    images, labels = render(packed, [0, 0], [view, view._replace(flip=True)], crop=20)
    cut = normalise(one.image)[:, 9:29, 13:33]
    assert torch.equal(images[0], cut) and torch.equal(labels[0], one.label[9:29, 13:33].long())
    assert torch.equal(images[1], normalise(one.image).flip(-1)[:, 9:29, 13:33])
    assert torch.equal(labels[1], one.label.flip(-1)[9:29, 13:33].long())


def test_images_of_many_sizes_in_a_batch_are_independent():
    samples = [sample(20 + i, 31 - i) for i in range(5)]
    packed = join(map(to_pixels, samples))
    views = [draw_view(KeyedRng(1, i), packed.sizes[i], crop=24, scales=(0.5, 2), flip=True) for i in range(5)]
    together = render(packed, range(5), views, crop=24)
    for i in range(5):
        alone = render(join([to_pixels(samples[i])]), [0], [views[i]], crop=24)
        assert torch.equal(together[0][i], alone[0][0]) and torch.equal(together[1][i], alone[1][0])


def test_labels_are_resized_without_interpolation():
    packed = join([to_pixels(sample(33, 33, values=(0, 100)))])
    views = [draw_view(KeyedRng(2, i), (33, 33), crop=40, scales=(0.5, 2), flip=True) for i in range(20)]
    _, labels = render(packed, [0] * 20, views, crop=40)
    assert set(labels.unique().tolist()) == {0, 100, 255}


def test_views_stay_within_their_ranges():
    views = [draw_view(KeyedRng(3, i), (100, 80), crop=90, scales=(0.5, 2.0), flip=True) for i in range(3000)]
    scales = torch.tensor([view.h / 100 for view in views])
    assert scales.min() >= 0.5 and scales.max() <= 2
    histogram = torch.histc(scales, bins=5, min=0.5, max=2) / len(views)
    assert (histogram - 0.2).abs().max() < 0.04  # uniform in the scale, not in its logarithm
    assert abs(sum(view.flip for view in views) / len(views) - 0.5) < 0.04
    for view in views:
        assert abs(view.w - 80 * view.h / 100) <= 1.5
        assert min(0, view.h - 90) <= view.top <= max(0, view.h - 90)
        assert (view.brightness, view.contrast, view.saturation) == (0, 1, 1)
    assert {random_offset(3, u / 100) for u in range(100)} == {0, 1, 2, 3}
    assert {random_offset(-2, u / 100) for u in range(100)} == {-2, -1, 0}


def test_without_scales_and_flip_the_view_is_the_image():
    one = sample(32, 32)
    view = draw_view(KeyedRng(4), (32, 32), crop=32, scales=(1, 1), flip=False)
    images, labels = render(join([to_pixels(one)]), [0], [view], crop=32)
    assert torch.equal(images[0], normalise(one.image)) and torch.equal(labels[0], one.label.long())


def test_photometric_changes_colours_only():
    one = sample(20, 20)
    options = {"crop": 32, "scales": (0.5, 2.0), "flip": True}
    plain, tinted = (draw_view(KeyedRng(5), (20, 20), **options, photometric=p) for p in (0.0, 0.4))
    assert tinted[:5] == plain[:5] and tinted[5:] != plain[5:]
    packed = join([to_pixels(one)])
    images, labels = render(packed, [0, 0], [plain, tinted], crop=32)
    assert torch.equal(labels[0], labels[1]) and not torch.equal(images[0], images[1])
    assert torch.equal(images[0] == 0, images[1] == 0)  # the padding stays the mean colour
    grey = Sample(torch.full((3, 32, 32), 100, dtype=torch.uint8), sample(32, 32).label)
    view = AugmentedView(32, 32, 0, 0, False, brightness=0.1, contrast=0.5, saturation=3.0)
    images, _ = render(join([to_pixels(grey)]), [0], [view], crop=32)
    expected = (100 - 127.5) * 0.5 + 127.5 + 25.5  # saturation leaves grey alone
    torch.testing.assert_close(images[0], normalise(torch.full((3, 32, 32), expected)))


@pytest.mark.gpu
def test_gpu_augmentation_matches_the_cpu():
    samples = [sample(50 + i, 60) for i in range(4)]
    packed = join(map(to_pixels, samples))
    views = [draw_view(KeyedRng(6, i), packed.sizes[i], crop=48, scales=(0.5, 2), flip=True) for i in range(4)]
    images, labels = render(packed, range(4), views, crop=48)
    on_gpu = packed._replace(pixels=packed.pixels.cuda())
    gpu_images, gpu_labels = render(on_gpu, range(4), views, crop=48)
    assert (gpu_labels.cpu() == labels).float().mean() > 0.999
    torch.testing.assert_close(gpu_images.cpu(), images, atol=1e-3, rtol=0)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_gpu_augmentation_does_not_synchronise():
    packed = join(map(to_pixels, [sample(50, 60)]))
    on_gpu = packed._replace(pixels=packed.pixels.cuda())
    views = [draw_view(KeyedRng(6, 0), (50, 60), crop=48, scales=(0.5, 2), flip=True, photometric=0.2)]
    render(on_gpu, [0], views, crop=48)
    torch.cuda.set_sync_debug_mode("error")
    try:
        render(on_gpu, [0], views, crop=48)
    finally:
        torch.cuda.set_sync_debug_mode("default")
