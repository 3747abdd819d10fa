"""How far generated images are from real ones, each number labelled with its feature extractor."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from hamburger.classification.data.load import ImageSet, find_cache_folder
from hamburger.errors import OptionError, check_count, check_positive, check_seed, did_you_mean
from hamburger.generation.metrics.cache import StatisticsKey, cached_features, cached_statistics
from hamburger.generation.metrics.features import (
    NetworkExtractor,
    efficientnet_lite0,
    features_of,
    fid_inception,
    gaussian_of,
    module_extractor,
)
from hamburger.generation.metrics.frechet import Gaussian, Moments, frechet_distance
from hamburger.generation.metrics.image_sets import Distances
from hamburger.generation.metrics.kernel_distance import kernel_distance
from hamburger.generation.metrics.precision_recall import precision_recall
from hamburger.generation.metrics.resize import as_bytes
from hamburger.generation.networks.generator import Generator
from hamburger.generation.sampling import samples
from hamburger.training.keyed_rng import Integers, KeyedRng

CHOICE_SEED = 0  # of the real images whose features are kept: always the same ones
Progress = Callable[[str, int], object]  # what is being read, and how many images of it


@dataclass(frozen=True)
class Measure:
    """`samples` images are generated from `seed`; `choice` of each set are compared one by one."""

    samples: int = 50_000
    choice: int = 10_000
    subsets: int = 100
    subset_size: int = 1_000
    neighbours: int = 3
    seed: int = 0
    truncation: float | None = None
    batch: int = 256

    def __post_init__(self) -> None:
        for name, least in (("samples", 2), ("choice", 2), ("subsets", 2), ("subset_size", 2), ("neighbours", 1)):
            check_count("gan fid", name, getattr(self, name), least=least)
        check_count("gan fid", "batch", self.batch, least=1)
        check_seed("gan fid", self.seed)
        if self.truncation is not None:
            check_positive("gan fid", "truncation", self.truncation)
        if min(self.choice, self.samples) <= self.neighbours:
            raise OptionError(
                f"gan fid: {min(self.choice, self.samples)} images are too few for {self.neighbours} neighbours"
            )


@dataclass(frozen=True)
class RealSide:
    """What is known of the real images; made once, however many generators are measured against them."""

    gaussian: Gaussian
    features: Tensor
    name: str
    split: str
    size: int
    digest: str


def look_at_real(
    images: ImageSet,
    extractor: NetworkExtractor,
    measure: Measure,
    *,
    device: torch.device,
    cache: Path | None = None,
    progress: Progress = lambda what, count: None,
) -> RealSide:
    """Statistics and features of the real images, from the cache where these images, this size and this extractor are
    in it. An extractor without a version is not cached, with a warning.
    """
    if len(images) <= measure.neighbours:
        raise OptionError(
            f"gan fid: {images.name}, split '{images.split}', has {len(images)} images; a covariance and "
            f"{measure.neighbours} neighbours need at least {measure.neighbours + 1}"
        )
    folder = cache or find_cache_folder().parent / "statistics"
    size = (images.size, images.size)
    extractor.to(device)

    def batches(indices: Integers) -> Iterator[Tensor]:
        for first in range(0, len(indices), measure.batch):
            few = indices[first : first + measure.batch]
            progress("real images", len(few))
            yield torch.from_numpy(np.array(images.images[few])).to(device)

    order = np.arange(len(images))

    # as many as will be compared: a part of sorted ones would be of the first classes alone
    count = min(measure.choice, measure.samples, len(images))
    chosen = np.sort(KeyedRng(CHOICE_SEED, len(images)).shuffled(len(images))[:count])

    def statistics() -> Gaussian:
        return gaussian_of(batches(order), extractor, device=device)

    def chosen_features() -> Tensor:
        return features_of(batches(chosen), extractor)

    if extractor.version is None:
        warnings.warn(
            f"{extractor.label}: statistics of the real images are not cached, since a change of its code would go "
            f'unnoticed; to cache them, declare a version (features_version = "1" in the module, or version=)',
            stacklevel=2,
        )
        gaussian, features = statistics(), chosen_features()
    else:
        gaussian = cached_statistics(
            folder, StatisticsKey.of(images.digest, size, extractor, extractor.version), statistics
        )
        key = {"data": images.digest, "size": images.size, "extractor": extractor.label}
        key |= {"extractor_version": extractor.version, "count": count, "seed": CHOICE_SEED}
        features = cached_features(folder, key, chosen_features)
    return RealSide(gaussian, features, images.name, images.split, images.size, images.digest)


def measure_generator(
    generator: Generator,
    real: RealSide,
    extractor: NetworkExtractor,
    measure: Measure,
    *,
    device: torch.device,
    progress: Progress = lambda what, count: None,
) -> Distances:
    if generator.resolution != real.size:
        raise OptionError(
            f"gan fid: the generator makes images of {generator.resolution} pixels, the real ones have {real.size}; "
            f"distances between sizes mean nothing"
        )
    generator.to(device)
    extractor.to(device)
    moments: Moments | None = None
    kept: list[Tensor] = []
    made = samples(
        generator, measure.samples, seed=measure.seed, batch_size=measure.batch, truncation=measure.truncation
    )
    left = min(measure.choice, measure.samples)
    for images, _ in made:
        progress("generated images", len(images))
        features = extractor(as_bytes(images))
        moments = moments or Moments(features.shape[1], device=device)
        moments.update(features)
        kept.append(features[:left])
        left -= len(kept[-1])
    assert moments is not None
    ours, theirs = torch.cat(kept), real.features.to(device)
    fewest = min(len(ours), len(theirs))
    if len(theirs) > fewest:
        raise OptionError(
            f"gan fid: the real side was looked at for {len(theirs)} images to compare, and {fewest} are generated; "
            f"look at it again with the same measure"
        )
    return Distances(
        extractor=extractor.label,
        real=real.gaussian.count,
        fake=measure.samples,
        frechet=frechet_distance(real.gaussian, moments.gaussian()),
        kernel=kernel_distance(
            theirs,
            ours,
            generator=torch.Generator().manual_seed(measure.seed),
            subsets=measure.subsets,
            subset_size=min(measure.subset_size, max(2, fewest // 2)),  # all of it each time would be no draw
        ),
        neighbours=precision_recall(theirs, ours[:fewest], k=measure.neighbours),
    )


# ----------------------------------------------------------------------------------------------------------------------
# The network that distances are measured with, by what a person types.


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

    The last is your own: called without arguments, it returns a module that maps b 3 size size in [0, 1] to b d. Its
    features are cached if it has an attribute `features_version`, a string; change that whenever the code changes.
    An option that means nothing to the chosen extractor is an error; None is the extractor's default.
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
        from hamburger.generation.metrics.torch_fidelity import torch_fidelity

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
    version = getattr(made, "features_version", None)
    if version is not None and not isinstance(version, str):
        raise OptionError(f"gan fid: --extractor {name}: features_version must be a string, got {version!r}")
    return module_extractor(made, attribute, size=224 if size is None else size, resizer=resizer, version=version)
