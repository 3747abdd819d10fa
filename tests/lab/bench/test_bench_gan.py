"""`ham bench gan` at a size for a CPU."""

from __future__ import annotations

import json
import sys

import pytest

from hamburger.cli import main
from hamburger.errors import OptionError, UnknownNameError
from hamburger_lab.bench.gan import CONTENDERS, GanStepPlan, measure

SMALL = {"resolution": 32, "width": 16, "num_classes": 3, "latent": 8, "batch": 2, "repeats": 2}


@pytest.mark.full
def test_every_gan_contender_has_times():
    # eight heads of an eighth need 64 channels at the context; the narrow discriminator has 2 x 32
    contexts = ("none", "ylg", "ylg-fused", "hamgan")
    assert set(contexts) <= set(CONTENDERS)
    rows = {row.context: row for row in measure(GanStepPlan(contexts, **{**SMALL, "width": 32, "repeats": 1}))}
    assert list(rows) == list(contexts)
    for name, row in rows.items():
        assert row.step_ms > 0 and row.peak_mb > 0 and not row.note
        assert (row.generator_ms is None) == (name == "none") == (row.added_ms is None)
        assert row.step_of_ylg > 0
    assert rows["ylg"].step_of_ylg == rows["ylg"].module_of_ylg == 1.0
    assert rows["ylg"].parameters == rows["ylg-fused"].parameters


def test_command_writes_rows(tmp_path, monkeypatch, capfd):
    path = tmp_path / "rows.jsonl"
    words = ["ham", "bench", "gan", "--contexts", "none,hamgan", "--json", str(path)]
    for name, value in SMALL.items():
        if name != "latent":
            words += [f"--{name.replace('_', '-')}", str(value)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0, capfd.readouterr().err
    none, ham = (json.loads(line) for line in path.read_text().splitlines())
    assert ham["added_ms"] == pytest.approx(ham["step_ms"] - none["step_ms"], rel=1)
    assert ham["step_of_ylg"] is None and {"hardware", "torch", "commit", "date"} <= ham.keys()


def test_mistakes():
    with pytest.raises(UnknownNameError, match="did you mean 'hamgan'"):
        GanStepPlan(contexts=("hamgn",))
    with pytest.raises(OptionError, match="each context once"):
        GanStepPlan(contexts=("ylg", "ylg"))
    with pytest.raises(OptionError, match="leave --graph out"):
        GanStepPlan(graph=True)


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [False, True])
def test_gpu_steps_run_eagerly_and_as_cuda_graphs(graph):
    plan = GanStepPlan(**{**SMALL, "width": 32}, device="cuda", dtype="bfloat16", graph=graph)
    for row in measure(plan):
        assert not row.note and row.graph == graph and row.step_ms > 0
        assert (row.generator_ms is None) == (row.context == "none")
