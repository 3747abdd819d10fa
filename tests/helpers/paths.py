"""Where the repository is, and the data folder next to it, which a fresh machine does not have."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
