"""The accuracy table of README: a ham and attention against no context, on every data set of `results/`."""

from __future__ import annotations

from collections.abc import Mapping

from hamburger.report.study import compare_paired
from hamburger_lab.markdown import markdown_table
from hamburger_lab.pages.comparison import REFERENCES, scores_by_context
from hamburger_lab.pages.voc_352 import scores_at
from hamburger_lab.rows import Results, Row

HAM, ATTENTION = "nmf", ("sa-flash", "sa")
DATA = {  # file: what the reader sees
    "voc352_h200": "all of PASCAL VOC, photos of 352 pixels",
    "segmentation_voc-animals_h200": "animals of PASCAL VOC",
    "segmentation_camvid_h200": "CamVid",
    "classes_cifar10-classes_h200": "CIFAR-10, classification",
    "classes_tiny-imagenet-classes_h200": "ten classes of Tiny-ImageNet",
    "segmentation_patchwork_cpu": "generated: a faint signal shared by the image",
    "segmentation_patchwork-glyphs_cpu": "generated: a few positions decide",
}


def accuracy_table(results: Results) -> str:
    """Return points gained over the same network without a context, with the 95 % interval where there is one."""
    lines = []
    for name, label in DATA.items():
        rows = results.rows(name)
        scores = scores_at(rows, -1) if "learning_curve" in rows[0] else scores_by_context(rows, score_in_percent)
        reference = next(scores[each] for each in REFERENCES if each in scores)
        attention = next(scores[each] for each in ATTENTION if each in scores)
        gains = [format_gain(scores[HAM], reference), format_gain(attention, reference)]
        lines.append([label, f"{rows[0]['steps']:,}", *gains])
    table = markdown_table(["data", "steps", "NMF", "attention"], lines)
    return (
        f"{table}\n\nPoints of mIoU or accuracy over the same network without a context; [95 % interval], paired by "
        "seed, three seeds unless stated. An interval that includes zero is no evidence of a difference."
    )


def score_in_percent(row: Row) -> float:
    return 100 * float(row["accuracy"] if row.get("miou") is None else row["miou"])


def format_gain(ours: Mapping[int, float], reference: Mapping[int, float]) -> str:
    gain = compare_paired(ours, reference)
    if gain is None:
        return ""
    if gain.interval is None:
        return f"{gain.mean:+z.1f} ({gain.n} seeds)"
    low, high = gain.interval
    return f"{gain.mean:+z.1f} [{low:+z.1f}, {high:+z.1f}]"
