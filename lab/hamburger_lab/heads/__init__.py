"""Segmentation heads of the other systems in the paper's Tables 4 and 5, for the entry point `hamburger.heads`."""

from hamburger_lab.heads import attention, encoding, graphs, pyramids, stages  # noqa: F401  (registers)
