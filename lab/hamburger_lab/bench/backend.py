"""Which program the hams of a measurement were told to take."""

from __future__ import annotations

import os

from hamburger.hams.fused import VARIABLE


def asked() -> str:
    """What the environment says for the whole process: `auto`, where it says nothing."""
    return os.environ.get(VARIABLE, "auto")
