"""Distances between the images of a generator and real ones."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from gan_run import Means, write_run
from gaussians import fit_gaussian

from hamburger.classification.data.base import load_images, open_source
from hamburger.errors import InputError, OptionError
from hamburger.generation.visualize import to_bytes
from hamburger.generation.weights import open_generator
from hamburger_lab.gan_metrics.distances import frechet_distance
from hamburger_lab.gan_metrics.evaluate import (
    MeasureSettings,
    measure_generator,
    measure_real,
)
from hamburger_lab.gan_metrics.extractors import module_extractor

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("use") / "run")


@pytest.fixture(scope="module")
def means():
    return module_extractor(Means(), "means", size=8, version="1")


def test_distances_match_those_of_the_features(run, means, tmp_path):
    generator, _, _ = open_generator(run)
    images = load_images(open_source("figures", "train", size=16, length=40))
    measure = MeasureSettings(samples=30, compared=20, subsets=4, batch=7)
    real = measure_real(images, means, measure, device=CPU, cache=tmp_path)
    distances = measure_generator(generator, real, means, measure, device=CPU)
    from hamburger.generation.sampling import sample

    theirs = means(torch.from_numpy(np.array(images.images)))
    ours = means(to_bytes(sample(generator, 30, seed=0)))
    assert distances.frechet == pytest.approx(frechet_distance(fit_gaussian(theirs), fit_gaussian(ours)), rel=1e-4)
    assert distances.name == "frechet[means@8]" and (distances.real, distances.fake) == (40, 30)

    again = measure_real(
        images, means, measure, device=CPU, cache=tmp_path, progress=lambda *_: pytest.fail("read again")
    )
    assert torch.equal(again.features, real.features) and len(real.features) == 20
    other = load_images(open_source("figures", "train", size=16, length=40, seed=1))
    assert not torch.equal(measure_real(other, means, measure, device=CPU, cache=tmp_path).features, real.features)
    larger = load_images(open_source("figures", "train", size=32, length=40))
    with pytest.raises(OptionError, match="16 pixels, the real ones have 32"):
        measure_generator(
            generator, measure_real(larger, means, measure, device=CPU, cache=tmp_path), means, measure, device=CPU
        )


def test_features_of_another_version_are_computed_again(means, tmp_path):
    """The label has a hash of the weights; what a module computes from them may change under the same label."""
    images = load_images(open_source("figures", "train", size=16, length=40))
    measure = MeasureSettings(samples=16, compared=20)
    before = measure_real(images, means, measure, device=CPU, cache=tmp_path)

    class Changed(Means):
        def forward(self, x):
            return 2 * super().forward(x)

    changed = module_extractor(Changed(), "means", size=8, version="2")
    assert changed.label == means.label
    after = measure_real(images, changed, measure, device=CPU, cache=tmp_path)
    torch.testing.assert_close(after.features, 2 * before.features)
    torch.testing.assert_close(after.gaussian.mean, 2 * before.gaussian.mean)
    for extractor, first in ((means, before), (changed, after)):
        again = measure_real(
            images, extractor, measure, device=CPU, cache=tmp_path, progress=lambda *_: pytest.fail("read again")
        )
        assert torch.equal(again.gaussian.covariance, first.gaussian.covariance)
    files = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("statistics-*")}
    measure_real(
        images, changed, MeasureSettings(samples=16, compared=9), device=CPU, cache=tmp_path
    )  # features of fewer images
    assert files == {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("statistics-*")}


def test_an_extractor_without_a_version_is_not_cached(tmp_path):
    images = load_images(open_source("figures", "train", size=16, length=40))
    plain = module_extractor(Means(), "plain", size=8)
    read = []
    for _ in range(2):
        read.clear()
        with pytest.warns(UserWarning, match=r"plain@8 .* are not cached.*features_version"):
            measure_real(
                images,
                plain,
                MeasureSettings(samples=16),
                device=CPU,
                cache=tmp_path,
                progress=lambda *_: read.append(1),
            )
        assert read
    assert not list(tmp_path.iterdir())


def test_an_unwritable_cache_is_reported_before_the_work(means, tmp_path):
    images = load_images(open_source("figures", "train", size=16, length=40))
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        measure_real(
            images,
            means,
            MeasureSettings(samples=16),
            device=CPU,
            cache=tmp_path / "file" / "x",
            progress=lambda *_: pytest.fail("worked"),
        )


def test_fewer_samples_than_compared_still_compare_all_classes(run, means, tmp_path):
    """Images in folders are sorted by class: the first ones would be of the first classes only."""
    generator, _, _ = open_generator(run)
    images = load_images(open_source("figures", "train", size=16, length=40))
    by_class = np.argsort(images.labels, kind="stable")
    images = dataclasses.replace(images, images=images.images[by_class], labels=images.labels[by_class])
    measure = MeasureSettings(samples=16, compared=40, subsets=4)
    real = measure_real(images, means, measure, device=CPU, cache=tmp_path)
    assert len(real.features) == 16
    everything = means(torch.from_numpy(np.array(images.images)))
    places = [int((everything == one).all(1).nonzero()[0]) for one in real.features]
    assert len({int(images.labels[place]) for place in places}) > 2
    measure_generator(generator, real, means, measure, device=CPU)
    with pytest.raises(OptionError, match="hold features of 16 images"):
        measure_generator(generator, real, means, MeasureSettings(samples=14, compared=40, subsets=4), device=CPU)


def test_too_few_real_images_are_reported_before_the_work(means, tmp_path):
    images = load_images(open_source("figures", "train", size=16, length=3))
    with pytest.raises(OptionError, match=r"figures, split 'train', has 3 images; .* at least 4"):
        measure_real(
            images,
            means,
            MeasureSettings(samples=20),
            device=CPU,
            cache=tmp_path,
            progress=lambda *_: pytest.fail("worked"),
        )


def test_nan_images_are_not_measured(run, means, tmp_path):
    generator, _, _ = open_generator(run)
    images = load_images(open_source("figures", "train", size=16, length=40))
    measure = MeasureSettings(samples=16, compared=8, subsets=2)
    real = measure_real(images, means, measure, device=CPU, cache=tmp_path)
    torch.nn.init.constant_(generator.out.bias, math.nan)
    with pytest.raises(InputError, match="NaN"):
        measure_generator(generator, real, means, measure, device=CPU)
    with pytest.raises(OptionError, match="truncation must be"):
        MeasureSettings(truncation=0.0)
