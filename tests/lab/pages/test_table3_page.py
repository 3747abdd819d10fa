"""The page of Table 3: compiled rows next to eager ones, and files of earlier versions."""

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


def test_compiled_rows_have_their_own_table():
    result = rows()
    page = table3_page.over_sizes(result, "float32")
    sizes, compiled = page.split("Under torch.compile")
    assert "+compile" not in page and "| a2 |" in sizes
    line = next(line for line in compiled.splitlines() if line.startswith("| a2 |"))
    assert line.split("|")[2].strip() == "256" and line.split("|")[4].strip() == "0.125"
    assert line.split("|")[6].strip() == "-"
    assert "Under" not in table3_page.over_sizes(result[:-1], "float32")


def test_figure_omits_compiled_rows(tmp_path):
    result = rows()
    table3_figure.draw_table3(result, tmp_path / "with.png")
    table3_figure.draw_table3(result[:-1], tmp_path / "without.png")
    assert (tmp_path / "with.png").read_bytes() == (tmp_path / "without.png").read_bytes()


def test_module_that_could_not_be_built_is_a_row_of_dashes():
    plan = table3.Table3Plan(modules=("a2", "lightham"), sizes=(16384,), channels=3, max_macs=1)
    page = table3_page.against_paper([asdict(row) for row in table3.measure(plan)], "float32")
    assert "| lightham | - | - | - | - | - | - |" in page


def test_describe_samples_counts_samples_and_calls():
    older = [{"infer_repeats": 5, "train_repeats": 3}, {"infer_repeats": 200, "train_repeats": None}]
    assert describe_samples([{"repeats": 20}]) == "up to 20 calls"
    assert describe_samples(older) == "3 to 200 calls"
    assert describe_samples([{"infer_repeats": 7, "train_repeats": 7}]) == "7 calls"
    blocks = {"infer_repeats": 20, "train_repeats": 5, "infer_block": 100, "train_block": 1}
    assert describe_samples([blocks]) == "5 to 20 samples of 1 to 100 calls"


def test_few_samples_get_a_star_and_older_rows_a_note():
    result = [row | {"train_repeats": 1, "train_ms_iqr": None} for row in rows()]
    page = table3_page.over_sizes(result, "float32")
    assert "*: median of fewer than 5 samples." in page and "older protocol" not in page
    infer, train, *_ = page.split("<details>")[1:]
    assert "*" not in infer and train.count("*") == 4  # two modules at two sizes
    older = [{key: value for key, value in row.items() if not key.endswith("_block")} for row in rows()]
    assert "Older protocol" in table3_page.over_sizes(older, "float32")
    assert "*: median" not in table3_page.over_sizes(older, "float32")


def mixed_commits():
    """Return four rows, one of an older commit and protocol without a choice of builds."""
    result = [row | {"commit": "new", "backend": "plain", "infer_mb": 8.0} for row in rows()[:-1]]
    gone = ("backend", "infer_block", "train_block")
    older = {key: value for key, value in result[-1].items() if key not in gone}
    return [*result[:-1], older | {"commit": "old", "infer_ms": 7.0, "infer_repeats": 2, "infer_mb": 32.0}]


def test_rows_of_other_commits_get_a_dagger_and_a_footnote():
    *usual, other = mixed = mixed_commits()
    assert (other["module"], other["n"]) == ("sgr", 256)
    page = table3_page.over_sizes(mixed, "float32")
    infer, _, peak, _ = page.split("<details>")[1:]
    assert infer.count("†") == 2 and "7*† |" in infer  # the figure, and the exponent that it is one end of
    assert "| 8 | 32† | 1.00† |" in peak
    assert "commit new." in page and "our hams by backend plain" in page
    samples = other["train_repeats"]
    assert f"†: commit old, medians of 2 to {samples} calls, older protocol (every call synchronised" in page
    assert "†" not in table3_page.over_sizes(usual, "float32")
    dashes = other | dict.fromkeys(table3_page.FIELDS)
    assert "†" not in table3_page.over_sizes([*usual, dashes], "float32")


def test_no_exponent_between_rows_with_and_without_a_chosen_build():
    result = [row | {"note": "materialised" if row["commit"] == "new" else ""} for row in mixed_commits()]
    page = table3_page.over_sizes(result, "float32")
    assert "| 8 | 32† |  |  |" in page and "| 8 | 8 | 0.00 | 64 to 256 |" in page


def test_headline_marks_rows_of_other_commits():
    row = mixed_commits()[-1] | {"dtype": "bfloat16", "n": 64}
    result = [row | {"module": name, "commit": "old" if name == "sa-flash" else "new"} for name in table3_page.HEADLINE]
    page = table3_page.headline(result)
    assert page.count("†") == 3 and "| sa-flash | 7*† / " in page
    assert "†: commit old" in page and "*: median" in page


def test_figure_draws_other_commits_hollow(tmp_path):
    rows_of_two = mixed_commits()
    table3_figure.draw_table3(rows_of_two, tmp_path / "two.png")
    table3_figure.draw_table3([row | {"commit": "new"} for row in rows_of_two], tmp_path / "one.png")
    assert (tmp_path / "two.png").read_bytes() != (tmp_path / "one.png").read_bytes()


def test_growth_uses_long_calls_and_names_the_sizes():
    times = {64: 1.0, 256: 6.0, 1024: 24.0, 4096: None}
    assert describe_growth(times, "infer_ms") == ("1.00", "256 to 1,024")
    assert describe_growth({64: 1.0, 256: 2.0, 1024: 8.0}, "train_ms") == ("~1.00", "256 to 1,024")
    assert describe_growth({64: 1.0, 256: 2.0, 1024: 8.0}, "train_mb") == ("1.00", "256 to 1,024")
    assert describe_growth({64: 1.0, 256: None}, "infer_ms") == ("", "")
