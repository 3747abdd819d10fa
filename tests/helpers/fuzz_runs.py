"""Fuzzers of recipes, `--set`, and the run folders that `ham report`, `ham gan report` and `ham compare` read."""

from __future__ import annotations

import io
import json
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar

import small_gan
import small_tasks
import torch
from fuzz_cases import Files, Fuzzer, Mutation, mutate_bytes, mutate_json

from hamburger.checkpoints.weights_file import Info
from hamburger.cli.compare import comparison_table, describe_rows
from hamburger.errors import DataError, OptionError
from hamburger.files import parse_json
from hamburger.generation.recipe import check_gan_recipe
from hamburger.inference.predict_files import FilePrediction, FilePredictor, FoundImages, InputImage, predict_folder
from hamburger.inference.summary import SUMMARY, Shard
from hamburger.report.page import write_report
from hamburger.tasks import find_gan_recipe, find_training, task_of
from hamburger.tasks.sweep import cells, check_grid, rows, variants
from hamburger.training.recipe import apply, digest, read_recipe, to_json
from hamburger_lab.claims import Results
from hamburger_lab.claims.tables import as_rows, judge_all
from hamburger_lab.gan_page import write_gan_report

HOSTILE_TEXT = (
    *(
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "</title><iframe>",
        "$\\frac{",
        "$x^{2}$",
        "[/red]",
    ),
    *("[bold", "\x1b[31mred", "\u202eleft", "\ud800", "a\nb", "\0", "x" * 5000, "&lt;", "{0}", "%s"),
)


def mutate_json_files(pattern: str) -> Mutation:
    """Mutate one of the files whose names match: as JSON, line by line where it is JSON lines, or as bytes."""

    def mutate(source: random.Random, files: Files) -> tuple[Files, str]:
        name = source.choice([name for name in files if re.search(pattern, name)])
        if source.random() < 0.15:
            content, note = mutate_bytes(source, files[name])
        elif name.endswith(".jsonl"):
            lines = files[name].splitlines()
            place = source.randrange(len(lines))
            lines[place], note = mutate_text(source, lines[place])
            content = b"".join(line + b"\n" for line in lines)
        else:
            content, note = mutate_text(source, files[name])
        return {**files, name: content}, f"{name}: {note}"

    return mutate


def mutate_text(source: random.Random, content: bytes) -> tuple[bytes, str]:
    """Mutate a JSON document; every third time, put hostile text in place of a value or a key."""
    value = json.loads(content)
    if source.random() < 2 / 3:
        value, note = mutate_json(source, value)
        return json.dumps(value).encode(), note
    text = source.choice(HOSTILE_TEXT)
    owner = value
    while groups := [inner for inner in owner.values() if isinstance(inner, dict)]:
        if source.random() < 0.4:
            break
        owner = source.choice(groups)
    key = source.choice([*owner, "new"])
    if source.random() < 0.3:
        owner[text] = owner.pop(key, 1)
    else:
        owner[key] = text
    return json.dumps(value).encode(), f"{text[:40]!r} at {key}"


# -- recipes -----------------------------------------------------------------------------------------------------------


def make_recipes() -> list[Files]:
    names = ("segmentation", "classification", "detection", "stereo")
    return [{"recipe.json": to_json(small_tasks.small(name)).encode()} for name in names]


def read_recipe_file(folder: Path) -> Any:
    recipe = find_training(str(folder / "recipe.json"))
    try:
        task_of(recipe).check(recipe)
    except OptionError as error:  # names the recipe instead of its file
        assert f"recipe {recipe.name!r}" in str(error), error
        return str(error)
    text = to_json(recipe)
    assert read_recipe(text, type(recipe)) == recipe
    return [text, digest(recipe)]


def make_gan_recipe() -> list[Files]:
    return [{"recipe.json": to_json(small_gan.small()).encode()}]


def read_gan_recipe_file(folder: Path) -> Any:
    recipe = find_gan_recipe(str(folder / "recipe.json"))
    try:
        check_gan_recipe(recipe)
    except OptionError as error:
        assert f"recipe {recipe.name!r}" in str(error), error
        return str(error)
    assert read_recipe(to_json(recipe), type(recipe)) == recipe
    return [to_json(recipe), digest(recipe)]


# `--set`: a file of JSON stands for the command line
RECIPES = ("patchwork", "figures-classes", "shapes-detect", "planes-tiny")
SET_TEXTS = (
    *(
        "",
        "0",
        "-1",
        "1e400",
        "nan",
        "inf",
        "9" * 5000,
        "none",
        "true",
        "a,b",
        ",",
        "1,2,3",
        "[",
        "{",
        '"',
        '"\\ud800"',
    ),
    *('{"a": 1, "a": 2}', "[" * 5000, "[" * 50 + "]" * 50, '{"a":' * 30 + "1" + "}" * 30, "[1e999]", "NaN", "=", "a=b"),
    *("\u0661", "1_0", "0x10", " 1 ", "bf16", "nmf", "../../x", *HOSTILE_TEXT),
)


