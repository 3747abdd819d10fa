"""End-point error and shares of wrong pixels of a stereo network on a split."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hamburger import distributed
from hamburger.errors import InputError, ShapeError
from hamburger.stereo.data import StereoSet
from hamburger.training.image_files import MEAN, STD, normalise
from hamburger.training.loader import ahead

LISTED = 20  # pairs of a set that are also scored one by one


@dataclass(frozen=True)
class StereoScores:
    """`epe` in pixels, `over_1` and `over_3` shares of the known pixels; `epe_pair_mean` is the mean of the pairs' own
    epe, however many pixels they have. `..._seen` are of the pixels that both cameras see, in the `images_seen` pairs
    of which that is known (None where it is of none): where that is not all, they are of other pairs than `epe`.

    `beyond_reach` is the share of the known pixels whose disparity the network cannot answer: they count as they are.
    `per_pair` is the epe of each in a small set. Pixels are those of images that a set made smaller by `shrink`.
    """

    epe: float
    over_3: float
    over_1: float
    epe_pair_mean: float
    epe_seen: float | None
    over_3_seen: float | None
    over_1_seen: float | None
    images_seen: int
    beyond_reach: float
    per_pair: dict[str, float | None]
    protocol: str
    images: int
    shrink: int = 1


@torch.no_grad()  # not inference mode: modules may keep what they make here, and train with it later
def evaluate_stereo(
    net: nn.Module,
    pairs: StereoSet,
    *,
    max_disparity: int,
    device: torch.device,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
    workers: int = 0,
    progress: Callable[[int, int], Any] = lambda done, total: None,
) -> StereoScores:
    """Every pair once and whole, one by one, shared among the processes. `net` is left in the mode it came in."""
    pooled = DisparityErrors()
    each = [DisparityErrors() for _ in pairs.ids] if len(pairs) <= LISTED else []
    mine = range(distributed.rank(), len(pairs), distributed.world())
    training, tuning = net.training, torch.backends.cudnn.benchmark
    net.eval()
    torch.backends.cudnn.benchmark = False  # nearly every pair may have a size of its own
    try:
        with closing(ahead(pairs.__getitem__, mine, workers=workers, depth=2 * max(1, workers))) as samples:
            for done, (index, sample) in enumerate(zip(mine, samples, strict=True)):
                progress(done, len(mine))
                left, right = (normalise(image.to(device), mean, std)[None] for image in (sample.left, sample.right))
                truth, seen = sample.disparity.to(device), None if sample.seen is None else sample.seen.to(device)
                found = net(left, right)[0]
                for errors in (pooled, *each[index : index + 1]):
                    errors.update(found, truth, seen, most=max_disparity)
    finally:
        net.train(training)
        torch.backends.cudnn.benchmark = tuning
    for errors in (pooled, *each):
        errors.gather(device)
    means, seen_by_both = mean_errors(pooled.all), mean_errors(pooled.seen) or (None, None, None)
    pair_mean = pooled.image_mean()
    assert means is not None and pair_mean is not None  # sets without a known pixel do not pass their checks
    one_by_one = [mean_errors(errors.all) for errors in each]
    beyond = float(pooled.beyond_reach / pooled.all[0])
    missed = f", beyond which {100 * beyond:.1f} % of them lie" if beyond else ""
    return StereoScores(
        epe=means[0],
        over_3=means[2],
        over_1=means[1],
        epe_pair_mean=pair_mean,
        epe_seen=seen_by_both[0],
        over_3_seen=seen_by_both[2],
        over_1_seen=seen_by_both[1],
        images_seen=int(pooled.images_seen),
        beyond_reach=beyond,
        per_pair={id: None if own is None else own[0] for id, own in zip(pairs.ids, one_by_one, strict=False)},
        protocol=f"{size_said(pairs.shrink)}, all known pixels, reach {max_disparity} px{missed}",
        images=len(pairs),
        shrink=pairs.shrink,
    )


def size_said(shrink: int) -> str:
    """An error of one pixel is `shrink` pixels of the original: no number goes without this."""
    return "full size" if shrink == 1 else f"at 1/{shrink} of the size, in pixels of that size"


# ----------------------------------------------------------------------------------------------------------------------
# Errors of disparities, pooled over the pixels of a whole set, as they come.


BOUNDS = (1.0, 3.0)  # pixels beyond which a disparity is wrong


def errors(prediction: Tensor, truth: Tensor, counted: Tensor) -> Tensor:
    """Pixels, their summed absolute error, and how many are beyond each bound.   ...   ->   4, float64

    What is not finite is beyond every bound.
    """
    if not prediction.shape == truth.shape == counted.shape:
        raise ShapeError(
            f"errors: prediction {tuple(prediction.shape)}, truth {tuple(truth.shape)} and mask {tuple(counted.shape)} "
            "must have one shape"
        )
    off = (prediction.double() - truth.double()).abs()[counted]
    beyond = [(~(off <= bound)).sum().double() for bound in BOUNDS]
    return torch.stack([counted.sum().double(), off.sum(), *beyond])


class DisparityErrors:
    """The sum of `errors` over many images, so that images count by their pixels; `image_mean` counts each alike.

    Over all pixels whose disparity is known, and again over those that both cameras see, in the images of which that is
    known. Sums are float64, image by image: grouping changes nothing but their last bits.
    """

    def __init__(self) -> None:
        self.all = torch.zeros(4, dtype=torch.float64)
        self.seen = torch.zeros(4, dtype=torch.float64)
        self.beyond_reach = torch.zeros((), dtype=torch.float64)  # known pixels that the network cannot answer
        self.own = torch.zeros(2, dtype=torch.float64)  # images with a known pixel, and their end-point errors summed
        self.images_seen = torch.zeros((), dtype=torch.float64)  # images of which it is known what both cameras see

    def update(self, prediction: Tensor, truth: Tensor, seen: Tensor | None = None, *, most: float = math.inf) -> None:
        """One image: h w, h w with 0 where unknown, h w.   `most`: the largest disparity that the network can answer"""
        if prediction.dim() != 2:
            raise ShapeError(f"DisparityErrors: takes one image h w at a time, got {tuple(prediction.shape)}")
        known = truth > 0
        if not torch.isfinite(truth).all():
            raise InputError("DisparityErrors: a true disparity is finite, and 0 where it is unknown")
        counts = errors(prediction, truth, known).cpu()
        self.all += counts
        if counts[0]:
            self.own += torch.stack([torch.ones_like(counts[0]), counts[1] / counts[0]])
        self.beyond_reach += (truth >= most).sum().double().cpu()
        if seen is not None:
            self.seen += errors(prediction, truth, known & seen).cpu()
            self.images_seen += 1

    def gather(self, device: torch.device) -> None:
        """Add up what all processes have counted; `device` is where they meet."""
        for name in ("all", "seen", "beyond_reach", "own", "images_seen"):
            setattr(self, name, distributed.total(getattr(self, name).to(device)).cpu())

    def image_mean(self) -> float | None:
        """The mean of the images' own end-point errors, so that each counts alike; None where no pixel was counted."""
        images, total = self.own.tolist()
        return total / images if images else None


def mean_errors(counts: Tensor) -> tuple[float, float, float] | None:
    """End-point error in pixels, share beyond 1 and beyond 3; None where no pixel was counted.   4   ->   3"""
    pixels, *sums = counts.tolist()
    if not pixels:
        return None
    epe, one, three = (value / pixels for value in sums)
    return epe, one, three
