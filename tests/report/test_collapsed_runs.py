"""Runs that predict a single class: the rule, the sentences of `ham compare`, and the page."""

from __future__ import annotations

import json

import pytest

from hamburger.cli.compare import describe_rows
from hamburger.report.page import write_report
from hamburger.report.study import ALL_COLLAPSED, has_collapsed


@pytest.mark.parametrize(
    ("scores", "collapsed"),
    [
        ([0.9, 0.05, 0.0], True),
        ([0.9, None, None], True),  # the others are neither labelled nor predicted: an mIoU of 90 %
        ([0.05, 0.05], True),
        ([0.9, 0.2, 0.0], False),
        ([0.9], False),  # there is only one class
    ],
)
def test_at_most_one_class_above_a_tenth_is_a_collapse(scores, collapsed):
    assert has_collapsed({"per_class": dict(zip("abc", scores, strict=False))}) == collapsed
    assert not has_collapsed({})


def rows(task, **contexts):
    scores = {True: {"a": 0.9, "b": 0.0}, False: {"a": 0.9, "b": 0.8}}
    return [
        {"task": task, "context": context, "per_class": scores[collapsed]}
        for context, runs in contexts.items()
        for collapsed in runs
    ]


def test_compare_names_collapsed_contexts():
    assert describe_rows(rows("segmentation", nmf=[False, False], cd=[False])) == []
    assert describe_rows(rows("segmentation", nmf=[True, False], cd=[False])) == [
        "nmf predicts one class only with 1 of 2 seeds: its mean says little."
    ]
    assert describe_rows(rows("classification", nmf=[True, True], cd=[True])) == [ALL_COLLAPSED]
    assert describe_rows(rows("detection", nmf=[True], cd=[True])) == []  # mAP is low early, which is no collapse


def test_the_page_says_that_runs_collapsed(make_run, tmp_path):
    folders = [make_run(context, seed=seed) for context in (None, "nmf") for seed in range(2)]

    def collapse(folder):
        result = json.loads((folder / "result.json").read_text())
        result["per_class"] = {name: 0.9 * (place == 0) for place, name in enumerate(result["per_class"])}
        (folder / "result.json").write_text(json.dumps(result))

    def read():
        return write_report(folders, tmp_path / "report.html", device="cpu").read_text()

    assert "one class only" not in read()
    collapse(folders[3])
    text = read()
    assert "nmf predicts one class only with 1 of 2 seeds" in text and "The highest mean" in text
    for folder in folders[:3]:
        collapse(folder)
    text = read()
    assert "Every run predicts one class only" in text and "The highest mean" not in text
