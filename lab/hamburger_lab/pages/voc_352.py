"""Tables of the recipe `voc-352` in docs/segmentation.md, from rows of `lab/experiments/voc_352.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hamburger.report.study import compare_paired, summarise
from hamburger_lab.markdown import markdown_table
from hamburger_lab.pages.comparison import describe_environment, format_seeds, list_seeds, ranked_cells
from hamburger_lab.rows import Row

Scores = dict[str, dict[int, float]]  # cell -> seed -> score in percent


def final_table(rows: Sequence[Row]) -> str:
    """Return scores of the last step and halfway, and the step at which each cell reaches the baseline's last score."""
    final = scores_at(rows, -1)
    middle = len(rows[0]["learning_curve"]) // 2 - 1
    halfway, step = scores_at(rows, middle), f"step {rows[0]['learning_curve'][middle]['step']:,}"
    multi = _evaluated(rows, "multi")
    lines = [
        [
            cell,
            *cells,
            format_seeds(final[cell], 1),
            *_mean_and_gain(multi, cell),
            *_mean_and_gain(halfway, cell),
            _steps_to_baseline(rows, cell),
        ]
        for cell, cells in ranked_cells(final, 1).items()
    ]
    header = ["context", "mIoU", "spread", "gain", "95 % interval", "each seed", "multi-scale mIoU", "multi-scale gain"]
    header += [f"mIoU at {step}", f"gain at {step}", "step at which it reaches the final score of none"]
    first = rows[0]
    note = (
        f"Recipe `{first['recipe']}`: HamNet, ResNet-50 at stride 16, {first['steps']:,} steps of {first['batch']} "
        f"crops of {first['crop']} pixels, precision {first['precision']}; validation mIoU in percent (single scale, "
        f"all 1,449 images, longest side 352; multi-scale: six scales and flip), seeds {list_seeds(rows)}; spread is "
        "the standard deviation over seeds, gain is the difference to none, paired by seed, and the interval is that "
        "of the gain. Fewer than three seeds give no interval. "
        f"{describe_environment(rows)}"
    )
    return f"{markdown_table(header, lines)}\n\n{note}"


def curve_table(rows: Sequence[Row]) -> str:
    """Return the mean mIoU of every cell at each of the ten evaluations."""
    steps = [point["step"] for point in rows[0]["learning_curve"]]
    cells = list(scores_at(rows, -1))
    lines = [
        [f"{step:,}", *(f"{summarise(list(scores_at(rows, i)[cell].values())).mean:.1f}" for cell in cells)]
        for i, step in enumerate(steps)
    ]
    return markdown_table(["step", *cells], lines)


def other_steps_table(rows: Sequence[Row]) -> str:
    """Return the mean mIoU of trained hams evaluated with other numbers of steps K than those of the training."""
    evaluated = [row for row in rows if row.get("other_steps")]
    numbers = sorted({int(number) for row in evaluated for number in row["other_steps"]})
    lines = []
    for cell in dict.fromkeys(row["cell"] for row in evaluated):
        group = [row for row in evaluated if row["cell"] == cell]
        scores = [[100 * row["other_steps"][str(number)]["miou"] for row in group] for number in numbers]
        training_mean = summarise([100 * row["single"]["miou"] for row in group]).mean
        lines.append(
            [cell, list_seeds(group), f"{training_mean:.1f}", *(f"{summarise(values).mean:.1f}" for values in scores)]
        )
    return markdown_table(["context", "seeds", "as trained", *(f"K = {number}" for number in numbers)], lines)


def object_table(rows: Sequence[Row]) -> str:
    """Return the mean recall of objects by their share of the image."""
    sizes = rows[0]["objects"]
    lines = []
    for cell in scores_at(rows, -1):
        group = [row for row in rows if row["cell"] == cell and "objects" in row]
        means = [summarise([100 * row["objects"][size]["mean_recall"] for row in group]).mean for size in sizes]
        lines.append([cell, *(f"{mean:.1f}" for mean in means)])
    header = [f"{size} ({counts['objects']:,})" for size, counts in sizes.items()]
    note = (
        "Mean over objects of the share of an object's pixels that get its class, in percent, by the object's share of "
        "the image (in brackets: number of objects)."
    )
    return f"{markdown_table(['context', *header], lines)}\n\n{note}"


def class_table(rows: Sequence[Row]) -> str:
    """Return IoU of every class: the baseline's, and the difference of each cell to it."""
    cells = list(scores_at(rows, -1))
    others = [cell for cell in cells if cell != "none"]

    def ious(cell: str, name: str) -> dict[int, float]:
        return {row["seed"]: 100 * row["single"]["per_class"][name] for row in rows if row["cell"] == cell}

    lines = []
    for name in rows[0]["single"]["per_class"]:
        base = ious("none", name)
        gains = [compare_paired(ious(cell, name), base) for cell in others]
        shown = ["" if gain is None else f"{gain.mean:+z.1f}" for gain in gains]
        lines.append([name, f"{summarise(list(base.values())).mean:.1f}", *shown])
    return markdown_table(["class", "none", *others], lines)


def scores_at(rows: Sequence[Row], point: int) -> Scores:
    """Return the scores at one point of the learning curves; -1 is the last step."""
    scores: Scores = {}
    for row in rows:
        scores.setdefault(row["cell"], {})[row["seed"]] = 100 * row["learning_curve"][point]["miou"]
    return scores


def _evaluated(rows: Sequence[Row], protocol: str) -> Scores:
    """Return the scores of the last weights by a protocol, for the rows that have it."""
    scores: Scores = {row["cell"]: {} for row in rows}
    for row in rows:
        if protocol in row:
            scores[row["cell"]][row["seed"]] = 100 * row[protocol]["miou"]
    return scores


def _mean_and_gain(scores: Mapping[str, Mapping[int, float]], cell: str) -> list[str]:
    """Return the mean of a cell and its paired difference to the baseline, empty where there is none."""
    if not scores[cell]:
        return ["", ""]
    gain = None if cell == "none" else compare_paired(scores[cell], scores["none"])
    return [f"{summarise(list(scores[cell].values())).mean:.1f}", "" if gain is None else f"{gain.mean:+z.1f}"]


def _steps_to_baseline(rows: Sequence[Row], cell: str) -> str:
    """Return the first evaluated step with the last score of `none` or more, for each seed that both have."""
    if cell == "none":
        return ""
    goal = scores_at(rows, -1)["none"]
    reached = []
    for row in rows:
        if row["cell"] == cell and row["seed"] in goal:
            curve = row["learning_curve"]
            reached.append(next((f"{p['step']:,}" for p in curve if 100 * p["miou"] >= goal[row["seed"]]), "never"))
    return "; ".join(reached)
