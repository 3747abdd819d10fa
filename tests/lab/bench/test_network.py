"""`ham bench network`: rows, ratios, errors, and the flags of training."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

import pytest
import torch

from hamburger.errors import OptionError, UnknownNameError
from hamburger_lab.bench import network
from hamburger_lab.bench.common import model_options
from hamburger_lab.pages import segmentation

TINY = {"backbone": "resnet18", "crop": 33, "batch": 2, "num_classes": 3, "repeats": 2}


def plan(*contexts, **options):
    return network.NetworkPlan(variants={name: model_options(name) for name in contexts}, **(TINY | options))


@pytest.fixture(scope="module")
def rows():
    return network.measure(plan("baseline", "nmf"))


def test_rows_have_consistent_fields(rows):
    assert [row.context for row in rows] == ["baseline", "nmf"]
    for row in rows:
        assert row.train_ms > 0 and row.train_ms_iqr >= 0 and row.peak_mb > 4 * row.params / 2**20
        assert row.images_per_s == pytest.approx(row.batch / row.train_ms * 1e3, rel=0.01, abs=0.06)  # one decimal
        assert (row.note, row.repeats, row.ratio_to) == ("", 2, "baseline")
        assert row.backend == os.environ.get("HAM_BACKEND", "auto")
        assert (row.tf32, row.cudnn_benchmark) == ("off", False)  # of a CPU
    assert rows[1].params > rows[0].params
    json.dumps([asdict(row) for row in rows], allow_nan=False)


@pytest.mark.full
def test_ratios_compare_steps_of_the_same_round(monkeypatch):
    times = {"baseline": iter([9.0, 10.0, 20.0, 40.0]), "breads": iter([9.0, 15.0, 40.0, 60.0])}
    orders = []

    def clock(step, args, device):
        name = next(name for name, candidate in race.steps.items() if candidate is step)
        orders.append(name)
        return next(times[name])

    monkeypatch.setattr(network, "time_call", clock)
    race = network.SegmentationRace(plan("baseline", "breads", repeats=3))
    for context in times:
        race.add(context)
    first, second = race.rows(race.run(lambda what: None))
    assert (first.ratio, second.ratio) == (1.0, 1.5)  # of 1.5, 2 and 1.5; the first round does not count
    assert (first.train_ms, second.train_ms) == (20.0, 40.0)
    assert all(set(orders[turn : turn + 2]) == set(times) for turn in range(0, 8, 2))


def test_waiting_network_holds_no_gradients():
    race = network.SegmentationRace(plan("baseline"))
    race.add("baseline")
    assert all(p.grad is None for p in race.steps["baseline"].net.parameters())


@pytest.mark.full
def test_network_with_nonfinite_loss_is_skipped(monkeypatch):
    built = iter([1.0, float("nan")])

    class Step(network.TrainingStep):
        def __init__(self, *args):
            super().__init__(*args)
            self.factor = next(built)

        def __call__(self):
            return super().__call__() * self.factor

    monkeypatch.setattr(network, "TrainingStep", Step)
    good, refused = network.measure(plan("baseline", "breads", repeats=1))
    assert refused.note == "refused: the loss is nan" and refused.params > 0
    assert refused.train_ms is refused.ratio is refused.peak_mb is None
    assert good.train_ms > 0 and good.train_ms_iqr is None  # one round has no spread


@pytest.mark.full
def test_out_of_memory_becomes_a_note(monkeypatch):
    def peak(step, resident, device):
        if len(resident) > baseline:
            raise torch.OutOfMemoryError("no room")
        return 1.0

    probe = network.SegmentationRace(plan("baseline"))
    probe.add("baseline")
    baseline = len(probe.steps["baseline"].resident())
    monkeypatch.setattr(network.footprint, "peak_mib", peak)
    small, large = network.measure(plan("baseline", "nmf", repeats=1))
    assert small.train_ms > 0
    assert large.note == "out of memory next to 1 other networks; try it alone" and large.train_ms is None


def test_training_flags_are_set_and_restored(monkeypatch):
    before = torch.backends.cudnn.benchmark
    with network.training_flags("cuda"):
        assert torch.backends.cudnn.benchmark
        assert network.describe_tf32("cuda") == "convolutions"  # torch's default, which training leaves
    assert torch.backends.cudnn.benchmark == before
    with network.training_flags("cpu"):
        assert torch.backends.cudnn.benchmark == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": 0}, "crop"),
        ({"dtype": "tf32"}, "no dtype 'tf32'"),
        ({"repeats": 0}, "repeats"),
        ({"seed": -1}, "seed"),
    ],
)
def test_messages(options, message):
    with pytest.raises(OptionError, match=message):
        plan("baseline", **options)
    with pytest.raises(OptionError, match="at least one context"):
        plan()


def test_unknown_context_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'nmf'"):
        plan("nfm")


def test_page_reads_new_and_older_rows(rows):
    result = [asdict(row) for row in rows]
    assert (
        "networks in shuffled rounds, TF32 off, medians of 2 steps with interquartile range"
        in segmentation.network_speed_table(result)
    )
    alone = [row | {"train_ms_iqr": None} for row in result]
    assert "medians of 2 steps. " in segmentation.network_speed_table(alone)
    older = [{key: row[key] for key in row if key not in ("ratio", "ratio_to", "tf32")} for row in result]
    assert "one network at a time" in segmentation.network_speed_table(older)


@pytest.mark.full
def test_command_writes_rows_and_a_table(tmp_path, monkeypatch, capsys):
    from hamburger import cli

    options = [word for name, value in TINY.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    arguments = ["--contexts", "baseline,nmf", *options, "--json", str(tmp_path / "rows.jsonl")]
    monkeypatch.setattr("sys.argv", ["ham", "bench", "network", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 0
    assert [json.loads(line)["context"] for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == [
        "baseline",
        "nmf",
    ]
    assert "training step of resnet18" in capsys.readouterr().out
