"""Reading run folders: missing files are allowed, broken files are named."""

from __future__ import annotations

import json

import pytest

from hamburger.errors import HamburgerError
from hamburger.report.study import RunError, read_run, read_runs


def test_run_is_read_as_written(make_run):
    run = read_run(make_run("nmf", seed=3, miou=0.625, weights=True))
    assert (run.seed, run.score, run.recipe["model"]["context"]) == (3, 0.625, "nmf")
    assert run.curve("miou") == {20: 0.3125, 40: 0.625}
    assert list(run.curve("loss")) == [10, 20, 30, 40]
    assert run.weights.name == "best.safetensors"


def test_an_unfinished_run_has_no_score(make_run):
    run = read_run(make_run("nmf", finished=False, curves=False))
    assert (run.score, run.rows, run.weights) == (None, (), None)


def test_folder_of_runs_expands_to_its_runs(make_run, tmp_path):
    one, two = make_run("nmf", seed=1), make_run("nmf", seed=2)
    assert [run.path for run in read_runs([tmp_path / "runs"])] == [one, two]
    assert len(read_runs([one, tmp_path / "runs", two])) == 2


def test_a_line_that_is_being_written_is_left_out(make_run):
    path = make_run("nmf") / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 50, "lo')
    assert len(read_run(path.parent).rows) == 6


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("recipe.json", b"{", "recipe.json is not valid JSON"),
        ("recipe.json", b"[1]", "must contain a JSON object"),
        ("recipe.json", b'{"seed": 1}', "missing 1 required"),
        ("recipe.json", b'{"model": {}, "data": {}}', "missing 1 required"),
        ("recipe.json", b"\xff\xfe\x00", "recipe.json is not UTF-8 text"),
        ("result.json", b'{"seed": 1}', "has no number 'miou'"),
        ("result.json", b'{"miou": NaN, "seed": 1}', "NaN is not a JSON number"),
        ("result.json", b'{"miou": 1e300, "seed": 1}', "is too large"),
        ("result.json", b'{"miou": 0.5, "task": "stereo"}', "has task 'stereo'"),
        ("metrics.jsonl", b'{"step": 1e9}\n', "metrics.jsonl, line 1"),
        ("recipe.json", b'{"name": "x", "batch": [[]]}', "batch: takes a whole number"),
        ("result.json", b"", "result.json is not valid JSON"),
        ("metrics.jsonl", b'{"step": 1}\nxx\n{"step": 2}\n', "metrics.jsonl, line 2"),
        ("metrics.jsonl", b'{"loss": 1}\n', "metrics.jsonl, line 1"),
    ],
)
def test_a_broken_file_is_named(make_run, file, content, says):
    run = make_run("nmf")
    (run / file).write_bytes(content)
    with pytest.raises(HamburgerError) as caught:
        read_run(run)
    assert says in str(caught.value)
    assert str(run / file) in str(caught.value)


@pytest.mark.parametrize(("file", "size"), [("result.json", 2**24), ("metrics.jsonl", 2**26)])
def test_a_file_that_would_fill_the_memory_is_not_read(make_run, file, size):
    run = make_run("nmf")
    with (run / file).open("wb") as written:
        written.truncate(size + 1)
    with pytest.raises(HamburgerError, match=rf"{file}: has {size + 1:,} bytes; at most {size:,} are read"):
        read_run(run)


def test_a_folder_that_is_not_a_run_is_an_error(tmp_path):
    with pytest.raises(RunError, match="is not a run folder"):
        read_runs([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=r"has no recipe\.json"):
        read_runs([tmp_path / "empty"])
    with pytest.raises(RunError, match="no run folder given"):
        read_runs([])


def test_missing_numbers_leave_gaps(make_run):
    path = make_run("nmf") / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [{"step": 1, "loss": None}, {"step": 2, "loss": 1.0}]))
    assert read_run(path.parent).curve("loss") == {2: 1.0}