def make_settings() -> list[Files]:
    settings = ["optim.lr=0.01", "model.context_options.rank=8", "steps=10", "data.options.length=8"]
    return [{"settings.json": json.dumps({"recipe": name, "settings": settings}).encode()} for name in RECIPES]


def mutate_settings(source: random.Random, files: Files) -> tuple[Files, str]:
    content = json.loads(files["settings.json"])
    paths = _dotted(json.loads(to_json(find_training(content["recipe"]))))
    settings = content["settings"]
    for _ in range(source.choice((1, 2, 4))):
        path = source.choice([*paths, "", ".", "a.b.c.d", "model.context_options." + "a." * 50 + "b", *HOSTILE_TEXT])
        settings.append(path + source.choice(("=", "=", "=", "=", "", "==")) + source.choice(SET_TEXTS))
    return {"settings.json": json.dumps(content).encode()}, f"{settings[4:]!r:.300}"


def _dotted(value: dict[str, Any], prefix: str = "") -> list[str]:
    paths = [f"{prefix}{key}" for key in value]
    inner = [_dotted(child, f"{prefix}{key}.") for key, child in value.items() if isinstance(child, dict)]
    return paths + [path for group in inner for path in group]


def read_settings(folder: Path) -> Any:
    content = json.loads((folder / "settings.json").read_text())
    recipe = apply(find_training(content["recipe"]), content["settings"])
    task_of(recipe).check(recipe)
    assert read_recipe(to_json(recipe), type(recipe)) == recipe
    return to_json(recipe)


# -- run folders -------------------------------------------------------------------------------------------------------


def make_run(recipe: Any, result: dict[str, Any], lines: list[dict[str, Any]]) -> Files:
    metrics = "".join(json.dumps(line) + "\n" for line in lines)
    return {
        "recipe.json": to_json(recipe).encode(),
        "result.json": json.dumps(result).encode(),
        "metrics.jsonl": metrics.encode(),
    }


def make_runs() -> list[Files]:
    """Three runs of two contexts, as `ham compare` leaves them, of segmentation and of stereo."""
    folders = []
    for task, score, members in (("segmentation", "miou", "per_class"), ("stereo", "epe", "per_image")):
        files: Files = {}
        for name, seed in (("nmf", 0), ("nmf", 1), ("baseline", 0)):
            cell = _cell(task, name, seed)
            value = 0.5 + seed / 10
            result = {
                "recipe": cell.recipe,
                "task": task,
                "context": name,
                "seed": seed,
                "steps": 4,
                "batch": 4,
                score: value,
            }
            result |= {
                members: {"sky": value, "sea <b>": None, "sand": 0.4},
                "images": 4,
                "matched_images": 3,
                "bad_3": 0.1,
            }
            result |= {"protocol": "single scale", "hardware": "a small box", "torch": "2.0", "commit": "c0ffee"}
            result |= {"parameters": 1234, "images_per_s": 10.5, "peak_mb": 321.0, "processes": 1, "date": "2026-01-02"}
            lines = [{"step": step, "loss": 2 - step / 4, "terms": {"a": 1.0}, "lr": 0.1} for step in (1, 2, 3, 4)]
            lines += [{"step": step, score: value, "per_class": {"sky": 0.5}} for step in (2, 4)]
            run = make_run(cell.resolved(), result, lines)
            files |= {f"{cell.name}/{file}": content for file, content in run.items()}
        folders.append(files)
    return folders


def _cell(task: str, variant: str, seed: int) -> Any:
    recipe = {"segmentation": "patchwork", "stereo": "planes-tiny"}[task]
    return cells(recipe, variants([variant]), [seed], ("steps=4",))[0]


class PageParser(HTMLParser):
    """Collects what a page without scripts must not have."""

    def __init__(self) -> None:
        super().__init__()
        self.active: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "iframe", "object", "embed", "form", "base", "link"):
            self.active.append(tag)
        for name, value in attrs:
            outside = name in ("src", "href") and not (value or "").startswith(("data:image/", "#"))
            if name.startswith("on") or outside:
                self.active.append(f"{tag} {name}={value!r:.80}")


