"""`ham bench detect`: time a training step of Mask R-CNN with each context, at several image sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from hamburger_lab.bench import size_sweep
from hamburger_lab.bench.network import TrainingStep
from hamburger_lab.bench.size_sweep import SizeSweepRow


@dataclass(frozen=True)
class DetectorPlan(size_sweep.SizeSweepPlan):
    """`variants`: row name -> context options of `create_detector`. `options`: its other options."""

    call: ClassVar[str] = "bench detect"
    least: ClassVar[int] = 64

    sizes: tuple[int, ...] = (256, 512, 768, 1024)
    backbone: str = "resnet50"
    after: str = "p3"
    batch: int = 4
    options: dict[str, Any] = field(default_factory=dict)


def measure(plan: DetectorPlan, progress: Callable[[str], object] = lambda _: None) -> Iterator[SizeSweepRow]:
    """Yield one row per size and context."""
    return size_sweep.measure(plan, DetectorRace, progress, steady=False)


class DetectorRace(size_sweep.SizeSweepRace):
    """Times detectors on generated scenes of one size."""

    def __init__(self, plan: DetectorPlan, size: int) -> None:
        from hamburger.detection.data import SceneBatches
        from hamburger.detection.data.shapes import ShapesSet

        super().__init__(plan, size)
        scenes = ShapesSet("train", size=size, length=plan.batch, seed=plan.seed)
        [self.batch] = SceneBatches(scenes, batch=plan.batch, crop=size, device=plan.device, resident="no").at(0)
        self.classes = len(scenes.classes)

    def create(self, context: str) -> nn.Module:
        from hamburger.detection.model import create_detector, resolve_places

        plan = self.plan
        net = create_detector(
            plan.backbone,
            num_classes=self.classes,
            after=plan.after,
            size=self.size,
            max_size=self.size,
            **plan.variants[context],
            **plan.options,
        )
        self.count_positions(context, net.net, resolve_places(plan.after)[0])
        return net

    def step(self, net: nn.Module) -> TrainingStep:
        return TrainingStep(self.plan, net, self.batch.images, self.batch.targets, channels_last=False)
