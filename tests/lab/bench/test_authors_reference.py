"""The benchmark's version of the authors' code matches the library: values and one-step gradients in float64."""

from __future__ import annotations

import pytest
import torch

from hamburger_lab.bench import authors_reference, rivals
from hamburger_lab.bench.common import WrongResultError
from hamburger_lab.bench.core import CorePlan, check_against_authors, check_equal_results
from hamburger_lab.bench.rivals import MODES, DecompositionInputs

STEPS, RANK = 5, 4


def problem(name: str) -> DecompositionInputs:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, 16, 37, generator=generator, dtype=torch.float64)
    x = x.abs() if name == "nmf" else x
    bases = rivals.authors_ham(name, RANK).draw(2, 16, like=x, generator=generator)
    return DecompositionInputs(x, bases, torch.randn(x.shape, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", authors_reference.SOLVERS)
def test_authors_reference_matches_the_library(name: str, mode: str) -> None:
    inputs = problem(name)
    ours = MODES[mode](inputs, rivals.library_solver(name, RANK, STEPS))
    theirs = MODES[mode](inputs, rivals.authors_solver(name, STEPS))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def test_sklearn_matches_the_library() -> None:
    inputs = problem("nmf")
    contender = rivals.sklearn_contender(STEPS)
    result = contender.run(*contender.prepare(inputs))
    expected = authors_reference.nmf(inputs.x, inputs.bases, STEPS).bases
    torch.testing.assert_close(torch.stack([torch.from_numpy(h).mT for h in result]), expected, rtol=1e-4, atol=1e-6)


def test_attention_contender_has_eight_heads() -> None:
    inputs = problem("vq")
    contender = rivals.attention_contender()
    assert contender.run(*contender.prepare(inputs)).shape == (2, 8, 37, 2)


PLAN = CorePlan(sizes=(32,), dim=16, rank=4, hams=("nmf",))
OURS = {"nmf": rivals.library_solver("nmf", 4, 6)}


def test_gate_accepts_equal_results() -> None:
    check_against_authors(PLAN, OURS, {"nmf": rivals.authors_solver("nmf", 6)})


def test_gate_refuses_a_broken_contender() -> None:
    with pytest.raises(WrongResultError, match=r"nmf \(infer\) differs"):
        check_against_authors(PLAN, OURS, {"nmf": rivals.authors_solver("nmf", 5)})


def test_gate_refuses_nan() -> None:
    with pytest.raises(WrongResultError, match="nan"):
        check_equal_results("nmf", "infer", torch.full((3,), torch.nan), torch.ones(3), "float32")


def test_gate_refuses_a_wrong_gradient() -> None:
    honest = rivals.authors_solver("nmf", 6)
    with pytest.raises(WrongResultError, match=r"nmf \(train\) differs"):
        check_against_authors(PLAN, OURS, {"nmf": lambda x, bases: honest(x.detach(), bases) + 0 * x})
