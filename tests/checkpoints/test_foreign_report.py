"""`load_hamburger`: the report covers every key, and a strict load is all or nothing."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from foreign_burgers import RANK, C, D, State, build, hamnet, lightham
from torch import Tensor

import hamburger as hb
from hamburger.checkpoints import CheckpointError, Report, load_hamburger
from hamburger.errors import OptionError

BASES = "ham.dictionary.bases"


def snapshot(layer: hb.Hamburger) -> State:
    return {key: value.clone() for key, value in layer.state_dict().items()}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def refuse(layer: hb.Hamburger, state: State) -> Report:
    """The report of a load that must fail and leave the layer as it was."""
    before = snapshot(layer)
    with pytest.raises(CheckpointError) as caught:
        load_hamburger(layer, state)
    assert same(before, layer.state_dict())
    report = caught.value.report
    assert report is not None
    assert str(report) in str(caught.value)
    assert not report.loaded
    return report


def all_keys(report: Report) -> tuple[list[str], list[str]]:
    """Their keys and ours, as often as the report of a load without problems accounts for them."""
    return sorted([*report.loaded.values(), *report.skipped]), sorted([*report.loaded, *report.kept])


@pytest.mark.parametrize(
    ("state", "layer"),
    [
        (hamnet("v1"), build("v1")),
        (hamnet("v2"), build("v2")),
        (hamnet("v2+"), build("v2+")),
        (hamnet("v2+", width=2 * D, slim=D), build("v2+", dual=True)),
        (hamnet("v1", nmf=False), build("v1", ham="vq")),
        (hamnet("v2", nmf=False), build("v2", ham="cd")),
        (lightham("gn"), build("v1", inner=C, norm="group")),
        (lightham("bn"), build("v1", inner=C, norm="batch")),
    ],
    ids=["v1", "v2", "v2+", "dual", "vq", "cd", "gn", "bn"],
)
def test_every_key_is_accounted_for_once(state: State, layer: hb.Hamburger) -> None:
    report = load_hamburger(layer, state)
    assert report.ok
    assert all_keys(report) == (sorted(state), sorted(layer.state_dict()))
    for ours, theirs in report.loaded.items():
        assert torch.equal(layer.state_dict()[ours].flatten(), state[theirs].to(layer.state_dict()[ours]).flatten())
    assert all("hamburger." not in key for key in report.skipped)
    assert BASES in report.kept
    text = str(report)
    assert all(key in text for key in [*report.loaded, *report.loaded.values(), *report.kept, *report.skipped])


def test_many_skipped_keys_are_counted_not_printed() -> None:
    backbone = {f"backbone.{i}.weight": torch.zeros(1) for i in range(300)}
    report = load_hamburger(build("v2"), hamnet("v2") | backbone)
    assert backbone.keys() <= report.skipped.keys()
    assert len(str(report).splitlines()) < 40
    assert "more in Report.skipped" in str(report)


def test_missing_keys_raise() -> None:
    state = hamnet("v2")
    del state["hamburger.cheese.bn.running_var"], state["hamburger.lower_bread.0.bias"]
    report = refuse(build("v2"), state)
    assert report.problems.keys() == {"cheese.1.running_var", "lower.bias"}
    assert "hamburger.cheese.bn.running_var" in report.problems["cheese.1.running_var"]


def test_a_missing_bread_is_not_reported_as_another_ham() -> None:
    state = {key: value for key, value in hamnet("v2").items() if "lower_bread" not in key}
    report = refuse(build("v2"), state)
    assert report.problems.keys() == {"lower.weight", "lower.bias"}


@pytest.mark.parametrize(
    "name", ["hamburger.pickle.weight", "hamburger.align.weight", "hamburger.upper_bread.0.weight"]
)
def test_unexpected_keys_raise(name: str) -> None:
    report = refuse(build("v2"), hamnet("v2") | {name: torch.zeros(C, D, 1, 1)})
    assert report.problems.keys() == {name}


def test_a_counter_may_be_missing_or_superfluous() -> None:
    state = hamnet("v1")
    del state["hamburger.upper_bread.1.num_batches_tracked"]  # as before torch 0.4.1
    assert "norm.num_batches_tracked" in load_hamburger(build("v1"), state).kept
    layer = build("v1", norm=lambda c: _without_counter(c))
    name = "hamburger.upper_bread.1.num_batches_tracked"
    assert "counter" in load_hamburger(layer, hamnet("v1")).skipped[name]


def _without_counter(channels: int) -> torch.nn.Module:
    norm = torch.nn.BatchNorm1d(channels)
    norm.num_batches_tracked = None
    return norm


@pytest.mark.parametrize("init", ["learned", "online"])
def test_trained_bases_must_be_in_the_checkpoint(init: str) -> None:
    assert refuse(build("v2", init=init), hamnet("v2")).problems.keys() == {BASES}


@pytest.mark.parametrize(
    ("layer", "key", "words"),
    [
        (build("v1", inner=16), "lower.weight", ["(32, 64, 1, 1)", "(16, 64)"]),
        (build("v1", inner=16), "upper.weight", ["(64, 32, 1, 1)", "(64, 16)"]),
        (hb.Hamburger(128, inner=D), "norm.running_mean", ["(64,)", "(128,)"]),
        (build("v1", rank=9), BASES, ["(1, 32, 4)", "(1, 32, 9)"]),
        (build("v1", heads=2), BASES, ["(1, 32, 4)", "(2, 16, 4)"]),
    ],
)
def test_shapes_that_do_not_fit(layer: hb.Hamburger, key: str, words: list[str]) -> None:
    state = hamnet("v1") | {"hamburger.ham.bases": torch.rand(1, D, RANK)}
    text = refuse(layer, state).problems[key]
    assert "from 'hamburger." in text
    assert all(word in text for word in [*words, "infer_options"]), text


def test_a_larger_kernel_does_not_fit() -> None:
    state = hamnet("v1") | {"hamburger.upper_bread.0.weight": torch.zeros(C, D, 3, 3)}
    assert "(64, 32, 3, 3)" in refuse(build("v1"), state).problems["upper.weight"]


def test_integers_do_not_fit() -> None:
    state = hamnet("v1") | {"hamburger.lower_bread.0.bias": torch.zeros(D, dtype=torch.int8)}
    assert "torch.int8" in refuse(build("v1"), state).problems["lower.bias"]


@pytest.mark.parametrize(
    ("state", "layer", "option"),
    [
        (hamnet("v1"), build("paper"), "version"),  # the same keys, another function
        (hamnet("v2+"), build("v2"), "version"),
        (hamnet("v1"), build("v1", ham="vq"), "ham"),
        (hamnet("v1", nmf=False), build("v1"), "ham"),
        (lightham("gn"), build("v1", inner=C, norm="batch"), "norm"),
        (lightham("bn"), build("v1", inner=C, norm="group"), "norm"),
    ],
)
def test_another_burger_with_keys_that_fit_is_refused(state: State, layer: hb.Hamburger, option: str) -> None:
    problems = refuse(layer, state).problems
    assert option in problems
    assert {"version", "norm", "ham"} & problems.keys() == {option}


def test_not_strict_loads_what_fits_and_warns() -> None:
    state = hamnet("v2") | {"hamburger.pickle": torch.zeros(1), "hamburger.lower_bread.0.bias": torch.zeros(3)}
    del state["hamburger.upper_bread.weight"]
    layer = build("v2")
    before = snapshot(layer)
    with pytest.warns(UserWarning, match="only part of the checkpoint was loaded") as caught:
        report = load_hamburger(layer, state, strict=False)
    assert str(report) in str(caught[0].message)
    assert report.problems.keys() == {"lower.bias", "hamburger.pickle", "upper.weight"}
    after = layer.state_dict()
    assert torch.equal(after["lower.weight"], state["hamburger.lower_bread.0.weight"][..., 0, 0])
    assert all(torch.equal(before[key], after[key]) for key in ("lower.bias", "upper.weight", BASES))


def test_not_strict_is_silent_where_all_fits() -> None:
    assert load_hamburger(build("v2"), hamnet("v2"), strict=False).ok  # warnings are errors here


def test_dual_bases_along_channels_are_skipped_with_a_reason() -> None:
    state = hamnet("v2+", width=2 * D, slim=D)
    state |= {"hamburger.ham_1.bases": torch.rand(1, D, RANK), "hamburger.ham_2.bases": torch.rand(1, 35, RANK)}
    layer = build("v2+", dual=True)
    report = load_hamburger(layer, state)
    assert torch.equal(layer.state_dict()[BASES], state["hamburger.ham_1.bases"].double())
    assert "image size" in report.skipped["hamburger.ham_2.bases"]
    single = build("v2+", inner=2 * D, cheese_factor=2)
    assert "hamburger.ham_2.bases" in refuse(single, state).problems


@pytest.mark.parametrize(("head", "burger"), [("", "hamburger."), ("decode_head.", ""), ("", ""), ("a.b.", "context.")])
def test_burger_is_found_under_any_prefix(head: str, burger: str) -> None:
    state, layer = lightham("gn", head, burger), build("v1", inner=C, norm="group")
    report = load_hamburger(layer, state)
    assert report.prefix == head + burger
    assert all_keys(report)[0] == sorted(state)
    assert len(report.loaded) == 5


def test_data_parallel_prefix_is_removed() -> None:
    layer = build("v2")
    load_hamburger(layer, {"model": {f"module.{key}": value for key, value in hamnet("v2").items()}})
    assert torch.equal(layer.state_dict()["lower.bias"], hamnet("v2")["hamburger.lower_bread.0.bias"])


def test_several_burgers_need_a_prefix() -> None:
    state = lightham() | {f"ema.{key}": value + 1 for key, value in lightham().items()}
    layer = build("v1", inner=C, norm="group")
    with pytest.raises(CheckpointError, match=r"several burgers.*ema\.decode_head"):
        load_hamburger(layer, state)
    load_hamburger(layer, state, prefix="ema.decode_head.hamburger")
    assert torch.equal(layer.state_dict()["norm.bias"], state["ema.decode_head.hamburger.ham_out.gn.bias"])


def test_checkpoint_without_a_burger_raises() -> None:
    layer = build("v2")
    with pytest.raises(CheckpointError, match=r"the checkpoint has.*hamnet"):
        load_hamburger(layer, hamnet("v2"), source="mmseg")
    with pytest.raises(CheckpointError, match="lower_bread"):
        load_hamburger(layer, {"conv1.weight": torch.zeros(1)}, strict=False)
    with pytest.raises(CheckpointError, match="load_state_dict"):
        load_hamburger(layer, layer.state_dict())
    with pytest.raises(OptionError, match="did you mean 'hamnet'"):
        load_hamburger(layer, hamnet("v2"), source="hamnut")
    with pytest.raises(OptionError, match=r"hamburger\.Hamburger"):
        load_hamburger(torch.nn.Linear(1, 1), hamnet("v2"))  # type: ignore[arg-type]
