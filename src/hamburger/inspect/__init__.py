"""Measurements and result files -> tables and figures. Nothing here trains, and importing it draws nothing."""
