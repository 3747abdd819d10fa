"""The numbers of a study as tables and sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hamburger.analysis.report.groups import Group, Study
from hamburger.analysis.report.html import Cell, Markup, folded, number, paragraph, table
from hamburger.analysis.report.statistics import Difference, Summary, paired

PER_CLASS = "per_class"
# fields of result.json that say how and where a score was made, and what they are called
CONDITIONS = {
    "protocol": "evaluation",
    "hardware": "hardware",
    "processes": "processes",
    "threads": "threads",
    "torch": "torch",
    "commit": "commit",
    "date": "date",
}


def percent(share: float) -> str:
    return f"{100 * share:.2f}"


def signed(share: float) -> str:
    return f"{100 * share:+.2f}"


def scores(study: Study) -> Markup:
    """One row per group: the score with its spread, the difference to the reference, and what it costs."""
    header = ["context", "mIoU, %", "deviation", "seeds", f"minus {study.reference.name}", "95 % interval"]
    costs: dict[str, tuple[str, Callable[[float], str]]] = {
        "parameters": ("parameters", lambda value: f"{value:,.0f}"),
        "images_per_s": ("images/s", lambda value: f"{value:.3g}" if value < 100 else f"{value:,.0f}"),
        "peak_mb": ("peak MB", lambda value: f"{value:,.0f}"),
    }
    costs = {field: cost for field, cost in costs.items() if any(group.value(field) for group in study.groups)}
    rows = []
    for group in study.groups:
        found, difference = group.score, study.difference(group)
        row: list[Cell] = [group.name, number(found.mean, percent(found.mean)) if found else "not finished"]
        row += [_deviation(found), _seeds(group), *_difference(difference)]
        for field, (_, shown) in costs.items():
            value = group.value(field)
            row.append(number(value.mean, shown(value.mean)) if value else None)
        rows.append(row)
    return table([*header, *(words for words, _ in costs.values())], rows, name="scores", kind="cards")


def verdict(study: Study) -> Markup:
    """What the numbers allow one to say, and no more; where a rival or the baseline wins, that comes first."""
    best, ham, rival = study.best(), study.best("ham"), study.best("rival")
    if best is None or best.score is None:
        return paragraph("No run has finished yet: there is no score to compare.")
    said = [f"The highest mean mIoU is that of {best.name}: {_spoken(best.score)}."]
    if len(study.groups) == 1:
        said.append("There is nothing to compare it with here.")
    elif best.kind == "baseline":
        said.append("Here no context module is better than the baseline.")
    elif best.kind == "rival" and ham is not None:
        said.append(f"A rival wins: {_against(best, ham)}")
    elif best.kind == "ham" and rival is not None:
        said.append(f"The best rival is {rival.name}: {_against(best, rival)}")
    if ham is not None and study.reference.scores and ham is not study.reference:
        said.append(_against(ham, study.reference))
    return Markup("".join(paragraph(sentence) for sentence in said))


def _against(one: Group, other: Group) -> str:
    difference = paired(one.scores, other.scores)
    if difference is None:
        return f"{one.name} and {other.name} share no seed, so they are not paired."
    points = f"{100 * difference.mean:+.2f} points over {difference.n} shared seed{'s' * (difference.n > 1)}"
    if difference.interval is None:
        return f"{one.name} minus {other.name} is {points}: too few for an interval, so take it as a hint."
    low, high = difference.interval
    weight = "it leaves out zero" if difference.clear else "it holds zero, so this may be chance"
    return f"{one.name} minus {other.name} is {points}, 95 % interval {signed(low)} to {signed(high)}: {weight}."


def per_seed(study: Study) -> Markup:
    """Every run's own score."""
    seeds = sorted({run.seed for group in study.groups for run in group.runs})
    rows: list[list[Cell]] = []
    for group in study.groups:
        had = group.scores
        rows.append([group.name, *(number(had[s], percent(had[s])) if s in had else None for s in seeds)])
    made = table(["mIoU, %", *(f"seed {seed}" for seed in seeds)], rows, name="per-seed")
    return folded("Every seed", made)


