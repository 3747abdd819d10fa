"""`sceneflow`: trees as FlyingThings3D, Monkaa and Driving have them.

    frames_cleanpass/<scene>/left/0006.png|webp     the same path with right/ is its partner
    disparity/<scene>/left/0006.pfm                 and with right/ tells what both cameras see, where it is there

`root` is the folder that holds these two, or one above it. Scenes of TRAIN/ are the split "train", those of TEST/ are
"val" (or "test"); a tree without either is "train" altogether. `train.txt` or `val.txt` in `root`, one id a line such
as `TRAIN/A/0000/0006`, say otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hamburger.errors import DataError, check_choice
from hamburger.stereo.data.base import stereo_sets
from hamburger.stereo.data.files import StereoFiles, StereoFileSet, image_at, listed
from hamburger.training.datasets import check_root
from hamburger.training.image_files import SUFFIXES

LAYOUT = "frames_cleanpass/ (or frames_finalpass/) and disparity/, or folders that hold them"
PARTS = {"TRAIN": ("train",), "TEST": ("val", "test")}
SPLITS = ("train", "val", "test")
RENDERINGS = ("cleanpass", "finalpass")


@stereo_sets.register("sceneflow")
class SceneFlow(StereoFileSet):
    """`rendering`: "cleanpass", or "finalpass" with its blur and fog.   `shrink`: 2 for half the size, and so on."""

    def __init__(self, split: str = "train", *, root: Path, rendering: str = "cleanpass", shrink: int = 1) -> None:
        root = check_root("sceneflow", Path(root), LAYOUT)
        check_choice("sceneflow", "rendering", rendering, RENDERINGS)
        pairs = list(find_pairs(root, f"frames_{rendering}"))
        chosen = listed(root, split, pairs)
        if chosen is None:
            check_choice("sceneflow", "split", split, SPLITS)
            chosen = [pair for pair in pairs if split in _splits(pair.id)]
        if not chosen:
            found = f"{len(pairs)} pairs" if pairs else "no pair"
            raise DataError(
                f"sceneflow: {root} has {found}, and none of split '{split}'; it should hold {LAYOUT}, with TRAIN/ and "
                f"TEST/ below or {split}.txt beside them"
            )
        super().__init__("sceneflow", split, chosen, shrink=shrink)


def find_pairs(root: Path, frames: str) -> Iterator[StereoFiles]:
    trees = [root, *sorted(path for path in root.iterdir() if path.is_dir())]
    for tree in trees:
        if not (tree / frames).is_dir():
            continue
        prefix = "" if tree == root else f"{tree.name}/"
        folders = {path.parent for side in ("left", "right") for path in (tree / frames).rglob(side) if path.is_dir()}
        for folder in sorted(folders):
            scene = folder.relative_to(tree / frames)
            truth = tree / "disparity" / scene
            for stem in sorted(_stems(folder / "left") | _stems(folder / "right")):
                right = truth / "right" / f"{stem}.pfm"
                yield StereoFiles(
                    f"{prefix}{(scene / stem).as_posix()}",
                    image_at(folder / "left", stem),
                    image_at(folder / "right", stem),
                    truth / "left" / f"{stem}.pfm",
                    disparity_right=right if right.is_file() else None,
                )


def _stems(folder: Path) -> set[str]:
    """A frame without its partner, on either side, is a defect of the tree; so both sides are asked."""
    if not folder.is_dir():
        return set()
    return {path.stem for path in folder.iterdir() if path.suffix.lower() in SUFFIXES}


def _splits(id: str) -> tuple[str, ...]:
    return next((splits for part, splits in PARTS.items() if part in id.split("/")), ("train",))
