"""Decompositions as values, and how they are differentiated."""

from hamburger.solvers.base import Factors, Ham, hams
from hamburger.solvers.cd import CD
from hamburger.solvers.decompose import Decomposition, as_ham, decompose
from hamburger.solvers.grad import BPTT, Gradient, Truncated, as_gradient, bptt, one_step
from hamburger.solvers.implicit import Implicit
from hamburger.solvers.nmf import NMF
from hamburger.solvers.vq import VQ

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
