"""The page of Table 3: compiled rows beside eager ones, and files of earlier versions."""

from __future__ import annotations

from dataclasses import asdict

from hamburger_lab.bench import table3
from hamburger_lab.bench.table3_view import describe_growth, describe_samples
from hamburger_lab.pages import table3 as table3_page
from hamburger_lab.pages import table3_figure

PLAN = table3.Table3Plan(modules=("a2", "sgr"), sizes=(64, 256), channels=16, repeats=1, seconds=0)


def rows():
    measured = [asdict(row) for row in table3.measure(PLAN)]
    first = next(row for row in measured if row["module"] == "a2" and row["n"] == 256)
    return [*measured, first | {"module": "a2+compile", "infer_ms": 0.125, "train_ms": None}]


def test_compiled_rows_have_a_table_of_their_own():
    found = rows()
    page = table3_page.over_sizes(found, "float32")
    sizes, compiled = page.split("### Under torch.compile")
    assert "+compile" not in page and "| a2 |" in sizes
    line = next(line for line in compiled.splitlines() if line.startswith("| a2 |"))
    assert line.split("|")[2].strip() == "256" and line.split("|")[4].strip() == "0.125"
    assert line.split("|")[6].strip() == "-"
    assert "Under" not in table3_page.over_sizes(found[:-1], "float32")


def test_the_figure_leaves_them_out(tmp_path):
    found = rows()
    table3_figure.draw_table3(found, tmp_path / "with.png")
    table3_figure.draw_table3(found[:-1], tmp_path / "without.png")
    assert (tmp_path / "with.png").read_bytes() == (tmp_path / "without.png").read_bytes()


def test_what_could_not_be_built_is_a_row_of_dashes():
    plan = table3.Table3Plan(modules=("a2", "lightham"), sizes=(16384,), channels=3, max_macs=1)
    page = table3_page.against_paper([asdict(row) for row in table3.measure(plan)], "float32")
    assert "| lightham | - | - | - | - | - | - |" in page


def test_calls_behind_a_median():
    older = [{"infer_repeats": 5, "train_repeats": 3}, {"infer_repeats": 200, "train_repeats": None}]
    assert describe_samples([{"repeats": 20}]) == "up to 20 calls"
    assert describe_samples(older) == "3 to 200 calls"
    assert describe_samples([{"infer_repeats": 7, "train_repeats": 7}]) == "7 calls"
    blocks = {"infer_repeats": 20, "train_repeats": 5, "infer_block": 100, "train_block": 1}
    assert describe_samples([blocks]) == "5 to 20 samples of 1 to 100 calls"


def test_medians_of_few_calls_are_starred_and_older_rows_said_to_be_such():
    found = [row | {"train_repeats": 1, "train_ms_iqr": None} for row in rows()]
    page = table3_page.over_sizes(found, "float32")
    assert "A star: the median of fewer than 5 samples." in page and "older protocol" not in page
    infer, train, *_ = page.split("### ")[1:]
    assert "*" not in infer and train.count("*") == 4  # two modules at two sizes
    older = [{key: value for key, value in row.items() if not key.endswith("_block")} for row in rows()]
    assert "Of the older protocol" in table3_page.over_sizes(older, "float32")
    assert "A star" not in table3_page.over_sizes(older, "float32")


def mixed():
    """One of four rows of an older commit and protocol, which had no ways to choose from."""
    found = [row | {"commit": "new", "backend": "plain", "infer_mb": 8.0} for row in rows()[:-1]]
    gone = ("backend", "infer_block", "train_block")
    older = {key: value for key, value in found[-1].items() if key not in gone}
    return [*found[:-1], older | {"commit": "old", "infer_ms": 7.0, "infer_repeats": 2, "infer_mb": 32.0}]


def test_rows_of_another_commit_have_a_dagger_and_their_commit_a_footnote():
    *own, other = found = mixed()
    assert (other["module"], other["n"]) == ("sgr", 256)
    page = table3_page.over_sizes(found, "float32")
    infer, _, peak, _ = page.split("### ")[1:]
    assert infer.count("†") == 2 and "7*† |" in infer  # the figure, and the exponent that it is one end of
    assert "| 8 | 32† | 1.00† |" in peak
    assert "commit new." in page and "our hams by backend plain" in page
    samples = other["train_repeats"]
    assert f"A dagger: commit old, medians of 2 to {samples} calls, of the older protocol: every call waited" in page
    assert "dagger" not in table3_page.over_sizes(own, "float32") and "†" not in table3_page.over_sizes(own, "float32")
    dashes = other | dict.fromkeys(table3_page.FIELDS)
    assert "†" not in table3_page.over_sizes([*own, dashes], "float32")


def test_there_is_no_exponent_between_a_chosen_way_and_none():
    found = [row | {"note": "materialised" if row["commit"] == "new" else ""} for row in mixed()]
    page = table3_page.over_sizes(found, "float32")
    assert "| 8 | 32† |  |  |" in page and "| 8 | 8 | 0.00 | 64 to 256 |" in page


def test_the_headline_is_marked_too():
    row = mixed()[-1] | {"dtype": "bfloat16", "n": 64}
    found = [row | {"module": name, "commit": "old" if name == "sa-flash" else "new"} for name in table3_page.HEADLINE]
    page = table3_page.headline(found)
    assert page.count("†") == 2 and "| sa-flash | inference | 7*† |" in page
    assert "A dagger: commit old" in page and "A star" in page


def test_points_of_another_commit_are_hollow(tmp_path):
    found = mixed()
    table3_figure.draw_table3(found, tmp_path / "two.png")
    table3_figure.draw_table3([row | {"commit": "new"} for row in found], tmp_path / "one.png")
    assert (tmp_path / "two.png").read_bytes() != (tmp_path / "one.png").read_bytes()


def test_growth_is_quoted_where_calls_take_long_and_says_between_which_sizes():
    times = {64: 1.0, 256: 6.0, 1024: 24.0, 4096: None}
    assert describe_growth(times, "infer_ms") == ("1.00", "256 to 1,024")
    assert describe_growth({64: 1.0, 256: 2.0, 1024: 8.0}, "train_ms") == ("~1.00", "256 to 1,024")
    assert describe_growth({64: 1.0, 256: 2.0, 1024: 8.0}, "train_mb") == ("1.00", "256 to 1,024")
    assert describe_growth({64: 1.0, 256: None}, "infer_ms") == ("", "")
