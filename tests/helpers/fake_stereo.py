"""Small stereo data sets in the layouts that users have, written byte by byte or with Pillow."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from fake_datasets import SIZE, rng, write_image
from PIL import Image

H, W = SIZE


def truth(name: str, *, most: int = 8, unknown: bool = True) -> np.ndarray:
    """A disparity map, h w, of whole numbers 1 ... most; some unknown (0)."""
    values = rng(name).integers(0 if unknown else 1, most + 1, SIZE)
    return values.astype(np.float32)


def write_pfm(path: Path, values: np.ndarray, *, big: bool = False) -> None:
    """Write a PFM file row by row from the bottom, with struct, independently of the library's writer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    h, w = values.shape
    order = ">" if big else "<"
    rows = b"".join(struct.pack(f"{order}{w}f", *(float(v) for v in values[y])) for y in reversed(range(h)))
    path.write_bytes(f"Pf\n{w} {h}\n{1.0 if big else -1.0}\n".encode() + rows)


def write_png(path: Path, values: np.ndarray, *, scale: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((values * scale).astype(np.uint8)).save(path)


def sceneflow(root: Path, *, scenes=("TRAIN/A/0000", "TEST/A/0000"), frames=2, suffix=".png") -> Path:
    for scene in scenes:
        for frame in range(frames):
            for side in ("left", "right"):
                write_image(root / "frames_cleanpass" / scene / side / f"{frame:04d}{suffix}")
            values = truth(f"{scene}{frame}", unknown=False)
            write_pfm(root / "disparity" / scene / "left" / f"{frame:04d}.pfm", values, big=bool(frame % 2))
    return root


def middlebury(root: Path) -> dict[str, np.ndarray]:
    """Write a pair in every Middlebury layout; return the true disparities by id."""
    truths = {name: truth(name) for name in ("cones", "piano", "aloe", "motorcycle", "art")}
    for name, (left, right) in {
        "cones": ("im2.png", "im6.png"),
        "piano": ("im0.png", "im1.png"),
        "art": ("view1.png", "view5.png"),
        "aloe": ("aloeL.jpg", "aloeR.jpg"),
        "motorcycle": ("motorcycle_left.png", "motorcycle_right.png"),
    }.items():
        write_image(root / name / left)
        write_image(root / name / right)
    write_png(root / "cones" / "disp2.png", truths["cones"], scale=4)
    write_png(root / "art" / "disp1.png", truths["art"])
    write_png(root / "aloe" / "aloeGT.png", truths["aloe"])
    infinite = {name: np.where(truths[name] == 0, np.inf, truths[name]) for name in ("piano", "motorcycle")}
    write_pfm(root / "piano" / "disp0GT.pfm", infinite["piano"])
    write_image(root / "piano" / "im1L.png")  # 2014 also has the right view in other lighting
    write_image(root / "cones" / "im0.png")  # 2003 has nine views, two of them with disparities
    write_image(root / "cones" / "im1.png")
    holes = infinite["motorcycle"].astype(np.float32)
    holes[0, 0] = np.nan
    truths["motorcycle"][0, 0] = 0
    np.savez(root / "motorcycle" / "motorcycle_disp.npz", holes)
    return truths
