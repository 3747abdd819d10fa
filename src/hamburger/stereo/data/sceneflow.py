"""`sceneflow`: the layout of FlyingThings3D, Monkaa and Driving.

    frames_cleanpass/<scene>/left/0006.png|webp     and the same path with right/
    disparity/<scene>/left/0006.pfm                 with right/, if it exists: tells which pixels both cameras see

`root` is the folder that holds these two, or its parent. Scenes of TRAIN/ are the split "train", those of TEST/ are
"val" (or "test"); a tree without either is all "train". `train.txt` or `val.txt` in `root`, with one id per line such
as `TRAIN/A/0000/0006`, override this.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hamburger.errors import DataError, check_choice
from hamburger.stereo.data.base import stereo_sets
from hamburger.stereo.data.files import StereoFiles, StereoFileSet, find_image, select_listed
from hamburger.training.datasets import check_root
from hamburger.training.image_files import SUFFIXES

LAYOUT = "frames_cleanpass/ (or frames_finalpass/) and disparity/, or folders that hold them"
PARTS = {"TRAIN": ("train",), "TEST": ("val", "test")}
SPLITS = ("train", "val", "test")
RENDERINGS = ("cleanpass", "finalpass")


@stereo_sets.register("sceneflow")
class SceneFlowSet(StereoFileSet):
    """Rendered pairs of SceneFlow.

    - `rendering`: "cleanpass", or "finalpass" with blur and fog
    - `shrink`: 2 for pairs of half their size, and so on
    """

    def __init__(self, split: str = "train", *, root: Path, rendering: str = "cleanpass", shrink: int = 1) -> None:
        root = check_root("sceneflow", Path(root), LAYOUT)
        check_choice("sceneflow", "rendering", rendering, RENDERINGS)
        pairs = list(find_sceneflow_pairs(root, f"frames_{rendering}"))
        selected = select_listed(root, split, pairs)
        if selected is None:
            check_choice("sceneflow", "split", split, SPLITS)
            selected = [pair for pair in pairs if split in _find_splits(pair.id)]
        if not selected:
            count = f"{len(pairs)} pairs" if pairs else "no pair"
            raise DataError(
                f"sceneflow: {root} has {count}, and none of split '{split}'; it should hold {LAYOUT}, with TRAIN/ and "
                f"TEST/ below or {split}.txt next to them"
            )
        super().__init__("sceneflow", split, selected, shrink=shrink)


def find_sceneflow_pairs(root: Path, frames: str) -> Iterator[StereoFiles]:
    """All pairs of a tree, or of the trees in its subfolders."""
    trees = [root, *sorted(path for path in root.iterdir() if path.is_dir())]
    for tree in trees:
        if not (tree / frames).is_dir():
            continue
        prefix = "" if tree == root else f"{tree.name}/"
        folders = {path.parent for side in ("left", "right") for path in (tree / frames).rglob(side) if path.is_dir()}
        for folder in sorted(folders):
            scene = folder.relative_to(tree / frames)
            truth = tree / "disparity" / scene
            for stem in sorted(_list_stems(folder / "left") | _list_stems(folder / "right")):
                right = truth / "right" / f"{stem}.pfm"
                yield StereoFiles(
                    f"{prefix}{(scene / stem).as_posix()}",
                    find_image(folder / "left", stem),
                    find_image(folder / "right", stem),
                    truth / "left" / f"{stem}.pfm",
                    disparity_right=right if right.is_file() else None,
                )


def _list_stems(folder: Path) -> set[str]:
    """Names of the images in a folder. Both sides are listed, so that a frame without its partner is reported."""
    if not folder.is_dir():
        return set()
    return {path.stem for path in folder.iterdir() if path.suffix.lower() in SUFFIXES}


def _find_splits(id: str) -> tuple[str, ...]:
    return next((splits for part, splits in PARTS.items() if part in id.split("/")), ("train",))
