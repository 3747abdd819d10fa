"""Generators beside each other."""

from __future__ import annotations

import pytest
import torch
from gan_run import write_run

from hamburger.errors import InputError
from hamburger.generation.image_sheets import to_bytes
from hamburger.generation.samples import beside
from hamburger.generation.sampling import sample
from hamburger.generation.weights import open_generator


def test_each_row_is_a_generator_with_the_same_classes_and_latents(tmp_path):
    runs = [write_run(tmp_path / name) for name in ("a", "b")]
    generator, _, _ = open_generator(runs[0])
    size, k = generator.resolution, generator.num_classes
    made = beside(runs, columns=2 * k, seed=3)
    assert made.shape == (3, 2 * (size + 2) - 2, 2 * k * (size + 2) - 2)
    wanted = to_bytes(sample(generator, 2 * k, seed=3, labels=torch.arange(k).repeat_interleave(2)))
    for i, image in enumerate(wanted):
        assert torch.equal(made[:, :size, i * (size + 2) : i * (size + 2) + size], image)
    assert torch.equal(made[:, size + 2 :], made[:, :size])  # the same weights below


def test_mistakes_are_named(tmp_path):
    with pytest.raises(InputError, match="no run to show"):
        beside([])
    with pytest.raises(InputError, match="is no run of `ham gan train`"):
        beside([tmp_path])
