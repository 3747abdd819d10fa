"""The research lab of hamburger: benchmarks, ablations, the paper's claims with verdicts, and the result pages."""
