"""`ham data` on small data sets."""

from __future__ import annotations

import sys
from contextlib import contextmanager

import fake_coco
import fake_datasets
import fake_stereo
import pytest
from typer.testing import CliRunner

from hamburger.cli import data, main
from hamburger.cli.app import app


def test_check_prints_classes_shares_and_sizes(tmp_path):
    fake_datasets.folder(tmp_path, ids=4)
    result = CliRunner().invoke(app, ["data", "check", "folder", "--data", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "folder, train: 3 images, 32 x 24" in result.stdout and "folder, val: 1 images" in result.stdout
    assert "road" in result.stdout and "%" in result.stdout


@pytest.mark.parametrize(
    ("name", "write", "split", "options"),
    [
        ("folder", fake_datasets.folder, "train", ()),
        ("coco", fake_coco.coco, "train2017", ()),
        ("sceneflow", fake_stereo.sceneflow, "train", ()),
        ("shapes", None, "train", ("length=3", "size=32")),
        ("planes", None, "train", ("length=3",)),
    ],
)
def test_check_shows_how_many_images_it_has_read(name, write, split, options, tmp_path, monkeypatch):
    bars = []

    @contextmanager
    def count(what, total):
        bars.append([what, total, 0])

        def update(advance):
            bars[-1][2] += advance

        yield update

    monkeypatch.setattr(data, "progress_bar", count)
    arguments = ["data", "check", name, "--split", split, *(word for each in options for word in ("--option", each))]
    if write is not None:
        write(tmp_path)
        arguments += ["--data", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    (bar,) = bars
    assert bar[0] == f"reading {split}" and bar[1] == bar[2] > 1


def test_check_notes_images_of_two_splits(tmp_path):
    fake_datasets.folder(tmp_path, ids=4)
    arguments = ["data", "check", "folder", "--data", str(tmp_path)]
    assert "in both" not in CliRunner().invoke(app, arguments).output
    fake_datasets.write_list(tmp_path / "val.txt", ["img1", "img2", "img3"])
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0 and "2 images are in both train and val" in result.stdout


def test_check_lists_every_problem_and_ends_with_status_2(tmp_path):
    fake_datasets.folder(tmp_path, ids=30)
    for path in (tmp_path / "labels").iterdir():
        path.unlink()
    result = CliRunner().invoke(app, ["data", "check", "folder", "--data", str(tmp_path), "--split", "train"])
    assert result.exit_code == 2
    assert result.stderr.count("missing") == 29 and "29 problems" in result.stderr.splitlines()[-1]


def test_text_of_a_data_set_does_not_control_the_terminal(tmp_path, monkeypatch, capsys):
    fake_datasets.folder(tmp_path, ids=4)
    fake_datasets.write_list(tmp_path / "train.txt", ["img1", "\x1b[31mred\u202e"])
    arguments = ["data", "check", "folder", "--data", str(tmp_path), "--split", "train"]
    shown = CliRunner().invoke(app, arguments).output
    assert "\\x1b[31mred\\u202e" in shown and "\x1b" not in shown
    (tmp_path / "classes.txt").write_text("sky\nroad\x1b[31m\ntree\n")
    monkeypatch.setattr(sys, "argv", ["ham", *arguments])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "must have a printable name (got 'road\\x1b[31m')" in capsys.readouterr().err


def test_options_reach_the_set(tmp_path):
    fake_datasets.folder(tmp_path, ids=4)
    arguments = ["data", "check", "folder", "--data", str(tmp_path), "--option", "classes=road,tree"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0 and "sky" not in result.stdout
    assert CliRunner().invoke(app, [*arguments[:-1], "ignore=[0]"]).exception is not None  # 0 is a class


def test_prepare_voc(tmp_path):
    fake_datasets.voc(tmp_path)
    fake_datasets.sbd(tmp_path)
    arguments = ["data", "prepare", "voc", "--root", str(tmp_path)]
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code != 0 and "10,582" in str(refused.exception)
    result = CliRunner().invoke(app, [*arguments, "--any-counts"])
    assert result.exit_code == 0, result.output
    assert "trainaug 4" in result.stdout and "2 of VOC, 2 of SBD" in result.stdout


def test_prepare_is_part_of_the_lab(monkeypatch, capsys):
    monkeypatch.setattr(data.app, "registered_groups", [])
    monkeypatch.setattr(sys, "argv", ["ham", "data", "prepare", "voc", "--root", "."])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2 and "`ham data prepare` is part of hamburger-lab" in capsys.readouterr().err


def test_check_refuses_one_class_and_notes_classes_without_pixels(tmp_path):
    arguments = ["data", "check", "folder", "--data", str(tmp_path), "--split", "train"]
    fake_datasets.folder(tmp_path, classes="sky\nroad\ntree\ncar\n")
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0 and "note: folder: split 'train': no pixel of 1 classes: car" in result.stdout
    (tmp_path / "classes.txt").write_text("background\ncell\n")
    for path in (tmp_path / "labels").iterdir():
        fake_datasets.write_label(path, (0, 255))
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2 and "every labelled pixel is 'background'" in result.stderr
    result = CliRunner().invoke(app, [*arguments, "--option", "binary=true"])
    assert result.exit_code == 0, result.output
