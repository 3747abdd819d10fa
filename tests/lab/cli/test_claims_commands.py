"""`ham ablate` and `ham claims` from the command line."""

from __future__ import annotations

import csv
import json

from typer.testing import CliRunner

import hamburger as hb
from hamburger.cli.app import app
from hamburger.segmentation import Info, save_weights
from hamburger.segmentation.data import create_dataset

SETTINGS = ("steps=2", "eval_every=2", "checkpoint_every=2", "batch=2", "data.options.length=8")
TINY = [word for setting in SETTINGS for word in ("--set", setting)]


def test_ablate_runs_resumes_and_feeds_claims(tmp_path):
    out, target = tmp_path / "runs", tmp_path / "results" / "ablation_dictionary_patchwork_cpu.jsonl"
    words = ["ablate", "dictionary", "--seeds", "0", "--cells", "nmf-drawn1", "--out", str(out), "--json", str(target)]
    first = CliRunner().invoke(app, [*words, *TINY])
    assert first.exit_code == 0, first.output
    made = [json.loads(line) for line in target.read_text().splitlines()]
    assert [row["cell"] for row in made] == ["nmf", "nmf-drawn1"]
    assert made[0]["steps"] == 2 and made[1]["draws"] == 1 and made[1]["weights"] == "nmf"
    assert str(tmp_path) not in target.read_text()
    stamp = (out / "nmf-seed0" / "result.json").stat().st_mtime_ns
    table = tmp_path / "table.csv"
    again = CliRunner().invoke(app, [*words, *TINY, "--csv", str(table)])
    with table.open() as file:
        listed = list(csv.DictReader(file))
    assert [row["cell"] for row in listed] == ["nmf", "nmf-drawn1"]
    assert [float(row["miou"]) for row in listed] == [row["miou"] for row in made]
    # what tells runs apart, and who collapsed, also from the table alone
    assert [json.loads(listed[0][name]) for name in ("settings", "per_class")] == [
        made[0]["settings"],
        made[0]["per_class"],
    ]
    assert again.exit_code == 0 and (out / "nmf-seed0" / "result.json").stat().st_mtime_ns == stamp
    both = CliRunner().invoke(app, ["ablate", "parts,init", "--out", str(tmp_path / "both"), "--csv", str(table)])
    assert both.exit_code and "put {grid} where the name belongs" in str(both.exception)
    plan = CliRunner().invoke(app, [*words, *TINY, "--plan"])
    assert plan.stdout.splitlines() == ["nmf-seed0: finished", "nmf-drawn1-seed0: finished"]

    verdicts, page = tmp_path / "claims.json", tmp_path / "claims.html"
    printed = CliRunner().invoke(
        app, ["claims", "--results", str(target.parent), "--json", str(verdicts), "--html", str(page)]
    )
    assert printed.exit_code == 0, printed.output
    result = {row["id"]: row for row in json.loads(verdicts.read_text())}
    assert result["evaluation-stored-dictionary"]["verdict"] == "inconclusive"  # one seed decides nothing
    assert result["parts-ham"]["verdict"] == "not run"
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_eval_with_several_steps_writes_one_file_each(tmp_path):
    net = hb.create_model("hamnet", backbone="tiny", output_stride=4, num_classes=10, head_options={"width": 16})
    extra = {"data": "patchwork", "data_options": {"size": 16, "length": 2}}
    weights = tmp_path / "net.safetensors"
    classes = create_dataset("patchwork", "val", size=16, length=2).classes
    save_weights(weights, net, Info(classes=tuple(classes), extra=extra))
    target = str(tmp_path / "at{}.json")
    printed = CliRunner().invoke(app, ["eval-solver", str(weights), "--steps", "1,9", "--json", target])
    assert printed.exit_code == 0, printed.output
    result = {n: json.loads((tmp_path / f"at{n}.json").read_text()) for n in (1, 9)}
    assert [result[n]["eval_steps"] for n in (1, 9)] == [1, 9] and "steps 9" in printed.stdout
    inside = str(tmp_path / "inside.json")
    printed = CliRunner().invoke(app, ["eval-solver", str(weights), "--statistics-images", "1", "--json", inside])
    assert printed.exit_code == 0 and "rank_before " in printed.stdout
    assert json.loads((tmp_path / "inside.json").read_text())["bound"] == 8
    for words, message in (
        (["--steps", "1,9", "--json", str(tmp_path / "one.json")], "put {} into the name"),
        (["--steps", "1,9", "--dictionary-seeds", "1,2"], "give several of one of them"),
        (["--steps", "1,9", "--statistics-images", "1"], "takes a single evaluation"),
        (["--steps", "six"], "whole numbers"),
    ):
        assert message in str(CliRunner().invoke(app, ["eval-solver", str(weights), *words]).exception)


def test_claims_only_prints_one_claim_and_suggests_names(tmp_path):
    output = CliRunner().invoke(app, ["claims", "--results", str(tmp_path), "--only", "parts-ham"])
    assert output.exit_code == 0 and "command: ham ablate parts" in output.stdout
    row = {"recipe": "patchwork", "steps": 9, "hardware": "H"}
    scores = {"whole": (0.51, 0.52, 0.53), "without-ham": (0.5, 0.5, 0.5)}
    made = [
        row | {"cell": c, "seed": i, "miou": s} for c, cell_scores in scores.items() for i, s in enumerate(cell_scores)
    ]
    (tmp_path / "ablation_parts_x.jsonl").write_text("".join(json.dumps(one) + "\n" for one in made))
    output = CliRunner().invoke(app, ["claims", "--results", str(tmp_path), "--only", "parts-ham"])
    assert "detectable: 2.48 points, of whole - without-ham" in output.stdout
    assert "photographs decide" not in output.stdout  # there is nothing else, so these scenes decide
    wide = CliRunner().invoke(app, ["claims", "--results", str(tmp_path)], env={"COLUMNS": "120"})
    assert "detectable" in wide.stdout
    wrong = CliRunner().invoke(app, ["claims", "--results", str(tmp_path), "--only", "part-ham"])
    assert "did you mean 'parts-ham'" in str(wrong.exception)
    nowhere = CliRunner().invoke(app, ["claims", "--results", str(tmp_path / "none")])
    assert "name a folder with *.jsonl files" in str(nowhere.exception)


def test_claims_table_never_wraps_names_and_explains_marks(tmp_path):
    row = {"recipe": "voc-animals", "steps": 9, "hardware": "H"}
    lost = {"per_class": {"sky": 0.5, "road": 0.0}}  # one class alone is answered
    scores = {"whole": ({}, 0.5), "without-ham": (lost, 0.1), "without-upper": ({}, 0.4)}
    made = [
        row | extra | {"cell": c, "seed": i, "miou": s + i / 1000} for c, (extra, s) in scores.items() for i in range(3)
    ]
    (tmp_path / "ablation_parts_x.jsonl").write_text("".join(json.dumps(one) + "\n" for one in made))
    message = CliRunner().invoke(app, ["claims", "--results", str(tmp_path)], env={"COLUMNS": "80"}).stdout
    assert "propositions-direction-equation" in message
    assert "† some trainings collapsed" in message and "generated scenes" not in message
    marked = {line.split()[0]: "†" in line for line in message.splitlines() if "parts-" in line}
    assert marked["parts-ham"] and not marked["parts-upper"]
    output = CliRunner().invoke(app, ["claims", "--results", str(tmp_path), "--only", "parts-ham"]).stdout
    assert output.startswith("parts-ham: confirmed (some trainings collapsed, small scale)")