def check_page(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    page.unlink()
    parser = PageParser()
    parser.feed(text)
    assert not parser.active, f"active content in the page: {parser.active}"
    assert text.count("<title>") == 1 and text.endswith("</main></body></html>\n")
    return re.sub(r"Written [\d: -]+ UTC", "", text)


def read_report(folder: Path) -> str:
    return check_page(write_report([folder], folder / "report.html", device="cpu"))


def make_gan_run() -> list[Files]:
    result = {
        "context": "nmf",
        "data": "figures",
        "steps": 12,
        "seed": 0,
        "images_per_s": 3.5,
        "hardware": "a small box",
    }
    fields = {"discriminator": 1.5, "generator": 0.2, "real": 0.3, "made": -0.1, "spread": 0.8}
    return [make_run(small_gan.small(), result, [{"step": step, **fields} for step in (5, 10, 12)])]


def read_gan_report(folder: Path) -> str:
    return check_page(write_gan_report(folder, folder / "report.html", device="cpu"))


def read_comparison(folder: Path) -> str:
    """What `ham compare` does with a folder whose runs are finished."""
    from rich.console import Console

    task = "stereo" if b'"planes-tiny"' in (folder / "baseline-seed0" / "recipe.json").read_bytes() else "segmentation"
    grid = [_cell(task, "nmf", 0), _cell(task, "nmf", 1), _cell(task, "baseline", 0)]
    check_grid(grid, folder)
    finished = rows(grid, folder, task_of(grid[0].resolved()))
    out = io.StringIO()
    Console(file=out, width=200).print(comparison_table(finished))
    return "\n".join([out.getvalue(), *describe_rows(finished)])


# -- result files ------------------------------------------------------------------------------------------------------

RESULTS = Path(__file__).parents[2] / "results"


def make_results() -> list[Files]:
    """The first rows of some of the committed files, one kind each."""
    names = ("ablation_angles_patchwork_cpu", "gradients_cpu", "columns_error_cpu", "table3_h200", "ganspeed_h200")
    names += ("gan_figures_cpu", "segmentation_patchwork_cpu", "ablation_inside_patchwork_cpu")
    paths = [path for name in names if (path := RESULTS / f"{name}.jsonl").exists()]
    return [{path.name: b"\n".join(path.read_bytes().splitlines()[:6]) + b"\n" for path in paths}]


def read_results(folder: Path) -> Any:
    return as_rows(judge_all(Results.read(folder)))


# -- predictions in progress -------------------------------------------------------------------------------------------

IMAGES = tuple(InputImage(Path(f"photos/{i}.png"), str(i)) for i in range(4))


class NoNetwork(FilePredictor):
    """Predicts the name of the file."""

    files: ClassVar[Mapping[str, Callable[[str], Path]]] = {"label": lambda name: Path(f"{name}.png")}

    def __init__(self) -> None:
        super().__init__(torch.nn.Identity(), Info(classes=("a", "b")), torch.device("cpu"))

    def __call__(self, *paths: Path) -> FilePrediction:
        if paths[0].stem == "3":
            raise DataError(f"{paths[0]}: broken")
        return FilePrediction({"shares": {"a": 1.0}}, ("1 x 1", "a 100%"), {"label": paths[0].name.encode()})


def predict_into(out: Path, *shards: Shard) -> None:
    for shard in shards:
        predict_folder(NoNetwork(), FoundImages(IMAGES, (), (), ()), out, shard=shard, resume=True)


def make_predictions() -> list[Files]:
    """The output of a finished call, and of one whose second shard is missing."""
    made = []
    for shards in ((Shard(),), (Shard(1, 2),)):
        with tempfile.TemporaryDirectory() as out:
            predict_into(Path(out), *shards)
            made.append({path.name: path.read_bytes() for path in Path(out).iterdir()})
    return made


def resume_predictions(folder: Path) -> Any:
    out = folder / "copy"  # resuming changes the files, and each case is read twice
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    for path in folder.iterdir():
        if path.is_file():
            shutil.copy(path, out)
    try:
        predict_into(out, Shard())
        summary = parse_json((out / SUMMARY).read_text())
        assert {row["image"] for row in summary["images"] + summary["failed"]} == {str(image.path) for image in IMAGES}
        return {path.name: path.read_bytes() for path in out.iterdir()}
    finally:
        shutil.rmtree(out)


RUNS: dict[str, Fuzzer] = {
    "recipe": Fuzzer(make_recipes, mutate_json_files("recipe"), read_recipe_file),
    "gan-recipe": Fuzzer(make_gan_recipe, mutate_json_files("recipe"), read_gan_recipe_file),
    "set": Fuzzer(make_settings, mutate_settings, read_settings, names_file=False),
    "report": Fuzzer(make_runs, mutate_json_files(r"\.json"), read_report, quick=12),
    "gan-report": Fuzzer(make_gan_run, mutate_json_files(r"\.json"), read_gan_report, quick=12),
    "compare": Fuzzer(make_runs, mutate_json_files("(recipe|result).json"), read_comparison),
    "claims": Fuzzer(make_results, mutate_json_files("jsonl"), read_results, names_file=False, quick=12),
    "predictions": Fuzzer(make_predictions, mutate_json_files("json"), resume_predictions),
}
