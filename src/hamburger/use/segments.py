"""Every pixel of a photograph: its label as a PNG, and an overlay to look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hamburger.engine.answers import Answer, Answers
from hamburger.errors import OptionError
from hamburger.use.images import read_image
from hamburger.use.pictures import full_palette, label_png, overlay_jpeg, shares
from hamburger.use.predict import MAX_PIXELS, Predictor

if TYPE_CHECKING:
    from hamburger.models.info import Info

LAYOUTS = ("plain", "voc")
VOC_FOLDER = Path("results/VOC2012/Segmentation/comp6_test_cls")


@dataclass(frozen=True)
class Layout:
    """Where the pictures of a photograph go, and which value a class has in its label."""

    label: Callable[[str], Path]
    overlay: Callable[[str], Path]
    values: tuple[int, ...] | None = None  # by class; None: the index of the class
    by_id: bool = False  # files are found by the stem of the photograph, which must be its own


def find_layout(name: str, classes: Sequence[str]) -> Layout:
    if name == "plain":
        return Layout(lambda of: Path(f"{of}.png"), lambda of: Path(f"{of}_overlay.jpg"))
    if name != "voc":
        raise OptionError(f"predict: no layout {name!r}; there are: {', '.join(LAYOUTS)}")
    from hamburger.data.voc import CLASSES  # the server knows VOC's ids only

    unknown = [one for one in classes if one not in CLASSES]
    if unknown:
        raise OptionError(
            f"predict: the voc layout needs PASCAL VOC's classes, but these weights know {', '.join(unknown[:5])}; "
            f"take --layout plain"
        )
    values = tuple(CLASSES.index(one) for one in classes)
    return Layout(lambda of: VOC_FOLDER / f"{of}.png", lambda of: Path("overlays") / f"{of}.jpg", values, by_id=True)


class SegmentAnswers(Answers):
    """Options beside those of `Predictor`: the `layout` of the files, and whether there is an `overlay`: by default
    not for a layout that a server reads.
    """

    columns = ("label", "size", "largest classes")
    remedy = "take a smaller --max-pixels, a --window or another --device"

    def __init__(
        self,
        net: nn.Module,
        info: Info,
        device: torch.device | str,
        *,
        scales: tuple[float, ...] = (1.0,),
        flip: bool = False,
        window: int | None = None,
        max_pixels: int = MAX_PIXELS,
        overlay: bool | None = None,
        layout: str = "plain",
    ) -> None:
        self.predictor = Predictor(net, info, device, scales=scales, flip=flip, window=window, max_pixels=max_pixels)
        super().__init__(net, info, self.predictor.device)
        self.layout = find_layout(layout, info.classes)
        self.by_id = self.layout.by_id
        self.overlay = layout == "plain" if overlay is None else overlay
        self.files = {"label": self.layout.label} | ({"overlay": self.layout.overlay} if self.overlay else {})
        self.palette = full_palette(info.palette, len(info.classes))

    def __call__(self, *paths: Path) -> Answer:
        (path,) = paths
        image = read_image(path)
        label = self.predictor(image)
        height, width = label.shape
        had = shares(label, self.info.classes)
        row = {"height": height, "width": width, "tiles": self.predictor.cuts(height, width), "shares": had}
        largest = sorted(had.items(), key=lambda item: -item[1])[:3]
        words = ", ".join(f"{name} {share:.0%}" for name, share in largest)
        files = {"label": self._label_png(label)}
        if self.overlay:
            files["overlay"] = overlay_jpeg(image, label, self.info.classes, self.palette)
        return Answer(row if self.overlay else {"overlay": None, **row}, (f"{width} x {height}", words), files)

    def _label_png(self, label: Tensor) -> bytes:
        if self.layout.values is None:
            return label_png(label, self.palette)
        values = torch.tensor(self.layout.values, dtype=torch.uint8)
        return label_png(values[label.int()], full_palette((), 0))  # VOC's ids in VOC's colours

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "protocol": str(self.predictor.protocol)}

    def notes(self, rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
        tiled = sum(row["tiles"] > 1 for row in rows)
        if tiled:
            yield f"{tiled} of them in tiles, where context reaches no further than the tile (see --max-pixels)"
