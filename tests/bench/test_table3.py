"""Table 3: counts against the paper's, peaks against known ones, the gate, and the command."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch
from torch import nn

from hamburger.bench import footprint, paper, table3
from hamburger.errors import OptionError

SHAPE = (1, 512, 128, 128)


def counts(module):
    build = next(iter(table3.builders(module, 512).values()))
    return footprint.counts(build, SHAPE)


@pytest.mark.parametrize("module", paper.TABLE3)
def test_counts_agree_with_the_paper_to_one_percent_or_the_reason_is_known(module):
    params, macs = counts(module)
    assert abs(paper.deviation(module, "params", params / 2**20)) < 0.01
    if (module, "macs") in paper.DIFFERENCES:
        assert macs / 1e9 == pytest.approx(245.9, rel=1e-3)  # both convolutions, both branches' products
        assert any("cannot be right" in note for note in paper.notes(module, params, macs))
    else:
        assert abs(paper.deviation(module, "macs", macs / 1e9)) < 0.01
        assert paper.notes(module, params, macs) == []


def test_an_unexplained_difference_is_said_to_be_one():
    assert "not explained" in paper.notes("nmf", 525_824, 30_000_000_000)[0]
    assert paper.notes("ema", 1, 1) == []


@pytest.mark.parametrize(
    ("module", "p"),
    [("sa", 2), ("da", 2), ("acf", 2), ("nonlocal", 2)]
    + [(m, 1) for m in ("nmf", "vq", "cd", "a2", "apc", "dm", "ema")],
)
def test_multiply_adds_grow_as_the_paper_says(module, p):
    build = next(iter(table3.builders(module, 512).values()))
    small, large = (footprint.counts(build, (1, 512, side, side))[1] for side in (512, 1024))
    assert large / small == pytest.approx(4**p, rel=0.03)  # the rest of the layer is linear


def test_peak_memory_of_a_known_call():
    x = torch.zeros(256, 1024)  # 1 MiB

    def call():
        a = x + 1  # 1 MiB
        b = a * 2  # 2 MiB
        del a
        return b.sum()

    assert footprint.peak_mib(call, [x], "cpu") == pytest.approx(3.0, abs=0.01)
    assert footprint.peak_mib(lambda: x.sum(), [x, x.view(-1)], "cpu") == pytest.approx(1.0, abs=0.01)


def test_attention_holds_no_matrix_unless_told_to():
    plan = table3.Plan(modules=("sa", "sa-materialised"), sizes=(1024,), channels=16, repeats=1, seconds=0)
    fused, held = table3.measure(plan)
    assert held.infer_mb - fused.infer_mb > 3.9  # 1024 x 1024 float32
    assert fused.macs == held.macs


class Wrong(nn.Module):
    """Right in float64 only."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x * self.scale * (2 if x.dtype == torch.float64 else 3)


def test_the_gate_keeps_a_wrong_answer_from_being_timed(monkeypatch):
    monkeypatch.setitem(table3.VARIANTS, "wrong", {"": lambda c: Wrong()})
    (row,) = table3.measure(table3.Plan(modules=("wrong",), sizes=(64,), channels=8, repeats=1))
    assert row.note.startswith("refused: differs from float64 by 1")
    assert row.infer_ms is None and row.train_mb is None


def test_the_best_way_is_chosen_for_each_mode():
    (row,) = table3.measure(table3.Plan(modules=("nmf",), sizes=(64,), channels=8, repeats=1))
    two = replace(row, note="heads=2", infer_ms=1.0, train_ms=9.0, train_mb=90.0)
    eight = replace(row, note="heads=8", infer_ms=2.0, train_ms=3.0, train_mb=30.0)
    best = table3._best([two, eight])
    assert (best.infer_ms, best.train_ms, best.train_mb) == (1.0, 3.0, 30.0)
    assert best.note == "inference: heads=2; training: heads=8"
    lost = replace(two, infer_ms=None, train_ms=None)
    assert table3._best([lost, eight]) is eight


def test_a_mode_is_set_and_gradients_are_freed_before_the_clock_starts(monkeypatch):
    seen = []

    def clock(run, args, device):
        seen.append((case.module.training, any(p.grad is not None for p in case.module.parameters())))
        run(*args)
        return 1.0

    monkeypatch.setattr(table3, "clock", clock)
    plan = table3.Plan(modules=("nmf",), sizes=(64,), channels=8, repeats=2, seconds=1)
    build = table3.builders("nmf", 8)[""]
    case = table3.Case(plan, build, (1, 8, 8, 8), lambda: torch.autocast("cpu", enabled=False), compiled=False)
    case.time("train")
    case.time("infer")
    assert set(seen[:5]) == {(True, False)} and set(seen[5:]) == {(False, False)}


def test_rows_have_what_readers_rely_on():
    plan = table3.Plan(modules=("nmf", "authors-nmf"), sizes=(1024,), channels=16, repeats=2, seconds=0.1)
    for row in map(asdict, table3.measure(plan)):
        assert {
            "module",
            "n",
            "params",
            "macs",
            "device",
            "dtype",
            "hardware",
            "torch",
            "commit",
            "date",
            "seed",
        } <= set(row)
        assert all(row[field] > 0 for field in ("infer_ms", "train_ms", "infer_mb", "train_mb", "params", "macs"))
        assert row["train_mb"] >= row["infer_mb"]


def test_what_needs_too_much_is_counted_and_not_run():
    plan = table3.Plan(modules=("sa",), sizes=(1024,), channels=16, max_macs=1e6)
    (row,) = table3.measure(plan)
    assert row.macs > 1e6 and row.infer_ms is None
    assert "not run" in row.note


@pytest.mark.parametrize(("n", "hw"), [(16384, (128, 128)), (2048, (32, 64)), (97, (1, 97)), (12, (3, 4))])
def test_images_are_as_square_as_they_can_be(n, hw):
    assert table3.image(n) == hw


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modules": ("nfm",)}, "did you mean 'nmf'"),
        ({"modules": ()}, "at least one module"),
        ({"sizes": (3,)}, "a size must be a whole number of at least 16"),
        ({"dtype": "fp32"}, "no dtype 'fp32'"),
        ({"dtype": "tf32"}, "tf32 is a mode of CUDA devices"),
        ({"seed": -1}, "seed"),
        ({"seconds": float("nan")}, "seconds"),
    ],
)
def test_messages(options, message):
    with pytest.raises(OptionError, match=message):
        table3.Plan(**({"modules": ("nmf",)} | options))


def test_the_command_writes_rows_and_a_picture(tmp_path, monkeypatch, capsys):
    from hamburger import cli

    rows, picture = tmp_path / "rows.jsonl", tmp_path / "deep" / "plot.png"
    arguments = ["--modules", "nmf,a2", "--sizes", "64,256", "--channels", "16", "--repeats", "1", "--seconds", "0.1"]
    monkeypatch.setattr(
        "sys.argv",
        [
            "ham",
            "bench",
            "table3",
            *arguments,
            "--json",
            str(rows),
            "--plot",
            str(picture),
            "--csv",
            str(tmp_path / "rows.csv"),
        ],
    )
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 0
    assert [json.loads(line)["module"] for line in rows.read_text().splitlines()] == ["nmf", "a2"] * 2
    header, *lines = (tmp_path / "rows.csv").read_text().splitlines()
    assert header.startswith("module,n,params,macs,infer_ms") and len(lines) == 4
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "a2" in capsys.readouterr().out
