"""Everything that is wrong with a detection set, found before training and listed at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from hamburger.detection.data.base import DetectionSet
from hamburger.detection.data.coco import Coco, size_of
from hamburger.errors import DataError
from hamburger.training.datasets import listing


@dataclass
class SceneFindings:
    """`objects`: how many each class has, without groups.   `sizes`: how many images are h x w."""

    problems: list[str]
    objects: list[int]
    sizes: dict[tuple[int, int], int] = field(default_factory=dict)


def check_scenes(data: DetectionSet) -> None:
    """A DataError with all problems of a set in files, the first 20 in its message; generated ones have none."""
    if isinstance(data, Coco):
        found = inspect_scenes(data)
        if found.problems:
            raise DataError(listing(data, found.problems), found.problems)


def inspect_scenes(
    data: DetectionSet, *, cache: bool = True, after: Callable[[], object] | None = None
) -> SceneFindings:
    """Problems, objects of each class and sizes of images. `after` is called once per image, for progress."""
    labels: Counter[int] = Counter()
    sizes: Counter[tuple[int, int]] = Counter()
    if isinstance(data, Coco):
        problems = data.problems(cache=cache, after=after)
        sizes.update(size_of(image) for image in data.images)
        every = (note for notes in data.objects.values() for note in notes)
        labels.update(data.categories[note["category_id"]] for note in every if not note.get("iscrowd"))
    else:
        problems = data.problems()
        for scene in (data[i] for i in range(len(data))):
            labels.update(scene.labels[~scene.crowd].tolist())
            sizes.update([(scene.image.shape[1], scene.image.shape[2])])
            if after is not None:
                after()
    if not problems and not labels:
        problems = [f"{data.name}: split '{data.split}' has no object of any of its {len(data.classes)} classes"]
    return SceneFindings(problems, [labels[i] for i in range(len(data.classes))], dict(sizes))
