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
from hamburger.training.loader import prefetch

MAX_LISTED = 20  # sets of at most so many pairs are also scored pair by pair


@dataclass(frozen=True)
class StereoScores:
    """Errors over all known pixels, of images that the set made smaller by `shrink`."""

    epe: float  # end-point error in pixels
    over_3: float  # share of pixels with an error above 3 pixels
    over_1: float
    epe_pair_mean: float  # mean of the pairs' end-point errors, whatever their number of pixels
    # over the pixels that both cameras see, in the pairs where that is known; None if it is known for none. Unless it
    # is known for all, these are of other pairs than `epe`
    epe_seen: float | None
    over_3_seen: float | None
    over_1_seen: float | None
    images_seen: int  # pairs of which it is known what both cameras see
    beyond_reach: float  # share of pixels whose disparity the network cannot predict; they count like all others
    per_pair: dict[str, float | None]  # end-point errors of a small set
    protocol: str
    images: int
    shrink: int = 1


@torch.no_grad()  # not inference mode: modules may keep tensors made here and train with them later
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
    """Scores of `net` on every whole pair, one at a time, shared among the processes. The mode of `net` is restored."""
    pooled = DisparityErrors()
    each = [DisparityErrors() for _ in pairs.ids] if len(pairs) <= MAX_LISTED else []
    own = range(distributed.rank(), len(pairs), distributed.world_size())
    training, benchmark = net.training, torch.backends.cudnn.benchmark
    net.eval()
    torch.backends.cudnn.benchmark = False  # nearly every pair may have a different size
    try:
        with closing(prefetch(pairs.__getitem__, own, workers=workers, depth=2 * max(1, workers))) as samples:
            for done, (index, sample) in enumerate(zip(own, samples, strict=True)):
                progress(done, len(own))
                left, right = (normalise(image.to(device), mean, std)[None] for image in (sample.left, sample.right))
                truth, seen = sample.disparity.to(device), None if sample.seen is None else sample.seen.to(device)
                prediction = net(left, right)[0]
                for errors in (pooled, *each[index : index + 1]):
                    errors.update(prediction, truth, seen, most=max_disparity)
    finally:
        net.train(training)
        torch.backends.cudnn.benchmark = benchmark
    for errors in (pooled, *each):
        errors.gather(device)
    means, seen_by_both = mean_errors(pooled.all), mean_errors(pooled.seen) or (None, None, None)
    pair_mean = pooled.image_mean()
    assert means is not None and pair_mean is not None  # the checks refuse sets without a known pixel
    pair_errors = [mean_errors(errors.all) for errors in each]
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
        per_pair={id: None if one is None else one[0] for id, one in zip(pairs.ids, pair_errors, strict=False)},
        protocol=f"{describe_size(pairs.shrink)}, all known pixels, reach {max_disparity} px{missed}",
        images=len(pairs),
        shrink=pairs.shrink,
    )


def describe_size(shrink: int) -> str:
    """The size of the images, without which errors in pixels mean nothing."""
    return "full size" if shrink == 1 else f"at 1/{shrink} of the size, in pixels of that size"


# -- errors pooled over the pixels of a set ----------------------------------------------------------------------------

BOUNDS = (1.0, 3.0)  # pixels of error beyond which a disparity counts as wrong


def sum_errors(prediction: Tensor, truth: Tensor, counted: Tensor) -> Tensor:
    """Number of counted pixels, their summed absolute error, and how many exceed each bound.   ->   4, float64

    A prediction that is not finite exceeds every bound.
    """
    if not prediction.shape == truth.shape == counted.shape:
        raise ShapeError(
            f"sum_errors: prediction {tuple(prediction.shape)}, truth {tuple(truth.shape)} and mask "
            f"{tuple(counted.shape)} must have the same shape"
        )
    absolute = (prediction.double() - truth.double()).abs()[counted]
    exceeding = [(~(absolute <= bound)).sum().double() for bound in BOUNDS]
    return torch.stack([counted.sum().double(), absolute.sum(), *exceeding])


class DisparityErrors:
    """`sum_errors` accumulated over images, so that every pixel weighs the same; in `image_mean` every image does.

    Errors are summed over all pixels with a known disparity, and again over those that both cameras see, in the images
    where that is known. Sums are float64: the order of images changes only their last bits.
    """

    def __init__(self) -> None:
        self.all = torch.zeros(4, dtype=torch.float64)
        self.seen = torch.zeros(4, dtype=torch.float64)
        self.beyond_reach = torch.zeros(
            (), dtype=torch.float64
        )  # known pixels whose disparity the network cannot predict
        self.images = torch.zeros(
            2, dtype=torch.float64
        )  # images with a known pixel, and the sum of their end-point errors
        self.images_seen = torch.zeros((), dtype=torch.float64)  # images where it is known what both cameras see

    def update(self, prediction: Tensor, truth: Tensor, seen: Tensor | None = None, *, most: float = math.inf) -> None:
        """Add one image: h w, h w with 0 where unknown, h w.   `most`: the largest disparity the network can predict"""
        if prediction.dim() != 2:
            raise ShapeError(f"DisparityErrors: update takes one image h w at a time (got {tuple(prediction.shape)})")
        known = truth > 0
        if not torch.isfinite(truth).all():
            raise InputError("DisparityErrors: true disparities must be finite; write 0 where they are unknown")
        counts = sum_errors(prediction, truth, known).cpu()
        self.all += counts
        if counts[0]:
            self.images += torch.stack([torch.ones_like(counts[0]), counts[1] / counts[0]])
        self.beyond_reach += (truth >= most).sum().double().cpu()
        if seen is not None:
            self.seen += sum_errors(prediction, truth, known & seen).cpu()
            self.images_seen += 1

    def gather(self, device: torch.device) -> None:
        """Sum over all processes; `device` is that of their process group."""
        for name in ("all", "seen", "beyond_reach", "images", "images_seen"):
            setattr(self, name, distributed.sum_over_ranks(getattr(self, name).to(device)).cpu())

    def image_mean(self) -> float | None:
        """The mean of the images' end-point errors; None if no pixel was counted."""
        images, total = self.images.tolist()
        return total / images if images else None


def mean_errors(counts: Tensor) -> tuple[float, float, float] | None:
    """End-point error in pixels, shares of errors above 1 and above 3; None if no pixel was counted.   4   ->   3"""
    pixels, *sums = counts.tolist()
    if not pixels:
        return None
    epe, one, three = (value / pixels for value in sums)
    return epe, one, three
