"""The paper's ablations as named grids: cells, queue and result rows."""
