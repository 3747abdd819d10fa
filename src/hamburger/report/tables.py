"""The tables and sentences of a report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hamburger.report.html import CellText, Markup, collapsible, number, paragraph, table
from hamburger.report.statistics import PairedDifference, SampleSummary, compare_paired
from hamburger.report.study import RunGroup, Study
from hamburger.training.task import Score

# fields of result.json about how and where a score was measured, and their headings
CONDITIONS = {
    "protocol": "evaluation",
    "hardware": "hardware",
    "processes": "processes",
    "threads": "threads",
    "torch": "torch",
    "commit": "commit",
    "date": "date",
}


def score_table(study: Study) -> Markup:
    """One row per group: score with spread, difference to the reference, and cost."""
    score = study.task.score
    header = ["context", score.heading, "deviation", "seeds", f"minus {study.reference.name}", "95 % interval"]
    costs: dict[str, tuple[str, Callable[[float], str]]] = {
        "parameters": ("parameters", lambda value: f"{value:,.0f}"),
        "images_per_s": ("images/s", lambda value: f"{value:.3g}" if value < 100 else f"{value:,.0f}"),
        "peak_mb": ("peak MB", lambda value: f"{value:,.0f}"),
    }
    costs = {field: cost for field, cost in costs.items() if any(group.value(field) for group in study.groups)}
    rows = []
    for group in study.groups:
        summary, difference = group.score, study.difference(group)
        row: list[CellText] = [
            group.name,
            number(summary.mean, score.shown(summary.mean)) if summary else "not finished",
        ]
        row += [_deviation(score, summary), _seeds(group), *_difference(score, difference)]
        for field, (_, shown) in costs.items():
            value = group.value(field)
            row.append(number(value.mean, shown(value.mean)) if value else None)
        rows.append(row)
    return table([*header, *(words for words, _ in costs.values())], rows, name="scores", kind="cards")


def verdict_text(study: Study) -> Markup:
    """What the numbers support, and no more; a rival or baseline that wins comes first."""
    best, ham, rival = study.best(), study.best("ham"), study.best("rival")
    if best is None or best.score is None:
        return paragraph("No run has finished yet: there is no score to compare.")
    score = study.task.score
    most = "highest" if score.higher else "lowest"
    sentences = [f"The {most} mean {score.words} is that of {best.name}: {_format_score(score, best.score)}."]
    if len(study.groups) == 1:
        sentences.append("There is nothing to compare it with here.")
    elif best.kind == "baseline":
        sentences.append("Here no context module is better than the baseline.")
    elif best.kind == "rival" and ham is not None:
        sentences.append(f"A rival wins: {_compare(score, best, ham)}")
    elif best.kind == "ham" and rival is not None:
        sentences.append(f"The best rival is {rival.name}: {_compare(score, best, rival)}")
    if ham is not None and study.reference.scores and ham is not study.reference:
        sentences.append(_compare(score, ham, study.reference))
    return Markup("".join(paragraph(sentence) for sentence in sentences))


def _compare(score: Score, one: RunGroup, other: RunGroup) -> str:
    difference = compare_paired(one.scores, other.scores)
    if difference is None:
        return f"{one.name} and {other.name} share no seed, so they cannot be paired."
    points = f"{score.signed(difference.mean)} {score.points} over {difference.n} shared seed{'s' * (difference.n > 1)}"
    if difference.interval is None:
        return f"{one.name} minus {other.name} is {points}: too few seeds for an interval, so only a hint."
    low, high = difference.interval
    weight = "it excludes zero" if difference.clear else "it includes zero, so this may be chance"
    interval = f"95 % interval {score.signed(low)} to {score.signed(high)}"
    return f"{one.name} minus {other.name} is {points}, {interval}: {weight}."


def further_scores(study: Study) -> Markup:
    """The task's further scores, means over seeds; empty if no run has any."""
    names = [score.name for score in study.task.scores[1:] if any(group.value(score.name) for group in study.groups)]
    if not names:
        return Markup()
    headings: dict[str, dict[str, None]] = {
        name: {} for name in names
    }  # usually one each; runs on different images may differ
    for run in (run for group in study.groups for run in group.runs):
        for score, _ in study.task.present_scores(run.result):
            headings.get(score.name, {})[score.heading] = None
    shown = {score.name: score.shown for score in study.task.scores}
    rows: list[list[CellText]] = []
    for group in study.groups:
        means = [(name, group.value(name)) for name in names]
        rows.append([group.name, *(None if v is None else number(v.mean, shown[name](v.mean)) for name, v in means)])
    html = table(["context", *(" or ".join(headings[name]) for name in names)], rows, name="others")
    return collapsible("Further scores", html + paragraph("Means over seeds, of the last step.", kind="soft"))


