"""The repository, and the data folder next to it, which may not exist."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
