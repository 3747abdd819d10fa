"""Where stereo sets keep their files: `middlebury` and `sceneflow`.

`middlebury`: the layouts of all years of the benchmark, one folder per pair, anywhere below `root`.

    im0, im1       disp0GT.pfm (disp0.pfm), mask0nocc.png    2014 and later
    im2, im6       disp2.png, disp6.png                      2001 and 2003, 4 x disparity
    view1, view5   disp1.png, disp5.png                      2005 and 2006, 1 x disparity
    aL, aR         aGT.png                                   single pairs as other packages distribute them, for any `a`
    a_left, a_right   a_disp.npz (.pfm, .png)

`sceneflow`: the layout of FlyingThings3D, Monkaa and Driving, in `root` or in its subfolders.

    frames_cleanpass/<scene>/left/0006.png|webp     and the same path with right/
    disparity/<scene>/left/0006.pfm                 with right/, if it exists: tells which pixels both cameras see

`train.txt` or `val.txt` in `root` lists the ids of a split, one per line. Without it, every Middlebury pair belongs to
"val", since such sets are too small to train on by accident. Of SceneFlow, TRAIN/ is "train" and TEST/ is "val" (or
"test"); a tree without either is all "train".
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from hamburger.errors import DataError, check_choice, check_positive, did_you_mean, shorten
from hamburger.stereo.data import stereo_sets
from hamburger.stereo.data.files import StereoFiles, StereoFileSet
from hamburger.training.datasets import check_root
from hamburger.training.image_files import SUFFIXES
from hamburger.training.safe_files import read_lines


def find_image(folder: Path, stem: str) -> Path:
    """The path of the image of that name in any format; if there is none, the path it should have."""
    paths = [folder / f"{stem}{suffix}" for suffix in (*SUFFIXES, ".png")]
    return next((path for path in paths if path.is_file()), paths[-1])


def select_listed(root: Path, split: str, pairs: Iterable[StereoFiles]) -> list[StereoFiles] | None:
    """The pairs whose ids `<split>.txt` lists, one per line, in its order; None if there is no such list."""
    path = root / f"{split}.txt"
    if not path.is_file():
        return None
    lines = read_lines(path, "the ids of the pairs, one per line")
    known = {pair.id: pair for pair in pairs}
    requested = [line.strip() for line in lines if line.strip()]
    unknown = [id for id in requested if id not in known]
    if unknown:
        hints = sorted(known)[:40]
        raise DataError(
            "\n".join(f"{path}: no pair {shorten(id)}{did_you_mean(id, hints)}" for id in unknown[:20]), unknown
        )
    return [known[id] for id in requested]


# -- Middlebury --------------------------------------------------------------------------------------------------------

MIDDLEBURY = "a folder for each pair, such as cones/im2.png, cones/im6.png and cones/disp2.png"


class PairNames(NamedTuple):
    """File names of a pair in one layout, {} for its name; of several truths the first that exists is used."""

    left: str
    right: str
    truths: tuple[str, ...]
    truths_right: tuple[str, ...] = ()
    mask: str = ""
    scale: float = 1.0

    def match(self, stem: str) -> str | None:
        """The name of the pair ("" if the layout has none) if an image of this name belongs to one; otherwise None."""
        for pattern in (self.left, self.right):
            match = re.fullmatch(pattern.replace("{}", "(.+)"), stem)
            if match:
                return "".join(match.groups())
        return None


FIXED_NAMES = (
    PairNames("im0", "im1", ("disp0GT.pfm", "disp0.pfm"), ("disp1GT.pfm", "disp1.pfm"), "mask0nocc.png"),
    PairNames("im2", "im6", ("disp2.png", "disp2.pfm"), ("disp6.png", "disp6.pfm"), scale=4.0),
    PairNames("view1", "view5", ("disp1.png", "disp1.pfm"), ("disp5.png", "disp5.pfm")),
)
FREE_NAMES = (
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
        root = check_root("middlebury", Path(root), MIDDLEBURY)
        if scale is not None:
            check_positive("middlebury", "scale", scale)
        folders = sorted(Path(folder) for folder, _, _ in os.walk(root))
        pairs = [pair for folder in folders for pair in find_folder_pairs(folder, root, scale)]
        if not pairs:
            raise DataError(f"middlebury: there is no pair in {root} or below; it should hold {MIDDLEBURY}")
        selected = select_listed(root, split, pairs)
        if selected is None and split != "val":
            raise DataError(
                f"middlebury: {root} does not say which of its {len(pairs)} pairs are '{split}'; put their ids into "
                f"{root / f'{split}.txt'}, one per line, such as {pairs[0].id}"
            )
        super().__init__("middlebury", split, pairs if selected is None else selected, shrink=shrink)


def find_folder_pairs(folder: Path, root: Path, scale: float | None = None) -> Iterator[StereoFiles]:
    """The pairs of one folder: one if it has a benchmark's fixed file names, otherwise one per name."""
    stems = sorted(_list_stems(folder))
    fixed = [names for names in FIXED_NAMES if any(names.match(stem) is not None for stem in stems)]
    if fixed:
        # 2003 has im0 and im1 too, but without disparities; 2014 has im1L, the same view in another light
        known = [names for names in fixed if any((folder / truth).is_file() for truth in names.truths)]
        yield _describe_pair(folder, root, (known or fixed)[0], "", scale)
        return
    for names in FREE_NAMES:
        for pair in sorted({name for stem in stems if (name := names.match(stem)) is not None}):
            yield _describe_pair(folder, root, names, pair, scale)


