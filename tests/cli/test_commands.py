"""The `ham` command: files written, one clear line per error."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hamburger
from hamburger.cli.app import app

SMALL = ["--sizes", "64,128", "--dim", "16", "--rank", "4", "--repeats", "2"]


def test_bench_core_prints_ratios_and_writes_rows(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "rows.jsonl"
    result = CliRunner().invoke(app, ["bench", "core", *SMALL, "--json", str(target)])
    assert result.exit_code == 0, result.output
    assert "growth" in result.stdout
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert {row["n"] for row in rows} == {64, 128}
    assert {row["ham"] for row in rows} == {"nmf", "vq", "cd"}


@pytest.mark.full
def test_bench_shows_rate_and_remaining_time(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = CliRunner().invoke(app, ["bench", "core", *SMALL])
    assert result.exit_code == 0, result.output
    assert re.search(r"infer n=64 .*/16.*\d+\.\d(/s| s each) .*left .*\d:\d\d:\d\d", result.stderr)


def test_list_names_the_hams() -> None:
    result = CliRunner().invoke(app, ["list", "hams"])
    assert result.exit_code == 0
    assert result.stdout.split() == ["cd", "hals", "learned", "local", "nmf", "robust", "vq", "windowed"]


def test_version():
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"hamburger {hamburger.__version__}\n")


def test_list_recipes_shows_task_device_and_duration():
    result = CliRunner().invoke(app, ["list", "recipes"])
    assert result.exit_code == 0, result.output
    header, *rows = result.stdout.splitlines()
    assert header.split() == ["recipe", "task", "device", "duration"]
    cells = [row.split(maxsplit=3) for row in rows]
    assert {row[2] for row in cells} == {"CPU", "GPU"}  # every docstring names the device
    assert ["patchwork", "segmentation", "CPU", "0.5 to 2 min"] in cells
    assert ["voc", "segmentation", "GPU", "-"] in cells


def test_list_gan_recipes_as_a_table():
    rows = CliRunner().invoke(app, ["list", "gan-recipes"]).stdout.splitlines()[1:]
    assert {row.split()[2] for row in rows} == {"CPU", "GPU"}


def test_recover_recovers_the_scene(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["recover", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "recovery.png").read_bytes().startswith(b"\x89PNG")
    recoveries = json.loads((tmp_path / "recovery.json").read_text())["recoveries"]
    noisy = next(one["error"] for one in recoveries if one["method"] == "noisy")
    others = [one for one in recoveries if one["method"] != "noisy"]
    assert {one["method"] for one in others} == {"svd", "nmf", "vq", "cd"}
    assert all(one["error"] < noisy for one in others)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["bench", "core", "--sizes", "64,many"], "whole numbers"),
        (["bench", "core", "--sizes", "0"], "at least 2"),
        (["bench", "core", "--hams", "nfm"], "did you mean 'nmf'"),
        (["bench", "core", "--dtype", "float23"], "did you mean 'float32'"),
    ],
    ids=["sizes", "zero", "ham", "dtype"],
)
def test_error_is_one_line_with_status_2(ham, arguments, complaint):
    status, out, err = ham(*arguments)
    assert (status, out) == (2, "")
    assert len(err.strip().splitlines()) == 1 and complaint in err


@pytest.mark.full
def test_error_in_a_new_process_is_one_line():
    command = [sys.executable, "-m", "hamburger", "bench", "core", "--hams", "nfm"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.strip().splitlines()) == 1 and "did you mean 'nmf'" in done.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["compare", "patchwork", "--seeds", "a"], "compare: seeds must be comma-separated whole numbers"),
        (["demo", "--seeds", "1,x"], "demo: seeds must be comma-separated whole numbers"),
        (["demo", "--seeds", "1,1"], "demo: give each seed once"),
        (["demo", "--contexts", "nfm"], "demo: no context 'nfm'"),
        (["bench", "core", "--sizes", "big"], "bench core: sizes must be comma-separated whole numbers"),
    ],
    ids=str,
)
def test_errors_name_the_call_and_the_option(tmp_path, words, complaint):
    out = [] if words[0] == "bench" else ["--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, [*words, *out])
    assert result.exit_code != 0 and str(result.exception).startswith(complaint)
