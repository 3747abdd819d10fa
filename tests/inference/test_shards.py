"""`ham predict` in several processes, killed and resumed: the same summary, and no image predicted twice."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys

import pytest
from PIL import Image
from rich.console import Console
from small_segmenter import ByColour, info

from hamburger.errors import DataError, InputError, OptionError
from hamburger.inference.predict_files import find_images, notes, predict_folder, table
from hamburger.inference.summary import Shard
from hamburger.segmentation.predict import SegmentationPredictor


class Killed(BaseException):
    """Stands for a kill: nothing of ours catches it."""


@pytest.fixture
def photos(tmp_path):
    """Seven photos of different sizes; the third is broken."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(7):
        Image.new("RGB", (5 + i, 4), (255, 0, 0)).save(folder / f"{i}.png")
    (folder / "2.png").write_bytes((folder / "0.png").read_bytes()[:45])
    return folder


class Recorder(SegmentationPredictor):
    """Remembers the images it was called for, and is killed in place of the image `fatal`."""

    def __init__(self, fatal=None, **options):
        super().__init__(ByColour(), info(), "cpu", overlay=False, **options)
        self.fatal, self.called = fatal, []

    def __call__(self, *paths):
        self.called.append(paths[0].name)
        if self.fatal == paths[0].name:
            raise Killed
        return super().__call__(*paths)


def run(photos, out, *, fatal=None, side=0, **options):
    predictor = Recorder(fatal, side=side)
    try:
        summary = predict_folder(predictor, find_images([photos]), out, weights="abc", **options)
    except Killed:
        return predictor, None
    return predictor, summary


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def expected(photos, tmp_path):
    run(photos, tmp_path / "expected")
    return contents(tmp_path / "expected")


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2)])
def test_shards_leave_what_one_process_leaves(photos, tmp_path, expected, order):
    called = []
    for k in order:
        predictor, summary = run(photos, tmp_path / "out", shard=Shard(k, 3))
        called += predictor.called
        assert summary.left == sum(len(range(7)[i - 1 :: 3]) for i in order[order.index(k) + 1 :])
    assert sorted(called) == [f"{i}.png" for i in range(7)]
    assert contents(tmp_path / "out") == expected


@pytest.mark.parametrize("fatal", [f"{i}.png" for i in range(7)])
def test_a_killed_shard_loses_its_current_image_only(photos, tmp_path, expected, fatal):
    shards = [Shard(k, 2) for k in (1, 2)]
    first = [run(photos, tmp_path / "out", fatal=fatal, shard=shard)[0] for shard in shards]
    again = [run(photos, tmp_path / "out", resume=True, shard=shard)[0] for shard in shards]
    finished = {name for each in first for name in each.called} - {fatal, "2.png"}
    assert {name for each in again for name in each.called}.isdisjoint(finished)
    assert contents(tmp_path / "out") == expected


def test_a_killed_process_resumes_to_the_same_bits(photos, tmp_path, expected):
    """The folder is copied after each image, as a kill would leave it."""
    out, copies = tmp_path / "out", []

    def copy(image):
        copies.append(shutil.copytree(out, tmp_path / f"copy{len(copies)}"))

    run(photos, out, after=copy)
    for count, folder in enumerate(copies, 1):
        with (folder / "records-1-of-1.jsonl").open("ab") as file:
            file.write(b'{"image": "half a li')
        predictor, _ = run(photos, folder, resume=True)
        assert [name for name in predictor.called if name != "2.png"] == [f"{i}.png" for i in range(count, 7) if i != 2]
        assert contents(folder) == expected


def test_another_number_of_shards_takes_over(photos, tmp_path, expected):
    for k in (1, 2, 3):
        run(photos, tmp_path / "out", fatal="5.png", shard=Shard(k, 3))
    predictor, _ = run(photos, tmp_path / "out", resume=True)
    assert predictor.called == ["2.png", "5.png"] and contents(tmp_path / "out") == expected


def test_a_finished_folder_is_only_completed(photos, tmp_path, expected):
    run(photos, tmp_path / "out")
    (tmp_path / "out" / "4.png").unlink()
    predictor, _ = run(photos, tmp_path / "out", resume=True)
    assert predictor.called == ["2.png", "4.png"] and contents(tmp_path / "out") == expected
    assert len(run(photos, tmp_path / "out")[0].called) == 7  # without resume: all again


