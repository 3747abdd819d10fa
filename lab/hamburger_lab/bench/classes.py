"""`ham bench classes`: time a training step of an image classifier with each context, at several image sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from hamburger.classification.model import STEMS, create_classifier
from hamburger.errors import check_choice, check_count
from hamburger_lab.bench import size_sweep
from hamburger_lab.bench.network import TrainingStep, random_batch


@dataclass(frozen=True)
class ClassifierPlan(size_sweep.SizeSweepPlan):
    """`variants`: row name -> context options of `create_classifier`; other options are those of the recipes."""

    call: ClassVar[str] = "bench classes"
    least: ClassVar[int] = 8

    sizes: tuple[int, ...] = (32,)
    backbone: str = "resnet18"
    after: str = "layer3"
    batch: int = 128
    stem: str = "small"
    num_classes: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        # the last map of a single image may have one position, which batch norm cannot train on
        for option in ("batch", "num_classes"):
            check_count(self.call, option, getattr(self, option), least=2)
        check_choice(self.call, "stem", self.stem, STEMS)


@dataclass(frozen=True)
class ClassifierRow(size_sweep.SizeSweepRow):
    """One line of the result file: the shared fields and those of the classifier."""

    stem: str
    num_classes: int


def measure(plan: ClassifierPlan, progress: Callable[[str], object] = lambda _: None) -> Iterator[ClassifierRow]:
    """A row per size and context."""
    return size_sweep.measure(plan, ClassifierRace, progress)


class ClassifierWithLoss(nn.Module):
    """A classifier that gives its loss, as networks of other tasks do."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"cross_entropy": F.cross_entropy(self.net(images).float(), labels)}


class ClassifierRace(size_sweep.SizeSweepRace):
    """Times classifiers on random images of one size."""

    row = ClassifierRow

    def __init__(self, plan: ClassifierPlan, size: int) -> None:
        super().__init__(plan, size)
        self.images, self.labels = random_batch(plan, size, plan.num_classes, (plan.batch,))

    def create(self, context: str) -> nn.Module:
        plan = self.plan
        net = create_classifier(
            plan.backbone,
            num_classes=plan.num_classes,
            after=plan.after,
            stem=plan.stem,
            size=self.size,
            **plan.variants[context],
        )
        self.count_positions(context, net.net, plan.after)
        return ClassifierWithLoss(net)

    def step(self, net: nn.Module) -> TrainingStep:
        return TrainingStep(self.plan, net, self.images, self.labels)

    def row_fields(self, context: str, samples: dict[str, list[float]]) -> dict[str, Any]:
        fields = {"stem": self.plan.stem, "num_classes": self.plan.num_classes}
        return fields | super().row_fields(context, samples)
