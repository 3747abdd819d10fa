"""The page: every section, no external files, and the numbers of the result files."""

from __future__ import annotations

import base64
import json
import re
import sys
from html.parser import HTMLParser
from statistics import mean, stdev

import pytest
import torch
from scipy import stats

from hamburger.errors import HamburgerError
from hamburger.report.page import SECTIONS, write_report
from hamburger.segmentation.predict import draw_errors
from hamburger.segmentation.recipe import SegmentationData

VOID = {"meta", "img", "br", "hr", "path", "use", "rect", "line", "circle", "image", "stop"}


class Page(HTMLParser):
    """Tables by id as lists of rows, each cell the numbers in it or its text; and whether all tags are closed."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.ids, self.links, self.open, self.figures = {}, [], [], [], 0
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids += [values["id"]] if "id" in values else []
        self.links += [value for name, value in attributes if name in ("src", "href", "xlink:href", "srcset")]
        self.figures += "data-figure" in values
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.rows = self.tables.setdefault(values["id"], [])
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append([])
        elif tag == "data":
            self.rows[-1][-1].append(float(values["value"]))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, text):
        if self.open and self.open[-1] in ("td", "th", "data"):
            self.rows[-1][-1].append(text)

    def column(self, table, name):
        head, *rows = self.tables[table]
        place = [cell[0] for cell in head].index(name)
        return {row[0][0]: row[place] for row in rows}


def report(tmp_path, *folders, **options):
    text = write_report(folders, tmp_path / "out" / "report.html", **options).read_text()
    return text, Page(text)


SCORES = {None: [0.50, 0.52, 0.51], "nmf": [0.60, 0.63, 0.59], "sa": [0.70, 0.69, 0.71]}


@pytest.fixture
def whole(make_run, tmp_path):
    folders = [
        make_run(context, seed=seed, miou=score, weights=seed == 0)
        for context, scores in SCORES.items()
        for seed, score in enumerate(scores)
    ]
    return report(tmp_path, *folders, device="cpu")


def test_report_of_a_whole_study(whole):
    text, page = whole
    assert not page.open
    assert set(SECTIONS) <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))

    # nothing from outside, nothing that runs
    assert "http" not in re.sub(r"base64,[^\"]*", "", text)
    assert "<script" not in text
    assert all(link.startswith(("data:image/", "#")) for link in page.links)
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert "<small>" not in text
    assert "a &lt;small&gt; box" in text

    # the numbers are those of the files
    shown = page.column("scores", "mIoU, %")
    for name, scores in zip(("baseline", "nmf", "sa"), SCORES.values(), strict=True):
        assert shown[name][0] == pytest.approx(mean(scores), abs=1e-12)
        assert shown[name][1] == f"{100 * mean(scores):.2f}"
        assert page.column("scores", "deviation")[name][0] == pytest.approx(stdev(scores))
        assert page.column("scores", "parameters")[name][0] == 12345
        assert page.column("scores", "images/s")[name][0] == 11.5
        assert [page.column("per-seed", f"seed {seed}")[name][0] for seed in range(3)] == scores
    differences = [ours - theirs for ours, theirs in zip(SCORES["nmf"], SCORES[None], strict=True)]
    assert page.column("scores", "minus baseline")["nmf"][0] == pytest.approx(mean(differences))
    low, high = stats.t.interval(0.95, 2, loc=mean(differences), scale=stats.sem(differences))
    interval = [value for value in page.column("scores", "95 % interval")["nmf"] if isinstance(value, float)]
    assert interval == pytest.approx([low, high])
    per_class = page.column("per-class", "nmf")
    assert per_class["brick-cool"][0] == pytest.approx(mean(SCORES["nmf"]) + 0.01)
    assert per_class["plum-cool"] == ["-"]
    assert page.column("conditions", "how")["hardware"] == ["a <small> box"]

    # a rival that wins is reported as such
    assert "A rival wins: sa minus nmf is +9.33 points over 3 shared seeds" in text
    # figures: dots, two curves, two spectra; rows of images and of atoms
    assert page.figures == 5
    assert text.count('class="tiles') >= 2 + 2
    assert "Random images" in text and "gains most" in text and "loses most" in text
    assert len(re.findall(r"<span>atom \d+: ", text)) == 2 * 4  # two images, rank 4
    assert page.column("spectrum", "after")["nmf, ham alone"][0] <= 4
    assert {"nmf", "sa"} <= set(page.column("spectrum", "after"))
    assert "currentColor" in text and "#123456" not in text


def test_embedded_images_are_valid_files(whole):
    _, page = whole
    kinds = {link.partition(";")[0] for link in page.links if link.startswith("data:")}
    assert kinds == {"data:image/png"}  # scenes of 32 pixels are not worth a JPEG
    first = base64.b64decode(next(link for link in page.links if link.startswith("data:")).partition(",")[2])
    assert first.startswith(b"\x89PNG")


@pytest.mark.gpu
def test_gpu_and_cpu_give_the_same_report(make_run, tmp_path):
    folders = [make_run(context, weights=True) for context in (None, "nmf", "sa")]
    pages = [report(tmp_path, *folders, device=device)[1] for device in ("cpu", "cuda")]
    for name in ("nmf", "nmf, ham alone", "sa"):
        here, there = (page.column("spectrum", "after")[name][0] for page in pages)
        assert here == pytest.approx(there, abs=0.5)


def test_report_of_one_run_without_a_ham(make_run, tmp_path):
    text, page = report(tmp_path, make_run(None, curves=False, weights=True), device="cpu")
    assert set(SECTIONS) <= set(page.ids)
    assert "No network here has a ham" in text
    assert "no spectrum to show" in text
    assert "No run has written a learning curve" in text
    assert "There is nothing to compare it with here." in text
    assert "its spread is unknown" in text


def test_report_of_unfinished_runs(make_run, tmp_path):
    text, page = report(tmp_path, make_run("nmf", finished=False))
    assert "No run has finished yet" in text
    assert "No run has weights" in text
    assert page.column("scores", "mIoU, %")["nmf"] == ["not finished"]
    assert page.column("scores", "seeds")["nmf"] == ["0 of 1"]


def test_two_seeds_have_no_interval_and_a_losing_ham_is_reported(make_run, tmp_path):
    folders = [make_run(c, seed=s, miou=m) for c, m in ((None, 0.6), ("nmf", 0.5)) for s in (1, 2)]
    text, page = report(tmp_path, *folders)
    assert page.column("scores", "95 % interval")["nmf"] == ["needs 3 shared seeds, has 2"]
    assert "no context module is better than the baseline" in text
    assert "only a hint" in text


def test_without_the_data_folder_there_are_no_images(make_run, tmp_path):
    folder = make_run("nmf", weights=True)
    recipe = json.loads((folder / "recipe.json").read_text())
    recipe["data"] |= {"name": "camvid", "options": {}}
    (folder / "recipe.json").write_text(json.dumps(recipe))
    text, _ = report(tmp_path, folder)
    assert text.count("no folder was given (--data DIR)") == 3


def test_names_from_files_are_escaped(make_run, tmp_path):
    folder = make_run("nmf", name="<b>run")
    text, _ = report(tmp_path, folder)
    assert "<b>run" not in text
    assert "&lt;b&gt;run" in text


def test_the_same_runs_give_the_same_page(make_run, tmp_path):
    folders = [make_run(None, weights=True), make_run("cd", weights=True)]
    texts = [re.sub(r"Written [^.]*", "", report(tmp_path, *folders, device="cpu")[0]) for _ in range(2)]
    assert texts[0] == texts[1]


def test_errors_show_right_wrong_and_unlabelled():
    prediction = torch.tensor([[0, 1], [1, 0]], dtype=torch.uint8)
    label = torch.tensor([[0, 0], [255, 0]], dtype=torch.uint8)
    kinds = draw_errors(prediction, label).flatten(1).mT.tolist()
    assert kinds[0] == kinds[3]
    assert len({tuple(kind) for kind in kinds}) == 3


def ham(*arguments):
    from hamburger import cli

    before, sys.argv = sys.argv, ["ham", *arguments]
    try:
        cli.main()
    finally:
        sys.argv = before


def test_report_command_writes_the_page(make_run, tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        ham("report", str(make_run("nmf").parent), "--out", str(tmp_path / "r.html"))
    assert not left.value.code
    assert "wrote" in capsys.readouterr().out
    assert (tmp_path / "r.html").read_text().startswith("<!DOCTYPE html>")


def test_error_is_one_line_with_status_2(make_run, tmp_path, capsys):
    run = make_run("nmf")
    (run / "recipe.json").write_text("{")
    with pytest.raises(SystemExit) as left:
        ham("report", str(run), "--out", str(tmp_path / "r.html"))
    assert left.value.code == 2
    message = capsys.readouterr().err
    assert str(run / "recipe.json") in message
    assert message.count("\n") == 1
    assert not (tmp_path / "r.html").exists()


def test_weights_of_other_classes_are_refused(make_run, tmp_path):
    folder = make_run("nmf", weights=True)
    recipe = json.loads((folder / "recipe.json").read_text())
    recipe["data"]["options"]["families"] = 3
    (folder / "recipe.json").write_text(json.dumps(recipe))
    with pytest.raises(HamburgerError, match="classes"):
        report(tmp_path, folder, device="cpu")


def test_broken_weights_are_named(make_run, tmp_path):
    folder = make_run("nmf", weights=True)
    (folder / "best.safetensors").write_bytes(b"not weights")
    with pytest.raises(HamburgerError, match=re.escape(str(folder / "best.safetensors"))):
        report(tmp_path, folder, device="cpu")


def test_names_in_a_recipe_are_text_not_markup(make_run, tmp_path):
    data = SegmentationData(name="<script>alert(1)</script>")
    runs = [make_run("nmf", data=data, options={"rank": rank}, seed=i) for i, rank in enumerate(("$\\frac{", 8))]
    page = write_report(runs, tmp_path / "report.html").read_text()
    assert "<script>" not in page and "$\\frac{" in page


def test_progress_counts_the_images_of_each_part(make_run, tmp_path):
    seen = []
    runs = [make_run(context, weights=True) for context in (None, "nmf")]
    report(tmp_path, *runs, device="cpu", progress=lambda *state: seen.append(state))
    assert seen[:10] == [(done, 10, "predictions") for done in range(10)]  # five images, two networks
    assert seen[10:] == [(done, 2, what) for what in ("atoms", "spectra") for done in range(2)]
