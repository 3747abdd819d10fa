"""Images are functions of the seed and the sample number."""

from __future__ import annotations

import math

import pytest
import torch
from gan_cases import CLASSES, batch, open_gates, small
from tolerances import assert_close

from hamburger.errors import HamburgerError
from hamburger.generation.sampling import latents, sample, samples


def some(**options):
    return latents(7, **{"seed": 3, "latent": 6, "num_classes": CLASSES, **options})


def test_latents_are_functions_of_seed_and_number():
    z, y = some()
    for start in (0, 2, 5):
        part, classes = latents(2, seed=3, latent=6, num_classes=CLASSES, start=start)
        assert torch.equal(part, z[start : start + 2])
        assert torch.equal(classes, y[start : start + 2])
    assert not torch.equal(some(seed=4)[0], z)
    assert len({tuple(row.tolist()) for seed in range(4) for row in some(seed=seed)[0]}) == 28
    assert len(latents(50_000, seed=0, latent=1, num_classes=2)[0].unique()) > 49_900  # of 2^24 floats or so


def test_the_stream_is_splitmix64():
    """Against arbitrary-precision integers in Python."""
    word, golden = 2**64, 0x9E3779B97F4A7C15

    def mixed(x):
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % word
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % word
        return x ^ (x >> 31)

    assert mixed(golden) == 0xE220A8397B1DCDAF  # the published first output of seed 0
    for seed, number in ((0, 0), (7, 3), (2**63 - 1, 123_456)):
        stream = mixed((mixed((seed + golden) % word) + golden * (number + 1)) % word)
        draws = [mixed((stream + golden * j) % word) >> 11 for j in range(1, 8)]
        z, y = latents(1, seed=seed, latent=3, num_classes=1000, start=number)
        assert y.item() == draws[0] % 1000
        for j in range(3):
            radius, angle = ((draws[1 + j + 3 * part] + 1) / 2**53 for part in (0, 1))
            assert z[0, j].item() == pytest.approx(math.sqrt(-2 * math.log(radius)) * math.cos(2 * math.pi * angle))


def test_latents_are_normal_and_classes_uniform():
    z, y = latents(4000, seed=0, latent=16, num_classes=4)
    assert z.mean(0).abs().max() < 0.08
    assert (z.std(0) - 1).abs().max() < 0.06
    assert torch.bincount(y).sub(1000).abs().max() < 120  # four standard deviations
    assert (z[1:] * z[:-1]).mean().abs() < 0.02  # neither neighbours nor columns correlate
    assert (torch.corrcoef(z.T) - torch.eye(16)).abs().max() < 0.08
    assert (z.square() > 9).float().mean().item() == pytest.approx(0.0027, abs=0.001)


def test_the_callers_random_state_is_kept():
    generator = small("hamgan").generator
    before = torch.get_rng_state()
    sample(generator, 1, seed=0)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", ["sngan", "ylg", "hamgan"])
def test_images_do_not_depend_on_the_batches(name):
    generator = open_gates(small(name).generator)
    generator(*batch(generator, 8))  # so that running statistics are not trivial
    whole = sample(generator, 7, seed=1)
    assert whole.shape == (7, 3, 32, 32)
    assert generator.training
    for size in (1, 3):
        assert torch.equal(sample(generator, 7, seed=1, batch_size=size), whole)
    assert torch.equal(sample(generator, 2, seed=1, start=4), whole[4:6])
    many = sample(generator, 70, seed=1)
    assert torch.equal(many[:7], whole)
    assert torch.equal(sample(generator, 23, seed=1, start=30, batch_size=5), many[30:53])
    assert [len(y) for _, y in samples(generator, 23, seed=1, start=30, batch_size=5)] == [2, 16, 5]
    assert [len(y) for _, y in samples(generator, 70, seed=1, batch_size=40)] == [32, 32, 6]
    labels = torch.arange(70) % generator.num_classes
    assert torch.equal(
        sample(generator, 9, seed=1, start=31, labels=labels[31:40]),
        sample(generator, 70, seed=1, labels=labels)[31:40],
    )
    assert torch.equal(sample(generator, 7, seed=1), whole)
    assert not torch.allclose(whole[0], whole[1])


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["sagan", "ylg", "hamgan"])
def test_images_do_not_depend_on_the_batches_on_a_gpu(name):
    generator = open_gates(small(name).generator).cuda()
    whole = sample(generator, 37, seed=1)
    assert torch.equal(sample(generator, 37, seed=1), whole)
    for size in (1, 5, 16, 64):
        assert torch.equal(sample(generator, 37, seed=1, batch_size=size), whole)
    assert torch.equal(sample(generator, 9, seed=1, start=20), whole[20:29])
    # successive convolutions may run in TF32 there
    assert_close(whole, sample(generator.cpu(), 37, seed=1), dtype=torch.float16, slack=8)


def test_labels():
    generator = small("sngan").generator
    labels = torch.tensor([0, 4, 2])
    actual = torch.cat([y for _, y in samples(generator, 3, seed=0, labels=labels, batch_size=2)])
    assert torch.equal(actual, labels)
    assert_close(sample(generator, 3, seed=0, labels=labels)[1:2], sample(generator, 1, seed=0, start=1, labels=4))
    assert sample(generator, 0, seed=0, start=5).shape == (0, 3, 32, 32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": -1}, "count must be a whole number of at least 0"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1"),
        ({"labels": 9}, "classes must lie in 0 ... 4, got 9 ... 9"),
        ({"labels": torch.zeros(2, dtype=torch.long)}, r"one class per sample, \(3,\), got \(2,\)"),
        ({"labels": "cat"}, "classes must be a tensor of whole numbers, got str"),
    ],
)
def test_error_messages(options, message):
    with pytest.raises(HamburgerError, match=message):
        sample(small("sngan").generator, **{"count": 3, "seed": 0, **options})
