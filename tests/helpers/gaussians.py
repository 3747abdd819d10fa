"""Statistics of features that are all in memory."""

from __future__ import annotations

from hamburger_lab.gan_metrics.distances import Moments


def fit_gaussian(features):
    moments = Moments(features.shape[1])
    moments.update(features)
    return moments.gaussian()
