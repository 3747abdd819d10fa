"""`ham bench classes`: rows, networks of the recipes, errors, tables."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch
from torch import nn

import hamburger as hb
from hamburger.classification.recipe import cifar10_classes
from hamburger.errors import OptionError, UnknownNameError
from hamburger_lab.bench import classes
from hamburger_lab.bench.common import model_options
from hamburger_lab.cli import bench as commands
from hamburger_lab.pages import classification

TINY = {"sizes": (16, 32), "batch": 2, "num_classes": 3, "repeats": 1}


def plan(*contexts, **options):
    return classes.ClassifierPlan({name: model_options(name) for name in contexts}, **(TINY | options))


@pytest.fixture(scope="module")
def rows():
    return list(classes.measure(plan("none", "efficient")))


def test_rows_have_consistent_fields(rows):
    assert [(row.size, row.context) for row in rows] == [
        *((16, "none"), (16, "efficient")),
        *((32, "none"), (32, "efficient")),
    ]
    assert [row.n for row in rows] == [16, 16, 64, 64]
    for row in rows:
        assert row.train_ms > 0 and row.peak_mb > 4 * row.params / 2**20
        assert row.images_per_s == pytest.approx(row.batch / row.train_ms * 1e3, rel=0.01, abs=0.06)  # one decimal
        assert (row.note, row.ratio_to, row.after, row.stem) == ("", "none", "layer3", "small")
    assert rows[0].ratio == 1 and rows[0].context_mb == 0 and rows[1].params > rows[0].params
    json.dumps([asdict(row) for row in rows], allow_nan=False)


def test_network_and_batch_match_the_recipe():
    recipe, defaults = cifar10_classes(), classes.ClassifierPlan({"none": {}})
    requested = commands.BENCHMARKS["classes"].options
    for option in ("backbone", "stem", "after"):
        assert getattr(defaults, option) == requested[option].default == getattr(recipe.model, option)
    assert defaults.batch == requested["batch"].default == recipe.batch and defaults.sizes == (recipe.data.size,)
    assert defaults.num_classes == requested["num_classes"].default
    built = classes.ClassifierRace(plan("nmf"), 32).create("nmf").net.config
    assert (built["gate"], built["size"], built["context"]) == (recipe.model.gate, 32, "nmf")


def test_step_trains_channels_last():
    networks = classes.ClassifierRace(plan("nmf"), 16)
    networks.add("nmf")
    step = networks.steps["nmf"]
    assert step.images.is_contiguous(memory_format=torch.channels_last)
    assert step.net.net.net.conv1.weight.is_contiguous(memory_format=torch.channels_last)
    before = [p.detach().clone() for p in step.net.parameters()]
    loss = step()
    assert loss > 0 and any((p != old).any() for p, old in zip(step.net.parameters(), before, strict=True))
    assert all(p.grad is None for p in step.net.parameters())


class Turned(nn.Module):
    """A map with channels last, as in a Swin transformer."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 12, 3, stride=2, padding=1), nn.LayerNorm(12)
        self.shared = nn.Conv2d(12, 12, 1)

    def forward(self, x):
        y = self.norm(self.conv(x).movedim(1, -1)).movedim(-1, 1)
        self.shared(y), self.shared(y[..., :2, :2])
        return y


@pytest.mark.parametrize("context", [None, "efficient"])
def test_positions_are_counted_on_any_layout(context):
    networks, net = classes.ClassifierRace(plan("none"), 16), Turned()
    if context:
        hb.insert_context(net, {"norm": context, "conv": context})
    for place in ("norm", "conv", "shared"):
        networks.count_positions(place, net, place)
    net(torch.rand(2, 3, 16, 10))
    assert networks.positions == {"norm": 8 * 5, "conv": 8 * 5, "shared": None}


def test_page_shows_every_size_and_notes(rows):
    result = [asdict(row) for row in rows]
    result[3] |= {"train_ms": None, "train_ms_iqr": None, "ratio": None, "images_per_s": None, "peak_mb": None}
    result[3] |= {"note": "out of memory", "n": None}
    text = classification.classifier_speed_table(result[::-1]).splitlines()
    assert text[0].startswith("| context | image | parameters, 10^6 | ms | ratio to none | images/s")
    assert [line.split(" | ")[:2] for line in text[2:6]] == [
        *(["| efficient", "16 px (n = 16)"], ["| none", "16 px (n = 16)"]),
        *(["| efficient", "32 px"], ["| none", "32 px (n = 64)"]),
    ]
    assert "out of memory" in text[4] and "resnet18 (stem small)" in text[-1] and "3 classes" in text[-1]
    assert classification.classifier_speed_table([]) == "No rows yet."


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"sizes": ()}, "bench classes: give at least one size"),
        ({"sizes": (32, 4)}, "size must be a whole number of at least 8, got 4"),
        ({"batch": 1}, "batch must be a whole number of at least 2, got 1"),
        ({"num_classes": 1}, "num_classes must be a whole number of at least 2, got 1"),
        ({"stem": "smal"}, "no stem 'smal'; did you mean 'small'"),
        ({"dtype": "tf32"}, "no dtype 'tf32'"),
        ({"device": "gpu"}, "no device 'gpu'"),
        ({"repeats": 0}, "repeats"),
        ({"seed": -1}, "seed"),
    ],
    ids=str,
)
def test_invalid_options_name_the_rule(options, complaint):
    with pytest.raises(OptionError, match=complaint):
        plan("none", **options)
    with pytest.raises(OptionError, match="at least one context"):
        plan()


@pytest.mark.parametrize("context", ["none", "efficient"])
def test_unknown_submodule_suggests_the_nearest(context):
    with pytest.raises(UnknownNameError, match="the model has no submodule 'layr3'; did you mean 'layer3'"):
        list(classes.measure(plan(context, after="layr3", sizes=(16,))))


@pytest.mark.full
def test_command_writes_rows_and_a_table(tmp_path, monkeypatch, capsys):
    from hamburger import cli

    arguments = ["--contexts", "none,nmf", "--sizes", "16", "--batch", "2", "--repeats", "1"]
    monkeypatch.setattr("sys.argv", ["ham", "bench", "classes", *arguments, "--json", str(tmp_path / "rows.jsonl")])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 0
    written = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [(row["context"], row["size"], row["num_classes"]) for row in written] == [("none", 16, 10), ("nmf", 16, 10)]
    assert "training step of a classifier, resnet18" in capsys.readouterr().out
