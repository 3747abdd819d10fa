"""The network that distances are measured with, by what a person types."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from torch import nn

from hamburger.errors import OptionError, did_you_mean
from hamburger.metrics.features import NetworkExtractor, efficientnet_lite0, fid_inception, module_extractor

NAMES = ("inception", "efficientnet-lite0", "torch-fidelity")
DEFAULT_RESIZER = "bilinear-antialias"
OFFICIAL_FILE = "pt_inception-2015-12-05-6726825d.pth"


def find_extractor(
    name: str,
    weights: Path | None = None,
    *,
    resizer: str | None = None,
    size: int | None = None,
    other_weights: bool = False,
) -> NetworkExtractor:
    """`inception` (FID's own), `efficientnet-lite0`, `torch-fidelity` (the package's), or `package.module:name`.

    The last is a person's own: called without arguments, it returns a module that maps b 3 size size in [0, 1] to b d.
    An option that means nothing to the chosen one is an error; None is the extractor's own.
    """
    own = ":" in name
    if not own and name not in NAMES:
        raise OptionError(f"gan fid: no extractor '{name}'{did_you_mean(name, NAMES)}, or package.module:name")
    brought = ("weights", "size", "resizer") if name == "torch-fidelity" else ("weights",) if own else ()
    given = {"weights": weights, "size": size, "resizer": resizer}
    for option in brought:
        if given[option] is not None:
            raise OptionError(f"gan fid: --extractor {name} brings its own {option}; leave --{option} out")
    if other_weights and name != "inception":
        raise OptionError(
            f"gan fid: --other-weights is for --extractor inception alone; {name} is never called FID, so leave it out"
        )
    if name == "torch-fidelity":
        from hamburger.metrics.fidelity import torch_fidelity

        return torch_fidelity()
    resizer = DEFAULT_RESIZER if resizer is None else resizer
    if own:
        return _own(name, size=size, resizer=resizer)
    if name == "inception" and size not in (None, 299):
        raise OptionError(f"gan fid: inception takes images of 299 pixels, got --size {size}")
    if weights is None:
        raise OptionError(
            f"gan fid: --extractor {name} needs --weights FILE: {OFFICIAL_FILE} for inception, a substitute with "
            f"--extractor efficientnet-lite0, whose numbers are labelled and not called FID"
        )
    if not Path(weights).is_file():
        raise OptionError(f"gan fid: there is no file --weights {weights}; name that of --extractor {name}")
    if name == "inception":
        return fid_inception(weights, resizer=resizer, other_weights=other_weights)
    return efficientnet_lite0(weights, size=224 if size is None else size, resizer=resizer)


def _own(name: str, *, size: int | None, resizer: str) -> NetworkExtractor:
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # `python -m` looks there, an installed command does not
        sys.path.append(here)
    try:
        made = getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError, TypeError) as mistake:
        raise OptionError(f"gan fid: --extractor {name}: {mistake}; give package.module:function") from None
    if not isinstance(made, nn.Module):
        raise OptionError(f"gan fid: --extractor {name} must return a torch module, got {type(made).__name__}")
    return module_extractor(made, attribute, size=224 if size is None else size, resizer=resizer)
