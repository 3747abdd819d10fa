"""Grids that compare generators."""

from __future__ import annotations

import pytest
import torch
from gan_run import write_run

from hamburger.errors import InputError
from hamburger.generation.image_grid import to_bytes
from hamburger.generation.samples import compare_samples
from hamburger.generation.sampling import sample
from hamburger.generation.weights import open_generator


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