def test_resume_refuses_other_settings(photos, tmp_path):
    run(photos, tmp_path / "out")
    before = contents(tmp_path / "out")
    with pytest.raises(OptionError, match=r"--resume: .*other settings \(side\).*--out"):
        run(photos, tmp_path / "out", resume=True, side=16)
    assert contents(tmp_path / "out") == before


def test_a_shard_that_another_process_predicts_is_refused(photos, tmp_path):
    path = Shard(1, 2).path(tmp_path / "out")
    path.parent.mkdir()
    script = "import sys, hamburger.files as f; o = open(sys.argv[1], 'ab'); print(f.lock(o), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script, path], stdin=-1, stdout=-1) as other:
        other.stdout.readline()
        with pytest.raises(OptionError, match=r"another process is writing .*records-1-of-2"):
            run(photos, tmp_path / "out", shard=Shard(1, 2))
        other.communicate(b"\n")
    assert run(photos, tmp_path / "out", shard=Shard(1, 2))[1].left == 3


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"settings": {}}\n{"image": 5, "files": 3}', "[" * 9999, '{"settings": 1}\n3']
)
def test_foreign_records_are_refused(photos, tmp_path, content):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "records-1-of-1.jsonl").write_text(content + "\n")
    with pytest.raises(InputError, match="is not a record of predictions"):
        run(photos, tmp_path / "out", resume=True)
    predictor = Recorder(side=0)
    with pytest.raises(InputError, match="is not a record of predictions"):
        predict_folder(predictor, find_images([photos]), tmp_path / "out")
    assert predictor.called == []  # not after hours of work


@pytest.mark.parametrize("name", ["records-1-of-1.jsonl", ".records.lock"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe"])
def test_predictions_write_to_no_link_and_wait_for_no_pipe(photos, tmp_path, name, kind):
    path, victim = tmp_path / "out" / name, tmp_path / "victim"
    path.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(victim)
    if kind == "link":
        victim.write_bytes(b"")
    with pytest.raises(DataError, match=rf"{name}: (is .*regular file|missing)"):
        run(photos, tmp_path / "out")
    assert victim.read_bytes() == b"" if kind == "link" else not victim.exists()


@pytest.mark.parametrize("row", [{}, {"tiles": "many"}, {"tiles": None, "shares": 3}])
def test_rows_of_strangers_are_shown_without_effect(photos, tmp_path, row):
    out = tmp_path / "out"
    predictor, summary = run(photos, out)
    one = {"image": str(photos / "0.png"), "label": "0.png", "size": "\x1b]0;title\x07[/x]", **row}
    settings = {"settings": json.loads((out / "summary.json").read_text())}
    (out / "summary.json").unlink()
    for path in out.glob("[1-9].png"):
        path.unlink()
    (out / "records-1-of-1.jsonl").write_text(f"{json.dumps(settings)}\n{json.dumps(one)}\n")
    (out / "summary.json").write_text(json.dumps({"images": [], "failed": [], "earlier": ["0.png"]}))
    predictor, summary = run(photos, out, resume=True)
    assert "0.png" not in predictor.called
    console = Console(file=io.StringIO(), width=200)
    console.print(table(predictor, summary))
    assert "0.png" in console.file.getvalue() and "\x1b" not in console.file.getvalue()
    assert len(list(notes(predictor, find_images([photos]), summary, out))) <= 2


@pytest.mark.parametrize("text", ["0/2", "3/2", "2", "a/b", "1/", "-1/2", "1/2/3", "1" * 30])
def test_bad_shards_are_refused(text):
    with pytest.raises(OptionError, match="such as 3/8"):
        Shard.parse(text)


def test_torchrun_sets_the_shard(monkeypatch):
    assert Shard.of_process() == Shard(1, 1)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert Shard.of_process() == Shard(3, 8) == Shard.parse("3/8")


def test_the_summary_names_the_weights(photos, tmp_path):
    run(photos, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["weights"] == "abc"
