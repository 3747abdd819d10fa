"""Decompositions as values, and how they are differentiated."""

from hamburger.hams.base import Factors, Ham, hams
from hamburger.hams.cd import CD
from hamburger.hams.decompose import (
    BPTT,
    Decomposition,
    Gradient,
    Truncated,
    as_gradient,
    as_ham,
    bptt,
    decompose,
    one_step,
)
from hamburger.hams.implicit import Implicit
from hamburger.hams.nmf import NMF
from hamburger.hams.vq import VQ

__all__ = [
    "BPTT",
    "CD",
    "NMF",
    "VQ",
    "Decomposition",
    "Factors",
    "Gradient",
    "Ham",
    "Implicit",
    "Truncated",
    "as_gradient",
    "as_ham",
    "bptt",
    "decompose",
    "hams",
    "one_step",
]
