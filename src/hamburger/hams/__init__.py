"""Decompositions as values, and how they are differentiated."""

from hamburger.hams.base import Factors, Ham, hams
from hamburger.hams.cd import CD
from hamburger.hams.decompose import (
    BPTT,
    Decomposition,
    Gradient,
    Phantom,
    Truncated,
    as_gradient,
    as_ham,
    bptt,
    decompose,
    one_step,
)
from hamburger.hams.hals import HALS
from hamburger.hams.implicit import Implicit
from hamburger.hams.learned import Learned
from hamburger.hams.local import Local
from hamburger.hams.nmf import NMF
from hamburger.hams.robust import Robust
from hamburger.hams.vq import VQ
from hamburger.hams.windowed import Windowed

__all__ = [
    "BPTT",
    "CD",
    "HALS",
    "NMF",
    "VQ",
    "Decomposition",
    "Factors",
    "Gradient",
    "Ham",
    "Implicit",
    "Learned",
    "Local",
    "Phantom",
    "Robust",
    "Truncated",
    "Windowed",
    "as_gradient",
    "as_ham",
    "bptt",
    "decompose",
    "hams",
    "one_step",
]