def _describe_pair(folder: Path, root: Path, names: PairNames, name: str, scale: float | None) -> StereoFiles:
    def find_first(*candidates: str) -> Path | None:
        paths = [folder / candidate.format(name) for candidate in candidates if candidate]
        return next((path for path in paths if path.is_file()), None)

    inner = folder.relative_to(root).as_posix()
    alone = not name or name == folder.name  # aloe/aloeL is the pair "aloe"
    return StereoFiles(
        inner if alone and inner != "." else (f"{inner}/{name}" if inner != "." else name or folder.name),
        find_image(folder, names.left.format(name)),
        find_image(folder, names.right.format(name)),
        find_first(*names.truths) or folder / names.truths[0].format(name),
        scale=names.scale if scale is None else float(scale),
        disparity_right=find_first(*names.truths_right),
        mask=find_first(names.mask),
    )


def _list_stems(folder: Path) -> set[str]:
    """Names of the images in a folder, without suffix."""
    if not folder.is_dir():
        return set()
    return {path.stem for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file()}


# -- SceneFlow ---------------------------------------------------------------------------------------------------------

SCENEFLOW = "frames_cleanpass/ (or frames_finalpass/) and disparity/, or folders that hold them"


@stereo_sets.register("sceneflow")
class SceneFlowSet(StereoFileSet):
    """Rendered pairs of SceneFlow.

    - `rendering`: "cleanpass", or "finalpass" with blur and fog
    - `shrink`: 2 for pairs of half their size, and so on
    """

    def __init__(self, split: str = "train", *, root: Path, rendering: str = "cleanpass", shrink: int = 1) -> None:
        root = check_root("sceneflow", Path(root), SCENEFLOW)
        check_choice("sceneflow", "rendering", rendering, ("cleanpass", "finalpass"))
        pairs = list(find_sceneflow_pairs(root, f"frames_{rendering}"))
        selected = select_listed(root, split, pairs)
        if selected is None:
            check_choice("sceneflow", "split", split, ("train", "val", "test"))
            selected = [pair for pair in pairs if ("TEST" in pair.id.split("/")) == (split != "train")]
        if not selected:
            count = f"{len(pairs)} pairs" if pairs else "no pair"
            raise DataError(
                f"sceneflow: {root} has {count}, and none of split '{split}'; it should hold {SCENEFLOW}, with TRAIN/ "
                f"and TEST/ below or {split}.txt next to them"
            )
        super().__init__("sceneflow", split, selected, shrink=shrink)


def find_sceneflow_pairs(root: Path, frames: str) -> Iterator[StereoFiles]:
    """All pairs of a tree, or of the trees in its subfolders."""
    for tree in (root, *sorted(path for path in root.iterdir() if path.is_dir())):
        prefix = "" if tree == root else f"{tree.name}/"
        sides = [path for side in ("left", "right") for path in (tree / frames).rglob(side) if path.is_dir()]
        for folder in sorted({path.parent for path in sides}):
            scene = folder.relative_to(tree / frames)
            truth = tree / "disparity" / scene
            # both sides are listed, so that a frame without its partner is reported
            for stem in sorted(_list_stems(folder / "left") | _list_stems(folder / "right")):
                right = truth / "right" / f"{stem}.pfm"
                yield StereoFiles(
                    f"{prefix}{(scene / stem).as_posix()}",
                    find_image(folder / "left", stem),
                    find_image(folder / "right", stem),
                    truth / "left" / f"{stem}.pfm",
                    disparity_right=right if right.is_file() else None,
                )