def per_class(study: Study) -> Markup:
    """Mean IoU of each class over seeds; nothing where no run says."""
    means = {group.name: _class_means(group) for group in study.groups}
    classes = list(dict.fromkeys(name for had in means.values() for name in had))
    if not classes:
        return Markup()
    rows: list[list[Cell]] = []
    for name in classes:
        values = [had.get(name) for had in means.values()]
        rows.append([name, *(None if value is None else number(value, percent(value)) for value in values)])
    note = paragraph("Mean over seeds, %. A dash: the class is neither labelled nor predicted.", kind="soft")
    return folded("IoU of each class", table(["class", *means], rows, name="per-class") + note)


def _class_means(group: Group) -> dict[str, float | None]:
    """Over the seeds in which a class has an IoU; None where it has none in any."""
    values: dict[str, list[float]] = {}
    for run in group.runs:
        found = run.result.get(PER_CLASS)
        for name, value in (found if isinstance(found, dict) else {}).items():
            values.setdefault(name, [])
            if isinstance(value, (int, float)):
                values[name].append(float(value))
    return {name: sum(had) / len(had) if had else None for name, had in values.items()}


def conditions(study: Study) -> Markup:
    """How the scores were made: one value where all runs agree, else each with the groups that have it."""
    recipes = [run.recipe for group in study.groups for run in group.runs]
    rows: list[list[Cell]] = [
        ["recipe", _listed([recipe.get("name") for recipe in recipes])],
        ["backbone", _listed([_backbone(recipe) for recipe in recipes])],
        ["data", _listed([f"{recipe['data'].get('name')}, {recipe['data'].get('val_split')}" for recipe in recipes])],
        ["steps x batch", _listed([f"{recipe.get('steps')} x {recipe.get('batch')}" for recipe in recipes])],
        ["training precision", _listed([recipe.get("precision") for recipe in recipes])],
    ]
    for field, words in CONDITIONS.items():
        values = [
            run.result[field] for group in study.groups for run in group.runs if run.result.get(field) is not None
        ]
        if field == "date":  # of all that the clock says, the day is enough
            values = sorted(str(value)[:10] for value in values)
        if values:
            rows.append([words, _listed(values)])
    return table(["what", "how"], rows, name="conditions", kind="words")


def runs(study: Study) -> Markup:
    """Where the files are."""
    rows: list[list[Cell]] = []
    for group in study.groups:
        for run in group.runs:
            state = "finished" if run.result else "not finished"
            rows.append([str(run.path), group.name, str(run.seed), state, "yes" if run.weights else "no"])
    return folded("Run folders", table(["folder", "context", "seed", "state", "weights"], rows, name="runs"))


def _backbone(recipe: dict[str, Any]) -> str:
    model = recipe["model"]
    return f"{model.get('backbone')}, stride {model.get('output_stride')}"


def _listed(values: list[Any]) -> str:
    """Each value once; with how many runs have it where they do not agree."""
    shown = [str(value) for value in values]
    each = list(dict.fromkeys(shown))
    if len(each) == 1:
        return each[0]
    return "; ".join(f"{value} ({n} run{'s' * (n > 1)})" for value in each if (n := shown.count(value)))


def _spoken(score: Summary) -> str:
    if score.deviation is None:
        return f"{percent(score.mean)} % with one seed, so its spread is unknown"
    return f"{percent(score.mean)} %, deviation {percent(score.deviation)} over {score.n} seeds"


def _deviation(score: Summary | None) -> Cell:
    return None if score is None or score.deviation is None else number(score.deviation, percent(score.deviation))


def _seeds(group: Group) -> str:
    done = len(group.scores)
    return str(done) if done == len(group.runs) else f"{done} of {len(group.runs)}"


def _difference(found: Difference | None) -> tuple[Cell, Cell]:
    if found is None:
        return None, None
    mean = number(found.mean, signed(found.mean))
    if found.interval is None:
        return mean, f"needs 3 shared seeds, has {found.n}"
    low, high = found.interval
    return mean, Markup(f"{number(low, signed(low))} to {number(high, signed(high))}")
