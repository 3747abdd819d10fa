"""Grids of GAN runs: their recipes, result rows and images."""

from __future__ import annotations

import json

import pytest
import torch
from gan_run import Means, write_run

from hamburger.classification.data.base import load_images, open_source
from hamburger.errors import InputError, UnknownNameError
from hamburger.generation.gan_steps import build_gan
from hamburger.generation.sampling import sample
from hamburger.generation.visualize import to_bytes
from hamburger.generation.weights import open_generator
from hamburger.tasks import find_gan_recipe
from hamburger.training.recipe import apply
from hamburger_lab.gan_grid import append_rows, cached_distances, compare_samples, gan_variants, make_result_row
from hamburger_lab.gan_metrics.evaluate import MeasureSettings, measure_generator, measure_real
from hamburger_lab.gan_metrics.extractors import module_extractor

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("grid") / "run")


@pytest.fixture(scope="module")
def means():
    return module_extractor(Means(), "means", size=8, version="1")


@pytest.mark.parametrize("name", ["figures", "cifar10", "tiny-imagenet"])
def test_every_context_fits_the_recipes_for_comparison(name):
    for settings in gan_variants(["none", "sagan", "ylg", "hamgan", "efficient"]).values():
        build_gan(apply(find_gan_recipe(name), settings), 10)


def test_variants_differ_only_in_their_context():
    base = find_gan_recipe("cifar10")
    variants = {name: apply(base, settings) for name, settings in gan_variants(["none", "sagan", "efficient"]).items()}
    assert {name: recipe.model.context for name, recipe in variants.items()} == {
        "none": None,
        "sagan": "sagan",
        "efficient": "efficient",
    }
    assert len({(recipe.optim, recipe.steps, recipe.batch) for recipe in variants.values()}) == 1
    with pytest.raises(UnknownNameError, match="did you mean 'sagan'"):
        gan_variants(["sagn"])


def test_rows_are_appended_and_newer_ones_replace_older_ones(run, means, tmp_path):
    generator, _, _ = open_generator(run)
    images = load_images(open_source("figures", "train", size=16, length=40))
    measure = MeasureSettings(samples=20, compared=10, subsets=2)
    real = measure_real(images, means, measure, device=CPU, cache=tmp_path)
    distances = measure_generator(generator, real, means, measure, device=CPU)
    trained = {"recipe": "figures", "context": "hamgan", "seed": 0, "steps": 3, "batch": 4, "precision": "bf16"}
    trained |= {
        "hardware": "here",
        "seconds_per_step": 0.5,
        "peak_mb": 10.0,
        "torch": "2",
        "commit": "c",
        "date": "d",
        "overrides": [],
    }
    one = make_result_row(trained, distances.row(), real={"data": "figures"}, compared=10)
    assert list(one)[:9] == [
        *("recipe", "context", "seed", "frechet", "extractor", "kid", "seconds_per_step", "peak_mb", "steps")
    ]
    assert one["dtype"] == "bf16" and one["precision"] == distances.neighbours.precision
    kept = cached_distances(tmp_path, ["a", 1], lambda: distances)
    assert cached_distances(tmp_path, ["a", 1], lambda: pytest.fail("measured again")) == kept == distances.row()
    next(tmp_path.glob("distances-*.json")).write_text("{")
    assert cached_distances(tmp_path, ["a", 1], lambda: distances) == kept
    path = tmp_path / "rows.jsonl"
    append_rows(path, [one])
    append_rows(path, [{**one, "seed": 1}, {**one, "peak_mb": 11.0}])
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(each["seed"], each["peak_mb"]) for each in kept] == [(0, 11.0), (1, 10.0)]


@pytest.mark.parametrize("field", ["data", "split", "data_sha256", "compared_images"])
def test_a_row_of_other_images_does_not_replace(tmp_path, field):
    one = {"recipe": "folder", "context": "none", "seed": 0, "data": "folder", "split": "train", "data_sha256": "a"}
    one |= {"compared_images": 10, "frechet": 1.0}
    other = {**one, field: "other", "frechet": 2.0}
    append_rows(tmp_path / "rows.jsonl", [one])
    append_rows(tmp_path / "rows.jsonl", [other])
    assert [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == [one, other]


def test_each_row_is_a_generator_with_the_same_classes_and_latents(tmp_path):
    runs = [write_run(tmp_path / name) for name in ("a", "b")]
    generator, _, _ = open_generator(runs[0])
    size, k = generator.resolution, generator.num_classes
    grid = compare_samples(runs, columns=2 * k, seed=3)
    assert grid.shape == (3, 2 * (size + 2) - 2, 2 * k * (size + 2) - 2)
    expected = to_bytes(sample(generator, 2 * k, seed=3, labels=torch.arange(k).repeat_interleave(2)))
    for i, image in enumerate(expected):
        assert torch.equal(grid[:, :size, i * (size + 2) : i * (size + 2) + size], image)
    assert torch.equal(grid[:, size + 2 :], grid[:, :size])  # both runs have the same weights


def test_error_messages(tmp_path):
    with pytest.raises(InputError, match="there are no runs"):
        compare_samples([])
    with pytest.raises(InputError, match="is neither a run of `ham gan train`"):
        compare_samples([tmp_path])
