"""Look inside a model of your own: spectra, atoms, convergence and gradients of any layer, by its name.

Every function returns data; `plots.py` draws it into axes of yours.
"""

from hamburger.inspect.activations import (
    FeatureMaps,
    Spectrum,
    attention_maps,
    effective_rank,
    feature_maps,
    spectrum,
    strongest,
)
from hamburger.inspect.plots import plot_convergence, plot_errors, plot_maps, plot_series, plot_spectrum
from hamburger.inspect.solves import (
    CodeMaps,
    Contraction,
    GradientSeries,
    code_maps,
    convergence,
    gradient_series,
    reconstruction_errors,
)

__all__ = [
    "CodeMaps",
    "Contraction",
    "FeatureMaps",
    "GradientSeries",
    "Spectrum",
    "attention_maps",
    "code_maps",
    "convergence",
    "effective_rank",
    "feature_maps",
    "gradient_series",
    "plot_convergence",
    "plot_errors",
    "plot_maps",
    "plot_series",
    "plot_spectrum",
    "reconstruction_errors",
    "spectrum",
    "strongest",
]
