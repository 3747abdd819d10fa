"""`ham bench detect`: rows, positions, errors."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch

from hamburger.errors import OptionError, UnknownNameError
from hamburger_lab.bench import detect
from hamburger_lab.bench.common import model_options
from hamburger_lab.bench.tables import size_sweep_table
from hamburger_lab.pages import detection

SMALL = {"channels": 16, "hidden": 16, "sampled": 16, "proposals": 20}


def plan(*contexts, **options):
    variants = {name: model_options(name) for name in contexts}
    defaults = {"sizes": (64, 128), "backbone": "tiny", "batch": 1, "repeats": 1, "options": SMALL}
    return detect.DetectorPlan(variants, **(defaults | options))


@pytest.fixture(scope="module")
def rows():
    return list(detect.measure(plan("none", "sa-materialised")))


def test_rows_have_the_positions_of_the_context(rows):
    assert [(row.size, row.context) for row in rows] == [
        *((64, "none"), (64, "sa-materialised")),
        *((128, "none"), (128, "sa-materialised")),
    ]
    assert [row.n for row in rows] == [64, 64, 256, 256]
    for row in rows:
        assert row.train_ms > 0 and row.peak_mb > 4 * row.params / 2**20 and row.note == "" and row.after == "p3"
    assert rows[0].context_mb == 0 and rows[1].params > rows[0].params
    json.dumps([asdict(row) for row in rows], allow_nan=False)
    assert len(size_sweep_table(rows, "Mask R-CNN").columns) == 8


def test_out_of_memory_is_noted_and_others_are_measured(monkeypatch):
    from hamburger.contexts.sa import SelfAttention

    def full(self, x):
        if torch.is_grad_enabled():  # in training, not where it is tried out
            raise torch.OutOfMemoryError("CUDA out of memory")
        return x

    monkeypatch.setattr(SelfAttention, "forward", full)
    result = {(row.context, row.size): row for row in detect.measure(plan("none", "sa-flash", after="p2", sizes=(64,)))}
    assert result["none", 64].train_ms > 0
    lost = result["sa-flash", 64]
    assert lost.note.startswith("out of memory") and lost.train_ms is lost.peak_mb is lost.context_mb is None


def test_tables_show_rows(rows):
    text = detection.detection_growth_table([asdict(row) for row in rows]).splitlines()
    assert "64 px (n = 64), MiB" in text[0] and "128 px, ms" in text[0]
    assert [line.split(" | ")[0] for line in text[2:4]] == ["| none", "| sa-materialised"]
    assert detection.detection_growth_table([]) == detection.detection_table([]) == "No rows yet."


def test_detection_table_has_the_best_context_first():
    about = {"recipe": "shapes", "backbone": "r", "after": "p3", "steps": 5, "batch": 2, "precision": "32"}
    about |= {"protocol": "COCO", "images": 3, "hardware": "here", "torch": "2", "commit": "c", "images_per_s": 10.0}
    made = [
        {**about, "context": name, "seed": seed, "mask_map": value + seed / 100, "box_map": value, "peak_mb": 1024.0}
        | {"mask": {"map_50": 0.5}}
        for seed in range(3)
        for name, value in (("none", 0.3), ("nmf", 0.4))
    ]
    text = detection.detection_table(made).splitlines()
    assert text[2] == "| nmf | 41.00 | 1.00 | +10.00 | +10.00 ... +10.00 | 40.00 | 50.0 | 10 | 1,024 | 3 |"
    assert text[3].startswith("| none | 31.00 | 1.00 |  |  | 30.00") and "after p3" in text[-1]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"sizes": ()}, "one size"),
        ({"sizes": (32,)}, "at least 64"),
        ({"batch": 0}, "batch"),
        ({"dtype": "int8"}, "dtype"),
    ],
    ids=str,
)
def test_invalid_options_name_the_rule(options, complaint):
    with pytest.raises(OptionError, match=complaint):
        plan("none", **options)


def test_unknown_submodule_raises_also_without_a_context():
    with pytest.raises(
        UnknownNameError, match=r"bench detect: the model has no submodule 'backbone\.bdy'.*did you mean"
    ):
        list(detect.measure(plan("none", after="backbone.bdy", sizes=(64,))))
