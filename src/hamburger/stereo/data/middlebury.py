"""`middlebury`: pairs in the layouts of all years of the Middlebury benchmarks, one folder each, anywhere below `root`.

    im0, im1       disp0GT.pfm (disp0.pfm), mask0nocc.png    2014 and later; calib.txt must agree with them
    im2, im6       disp2.png, disp6.png                      2001 and 2003, 4 x disparity
    view1, view5   disp1.png, disp5.png                      2005 and 2006, 1 x disparity
    aL, aR         aGT.png                                   single pairs as other packages distribute them, for any `a`
    a_left, a_right   a_disp.npz (.pfm, .png)

In PNGs 0 is unknown, in other files infinity. Without `train.txt` or `val.txt` in `root` (one id per line) every pair
belongs to "val", since such sets are too small to train on by accident.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hamburger.errors import DataError, check_positive
from hamburger.stereo.data.base import stereo_sets
from hamburger.stereo.data.files import StereoFiles, StereoFileSet, find_image, select_listed
from hamburger.training.datasets import check_root
from hamburger.training.image_files import SUFFIXES

LAYOUT = "a folder for each pair, such as cones/im2.png, cones/im6.png and cones/disp2.png"
PLACEHOLDER = "{}"  # for the name of the pair


@dataclass(frozen=True)
class PairNames:
    """File names of a pair in one layout; of several truths the first that exists is used."""

    left: str
    right: str
    truths: tuple[str, ...]
    truths_right: tuple[str, ...] = ()
    mask: str | None = None
    scale: float = 1.0

    def match(self, stem: str) -> str | None:
        """The name of the pair ("" if the layout has none) if an image of this name belongs to one; otherwise None."""
        for pattern in (self.left, self.right):
            match = re.fullmatch(re.escape(pattern).replace(re.escape(PLACEHOLDER), "(.+)"), stem)
            if match:
                return match[1] if match.groups() else ""
        return None


LAYOUTS = (
    PairNames("im0", "im1", ("disp0GT.pfm", "disp0.pfm"), ("disp1GT.pfm", "disp1.pfm"), "mask0nocc.png"),
    PairNames("im2", "im6", ("disp2.png", "disp2.pfm"), ("disp6.png", "disp6.pfm"), scale=4.0),
    PairNames("view1", "view5", ("disp1.png", "disp1.pfm"), ("disp5.png", "disp5.pfm")),
    PairNames("{}_left", "{}_right", ("{}_disp.npz", "{}_disp.pfm", "{}_disp.png")),
    PairNames("{}L", "{}R", ("{}GT.png", "{}GT.pfm", "{}GT.npz")),
)


@stereo_sets.register("middlebury")
class MiddleburySet(StereoFileSet):
    """Pairs of the Middlebury benchmarks.

    - `scale`: PNGs hold this factor times the disparity; by default that of the layout
    - `shrink`: 2 for pairs of half their size, and so on
    """

    def __init__(self, split: str = "val", *, root: Path, scale: float | None = None, shrink: int = 1) -> None:
        root = check_root("middlebury", Path(root), LAYOUT)
        if scale is not None:
            check_positive("middlebury", "scale", scale)
        pairs = [pair for folder in _list_folders(root) for pair in find_folder_pairs(folder, root, scale)]
        if not pairs:
            raise DataError(f"middlebury: there is no pair in {root} or below; it should hold {LAYOUT}")
        selected = select_listed(root, split, pairs)
        if selected is None and split != "val":
            raise DataError(
                f"middlebury: {root} does not say which of its {len(pairs)} pairs are '{split}'; put their ids into "
                f"{root / f'{split}.txt'}, one per line, such as {pairs[0].id}"
            )
        super().__init__("middlebury", split, pairs if selected is None else selected, shrink=shrink)


def _list_folders(root: Path) -> list[Path]:
    return sorted(Path(folder) for folder, _, _ in os.walk(root))


def find_folder_pairs(folder: Path, root: Path, scale: float | None = None) -> Iterator[StereoFiles]:
    """The pairs of one folder: one if it has a benchmark's fixed file names, otherwise one per name."""
    stems = sorted({path.stem for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file()})
    fixed = [
        names
        for names in LAYOUTS
        if PLACEHOLDER not in names.left and any(names.match(stem) is not None for stem in stems)
    ]
    if fixed:
        # 2003 has im0 and im1 too, but without disparities; 2014 has im1L, the same view in another light
        known = [names for names in fixed if any((folder / truth).is_file() for truth in names.truths)]
        yield _describe_pair(folder, root, (known or fixed)[0], "", scale)
        return
    for names in LAYOUTS:
        for pair in sorted({name for stem in stems if (name := names.match(stem)) is not None}):
            yield _describe_pair(folder, root, names, pair, scale)


def _describe_pair(folder: Path, root: Path, names: PairNames, name: str, scale: float | None) -> StereoFiles:
    def find_first(candidates: tuple[str, ...]) -> Path | None:
        paths = [folder / candidate.replace(PLACEHOLDER, name) for candidate in candidates]
        return next((path for path in paths if path.is_file()), None)

    inner = folder.relative_to(root).as_posix()
    alone = not name or name == folder.name  # aloe/aloeL is the pair "aloe"
    mask = folder / names.mask if names.mask is not None else None
    return StereoFiles(
        inner if alone and inner != "." else (f"{inner}/{name}" if inner != "." else name or folder.name),
        find_image(folder, names.left.replace(PLACEHOLDER, name)),
        find_image(folder, names.right.replace(PLACEHOLDER, name)),
        find_first(names.truths) or folder / names.truths[0].replace(PLACEHOLDER, name),
        scale=names.scale if scale is None else float(scale),
        disparity_right=find_first(names.truths_right),
        mask=mask if mask is not None and mask.is_file() else None,
        calibration=calibration if (calibration := folder / "calib.txt").is_file() else None,
    )
