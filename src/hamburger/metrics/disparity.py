"""Errors of disparities, pooled over the pixels of a whole set, as they come."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hamburger import distributed
from hamburger.errors import InputError, ShapeError

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
