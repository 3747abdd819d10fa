"""Grouping over seeds, names, and the baseline."""

from __future__ import annotations

import dataclasses

import pytest

from hamburger.report.study import RunError, group_runs, read_runs
from hamburger.segmentation.recipe import SegmentationData
from hamburger.training.recipe import Optim


def studied(*folders):
    return group_runs(read_runs(folders))


def test_seeds_make_one_group_and_the_baseline_comes_first(make_run):
    study = studied(
        make_run("nmf", seed=2), make_run("nmf", seed=1), make_run(None, seed=1), make_run("sa", seed=1, miou=0.9)
    )
    assert [(group.name, group.kind, len(group.runs)) for group in study.groups] == [
        ("baseline", "baseline", 1),
        ("nmf", "ham", 2),
        ("sa", "rival", 1),
    ]
    assert [run.seed for run in study.groups[1].runs] == [1, 2]
    assert study.reference is study.groups[0]
    assert study.mixed == ()
    assert study.best().name == "sa"
    assert study.best("ham").name == "nmf"
    assert study.best("breads") is None


def test_breads_without_ham_have_their_own_name(make_run):
    study = studied(make_run("nmf", options={"parts": ["lower", "upper"]}), make_run("nmf", name="whole"))
    assert {group.name: group.kind for group in study.groups} == {"breads": "breads", "nmf": "ham"}


@pytest.mark.parametrize("parts", [5, True, {"ham": 1}, None])
def test_parts_of_any_type_have_a_kind(make_run, parts):
    assert studied(make_run("nmf", options={"parts": parts})).groups[0].kind == "breads"


def test_groups_of_one_name_are_distinguished_by_settings(make_run):
    study = studied(
        make_run("nmf", options={"rank": 4}, name="a"), make_run("nmf", options={"rank": 8}, name="b"), make_run(None)
    )
    assert [group.name for group in study.groups] == ["baseline", "nmf rank=4", "nmf rank=8"]


def test_fields_besides_the_context_that_differ_are_listed(make_run):
    study = studied(make_run(None), make_run("nmf", optim=Optim(lr=0.5)))
    assert study.mixed == ("optim.lr",)


def test_logging_and_loading_fields_do_not_split_a_group(make_run):
    data = SegmentationData(name="patchwork", options={"size": 32, "length": 5})
    one = make_run("nmf", seed=1, data=data)
    two = make_run("nmf", seed=2, data=dataclasses.replace(data, workers=9), log_every=7)
    assert len(studied(one, two).groups) == 1


def test_repeated_seed_counts_once(make_run):
    with pytest.raises(RunError, match=r"same recipe and seed \(5\)"):
        studied(make_run("nmf", seed=5, name="a"), make_run("nmf", seed=5, name="b"))


def test_other_heads_are_rivals_under_their_own_name(make_run):
    import hamburger_lab.heads  # noqa: F401  (registers)
    from hamburger.segmentation.recipe import SegmentationModel

    folder = make_run("nmf")
    text = (folder / "recipe.json").read_text().replace('"name": "hamnet"', '"name": "danet"')
    (folder / "recipe.json").write_text(text)
    assert SegmentationModel().name == "hamnet"
    assert [(group.name, group.kind) for group in studied(folder).groups] == [("danet", "rival")]
