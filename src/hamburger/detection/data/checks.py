"""Checks of a detection set before training: all defects at once, objects per class, image sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from hamburger.detection.data.base import DetectionSet
from hamburger.detection.data.coco import CocoSet, read_size
from hamburger.errors import DataError
from hamburger.training.datasets import format_problems


@dataclass
class SceneFindings:
    """What an inspection of a detection set found."""

    problems: list[str]
    objects: list[int]  # per class, without crowds
    sizes: dict[tuple[int, int], int] = field(default_factory=dict)  # number of images by (h, w)


def check_scenes(data: DetectionSet) -> None:
    """Raise DataError with all problems of a set in files, the first 20 in its message; generated sets have none."""
    if isinstance(data, CocoSet):
        problems = inspect_scenes(data).problems
        if problems:
            raise DataError(format_problems(data, problems), problems)


def inspect_scenes(
    data: DetectionSet, *, cache: bool = True, after: Callable[[], object] | None = None
) -> SceneFindings:
    """Problems, objects of each class and sizes of images. `after` is called once per image, for progress."""
    labels: Counter[int] = Counter()
    sizes: Counter[tuple[int, int]] = Counter()
    if isinstance(data, CocoSet):
        problems = data.problems(cache=cache, after=after)
        sizes.update(read_size(image) for image in data.images)
        annotations = (annotation for objects in data.objects.values() for annotation in objects)
        labels.update(data.categories[each["category_id"]] for each in annotations if not each.get("iscrowd"))
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
