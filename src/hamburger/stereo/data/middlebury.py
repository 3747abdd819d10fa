"""`middlebury`: pairs as the Middlebury benchmarks of all years have them, a folder each, at any depth below `root`.

    im0, im1       disp0GT.pfm (disp0.pfm), mask0nocc.png    2014 and later; calib.txt must agree with them
    im2, im6       disp2.png, disp6.png                      2001 and 2003, 4 x disparity
    view1, view5   disp1.png, disp5.png                      2005 and 2006, 1 x disparity
    aL, aR         aGT.png                                   single pairs as other packages hand them on, for any `a`
    a_left, a_right   a_disp.npz (.pfm, .png)

In PNGs 0 is unknown, elsewhere infinity is. Without `train.txt` or `val.txt` in `root` (ids, one a line) every pair
belongs to "val": such sets are too small to train on by accident.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hamburger.errors import DataError, check_positive
from hamburger.stereo.data.base import stereo_sets
from hamburger.stereo.data.files import StereoFiles, StereoFileSet, image_at, listed
from hamburger.training.datasets import check_root
from hamburger.training.image_files import SUFFIXES

LAYOUT = "a folder for each pair, such as cones/im2.png, cones/im6.png and cones/disp2.png"
NAME = "{}"  # stands for the pair's own name


@dataclass(frozen=True)
class Names:
    """What the files of a pair are called; of several truths the first that is there is taken."""

    left: str
    right: str
    truths: tuple[str, ...]
    truths_right: tuple[str, ...] = ()
    mask: str | None = None
    scale: float = 1.0

    def of(self, stem: str) -> str | None:
        """The pair's own name ("" where files have none) if an image of this name is half of a pair."""
        for pattern in (self.left, self.right):
            found = re.fullmatch(re.escape(pattern).replace(re.escape(NAME), "(.+)"), stem)
            if found:
                return found[1] if found.groups() else ""
        return None


LAYOUTS = (
    Names("im0", "im1", ("disp0GT.pfm", "disp0.pfm"), ("disp1GT.pfm", "disp1.pfm"), "mask0nocc.png"),
    Names("im2", "im6", ("disp2.png", "disp2.pfm"), ("disp6.png", "disp6.pfm"), scale=4.0),
    Names("view1", "view5", ("disp1.png", "disp1.pfm"), ("disp5.png", "disp5.pfm")),
    Names("{}_left", "{}_right", ("{}_disp.npz", "{}_disp.pfm", "{}_disp.png")),
    Names("{}L", "{}R", ("{}GT.png", "{}GT.pfm", "{}GT.npz")),
)


@stereo_sets.register("middlebury")
class Middlebury(StereoFileSet):
    """`scale`: what PNGs hold is so many times the disparity; by default as the year of the layout had it.

    `shrink`: 2 for pairs of half their size, and so on.
    """

    def __init__(self, split: str = "val", *, root: Path, scale: float | None = None, shrink: int = 1) -> None:
        root = check_root("middlebury", Path(root), LAYOUT)
        if scale is not None:
            check_positive("middlebury", "scale", scale)
        pairs = [pair for folder in _folders(root) for pair in pairs_in(folder, root, scale)]
        if not pairs:
            raise DataError(f"middlebury: no pair lies in {root} or below; it should hold {LAYOUT}")
        chosen = listed(root, split, pairs)
        if chosen is None and split != "val":
            raise DataError(
                f"middlebury: {root} does not say which of its {len(pairs)} pairs are '{split}'; put their ids into "
                f"{root / f'{split}.txt'}, one a line, such as {pairs[0].id}"
            )
        super().__init__("middlebury", split, pairs if chosen is None else chosen, shrink=shrink)


def _folders(root: Path) -> list[Path]:
    return sorted(Path(folder) for folder, _, _ in os.walk(root))


def pairs_in(folder: Path, root: Path, scale: float | None = None) -> Iterator[StereoFiles]:
    """One pair where the files have a benchmark's own names; else as many as there are names."""
    stems = sorted({path.stem for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file()})
    fixed = [names for names in LAYOUTS if NAME not in names.left and any(names.of(stem) is not None for stem in stems)]
    if fixed:
        # 2003 has im0 and im1 too, but without disparities; 2014 has im1L, the same view in another light
        known = [names for names in fixed if any((folder / truth).is_file() for truth in names.truths)]
        yield _pair(folder, root, (known or fixed)[0], "", scale)
        return
    for names in LAYOUTS:
        for own in sorted({own for stem in stems if (own := names.of(stem)) is not None}):
            yield _pair(folder, root, names, own, scale)


def _pair(folder: Path, root: Path, names: Names, own: str, scale: float | None) -> StereoFiles:
    def first(candidates: tuple[str, ...]) -> Path | None:
        paths = [folder / candidate.replace(NAME, own) for candidate in candidates]
        return next((path for path in paths if path.is_file()), None)

    inner = folder.relative_to(root).as_posix()
    alone = not own or own == folder.name  # aloe/aloeL is the pair "aloe"
    mask = folder / names.mask if names.mask is not None else None
    return StereoFiles(
        inner if alone and inner != "." else (f"{inner}/{own}" if inner != "." else own or folder.name),
        image_at(folder, names.left.replace(NAME, own)),
        image_at(folder, names.right.replace(NAME, own)),
        first(names.truths) or folder / names.truths[0].replace(NAME, own),
        scale=names.scale if scale is None else float(scale),
        disparity_right=first(names.truths_right),
        mask=mask if mask is not None and mask.is_file() else None,
        calibration=calibration if (calibration := folder / "calib.txt").is_file() else None,
    )
