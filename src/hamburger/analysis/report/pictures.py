"""Images and what networks make of them, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hamburger.analysis.report.drawing import is_photo, picture, shrink
from hamburger.analysis.report.gallery import SEED, Exhibit, Gallery
from hamburger.analysis.report.groups import Study
from hamburger.analysis.report.html import Markup, heading, legend, paragraph, tiles

Answers = dict[str, dict[int, Any]]  # by the name of the group, then by index


def pictures(study: Study, gallery: Gallery) -> Markup:
    """Some images drawn by lot, some where the context gains most, some where it loses most."""
    showing = gallery.showing
    shown = _shown(study, gallery)
    answers = {exhibit.group.name: gallery.answers(exhibit) for exhibit in shown}
    parts = [heading(f"Drawn by lot (seed {SEED})"), _rows(gallery, answers, gallery.indices[: showing.each])]
    if len(shown) > 1:
        first, second = shown[0].group.name, shown[1].group.name
        gains = {i: showing.judge(i, answers[second][i]) - showing.judge(i, answers[first][i]) for i in gallery.indices}
        sign = 1 if showing.score.higher else -1
        ranked = sorted(gains, key=lambda i: (-sign * gains[i], i))
        for words, found in (
            (f"Where {second} gains most over {first}", [i for i in ranked[: showing.each] if sign * gains[i] > 0]),
            (
                f"Where {second} loses most to {first}",
                [i for i in ranked[: -showing.each - 1 : -1] if sign * gains[i] < 0],
            ),
        ):
            parts.append(heading(words))
            parts.append(_rows(gallery, answers, found, gains))
            if not found:
                parts.append(paragraph("On none of the images that were looked at.", kind="soft"))
    legends = "".join(legend(entries) for entries in showing.legends(gallery.indices))
    return Markup(paragraph(_caption(gallery, shown)) + legends + "".join(parts))


def _shown(study: Study, gallery: Gallery) -> list[Exhibit]:
    """The reference, the best ham and the best rival, as far as they have weights; at least something."""
    wanted = [study.reference, study.best("ham"), study.best("rival") or study.best("breads")]
    found = [exhibit for group in wanted if group is not None and (exhibit := gallery.exhibit(group))]
    return list(dict.fromkeys(found)) or list(gallery.exhibits[:1])


def _caption(gallery: Gallery, shown: Sequence[Exhibit]) -> str:
    showing = gallery.showing
    names = ", ".join(f"{exhibit.group.name} (seed {exhibit.run.seed})" for exhibit in shown)
    return (
        f"{len(gallery.indices)} images of the {showing.split.split} split of {showing.split.name}, drawn by a fixed "
        f"seed, were shown to {names}: best weights of each run, {showing.images}. Gains and losses are in "
        f"{showing.score.words}; they are the extremes of these images and not typical."
    )


def _rows(gallery: Gallery, answers: Answers, indices: Sequence[int], gains: dict[int, float] | None = None) -> Markup:
    """A row of tiles for each image; where a task has one tile for an image, all of them in one."""
    showing = gallery.showing
    rows = []
    for index in indices:
        gain = "" if gains is None else f", {showing.score.signed(gains[index])} {showing.score.points}"
        first, *others = showing.row(index, {name: had[index] for name, had in answers.items()}, gain)
        photo = is_photo(first.pixels)
        entries = [(picture(shrink(first.pixels), photo=photo), first.words)]
        entries += [
            (picture(shrink(each.pixels, labels=each.drawn), photo=photo and not each.drawn), each.words)
            for each in others
        ]
        rows.append((entries, photo))
    if all(len(entries) == 1 for entries, _ in rows):
        return tiles([entries[0] for entries, _ in rows], large=any(photo for _, photo in rows)) if rows else Markup()
    return Markup("".join(tiles(entries, large=photo) for entries, photo in rows))
