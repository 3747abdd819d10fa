"""The reproduction page: complete, with commands that parse and hours that follow from rows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from hamburger.cli.app import app
from hamburger.segmentation.recipe import segmentation_recipes
from hamburger.tasks import find_training
from hamburger_lab.claims import Results
from hamburger_lab.claims.registry import FAMILIES
from hamburger_lab.pages import reproduction
from hamburger_lab.pages.reproduction import ITEMS, count_macs, format_hours, recipe_hours, systems_table

PAGE = Path(__file__).parents[3] / "docs" / "reproduction.md"
NETWORK = {"context": "nmf", "backbone": "resnet50", "output_stride": 16, "crop": 513, "images_per_s": 100.0}


def page_commands():
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("ham ")]


@pytest.mark.parametrize("line", page_commands())
def test_commands_of_the_page_parse(line):
    command = typer.main.get_command(app)
    words = shlex.split(line, comments=True)[1:]
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    parser = command.make_parser(command.context_class(command))
    parser.parse_args(list(words))
    with pytest.raises(Exception, match="No such option"):  # the check can fail
        parser.parse_args([*words, "--no-such-option"])


def test_every_table_and_figure_is_on_the_page():
    text = PAGE.read_text()
    tables, figures = (
        {int(number) for part in re.findall(rf"{kind} ([\d, and]+)", text) for number in re.findall(r"\d+", part)}
        for kind in ("Tables?", r"Fig(?:ure)?s?\.?")
    )
    assert tables == figures == set(range(1, 10))


def test_items_name_recipes_and_topics_that_exist():
    for item in ITEMS:
        assert item.family in FAMILIES and item.commands
        for name in item.recipes:
            assert name in reproduction.gan_recipes or find_training(name).name == name


def test_hours_follow_from_measured_rates():
    recipe = segmentation_recipes.create("voc-ablation")
    results = Results({"network_h200": [NETWORK]})
    # the measured network is that of the recipe, so that only images count
    assert recipe_hours(results, "voc-ablation") == pytest.approx(recipe.steps * recipe.batch / 100 / 3600)
    ratio = count_macs(segmentation_recipes.create("voc").model, 513) / count_macs(recipe.model, 513)
    assert recipe_hours(results, "voc") == pytest.approx(60_000 * 16 / 100 / 3600 * ratio) and ratio > 3
    assert recipe_hours(results, "hamgan-baby") is None
    gan = Results({"ganspeed_graph_h200": [{"context": "hamgan", "step_ms": 36.0, "batch": 64}]})
    assert recipe_hours(gan, "hamgan-baby") == pytest.approx(36e-3 * 4 * 2_000_000 / 3600)
    table2 = next(item for item in ITEMS if item.place == "Table 2")
    assert format_hours(results, table2) == "30 (6 x 5 trainings)" and format_hours(Results({}), table2) == ""


def test_published_numbers_are_next_to_ours():
    rows = [{"cell": "nmf", "seed": seed, "learning_curve": [{"miou": 0.70 + seed / 100}]} for seed in range(2)]
    table = systems_table(Results({"voc352_h200": rows}))
    assert (
        "| HamNet | 85.9 | 55.2 | `nmf` | 70.5 (2 seeds) |" in table and "| CFNet | 84.2 | 54.0 | `acf` |  |" in table
    )
