"""Options inferred from tensors build a layer that the tensors fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from foreign_burgers import RANK, C, D, State, hamnet, lightham

import hamburger as hb
from hamburger.checkpoints import CheckpointError, infer_options, load_hamburger
from hamburger.errors import OptionError

BASES = {"hamburger.ham.bases": torch.rand(2, D // 2, RANK)}


@pytest.mark.parametrize(
    ("state", "want"),
    [
        (hamnet("v1"), {"version": "v1", "norm": "batch", "inner": D}),
        (hamnet("v2"), {"version": "v2", "norm": "batch", "inner": D, "cheese_factor": 1}),
        (hamnet("v2") | BASES, {"version": "v2", "heads": 2, "rank": RANK, "init": "fixed"}),
        (hamnet("v2+"), {"version": "v2+", "inner": D, "cheese_factor": 1}),
        (hamnet("v2+", width=3 * D, slim=D), {"version": "v2+", "inner": 3 * D, "cheese_factor": 3}),
        (lightham("gn"), {"version": "v1", "norm": "group", "inner": C}),
        (lightham("bn"), {"version": "v1", "norm": "batch", "inner": C}),
    ],
)
def test_options_build_a_layer_that_fits(state: State, want: dict[str, Any]) -> None:
    options = infer_options(state)
    assert options == options | want | {"channels": C, "dual": False, "ham": "nmf"}
    assert load_hamburger(hb.Hamburger(**options), state).ok


def test_options_not_in_the_tensors_are_omitted() -> None:
    assert infer_options(hamnet("v2+")).keys().isdisjoint({"rank", "steps", "eval_steps", "grad", "heads"})


@pytest.mark.parametrize(("dual", "inner", "factor"), [(True, D, 1), (False, 2 * D, 2)])
def test_dual_and_narrow_cheese_are_distinguished(dual: bool, inner: int, factor: int) -> None:
    state = hamnet("v2+", width=2 * D, slim=D)
    with pytest.warns(UserWarning, match="dual"):
        assert infer_options(state)["dual"]
    options = infer_options(state, dual=dual)
    assert (options["dual"], options["inner"], options["cheese_factor"]) == (dual, inner, factor)
    assert load_hamburger(hb.Hamburger(**options), state).ok
    name = "hamburger.ham_1.bases" if dual else "hamburger.ham.bases"  # which settles it without a warning
    assert infer_options(state | {name: torch.rand(1, inner, RANK)})["dual"] is dual


def test_burgers_that_cannot_be_dual() -> None:
    for state in (hamnet("v2"), hamnet("v2+"), lightham()):
        with pytest.raises(OptionError, match="cannot be dual"):
            infer_options(state, dual=True)


def test_vq_and_cd_cannot_be_inferred() -> None:
    state = hamnet("v2", nmf=False)
    with pytest.warns(UserWarning, match="ham='vq' or ham='cd'"):
        options = infer_options(state)
    assert "ham" not in options
    assert load_hamburger(hb.Hamburger(**options, ham="cd"), state).ok


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hamburger.lower_bread.0.weight", torch.zeros(D)),
        ("hamburger.cheese.conv.weight", torch.zeros(D - 1, D, 1, 1)),
        ("hamburger.ham.bases", torch.zeros(D, RANK)),
    ],
)
def test_malformed_tensors(name: str, value: torch.Tensor) -> None:
    with pytest.raises(CheckpointError, match="infer_options"):
        infer_options(hamnet("v2") | {name: value})


def test_inference_needs_a_lower_bread() -> None:
    state = {key: value for key, value in hamnet("v2").items() if "lower_bread" not in key}
    with pytest.raises(CheckpointError, match=r"lower\.weight"):
        infer_options(state)


def test_cheese_without_channels_is_refused() -> None:
    with pytest.raises(CheckpointError, match="must be a multiple of the cheese's"):
        infer_options(hamnet("v2") | {"hamburger.cheese.conv.weight": torch.zeros(0, D, 1, 1)})


@pytest.mark.parametrize(
    "state",
    [
        {f"part{i}.{key}": value for i in range(1000) for key, value in lightham("gn").items()},
        {"a." * 50_000 + key: value for key, value in lightham("gn").items() if "conv" not in key},
    ],
    ids=["many", "long"],
)
def test_errors_about_strange_names_stay_short(state: State) -> None:
    for call in (infer_options, lambda state: load_hamburger(hb.Hamburger(C), state)):
        with pytest.raises(CheckpointError) as refused:
            call(state)
        assert len(str(refused.value)) < 20_000
