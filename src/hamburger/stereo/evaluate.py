"""End-point error and shares of wrong pixels of a stereo network on a split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hamburger import distributed
from hamburger.devices import to_double
from hamburger.errors import InputError
from hamburger.stereo.data import UNKNOWN, StereoSet
from hamburger.training.image_files import MEAN, STD, normalise
from hamburger.training.supervised import evaluation_mode, read_share

BOUNDS = (1.0, 3.0)  # pixels of error beyond which a disparity counts as wrong
MAX_LISTED = 20  # sets of at most so many pairs are also scored pair by pair


@dataclass(frozen=True)
class StereoScores:
    """Errors over all known pixels, of images that the set made smaller by `shrink`.

    To add a score, sum it in `measure_pair` and compute it in `summarise_errors`: every field here is written to
    result.json and metrics.jsonl, and those named in `StereoTask.metrics` (task.py) are printed.
    """

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
    sums = torch.zeros(len(pairs), 10, dtype=torch.float64)
    with evaluation_mode(net, fixed_size=False):
        for index, sample in read_share(pairs, workers, progress):
            left, right = (normalise(image.to(device), mean, std)[None] for image in (sample.left, sample.right))
            truth, seen = sample.disparity.to(device), None if sample.seen is None else sample.seen.to(device)
            sums[index] = measure_pair(net(left, right)[0], truth, seen, max_disparity).cpu()
    if distributed.world_size() > 1:  # every pair was measured by one process
        sums = distributed.sum_over_ranks(sums.to(device)).cpu()
    return summarise_errors(sums, pairs, max_disparity)


def measure_pair(prediction: Tensor, truth: Tensor, seen: Tensor | None, max_disparity: float) -> Tensor:
    """Sums over the pixels of one pair.   h w, h w, h w   ->   10, float64

    `sum_errors` of all known pixels, then of those that both cameras see; the number of pixels that the network cannot
    predict; and 1 if it is known what both cameras see.
    """
    if not torch.isfinite(truth).all():
        raise InputError("evaluate_stereo: true disparities must be finite; write 0 where they are unknown")
    prediction = to_double(prediction)
    truth, seen = truth.to(prediction), None if seen is None else seen.to(prediction.device)
    known = truth > UNKNOWN
    both = known & seen if seen is not None else torch.zeros_like(known)
    counts = [(truth >= max_disparity).sum().double(), truth.new_tensor(seen is not None, dtype=torch.float64)]
    return torch.cat([sum_errors(prediction, truth, known), sum_errors(prediction, truth, both), torch.stack(counts)])


def sum_errors(prediction: Tensor, truth: Tensor, counted: Tensor) -> Tensor:
    """Number of counted pixels, their summed absolute error, and how many exceed each bound.   ->   4, float64

    A prediction that is not finite exceeds every bound.
    """
    absolute = (prediction.double() - truth.double()).abs()[counted]
    exceeding = [(~(absolute <= bound)).sum().double() for bound in BOUNDS]
    return torch.stack([counted.sum().double(), absolute.sum(), *exceeding])


def mean_errors(sums: Tensor) -> tuple[float, float, float] | tuple[None, None, None]:
    """End-point error in pixels, shares of errors above 1 and above 3; None if no pixel was counted.   4   ->   3"""
    pixels, total, over_1, over_3 = sums.tolist()
    return (total / pixels, over_1 / pixels, over_3 / pixels) if pixels else (None, None, None)


def summarise_errors(sums: Tensor, pairs: StereoSet, max_disparity: int) -> StereoScores:
    """Scores over all pixels, where every pixel weighs the same, and over pairs.   sums: pairs 10, of `measure_pair`"""
    pooled: Tensor = sum(sums)  # type: ignore[assignment] # one after another: always the same bits
    epe, over_1, over_3 = mean_errors(pooled[:4])
    epe_seen, over_1_seen, over_3_seen = mean_errors(pooled[4:8])
    each = [mean_errors(row[:4])[0] for row in sums]
    known = [error for error in each if error is not None]
    assert epe is not None and over_1 is not None and over_3 is not None  # checks refuse sets without a known pixel
    beyond = float(pooled[8] / pooled[0])
    size = "full size" if pairs.shrink == 1 else f"at 1/{pairs.shrink} of the size, in pixels of that size"
    missed = f", beyond which {100 * beyond:.1f} % of them lie" if beyond else ""
    return StereoScores(
        epe=epe,
        over_3=over_3,
        over_1=over_1,
        epe_pair_mean=sum(known) / len(known),
        epe_seen=epe_seen,
        over_3_seen=over_3_seen,
        over_1_seen=over_1_seen,
        images_seen=int(pooled[9]),
        beyond_reach=beyond,
        per_pair=dict(zip(pairs.ids, each, strict=True)) if len(pairs) <= MAX_LISTED else {},
        protocol=f"{size}, all known pixels, reach {max_disparity} px{missed}",
        images=len(pairs),
        shrink=pairs.shrink,
    )
