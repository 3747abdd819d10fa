"""The paper's claims, each with its numbers, the experiment that tests it here, and a verdict from committed rows."""

from hamburger_lab.claims.base import Claim, Finding, Trial, Verdict
from hamburger_lab.claims.registry import CLAIMS
from hamburger_lab.rows import Results

__all__ = ["CLAIMS", "Claim", "Finding", "Results", "Trial", "Verdict"]
