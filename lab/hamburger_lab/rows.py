"""The reader of result files: every row in `results/` is read, checked and filtered here; and CSV.

A `.jsonl` file has one row per line. Its name begins with what wrote it (`ablation_`, `segmentation_`, `gradients_`,
`table3_`, ...); `Results.read` checks the fields and numbers that the claims compute with. A `.json` file is a study:
one object.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from hamburger.errors import DataError, OptionError, shorten, show
from hamburger.files import parse_json, read_text, write_atomically

Row = dict[str, Any]
MAX_BYTES = 2**26  # of a result file


def read_json_lines(path: Path, call: str) -> list[Row]:
    """The objects of a JSON-lines file; none where there is no file. `call` starts error messages."""
    rows: list[Row] = []
    if path.exists():
        for number, line in enumerate(read_text(path, call, most=MAX_BYTES).splitlines(), start=1):
            try:
                rows.append(dict(parse_json(line)))
            except (ValueError, TypeError) as broken:
                raise DataError(
                    f"{call}: line {number} of {path} is not a JSON object ({broken}); fix it or name another file"
                ) from None
    return rows


# -- checks ----------------------------------------------------------------------------------------------------------

SCORED = {"recipe", "seed", "steps", "hardware"}
SCORE_FIELDS = {
    **{"ablation_": SCORED | {"cell"}, "segmentation_": SCORED | {"context"}},
    "voc352_": SCORED | {"cell", "miou"},
}
COST_FIELDS = {
    "gradients_": {"ham", "grad", "n", "steps", "hardware", "ms", "ms_iqr", "mb", "refused", "repeats"}
    | {"d", "r", "b", "dtype"},
    "table3_h": {"module", "dtype", "n", "hardware", "infer_ms", "train_ms", "infer_mb", "train_mb"},
    "gan_": {"recipe", "context", "seed", "steps", "hardware", "device", "frechet"},
    "columns_error_": {"weights", "stage", "ham", "init", "steps", "error", "errors", "images", "hardware"},
    "columns_time_": {"ham", "init", "steps", "n", "ms", "ms_iqr", "repeats", "hardware"},
    "ganspeed_": {"context", "hardware", "step_ms", "step_ms_iqr", "added_ms", "repeats"},
}
REQUIRED_FIELDS = SCORE_FIELDS | COST_FIELDS  # by the beginning of a file's name
WRITERS = {
    **{"gradients_": "`ham bench gradients` writes", "table3_h": "`ham bench table3` writes"},
    **{"gan_": "`ham gan grid` writes", "ganspeed_": "`ham bench gan` writes"},
    **dict.fromkeys(("columns_error_", "columns_time_"), "`lab/experiments/columns.py` writes"),
}
# fields that are computed with: a finite number, a list of them, or null
NUMBERS = {
    *("miou", "seed", "steps", "step", "n", "channels", "ms", "ms_iqr", "mb", "peak_mb", "parameters", "repeats"),
    *("frechet", "step_ms", "step_ms_iqr", "added_ms", "error", "errors"),
}
NUMBER_PREFIXES = (
    *("rank", "numerical_", "silent_", "cosine_", "norm_", "spectrum_", "bound", "positions"),
    *("infer_ms", "train_ms", "infer_mb", "train_mb"),
)
LISTS = ("errors", "spectrum_")  # beginnings of the names of numbers that may be lists
TEXTS = {
    *("recipe", "hardware", "cell", "context", "module", "dtype", "ham", "grad", "device", "weights", "stage", "init"),
    "recipe_hash",
}
STUDY_FIELDS = {
    *("input", "ham", "temperature", "seed", "L_h", "L_G", "bound"),
    *("through steps", "converged at", "rate", "dy/dh0"),
}
# settings that do not change the score of the last step, or that the row states
NEUTRAL_SETTINGS = ("steps=", "keep=", "eval_every=", "checkpoint_every=", "model.context=", "model.context_options.")


def check_rows(rows: Sequence[Row], path: Path) -> None:
    """Raise DataError on rows that the claims cannot compute with; in files of other kinds only types are checked."""
    for number, row in enumerate(rows, start=1):
        check_types(row, f"line {number} of {path}")
    kind = next((prefix for prefix in REQUIRED_FIELDS if path.stem.startswith(prefix)), None)
    if kind is None:
        return
    for number, row in enumerate(rows, start=1):
        if missing := REQUIRED_FIELDS[kind] - row.keys():
            writer = WRITERS.get(kind, "`ham ablate` and `ham compare` write")
            raise DataError(
                f"claims: line {number} of {path} has no {', '.join(sorted(missing))}; "
                f"{writer} such rows; give other files another name"
            )
        check_numbers(row, f"line {number} of {path}")
    if kind in SCORE_FIELDS:
        check_one_experiment(rows, path)


def check_types(row: Row, where: str) -> None:
    """Raise DataError on a text, a list or an object where the claims expect another of these."""
    for name, value in row.items():
        wrong = (
            (name in TEXTS and not isinstance(value, (str, NoneType)))
            or (name == "angles" and not (value is None or is_list_of(value, dict)))
            or (name in ("settings", "overrides") and not (value is None or is_list_of(value, str)))
            or ((name in NUMBERS or name.startswith(NUMBER_PREFIXES)) and not _may_be_number(name, value))
        )
        if wrong:
            raise DataError(f"claims: {where}: {name} cannot be {shorten(value)}; fix the row or measure it again")
        if name == "angles":
            for measured in value or ():
                check_types(measured, where)


def is_list_of(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(each, kind) for each in value)


def _may_be_number(name: str, value: object) -> bool:
    return not isinstance(value, dict) and (not isinstance(value, list) or name.startswith(LISTS))


def check_numbers(row: Row, where: str) -> None:
    """Raise DataError on text, NaN and infinities in fields that are computed with."""
    for name, value in row.items():
        if name == "angles":
            for measured in value or ():
                check_numbers(measured, where)
        if name not in NUMBERS and not name.startswith(NUMBER_PREFIXES):
            continue
        for entry in value if isinstance(value, list) else [value]:
            is_number = isinstance(entry, (int, float)) and not isinstance(entry, bool)
            if entry is not None and not (is_number and math.isfinite(entry)):
                raise DataError(
                    f"claims: {where}: {name} is {shorten(entry)}, not a number; fix the row or measure it again"
                )


def check_one_experiment(rows: Sequence[Row], path: Path) -> None:
    """Raise DataError on rows that must not be compared: other recipes, steps or settings, or two runs of one seed."""
    for what, read in SAME_IN_FILE.items():
        kinds = list(dict.fromkeys(read(row) for row in rows))
        if len(kinds) > 1:
            two = " and ".join(map(show, kinds[:2]))
            raise DataError(f"claims: {path} mixes {what}: {two}; put runs of one kind into one file")
    hashes: dict[tuple[str, Any], Any] = {}
    for row in rows:
        cell = cell_name(row), row["seed"]
        if hashes.setdefault(cell, row.get("recipe_hash")) != row.get("recipe_hash"):
            raise DataError(
                f"claims: {path} has {show(cell[0])}, seed {cell[1]} twice, from two recipes ({show(hashes[cell])} and "
                f"{show(row.get('recipe_hash'))}); keep the rows of one"
            )


SAME_IN_FILE: dict[str, Callable[[Row], object]] = {
    "recipes": lambda row: row["recipe"],
    "numbers of steps": lambda row: row["steps"],
    "settings": lambda row: " ".join(score_settings(row)) or "none",
}

# -- reading ---------------------------------------------------------------------------------------------------------


class Results:
    """All rows of a results folder. `files`: rows by file name without suffix; `studies`: objects of .json files."""

    def __init__(self, files: Mapping[str, list[Row]], studies: Mapping[str, Row] | None = None) -> None:
        self.files = dict(files)
        self.studies = dict(studies or {})

    @classmethod
    def read(cls, folder: Path) -> Results:
        """Read and check every result file of a folder."""
        files = {}
        for path in sorted(folder.glob("*.jsonl")):
            files[path.stem] = read_json_lines(path, "claims")
            check_rows(files[path.stem], path)
        studies = [path for path in sorted(folder.glob("*.json")) if path.stem != "claims"]
        return cls(files, {path.stem: read_study(path) for path in studies})

    def rows(self, name: str) -> list[Row]:
        """Return the rows of one file; none if it does not exist yet."""
        return self.files.get(name, [])

    def with_prefix(self, prefix: str) -> dict[str, list[Row]]:
        """Return the files of that kind that have rows: photographs, which decide, before generated scenes."""
        files = {name: rows for name, rows in self.files.items() if name.startswith(prefix) and rows}
        return dict(sorted(files.items(), key=lambda file: is_generated(file[1][0])))


def read_study(path: Path) -> Row:
    """Return the object of a .json file; check a study of the propositions."""
    text = read_text(path, "claims", most=MAX_BYTES)
    try:
        study = parse_json(text)
    except ValueError:
        raise DataError(f"claims: {path} is not valid JSON; write it again, or remove it") from None
    if path.stem.startswith("propositions_"):
        fields = study if isinstance(study, dict) else {}
        rows, environment = fields.get("rows", 0), fields.get("environment")
        if not (isinstance(environment, dict) and "hardware" in environment and is_list_of(rows, dict)):
            raise DataError(f"claims: {path} was not written by `ham propositions`; give other files another name")
        for number, row in enumerate(rows, start=1):
            if missing := STUDY_FIELDS - set(row):
                raise DataError(f"claims: row {number} of {path} has no {', '.join(sorted(missing))}; measure it again")
    return dict(study) if isinstance(study, dict) else {}


# -- filters ---------------------------------------------------------------------------------------------------------

GENERATED_PREFIX = "patchwork"  # recipes with this beginning train on generated scenes


def select_rows(rows: Iterable[Row], **fields: Any) -> list[Row]:
    """Return the rows whose fields have these values."""
    return [row for row in rows if all(row[key] == value for key, value in fields.items())]


def values_by_seed(rows: Iterable[Row], key: str, name: str, field: str, scale: float) -> dict[int, float]:
    """Return seed -> `scale` times a field, of the rows whose `key` is `name` and that have the field."""
    return {row["seed"]: scale * row[field] for row in rows if row.get(key) == name and row.get(field) is not None}


def cell_name(row: Row) -> str:
    """Return the name of what was run: a cell of a grid, or a context of a comparison."""
    return str(row.get("cell", row.get("context")))


def is_generated(row: Row) -> bool:
    """Return whether a row was measured on generated scenes, which do not decide if there are photographs."""
    return str(row.get("recipe", "")).startswith(GENERATED_PREFIX)


def score_settings(row: Row) -> tuple[str, ...]:
    """Return the recipe settings that all runs of a file share and that may change a score."""
    settings = row["settings"] if "settings" in row else row.get("overrides") or []
    return tuple(sorted(text for text in map(str, settings) if not text.startswith(NEUTRAL_SETTINGS)))


# -- appending to a file of `ham bench table3` -----------------------------------------------------------------------

TABLE3_KEY = ("module", "n", "dtype", "batch", "channels", "device")


def read_table3_rows(path: Path) -> list[Row]:
    """Return the rows of a file that new ones are appended to; none if it does not exist yet."""
    advice = "name another file, or leave out --append to overwrite it"
    try:
        rows = read_json_lines(path, "bench table3")
    except DataError as error:
        raise OptionError(f"{error}; {advice}") from None
    for number, row in enumerate(rows, start=1):
        if missing := [field for field in TABLE3_KEY if field not in row]:
            raise OptionError(
                f"bench table3: line {number} of {path} is not a row of this benchmark "
                f"(missing {', '.join(missing)}); {advice}"
            )
    return rows


def merge_table3_rows(old: Iterable[Row], new: Iterable[Row]) -> list[Row]:
    """Return the old rows, each replaced by a new measurement of the same thing, followed by the other new rows."""
    return list({tuple(row[field] for field in TABLE3_KEY): row for row in (*old, *new)}.values())


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    write_atomically(path, csv_text(rows).encode())


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """CSV with a line per row and the fields of all rows; lists and dicts inside a row are written as JSON.

    Text that a spreadsheet would run as a formula begins with an apostrophe.
    """
    fields = dict.fromkeys(name for row in rows for name in row)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_format_cell, fields))
    writer.writerows([_format_cell(row.get(name)) for name in fields] for row in rows)
    return text.getvalue()


def _format_cell(value: Any) -> Any:
    if isinstance(value, (list, tuple, dict)):
        return json.dumps(value)
    if not isinstance(value, str):
        return value
    formula = value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return "'" * formula + value.replace("\r", " ")  # Python quotes no \r, which would end the line
