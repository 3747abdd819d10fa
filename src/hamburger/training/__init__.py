"""One training loop, one evaluation loop, checkpoints and run folders."""
