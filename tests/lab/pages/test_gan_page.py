"""Tables of GAN results from rows."""

from __future__ import annotations

import pytest

from hamburger_lab.pages.generation import gan_distance_table, gan_speed_table

ROW = {
    **{"recipe": "cifar10", "name": "frechet[e@224]", "extractor": "e@224 r sha256:0", "kid": 0.002, "precision": 0.5},
    **{
        "recall": 0.25,
        "seconds_per_step": 0.01,
        "peak_mb": 1234.0,
        "steps": 1000,
        "batch": 64,
        "dtype": "bf16",
        "jobs": 4,
    },
    **{"hardware": "NVIDIA H200", "torch": "2.11", "commit": "abc", "data_sha256": "d", "fake_images": 50_000},
    **{"real_images": 50_000, "compared_images": 10_000},
}


def rows():
    result = []
    for context, values in {"none": (20.0, 22.0), "hamgan": (18.0, 19.0)}.items():
        for seed, value in enumerate(values):
            result.append({**ROW, "context": context, "seed": seed, "frechet": value})
    return result


def test_contexts_are_compared_paired_by_seed():
    text = gan_distance_table(rows())
    lines = text.splitlines()
    assert "frechet[e@224]" in lines[0] and "FID" not in text
    assert lines[2].startswith("| hamgan | 18.50 |") and "-2.50" in lines[2] and "18.00, 19.00" in lines[2]
    assert "| 2.00 | 0.500 | 0.250 | 10.0 | 1,234 |" in lines[2]
    assert "by e@224 r sha256:0" in text


def test_step_time_is_the_median_over_seeds():
    """A run that was resumed after the others has another time, which its row does not show."""
    result = [{**ROW, "context": "none", "seed": seed, "frechet": 20.0 + seed} for seed in range(3)]
    result[1]["seconds_per_step"] = 0.001
    text = gan_distance_table(result)
    assert "| 10.0 | 1,234 |" in text and "Times are medians over seeds" in text
    result[2]["seconds_per_step"] = None  # too short to have one
    assert "| 5.5 | 1,234 |" in gan_distance_table(result)


def test_rows_of_different_extractors_raise():
    mixed = rows()
    mixed[1]["extractor"] = "other@224"
    with pytest.raises(ValueError, match="differ in extractor"):
        gan_distance_table(mixed)


def test_speed_table_is_relative_to_ylg():
    row = {"context": "hamgan", "step_ms": 100.0, "step_of_ylg": 0.9, "added_ms": 5.0, "added_of_ylg": 0.5}
    row |= {"generator_ms": 1.0, "discriminator_ms": 2.0, "module_of_ylg": 0.4, "peak_mb": 900.0, "resolution": 128}
    row |= {"batch": 64, "dtype": "bfloat16", "backend": "auto", "repeats": 20, "commit": "abc"}
    row |= {"hardware": "NVIDIA H200", "torch": "2.11"}
    assert "`/ ylg` is the median over rounds" in gan_speed_table([row])
    assert "a step 0.85 of YLG's, what it adds 0.28" in gan_speed_table([row])  # 15 % less, and 3.6 times less
    assert "| hamgan | 100.00 | 0.90 | 5.00 | 0.50 | 1.00 | 2.00 | 0.40 | 900 |" in gan_speed_table([row])
