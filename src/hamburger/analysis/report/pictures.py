"""Images, labels, predictions and errors side by side."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hamburger.analysis.report.drawing import is_photo, picture, shrink
from hamburger.analysis.report.gallery import SEED, Exhibit, Gallery, accuracy
from hamburger.analysis.report.groups import Study
from hamburger.analysis.report.html import Markup, heading, legend, paragraph, tiles
from hamburger.data import IGNORE

EACH = 2  # images under each heading
RIGHT, WRONG, UNLABELLED = (222, 222, 216), (213, 94, 0), (150, 150, 150)


def pictures(study: Study, gallery: Gallery) -> Markup:
    """Two images drawn by lot, the two where the context gains most, the two where it loses most."""
    shown = _shown(study, gallery)
    predictions = {
        exhibit.group.name: {i: exhibit.predictor(sample.image) for i, sample in gallery.samples.items()}
        for exhibit in shown
    }
    drawn = list(gallery.samples)[:EACH]
    parts = [heading(f"Drawn by lot (seed {SEED})"), *(_row(gallery, shown, predictions, i) for i in drawn)]
    if len(shown) > 1:
        first, second = shown[0].group.name, shown[1].group.name
        gains = {
            i: accuracy(predictions[second][i], sample.label) - accuracy(predictions[first][i], sample.label)
            for i, sample in gallery.samples.items()
        }
        ranked = sorted(gains, key=lambda i: (-gains[i], i))
        for words, found in (
            (f"Where {second} gains most over {first}", [i for i in ranked[:EACH] if gains[i] > 0]),
            (f"Where {second} loses most to {first}", [i for i in ranked[: -EACH - 1 : -1] if gains[i] < 0]),
        ):
            parts.append(heading(words))
            parts += [_row(gallery, shown, predictions, i, gains[i]) for i in found]
            if not found:
                parts.append(paragraph("On none of the images that were looked at.", kind="soft"))
    present = sorted({int(k) for i in gallery.samples for k in gallery.samples[i].label.unique() if k != IGNORE})
    classes = legend([(gallery.data.palette[k], gallery.data.classes[k]) for k in present])
    errors = legend([(RIGHT, "right"), (WRONG, "wrong"), (UNLABELLED, "unlabelled, not counted")])
    return Markup(paragraph(_caption(gallery, shown)) + classes + errors + "".join(parts))


def _shown(study: Study, gallery: Gallery) -> list[Exhibit]:
    """The reference, the best ham and the best rival, as far as they have weights; at least something."""
    wanted = [study.reference, study.best("ham"), study.best("rival") or study.best("breads")]
    found = [exhibit for group in wanted if group is not None and (exhibit := gallery.exhibit(group))]
    return list(dict.fromkeys(found)) or list(gallery.exhibits[:1])


def _caption(gallery: Gallery, shown: Sequence[Exhibit]) -> str:
    names = ", ".join(f"{exhibit.group.name} (seed {exhibit.run.seed})" for exhibit in shown)
    return (
        f"{len(gallery.samples)} images of the {gallery.data.split} split of {gallery.data.name}, drawn by a fixed "
        f"seed, were shown to {names}: best weights of each run, single scale, whole image. Gains and losses are in "
        "the share of labelled pixels that are right; they are the extremes of these images and not typical."
    )


def _row(
    gallery: Gallery,
    shown: Sequence[Exhibit],
    predictions: dict[str, dict[int, Tensor]],
    index: int,
    gain: float | None = None,
) -> Markup:
    image, label = gallery.samples[index]
    name = gallery.data.ids[index]
    entries = [
        (
            picture(shrink(image), photo=is_photo(image)),
            name if gain is None else f"{name}, {100 * gain:+.1f} points",
        ),
        (picture(colour(gallery, label)), "label"),
    ]
    for exhibit in shown:
        found = predictions[exhibit.group.name][index]
        entries.append((picture(colour(gallery, found)), exhibit.group.name))
        entries.append((picture(errors(found, label)), f"errors, {100 * accuracy(found, label):.1f} % right"))
    return tiles(entries, large=is_photo(image))


def colour(gallery: Gallery, label: Tensor) -> Tensor:
    """h w   ->   3 h w, in the colours of the data set"""
    colours = torch.tensor([UNLABELLED] * 256, dtype=torch.uint8)
    colours[: len(gallery.data.palette)] = torch.tensor(gallery.data.palette, dtype=torch.uint8)
    return colours[shrink(label, labels=True).long()].movedim(2, 0)


def errors(prediction: Tensor, label: Tensor) -> Tensor:
    """h w, h w   ->   3 h w"""
    kind = torch.where(label == IGNORE, 2, (prediction != label).long()).to(torch.uint8)
    return torch.tensor([RIGHT, WRONG, UNLABELLED], dtype=torch.uint8)[shrink(kind, labels=True).long()].movedim(2, 0)
