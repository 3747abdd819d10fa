"""Errors of a stereo network on a set of pairs, pooled over all of its pixels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hamburger import distributed
from hamburger.data.ahead import ahead
from hamburger.data.normalise import MEAN, STD, normalise
from hamburger.data.stereo import StereoSet
from hamburger.metrics.disparity import DisparityErrors, mean_errors

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