def per_seed_table(study: Study) -> Markup:
    """The score of every run."""
    score = study.task.score
    seeds = sorted({run.seed for group in study.groups for run in group.runs})
    rows: list[list[CellText]] = []
    for group in study.groups:
        scores = group.scores
        rows.append([group.name, *(number(scores[s], score.shown(scores[s])) if s in scores else None for s in seeds)])
    html = table([score.heading, *(f"seed {seed}" for seed in seeds)], rows, name="per-seed")
    return collapsible("Every seed", html)


def per_member_table(study: Study) -> Markup:
    """The score of each class (or other member), mean over seeds; empty if no run has any."""
    each, member = study.task.member_score, study.task.member
    if each is None:
        return Markup()
    means = {group.name: _member_means(group, each.name) for group in study.groups}
    members = list(dict.fromkeys(name for scores in means.values() for name in scores))
    if not members:
        return Markup()
    rows: list[list[CellText]] = []
    for name in members:
        values = [scores.get(name) for scores in means.values()]
        rows.append([name, *(None if value is None else number(value, each.shown(value)) for value in values)])
    unit = f", {each.unit}" if each.unit else ""
    note = paragraph(f"Mean over seeds{unit}. A dash: {study.task.absent}.", kind="soft")
    return collapsible(f"{each.words} of each {member}", table([member, *means], rows, name=f"per-{member}") + note)


def _member_means(group: RunGroup, field: str) -> dict[str, float | None]:
    """Mean over the seeds in which a member has a score; None if it has none."""
    values: dict[str, list[float]] = {}
    for run in group.runs:
        by_name = run.result.get(field)
        for name, value in (by_name if isinstance(by_name, dict) else {}).items():
            values.setdefault(name, [])
            if isinstance(value, (int, float)):
                values[name].append(float(value))
    return {name: sum(scores) / len(scores) if scores else None for name, scores in values.items()}


def conditions_table(study: Study) -> Markup:
    """How the scores were measured; where runs differ, each value with its number of runs."""
    recipes = [run.recipe for group in study.groups for run in group.runs]
    rows: list[list[CellText]] = [
        ["recipe", _join_values([recipe.get("name") for recipe in recipes])],
        [
            "data",
            _join_values([f"{recipe['data'].get('name')}, {recipe['data'].get('val_split')}" for recipe in recipes]),
        ],
        ["steps x batch", _join_values([f"{recipe.get('steps')} x {recipe.get('batch')}" for recipe in recipes])],
        ["training precision", _join_values([recipe.get("precision") for recipe in recipes])],
    ]
    if "backbone" in recipes[0]["model"]:
        rows.insert(1, ["backbone", _join_values([_backbone(recipe) for recipe in recipes])])
    for field, words in CONDITIONS.items():
        values = [
            run.result[field] for group in study.groups for run in group.runs if run.result.get(field) is not None
        ]
        if field == "date":  # the day is enough
            values = sorted(str(value)[:10] for value in values)
        if values:
            rows.append([words, _join_values(values)])
    return table(["what", "how"], rows, name="conditions", kind="words")


def run_table(study: Study) -> Markup:
    """The run folders and their state."""
    rows: list[list[CellText]] = []
    for group in study.groups:
        for run in group.runs:
            state = "finished" if run.result else "not finished"
            rows.append([str(run.path), group.name, str(run.seed), state, "yes" if run.weights else "no"])
    return collapsible("Run folders", table(["folder", "context", "seed", "state", "weights"], rows, name="runs"))


def _backbone(recipe: dict[str, Any]) -> str:
    model = recipe["model"]
    stride = f", stride {model['output_stride']}" if "output_stride" in model else ""
    return f"{model.get('backbone')}{stride}"


def _join_values(values: list[Any]) -> str:
    """Each value once, with its number of runs if there are several values."""
    shown = [str(value) for value in values]
    each = list(dict.fromkeys(shown))
    if len(each) == 1:
        return each[0]
    return "; ".join(f"{value} ({n} run{'s' * (n > 1)})" for value in each if (n := shown.count(value)))


def _format_score(score: Score, summary: SampleSummary) -> str:
    mean = " ".join(filter(None, (score.shown(summary.mean), score.unit)))
    if summary.deviation is None:
        return f"{mean} with one seed, so its spread is unknown"
    return f"{mean}, deviation {score.shown(summary.deviation)} over {summary.n} seeds"


def _deviation(score: Score, summary: SampleSummary | None) -> CellText:
    return (
        None
        if summary is None or summary.deviation is None
        else number(summary.deviation, score.shown(summary.deviation))
    )


def _seeds(group: RunGroup) -> str:
    done = len(group.scores)
    return str(done) if done == len(group.runs) else f"{done} of {len(group.runs)}"


def _difference(score: Score, difference: PairedDifference | None) -> tuple[CellText, CellText]:
    if difference is None:
        return None, None
    mean = number(difference.mean, score.signed(difference.mean))
    if difference.interval is None:
        return mean, f"needs 3 shared seeds, has {difference.n}"
    low, high = difference.interval
    return mean, Markup(f"{number(low, score.signed(low))} to {number(high, score.signed(high))}")
